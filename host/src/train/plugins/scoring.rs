//! Rewards of a generation's completions. [`Reward`] is the seam: whatever gives a column of scores for a batch stands behind it.

use super::{Plugins, from_plugin};
use crate::config::{OnError, PluginEntry};
use crate::dist::World;
use crate::metrics::{Metric, Reduction};
use crate::plugin::{Column, Outcome, RewardBatch, RewardColumn, RewardPlugin};
use crate::rollout::Rollout;
use crate::train::Result;
use crate::train::dataset::Prompt;
use crate::train::experience::offsets;
use crate::train::figures::Figures;
use serde::{Deserialize, Serialize};
use std::ops::Range;
use std::sync::Arc;

/// A reward of the run: what scores completions, and what its scores count.
pub(in crate::train) struct Reward {
    plugin: RewardPlugin,
    /// Factor on its scores.
    weight: f32,
    on_error: OnError,
}

impl Reward {
    /// A plugin with the weight and error policy of its entry.
    pub(in crate::train) fn new(plugin: RewardPlugin, entry: &PluginEntry) -> Self {
        Self { plugin, weight: entry.weight as f32, on_error: entry.on_error }
    }

    /// Its name in figures and events.
    pub(super) fn name(&self) -> &str {
        self.plugin.name()
    }

    /// The plugin that scores.
    pub(in crate::train) fn plugin(&self) -> &RewardPlugin {
        &self.plugin
    }

    /// The same, to be called.
    pub(in crate::train) fn plugin_mut(&mut self) -> &mut RewardPlugin {
        &mut self.plugin
    }

    /// Has another plugin score from now on, and gives the one that did.
    pub(super) fn exchange(&mut self, plugin: RewardPlugin) -> RewardPlugin {
        std::mem::replace(&mut self.plugin, plugin)
    }

    /// Takes another weight and error policy.
    pub(super) fn set(&mut self, weight: f32, on_error: OnError) {
        (self.weight, self.on_error) = (weight, on_error);
    }

    /// Rows of a batch that this rank asks it for: those of its prompts. One that remembers calls sees all at once, on the
    /// first rank.
    fn rows(&self, world: &World, batch: &RewardBatch) -> Range<usize> {
        if self.plugin.info().stateless {
            let prompts = world.share(batch.prompts.len());
            let first = |prompt: usize| batch.prompt_of.partition_point(|of| (*of as usize) < prompt);
            first(prompts.start)..first(prompts.end)
        } else if world.is_first() {
            0..batch.prompt_of.len()
        } else {
            0..0
        }
    }

    /// Its scores of all completions, and its own figures of those that this rank asked for.
    fn score(&mut self, world: &World, batch: &RewardBatch) -> Result<(Answers, Vec<Metric>)> {
        let rows = self.rows(world, batch);
        let Outcome { scores, first_error, failed } = self.plugin.score_or(batch, rows, self.on_error)?;
        let failed = failed.into_iter().map(|(row, error)| (row, error.to_string())).collect();
        let own = Answers { values: scores.rewards, first_error: first_error.map(|error| error.to_string()), failed };
        let mut all = Answers::default();
        for part in world.gather("scores", own)? {
            all.values.extend(part.values);
            all.first_error = all.first_error.or(part.first_error);
            all.failed.extend(part.failed);
        }
        Ok((all, from_plugin(scores.metrics)))
    }
}

/// What became of some rows: their scores, why a first attempt failed, and the rows that failed by
/// themselves.
#[derive(Default, Deserialize, Serialize)]
struct Answers {
    values: Vec<Option<f32>>,
    first_error: Option<String>,
    failed: Vec<(usize, String)>,
}

/// A reward that failed, and what that cost.
pub(in crate::train) struct Trouble {
    /// The reward.
    pub name: String,
    /// Why the first attempt failed.
    pub error: String,
    /// The rows that have no score for it, each with its own error.
    pub failed: Vec<(usize, String)>,
}

/// What the rewards make of a batch.
pub(in crate::train) struct Scored {
    /// A column for each reward.
    pub columns: Vec<RewardColumn>,
    /// Rewards that failed, if only at first.
    pub troubles: Vec<Trouble>,
    /// Figures of them all.
    pub figures: Figures,
}

/// Completions as rewards see them; `columns` are the names of the dataset's further columns.
pub(in crate::train) fn batch(
    step: u64,
    prompts: &[Arc<Prompt>],
    columns: &[String],
    rollouts: &[Rollout],
    texts: &[String],
) -> RewardBatch {
    let values = |name: &str| {
        let value = |p: &Arc<Prompt>| p.columns.get(name).map_or_else(|| "null".to_owned(), ToString::to_string);
        prompts.iter().map(value).collect()
    };
    RewardBatch {
        step,
        // Each plugin's own is put in when it is asked.
        seed: 0,
        prompts: prompts.iter().map(|p| p.text.clone()).collect(),
        columns: columns.iter().map(|name| Column { name: name.clone(), values: values(name) }).collect(),
        prompt_of: rollouts.iter().map(|r| r.prompt as u32).collect(),
        completions: texts.to_vec(),
        finished: rollouts.iter().map(|r| r.finished).collect(),
        offsets: offsets(rollouts),
        token_ids: rollouts.iter().flat_map(|r| r.tokens.iter().copied()).collect(),
    }
}

impl Plugins {
    /// All rewards of all completions, with the host's figures about them.
    pub(in crate::train) fn score(&mut self, batch: RewardBatch) -> Result<Scored> {
        let batch = Arc::new(batch);
        let mut figures = Figures::begin();
        let (mut columns, mut troubles) = (Vec::with_capacity(self.rewards.len()), Vec::new());
        for reward in &mut self.rewards {
            let (Answers { values, first_error, failed }, own) = reward.score(&self.world, &batch)?;
            let name = reward.name().to_owned();
            figures.add(own);
            figures.add(self.world.once(reward_metrics(&name, &values)));
            let errors = Metric::new(format!("plugins/{name}/errors"), failed.len() as f64, Reduction::Sum);
            figures.add(self.world.once([errors]));
            troubles.extend(first_error.map(|error| Trouble { name: name.clone(), error, failed }));
            columns.push(RewardColumn { name, weight: reward.weight, values });
        }
        self.swaps.saw_scores(batch, &columns);
        Ok(Scored { columns, troubles, figures })
    }
}

/// `rewards/<name>/mean` and `/std` (n - 1) over the scorable completions of a generation.
fn reward_metrics(name: &str, rewards: &[Option<f32>]) -> Vec<Metric> {
    let scored: Vec<f64> = rewards.iter().flatten().map(|&r| f64::from(r)).collect();
    let n = scored.len() as f64;
    if scored.is_empty() {
        return Vec::new();
    }
    let mean = scored.iter().sum::<f64>() / n;
    let mut metrics = vec![Metric::mean(format!("rewards/{name}/mean"), mean, n)];
    if n > 1.0 {
        let squares: f64 = scored.iter().map(|r| (r - mean) * (r - mean)).sum();
        metrics.push(Metric::mean(format!("rewards/{name}/std"), (squares / (n - 1.0)).sqrt(), n));
    }
    metrics
}
