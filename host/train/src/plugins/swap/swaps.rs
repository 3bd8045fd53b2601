//! The state of swaps during a run.

use super::super::{Opener, ScoringBatch};
use super::predecessor::Predecessors;
use super::predecessor::PreviousVersion;
use super::slots::{Board, PluginSlot};
use super::trial::PluginTrial;
use super::watcher::{Proposal, Trigger};
use crate::experience::RewardScoreColumn;
use crate::plugin::{Batch, PluginEngine, ScoredGeneration};
use crate::run::PluginVersion;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, PoisonError};

/// A swap of a plugin.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub(crate) struct Swap {
    pub step: u64,
    pub plugin: String,
    pub from: PluginVersion,
    pub to: PluginVersion,
    /// Whether the swap was a rollback.
    pub rolled_back: bool,
}

/// Plugin files that the user named, by plugin.
pub(super) type NamedPluginFiles = BTreeMap<String, String>;

/// The state of a run's swaps.
pub(in crate::plugins) struct Swaps {
    pub(super) board: Arc<Mutex<Board>>,
    /// Loads plugins and opens models that another rank proposes or a checkpoint stored.
    pub(super) loaders: Option<(PluginEngine, Opener)>,
    pub(super) proposals: Option<Receiver<Proposal>>,
    pub(super) previous: BTreeMap<String, PreviousVersion>,
    /// Predecessors from before the run was resumed.
    pub(super) earlier: Predecessors,
    /// Named files, without which the run must not start.
    pub(super) named: NamedPluginFiles,
    /// All swaps of the run.
    pub(super) history: Vec<Swap>,
}

impl Swaps {
    /// Creates the state from the run's initial plugins. New plugins are tried on `trial` until there is a newer batch.
    pub(in crate::plugins) fn new(slots: Vec<PluginSlot>, trial: PluginTrial) -> Self {
        let board = Arc::new(Mutex::new(Board::new(slots, trial)));
        let (before, earlier, named) = Default::default();
        Self { board, loaders: None, proposals: None, previous: before, earlier, named, history: Vec::new() }
    }

    pub(super) fn with<R>(&self, f: impl FnOnce(&mut Board) -> R) -> R {
        f(&mut self.board.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Records the newest completions with their scores.
    pub(in crate::plugins) fn saw_scores(
        &self,
        (judged, with_steps): (Arc<ScoringBatch>, Option<Arc<ScoringBatch>>),
        rewards: &[RewardScoreColumn],
    ) {
        let scores = rewards.iter().map(|r| (r.name.clone(), r.values.clone())).collect();
        self.with(|board| (board.trial.scored, board.trial.with_steps) = ((judged, scores), with_steps));
    }

    /// Records the newest generation as seen by the algorithm.
    pub(in crate::plugins) fn saw_generation(&self, generation: Arc<ScoredGeneration>) {
        self.with(|board| board.trial.generation = Some(generation));
    }

    /// Records the newest micro-batch as seen by the algorithm.
    pub(in crate::plugins) fn saw_loss(&self, batch: Arc<Batch>) {
        self.with(|board| board.trial.loss = batch);
    }

    /// Records that the content of a plugin's file has been handled, whether accepted or not.
    pub(super) fn handled(&self, name: &str, trigger: &Trigger, hash: Option<&str>) {
        if let (Trigger::File, Some(hash)) = (trigger, hash) {
            self.with(|board| board.seen.insert(name.to_owned(), hash.to_owned()));
        }
    }
}
