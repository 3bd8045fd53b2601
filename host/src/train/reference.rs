//! The reference model: what it says of completions, once or each time, and how it may follow the
//! policy.

use super::Result;
use super::batch::MicroBatch;
use super::experience::Experience;
use super::trainer::{Prompt, Trainer};
use std::sync::Arc;

impl Trainer {
    /// Log-probabilities under the reference model, where there is one or was one.
    pub(super) fn reference_logp(&self, e: &Experience) -> Result<Option<Vec<f32>>> {
        let Some(reference) = &self.reference else {
            let known = e.prompts.iter().map(|prompt| prompt.ref_logp.get());
            return Ok(known.collect::<Option<Vec<_>>>().map(|columns| columns.into_iter().flatten().copied().collect()));
        };
        let score = |batch: &MicroBatch| Ok(reference.score(&batch.forest, &batch.selected, self.temperature())?.logp);
        self.by_micro_batches(e, score).map(Some)
    }

    /// Asks the reference model for all of the dataset's answers, and lets it go.
    pub(super) fn precompute_reference(&mut self) -> Result<()> {
        if self.reference.is_none() || !self.config.precompute_ref_log_probs {
            return Ok(());
        }
        let evaluated = self.evaluation.iter().flat_map(|e| &e.prompts);
        let all: Vec<Arc<Prompt>> = self.prompts.iter().chain(evaluated).cloned().collect();
        for some in all.chunks(self.config.batch_size()) {
            let experience = self.given(some.to_vec())?;
            let Some(logp) = &experience.ref_logp else { continue };
            for (i, prompt) in some.iter().enumerate() {
                let rows = experience.rollouts.iter().enumerate().filter(|(_, rollout)| rollout.prompt == i);
                let column = rows.flat_map(|(row, _)| &logp[experience.tokens(&(row..row + 1))]).copied().collect();
                // The same row of the same dataset has the same figures.
                let _ = prompt.ref_logp.set(column);
            }
        }
        self.reference = None;
        Ok(())
    }

    /// Mixes the policy into the reference model where that is due (TRL's `SyncRefModelCallback`).
    pub(super) fn sync_reference(&mut self) -> Result<()> {
        let due = self.config.sync_ref_model && self.state.global_step.is_multiple_of(self.config.ref_model_sync_steps);
        if let Some(reference) = self.reference.as_mut().filter(|_| due) {
            *reference = reference.mixed(self.policy.weights(), self.config.ref_model_mixup_alpha)?;
            self.phases.lap("reference");
        }
        Ok(())
    }
}
