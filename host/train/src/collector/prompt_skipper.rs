//! Skips prompts that are always or never solved: once all completions of a prompt have had the same reward several times in a row, the
//! prompt is skipped with a probability each time it would be drawn, until its rewards differ again.

use super::totals::{differ, totals};
use crate::config::RunConfig;
use crate::experience::Experience;
use crate::metrics::Metric;
use crate::ops::dropout::mixed_bits;
use std::collections::BTreeMap;

/// For each prompt, by its position among the used ones, the number of consecutive times that its rewards did not differ. Zeros are
/// omitted.
pub(crate) type Streaks = BTreeMap<usize, u32>;

/// Decides which prompts are skipped.
#[derive(Clone, Debug)]
pub(super) struct PromptSkipper {
    probability: f64,
    /// Length of a streak at which a prompt begins to be skipped.
    after: u32,
    seed: u64,
    metric: Option<String>,
    pub streaks: Streaks,
}

impl PromptSkipper {
    /// Creates a skipper as configured; none if no prompt is skipped.
    pub(super) fn from_config(config: &RunConfig) -> Option<Self> {
        let seed = config.shuffle_seed();
        let (probability, after) = (config.skip_groups, config.skip_groups_after);
        let metric = config.filter_groups_metric.clone();
        (probability > 0.0).then(|| Self { probability, after, seed, metric, streaks: Streaks::new() })
    }

    /// Returns whether a prompt is skipped in a pass: a random choice that depends on the seed, the pass and the prompt.
    pub(super) fn skips(&self, epoch: u64, prompt: usize) -> bool {
        let drawn = mixed_bits(self.seed ^ mixed_bits(epoch ^ mixed_bits(!(prompt as u64))));
        let share = (drawn >> 11) as f64 / (1u64 << 53) as f64;
        self.streaks.get(&prompt).is_some_and(|streak| *streak >= self.after) && share < self.probability
    }

    /// Extends or resets the streaks of prompts, by their completions' rewards.
    pub(super) fn note_rewards(&mut self, experience: &Experience) {
        let rewards = totals(&experience.rewards, self.metric.as_deref());
        for (place, prompt) in experience.prompts.iter().enumerate() {
            if differ(&rewards[experience.rows(place..place + 1)]) {
                self.streaks.remove(&prompt.index);
            } else {
                let streak = self.streaks.entry(prompt.index).or_default();
                *streak = streak.saturating_add(1);
            }
        }
    }
}

/// Returns the fraction of skipped prompts as a metric, for a batch of `drawn` prompts.
pub(super) fn skipped(skipped: usize, drawn: usize) -> Metric {
    let all = (skipped + drawn) as f64;
    Metric::mean("skip_groups/skipped_ratio", skipped as f64 / all.max(1.0), all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_is_skipped_with_its_probability_after_its_streak() {
        let config = RunConfig { skip_groups: 0.7, skip_groups_after: 3, ..RunConfig::default() };
        let mut skipping = PromptSkipper::from_config(&config).unwrap();
        skipping.streaks = (0..1000).map(|prompt| (prompt, if prompt < 500 { 3 } else { 2 })).collect();
        let share = |prompts: std::ops::Range<usize>| {
            let n = 20.0 * prompts.len() as f64;
            let skipped = |epoch: u64| prompts.clone().filter(|prompt| skipping.skips(epoch, *prompt)).count();
            (0..20).map(skipped).sum::<usize>() as f64 / n
        };
        // The standard error is 0.005.
        assert!((share(0..500) - 0.7).abs() < 0.02, "{}", share(0..500));
        assert_eq!((share(500..1000), share(1000..2000)), (0.0, 0.0));
        // Each pass and each prompt is drawn independently.
        let first = (0..20).map(|epoch| skipping.skips(epoch, 0)).collect::<Vec<_>>();
        assert!(first.contains(&true) && first.contains(&false));
        assert!(PromptSkipper::from_config(&RunConfig::default()).is_none());
    }
}
