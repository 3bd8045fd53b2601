//! Rollouts that another run has written and logged.

use super::author::WeightsDigest;
use super::logged::Identity;
use super::source::{PolicyVersion, RolloutBatch, RolloutRequest, RolloutSource};
use crate::config::printable_path;
use crate::config::words::counted;
use crate::dataset::Prompt;
use crate::dist::World;
use crate::model::PromptPass;
use crate::rollout_log::{Generation, Key, RolloutLog};
use crate::run::RunFiles;
use crate::{Error, Result};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

/// Reads the completions of a run from its log. Nobody is asked for any but, if the log has none of an evaluation, this process.
pub(super) struct Replayed {
    run: PathBuf,
    /// Of the first rank.
    log: Option<RolloutLog>,
    world: Rc<World>,
    weights: WeightsDigest,
    /// Whether the weights have differed from those of the run.
    differs: bool,
    /// What writes the completions of evaluations that the log does not have.
    decoder: Option<Box<dyn RolloutSource>>,
}

/// What the first rank found in the log.
#[derive(Deserialize, Serialize)]
enum Found {
    Generation(Generation),
    /// The log ends before it; it has so many.
    Missing(u64),
}

impl Replayed {
    /// Opens the log of a run.
    ///
    /// # Errors
    /// If it has none.
    pub(super) fn new(run: &Path, decoder: Option<Box<dyn RolloutSource>>, world: Rc<World>) -> Result<Self> {
        let log = world.is_first().then(|| RolloutLog::open(RunFiles(run).rollouts())).transpose()?;
        if log.as_ref().is_some_and(|log| log.generations() == 0) {
            let detail = format!(
                "{} has no log of its completions from the first on; make it with rollout_log = \"all\"",
                printable_path(run)
            );
            return Err(Error::setting("replay_rollouts", detail));
        }
        Ok(Self { run: run.to_owned(), log, world, weights: WeightsDigest::default(), differs: false, decoder })
    }

    /// Looks a generation up, and says once if the weights are no longer those that wrote the completions.
    fn find(&mut self, identity: &Identity, policy: PolicyVersion<'_>) -> Result<Found> {
        let Some(log) = &self.log else { return Ok(Found::Missing(0)) };
        let Some(entry) = log.find(&identity.key) else { return Ok(Found::Missing(log.generations())) };
        if entry.prompts != identity.prompts {
            let detail = format!(
                "{} of {} was written for other prompts: the dataset, its order or the size of batches differs",
                identity.key,
                printable_path(&self.run)
            );
            return Err(Error::setting("replay_rollouts", detail));
        }
        if !self.differs
            && !self.weights.author(policy.policy, policy.version)?.wrote(entry)
            && matches!(identity.key, Key::Train { .. })
        {
            self.differs = true;
            // A run that generates ahead learns from completions of earlier versions.
            if entry.version == policy.version {
                tracing::warn!(
                    "from step {} on, the weights differ from those that wrote the completions: this run learns from another policy's",
                    policy.version + 1
                );
            }
        }
        Ok(Found::Generation(log.read(entry)?))
    }
}

impl RolloutSource for Replayed {
    fn roll_out(&mut self, request: &RolloutRequest<'_>, policy: PolicyVersion<'_>) -> Result<RolloutBatch> {
        let identity = Identity::new(request, policy.version, &self.world)?;
        let world = self.world.clone();
        let found = world.broadcast("a generation of another run", || self.find(&identity, policy))?;
        match (found, &mut self.decoder) {
            (Found::Generation(generation), _) => {
                let unfit = |detail| Error::unusable(&RunFiles(&self.run).rollouts(), format!("{}: {detail}", identity.key));
                identity.own_part(generation, request, policy.policy, &world).map_err(unfit)
            }
            (Found::Missing(_), Some(decoder)) if matches!(identity.key, Key::Eval { .. }) => decoder.roll_out(request, policy),
            (Found::Missing(generations), _) => {
                let has = counted(generations, "generation");
                let run = printable_path(&self.run);
                Err(Error::ReplayEnds(format!("the log of {run} has {has}, and {} is not among them", identity.key)))
            }
        }
    }

    fn take_prompt_pass(&mut self, _: &[Arc<Prompt>], _: u64) -> Option<PromptPass> {
        None
    }
}
