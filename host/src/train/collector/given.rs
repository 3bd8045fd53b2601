//! Makes experience from a dataset's own completions or pairs.

use super::Collector;
use crate::plugin::Advantages;
use crate::rollout::Rollout;
use crate::train::dataset::Prompt;
use crate::train::experience::Experience;
use crate::train::figures::Figures;
use crate::train::moment::Moment;
use crate::train::{Error, Result};
use std::sync::Arc;

impl Collector {
    /// Makes experience from the dataset's answers to these prompts, with `mismatched` ones if requested.
    pub(super) fn given(&self, prompts: Vec<Arc<Prompt>>, at: Moment, mismatched: bool) -> Result<(Experience, Figures)> {
        let mut figures = Figures::begin();
        let rollouts = answers(&prompts, if self.flow.has_pairs() { 2 } else { 1 }, at.step)?;
        let mut experience = Experience::new(prompts, rollouts);
        figures.lap("data");
        experience.ref_logp = self.reference_logp(&experience)?;
        if mismatched {
            experience.mismatched = Some(Box::new(self.mismatched(&experience)?));
        }
        if experience.ref_logp.is_some() {
            figures.lap("reference");
        }
        Ok((experience, figures))
    }

    /// Appends each completion to the next row's prompt, the last one to the first's, within a batch of all processes.
    fn mismatched(&self, e: &Experience) -> Result<Experience> {
        let (count, longest) = (e.rollouts.len(), self.settings.longest(self.context));
        let follows = |row: usize| self.follows(row, count);
        let mismatch = |row: usize| {
            let (own, other) = (&e.rollouts[row], &e.rollouts[follows(row)]);
            let label = e.prompts[other.prompt].answers.as_ref().and_then(|answers| answers.label.as_ref());
            let mut tokens = [&other.tokens[..], label.map_or(&[], |label| &label.beyond)].concat();
            tokens.truncate(longest.saturating_sub(e.prompts[own.prompt].tokens.len()));
            Rollout { tokens, ..own.clone() }
        };
        let mut all = Experience::new(e.prompts.clone(), (0..count).map(mismatch).collect());
        all.ref_logp = match &self.reference {
            Some(_) => self.reference_logp(&all)?,
            None => (0..count)
                .map(|row| known_mismatched(&e.prompts[row], &e.prompts[follows(row)]))
                .collect::<Result<Vec<_>>>()
                .map(|columns| Some(columns.concat()))?,
        };
        Ok(all)
    }

    /// Returns the row, out of `count`, whose completion is appended to this row's prompt.
    pub(super) fn follows(&self, row: usize, count: usize) -> usize {
        let size = self.settings.batches(self.world.size()).micro_batch;
        if row.is_multiple_of(size) { (row + size).min(count) - 1 } else { row - 1 }
    }

    /// Pairs the dataset's answers, or gives them equal advantages.
    pub(super) fn judge_given(&self, experience: &mut Experience) {
        if self.flow.has_pairs() {
            experience.pairs = Some((0..experience.prompts.len()).map(|i| (2 * i, 2 * i + 1)).collect());
        } else {
            experience.advantages = all_alike(experience);
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

/// Returns the first `count` answers of each prompt as its completions. Nothing sampled them; the log-probabilities that they had are
/// those of this version of the policy.
fn answers(prompts: &[Arc<Prompt>], count: usize, policy_version: u64) -> Result<Vec<Rollout>> {
    let mut rollouts = Vec::with_capacity(count * prompts.len());
    for (prompt, row) in prompts.iter().enumerate() {
        let answers = row.answers.as_ref().ok_or_else(|| Error::Bug("a prompt has no answers"))?;
        for (sample, tokens) in [&answers.chosen, &answers.rejected].into_iter().take(count).enumerate() {
            let tokens = tokens.clone();
            rollouts.push(Rollout { prompt, sample, tokens, finished: true, policy_version, ..Rollout::default() });
        }
    }
    Ok(rollouts)
}

/// Gives every learned token advantage 1.
fn all_alike(e: &Experience) -> Advantages {
    let tokens = e.offsets.last().map_or(0, |end| *end as usize);
    let learned = e.prompts.iter().flat_map(|prompt| &prompt.answers).flat_map(|answers| match &answers.learned {
        Some(mask) => mask.clone(),
        None => vec![1; answers.chosen.len()],
    });
    Advantages { advantages: vec![1.0; tokens], mask: learned.collect(), ..Advantages::default() }
}
