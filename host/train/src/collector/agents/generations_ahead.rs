//! Generations that agents play while training goes on, one after the other.

use super::super::source::{RolloutBatch, metrics_of_staleness};
use super::context;
use super::stage::{AgentGeneration, AgentStage};
use crate::model::IncrementalDecoder;
use crate::{Error, Result};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Instant;

/// Generations that have begun, and the thread that plays them.
#[derive(Default)]
pub(super) struct GenerationsAhead {
    player: Option<GenerationPlayer>,
    begun: BTreeMap<u64, BegunGeneration>,
}

/// Thread that plays generations in the order in which they began.
struct GenerationPlayer {
    jobs: Sender<GenerationJob>,
    thread: JoinHandle<()>,
}

/// A generation to be played, with copies of the policy's weights.
struct GenerationJob {
    stage: Arc<AgentStage>,
    generation: Arc<AgentGeneration>,
    model: IncrementalDecoder,
    played: Sender<Result<RolloutBatch>>,
}

/// A generation that has begun.
struct BegunGeneration {
    generation: Arc<AgentGeneration>,
    played: Receiver<Result<RolloutBatch>>,
}

impl GenerationsAhead {
    /// Begins a generation.
    ///
    /// # Errors
    /// If no thread can be started.
    pub(super) fn begin(&mut self, stage: Arc<AgentStage>, generation: AgentGeneration, model: IncrementalDecoder) -> Result<()> {
        let (sender, played) = channel();
        let (number, generation) = (generation.number, Arc::new(generation));
        let job = GenerationJob { stage, generation: Arc::clone(&generation), model, played: sender };
        let player = match self.player.take() {
            Some(player) => player,
            None => GenerationPlayer::start()?,
        };
        player.jobs.send(job).map_err(|_| Error::Bug("the thread that plays generations has ended"))?;
        self.player = Some(player);
        self.begun.insert(number, BegunGeneration { generation, played });
        Ok(())
    }

    /// Waits for a generation, on which a policy of this version is to be trained; `None` if it has not begun.
    pub(super) fn take(&mut self, number: u64, version: u64) -> Option<Result<RolloutBatch>> {
        let BegunGeneration { generation, played } = self.begun.remove(&number)?;
        let waiting = Instant::now();
        let batch = played.recv().unwrap_or(Err(Error::Bug("the thread that plays generations has ended")));
        Some(batch.map(|mut batch| {
            let staleness = version.saturating_sub(generation.version) as f64;
            batch.metrics.extend(metrics_of_staleness(&[staleness], waiting.elapsed().as_secs_f64()));
            batch
        }))
    }

    /// Ends all generations that have begun, and the thread.
    pub(super) fn discard(&mut self, stage: &AgentStage) {
        self.begun.values().for_each(|begun| begun.generation.discarded.store(true, Ordering::SeqCst));
        self.begun.clear();
        if let Some(GenerationPlayer { jobs, thread }) = self.player.take() {
            stage.interrupt();
            drop(jobs);
            // A panic has already been printed.
            let _ = thread.join();
        }
    }
}

impl GenerationPlayer {
    fn start() -> Result<Self> {
        let (jobs, received) = channel::<GenerationJob>();
        let play = move || {
            for GenerationJob { stage, generation, model, played } in received {
                // The generation may have been discarded.
                let _ = played.send(context::play(&stage, &generation, model, None));
            }
        };
        let thread = thread::Builder::new().name("generations".into()).spawn(play);
        let thread = thread.map_err(|e| Error::setting("max_staleness", format!("a thread can't be started: {e}")))?;
        Ok(Self { jobs, thread })
    }
}
