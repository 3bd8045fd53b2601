//! What a step does, to be held against the time that it takes.

use super::batch::MicroBatch;
use super::step::Share;
use super::trainer::{Prompt, Trainer};
use crate::model::{Generated, Passed};
use crate::rollout::Rollout;
use std::ops::{AddAssign, Range};
use std::sync::Arc;

/// What a step, or several, have done.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Work {
    /// Tokens of completions that were generated, by all processes.
    pub generated: u64,
    /// Tokens that were trained on, prompts once a completion, by all processes.
    pub trained: u64,
    /// Tokens that this process ran forward and backward, each prompt once for its completions.
    pub packed: u64,
    /// What this process's generation needs at least.
    pub generation: Generated,
    /// What this process's passes forward and backward need at least.
    pub passes: Passed,
}

impl AddAssign for Work {
    fn add_assign(&mut self, more: Self) {
        self.generated += more.generated;
        self.trained += more.trained;
        self.packed += more.packed;
        self.generation += more.generation;
        self.passes += more.passes;
    }
}

impl Trainer {
    /// Counts a generation, of whose prompts this process had its `own`.
    pub(super) fn count_generated(&mut self, prompts: &[Arc<Prompt>], own: Range<usize>, rollouts: &[Rollout]) {
        let mut asked: Vec<(&[u32], Vec<usize>)> =
            prompts[own.clone()].iter().map(|prompt| (&prompt.tokens[..], Vec::new())).collect();
        for rollout in rollouts {
            if let Some((_, lengths)) = rollout.prompt.checked_sub(own.start).and_then(|i| asked.get_mut(i)) {
                lengths.push(rollout.tokens.len());
            }
        }
        let generation = self.policy.computing().generated(self.source.architecture(), &asked, self.config.max_num_seqs);
        let work = &mut self.phases.work;
        work.generated += rollouts.iter().map(|r| r.tokens.len() as u64).sum::<u64>();
        work.generation += generation;
    }

    /// Counts the tokens of the step's micro-batches.
    pub(super) fn count_trained(&mut self, shares: &[Share]) {
        let tokens = |Share { experience: e, rows }: &Share| -> usize {
            let length = |row: usize| e.prompts[e.rollouts[row].prompt].tokens.len() + e.rollouts[row].tokens.len();
            if self.learns_from_rows() {
                rows.clone().map(length).sum()
            } else {
                e.pairs[rows.clone()].iter().map(|&(chosen, rejected)| length(chosen) + length(rejected)).sum()
            }
        };
        self.phases.work.trained += shares.iter().map(|share| tokens(share) as u64).sum::<u64>();
    }

    /// Counts a pass, forward and backward.
    pub(super) fn count_pass(&mut self, batch: &MicroBatch) {
        let passed = self.policy.computing().passed(self.source.architecture(), &batch.forest, batch.selected.len());
        self.phases.work.packed += batch.forest.len() as u64;
        self.phases.work.passes += passed;
    }
}
