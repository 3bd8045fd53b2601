//! Makes experience from the completions or pairs of a dataset.

use super::Collector;
use crate::dataset::Prompt;
use crate::experience::Experience;
use crate::plugin::columns::REF_LOGP;
use crate::policy_progress::PolicyProgress;
use crate::rollout::Rollout;
use crate::step_metrics::StepMetrics;
use crate::{Error, Result};
use std::sync::Arc;

impl Collector {
    /// Makes experience from the dataset's answers to these prompts, with `mismatched` ones if requested.
    pub(super) fn take_answers(
        &self,
        prompts: Vec<Arc<Prompt>>,
        at: PolicyProgress,
        mismatched: bool,
    ) -> Result<(Experience, StepMetrics)> {
        let mut figures = StepMetrics::start();
        let rollouts = answers(&prompts, if self.batching.items_are_pairs { 2 } else { 1 }, at.step)?;
        let mut experience = Experience::new(prompts, rollouts);
        figures.lap("data");
        let reference = self.reference_logp(&experience)?;
        let has_reference = reference.is_some();
        experience.columns.set_per_token(REF_LOGP, reference);
        if mismatched {
            experience.mismatched = Some(Box::new(self.mismatched(&experience)?));
        }
        if has_reference {
            figures.lap("reference");
        }
        Ok((experience, figures))
    }

    /// Appends each completion to the next row's prompt, and the last completion to the first prompt, within a batch of all processes.
    fn mismatched(&self, e: &Experience) -> Result<Experience> {
        let (count, longest) = (e.rollouts.len(), self.longest);
        let follows = |row: usize| self.mismatched_row(row, count);
        let mismatch = |row: usize| {
            let (own, other) = (&e.rollouts[row], &e.rollouts[follows(row)]);
            let label = e.prompts[other.prompt].answers.as_ref().and_then(|answers| answers.label.as_ref());
            let mut tokens = [&other.tokens[..], label.map_or(&[], |label| &label.beyond)].concat();
            tokens.truncate(longest.saturating_sub(e.prompts[own.prompt].tokens.len()));
            Rollout { tokens, ..own.clone() }
        };
        let mut all = Experience::new(e.prompts.clone(), (0..count).map(mismatch).collect());
        let reference = match &self.compared.reference {
            Some(_) => self.reference_logp(&all)?,
            None => (0..count)
                .map(|row| known_mismatched(&e.prompts[row], &e.prompts[follows(row)]))
                .collect::<Result<Vec<_>>>()
                .map(|columns| Some(columns.concat()))?,
        };
        all.columns.set_per_token(REF_LOGP, reference);
        Ok(all)
    }

    /// Returns the row, out of `count`, whose completion is appended to this row's prompt.
    pub(super) fn mismatched_row(&self, row: usize, count: usize) -> usize {
        let size = self.batching.sizes.micro_batch;
        if row.is_multiple_of(size) { (row + size).min(count) - 1 } else { row - 1 }
    }

    /// Pairs the dataset's answers, or marks which of their tokens are learned.
    pub(super) fn pair_or_mask(&self, experience: &mut Experience) {
        if self.batching.items_are_pairs {
            experience.pairs = Some((0..experience.prompts.len()).map(|i| (2 * i, 2 * i + 1)).collect());
        } else {
            experience.mask = learned(experience);
        }
    }
}

/// Returns the reference model's precomputed log-probabilities of another row's completion after this prompt.
fn known_mismatched<'a>(prompt: &'a Prompt, other: &Prompt) -> Result<&'a [f32]> {
    match prompt.mismatched_ref_logp.get() {
        Some((row, column)) if *row == other.row => Ok(column),
        _ => {
            let detail = "this batch was not precomputed; set per_device_eval_batch_size to per_device_train_batch_size";
            Err(Error::setting("precompute_ref_log_probs", detail))
        }
    }
}

/// Returns the first `count` answers of each prompt as its completions. They were not sampled and have no recorded log-probabilities:
/// those under this version of the policy count as the old ones.
fn answers(prompts: &[Arc<Prompt>], count: usize, policy_version: u64) -> Result<Vec<Rollout>> {
    let mut rollouts = Vec::with_capacity(count * prompts.len());
    for (prompt, row) in prompts.iter().enumerate() {
        let answers = row.answers.as_ref().ok_or_else(|| Error::Bug("a prompt has no answers"))?;
        for (sample, tokens) in [&answers.chosen, &answers.rejected].into_iter().take(count).enumerate() {
            let (tokens, likely_tokens) = (tokens.clone(), answers.likely_tokens.clone().filter(|_| sample == 0));
            let new = Rollout { prompt, sample, tokens, finished: true, policy_version, likely_tokens, ..Rollout::default() };
            rollouts.push(new);
        }
    }
    Ok(rollouts)
}

/// Returns the mask of the tokens that are learned.
fn learned(e: &Experience) -> Vec<u8> {
    let answers = e.prompts.iter().flat_map(|prompt| &prompt.answers);
    answers.flat_map(|answers| answers.learned.clone().unwrap_or_else(|| vec![1; answers.chosen.len()])).collect()
}
