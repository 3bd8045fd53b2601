//! Saves checkpoints: the first rank alone, or all ranks together if they shard the model.

use super::trainer::{Listener, Trainer};
use super::{Error, Result, ranks};
use crate::activity::{Activity, ProgressTask};
use crate::checkpoint::PartsTimeout;
use crate::run::RunFiles;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Number of attempts to save the last checkpoint.
const TRIES: usize = 2;

impl Trainer {
    /// Saves once all ranks are ready. If a plugin does not return its state, all ranks handle it together.
    pub(super) fn save_together(&mut self, listener: &mut dyn Listener) -> Result<()> {
        self.or_roll_back(listener, |this| {
            this.plugins.snapshots()?;
            Ok(this.world.barrier("states before a checkpoint")?)
        })?;
        self.meet_in_folder()?;
        self.save()
    }

    /// If each rank writes a part of a checkpoint, points all ranks at the current path of the run's folder, once the previous checkpoint
    /// is written.
    ///
    /// # Errors
    /// If a rank does not see the folder, or the previous checkpoint could not be written.
    pub(super) fn meet_in_folder(&mut self) -> Result<()> {
        if !self.learner.is_divided() {
            return Ok(());
        }
        let own = self.journal.finish_part();
        let failures = self.world.gather("parts of a checkpoint", own)?;
        if self.world.is_first() {
            failures.into_iter().flatten().for_each(|reason| self.journal.wait_no_longer(reason));
            self.journal.record_saves(true)?;
            self.follow(true)?;
        }
        let known = self.world.broadcast("saves of all ranks", || Ok::<_, Error>(self.journal.joint_saves()))?;
        if self.world.is_first() { Ok(()) } else { self.journal.join_saves(known, self.world.rank()) }
    }

    /// Copies the run's state and writes it in the background; ranks other than the first write their parts, if they have some. Waits for a
    /// checkpoint in progress, so there is never more than one.
    pub(super) fn save(&mut self) -> Result<()> {
        let step = self.state.global_step;
        let joint = self.learner.is_divided().then(|| self.journal.next_joint_save(step));
        if !self.world.is_first() {
            let Some(save) = joint else { return Ok(()) };
            let part = self.learner.check_weights().and_then(|()| self.part()).map_err(|e| e.to_string());
            self.journal.write_part(save, self.world.rank(), move |to| part?.write(to));
            return Ok(());
        }
        let _task = ProgressTask::new(Activity::Saving);
        let begun = Instant::now();
        self.journal.record_saves(true)?;
        self.follow(true)?;
        let journal = &self.journal;
        self.collector.before_save(step, &|earlier| journal.has_checkpoint(earlier))?;
        self.learner.check_weights()?;
        // Only scheduled checkpoints count: those that the user requests must not change which one is the best.
        if self.saves_at(step) && !self.state.owes_evaluation {
            self.journal.compare_with_best(step);
        }
        let timeout = PartsTimeout::new(Duration::try_from_secs_f64(self.settings.dist_timeout_s).unwrap_or(Duration::MAX));
        let snapshot = self.snapshot(joint.map(|save| (save, timeout.clone())))?;
        match joint {
            Some(save) => self.journal.write_joint(save, timeout, move |to| snapshot.write(to)),
            None => self.journal.write(step, move |to| snapshot.write(to)),
        }
        self.journal.waited_for_checkpoint(begun.elapsed());
        Ok(())
    }

    /// Records checkpoints that have finished, and saves again if one was lost when the folder was renamed or removed.
    pub(super) fn after_saves(&mut self, listener: &mut dyn Listener) -> Result<()> {
        self.journal.record_saves(false)?;
        let owes = self.journal.owes_checkpoint();
        match self.learner.is_divided() {
            false if owes => self.save(),
            true if ranks::any(&self.world, owes)? => self.save_together(listener),
            _ => Ok(()),
        }
    }

    /// Returns the run's last checkpoint once it is on disk, or the best one if the run ends with that.
    pub(super) fn final_checkpoint(&mut self, listener: &mut dyn Listener) -> Result<PathBuf> {
        let step = self.state.global_step;
        for _ in 0..TRIES {
            if !self.learner.is_divided() {
                break;
            }
            let lacks = !self.journal.has_checkpoint(step) || self.journal.owes_checkpoint();
            if !ranks::any(&self.world, lacks)? {
                break;
            }
            self.save_together(listener)?;
            self.journal.record_saves(true)?;
        }
        self.last_checkpoint()
    }

    /// Returns this rank's last checkpoint once it is on disk; see [`Trainer::final_checkpoint`]. Does not communicate, since another rank
    /// may have failed.
    pub(super) fn last_checkpoint(&mut self) -> Result<PathBuf> {
        let step = self.state.global_step;
        if !self.world.is_first() {
            drop(self.journal.finish_part());
            return Ok(RunFiles(self.journal.path()).checkpoint(step));
        }
        let _task = ProgressTask::new(Activity::Saving);
        // Shared parts have already been written by all ranks, or by none.
        let saves_alone = !self.learner.is_divided();
        if saves_alone && !self.journal.has_checkpoint(step) {
            self.save()?;
        }
        self.journal.record_saves(true)?;
        while saves_alone && self.journal.owes_checkpoint() {
            self.save()?;
            self.journal.record_saves(true)?;
        }
        self.journal.last_checkpoint(step)
    }

    /// Saves after a failure that all ranks know of. Ranks that write parts always do so, since they don't know whether the first rank
    /// already has a checkpoint of this step.
    ///
    /// # Errors
    /// If it can't be saved.
    pub(super) fn save_after_failure(&mut self) -> Result<PathBuf> {
        if self.learner.is_divided() {
            let is_there = RunFiles(self.journal.path()).checkpoint(self.state.global_step).is_dir();
            if !is_there {
                self.save()?;
            }
        }
        self.last_checkpoint()
    }
}
