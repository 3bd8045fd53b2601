//! Computes the rewards of a generation's completions. [`Reward`] is the interface: anything that returns a column of scores for
//! a batch can be behind it.

use super::{Plugins, from_plugin};
use crate::config::{OnError, PluginEntry};
use crate::data::Message;
use crate::dist::World;
use crate::metrics::{Metric, Reduction};
use crate::plugin::{self, Column, Outcome, RewardBatch, RewardColumn, RewardPlugin, Start};
use crate::rollout::Rollout;
use crate::train::Result;
use crate::train::dataset::Prompt;
use crate::train::experience::offsets;
use crate::train::figures::Figures;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::ops::Range;
use std::sync::Arc;

/// A reward of the run: what scores completions, and the weight of its scores.
pub(in crate::train) struct Reward {
    plugin: RewardPlugin,
    /// Weight of its scores.
    weight: f32,
    on_error: OnError,
    /// Whether it scores only in evaluations.
    eval_only: bool,
}

impl Reward {
    /// Creates a reward from a plugin with the weight and error policy of its entry.
    pub(in crate::train) fn new(plugin: RewardPlugin, entry: &PluginEntry) -> Self {
        Self { plugin, weight: entry.weight as f32, on_error: entry.on_error, eval_only: entry.eval_only }
    }

    /// Returns its name in metrics and events.
    pub(super) fn name(&self) -> &str {
        self.plugin.name()
    }

    /// Returns the plugin that scores.
    pub(in crate::train) fn plugin(&self) -> &RewardPlugin {
        &self.plugin
    }

    /// Returns the plugin that scores, mutably.
    pub(in crate::train) fn plugin_mut(&mut self) -> &mut RewardPlugin {
        &mut self.plugin
    }

    /// Replaces the plugin and returns the old one.
    pub(super) fn exchange(&mut self, plugin: RewardPlugin) -> RewardPlugin {
        std::mem::replace(&mut self.plugin, plugin)
    }

    /// Sets the weight and the error policy.
    pub(super) fn set(&mut self, weight: f32, on_error: OnError) {
        (self.weight, self.on_error) = (weight, on_error);
    }

    /// Returns the rows of a batch that this rank scores: those of its prompts. A reward that is stateful or asks servers scores
    /// all rows at once, on the first rank.
    fn rows(&self, world: &World, batch: &RewardBatch) -> Range<usize> {
        if self.plugin.is_divisible() {
            let prompts = world.share(batch.prompts.len());
            let first = |prompt: usize| batch.prompt_of.partition_point(|of| (*of as usize) < prompt);
            first(prompts.start)..first(prompts.end)
        } else if world.is_first() {
            0..batch.prompt_of.len()
        } else {
            0..0
        }
    }

    /// Returns its scores of all completions, and its own metrics of those that this rank scored.
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

/// The result for some rows: their scores, why a first attempt failed, and the rows that failed on their own.
#[derive(Default, Deserialize, Serialize)]
struct Answers {
    values: Vec<Option<f32>>,
    first_error: Option<String>,
    failed: Vec<(usize, String)>,
}

/// A reward that failed, and the rows without a score.
pub(in crate::train) struct Trouble {
    /// The reward.
    pub name: String,
    /// Why the first attempt failed.
    pub error: String,
    /// The rows that therefore have no score, each with its own error.
    pub failed: Vec<(usize, String)>,
}

/// The scores of a batch.
pub(in crate::train) struct Scored {
    /// One column per reward.
    pub columns: Vec<RewardColumn>,
    /// Columns of the rewards that score only in evaluations.
    pub for_evaluation: Vec<RewardColumn>,
    /// Rewards that failed, even if a retry succeeded.
    pub troubles: Vec<Trouble>,
    /// Metrics of all rewards.
    pub figures: Figures,
}

/// Returns completions as rewards see them; `columns` are the names of the dataset's other columns.
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

/// Returns the start of an episode of a prompt.
pub(in crate::train) fn start(prompt: &Prompt, episode: u64, seed: u64) -> Start {
    let message = |message: &Message| {
        let text = |name: &str| message.rest.get(name).and_then(Value::as_str).map(str::to_owned);
        plugin::Message {
            role: message.role.clone(),
            content: message.content.clone(),
            name: text("name"),
            tool_call_id: text("tool_call_id"),
        }
    };
    let columns = prompt.columns.iter().map(|(name, value)| (name.clone(), value.to_string())).collect();
    Start { episode, seed, prompt: prompt.messages().iter().map(message).collect(), columns }
}

impl Plugins {
    /// Returns all rewards of all completions, with the host's metrics about them; those for evaluations alone only if it is one.
    pub(in crate::train) fn score(&mut self, batch: RewardBatch, evaluating: bool) -> Result<Scored> {
        let batch = Arc::new(batch);
        let mut figures = Figures::begin();
        let (mut columns, mut troubles) = (Vec::with_capacity(self.rewards.len()), Vec::new());
        let mut for_evaluation = Vec::new();
        for reward in self.rewards.iter_mut().filter(|reward| evaluating || !reward.eval_only) {
            let (Answers { values, first_error, failed }, own) = reward.score(&self.world, &batch)?;
            let name = reward.name().to_owned();
            figures.add(own);
            let errors = Metric::new(format!("plugins/{name}/errors"), failed.len() as f64, Reduction::Sum);
            figures.add(self.world.once([errors]));
            troubles.extend(first_error.map(|error| Trouble { name: name.clone(), error, failed }));
            let into = if reward.eval_only { &mut for_evaluation } else { &mut columns };
            into.push(RewardColumn { name, weight: reward.weight, values });
        }
        self.swaps.saw_scores(batch, &columns);
        Ok(Scored { columns, for_evaluation, troubles, figures })
    }
}
