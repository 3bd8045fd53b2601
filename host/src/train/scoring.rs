//! Rewards of a generation's completions.

use super::experience::{from_plugin, offsets};
use super::trainer::{Prompt, Trainer};
use super::{Error, Result};
use crate::config::{OnError, PluginEntry};
use crate::metrics::{Metric, Reduction};
use crate::plugin::{Column, Outcome, RewardBatch, RewardColumn, RewardPlugin};
use crate::rollout::Rollout;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::sync::Arc;

/// Generations in a row without a score, each without an error, that end a run.
const MOST_UNSCORED: u64 = 16;

/// A reward of the run.
pub(super) struct Reward {
    pub plugin: RewardPlugin,
    /// Factor on its scores.
    pub weight: f32,
    pub on_error: OnError,
}

impl Reward {
    pub(super) fn new(plugin: RewardPlugin, entry: &PluginEntry) -> Self {
        Self { plugin, weight: entry.weight as f32, on_error: entry.on_error }
    }
}

/// What became of some rows: their scores, why a first attempt failed, and the rows that failed by
/// themselves.
#[derive(Deserialize, Serialize)]
struct Scored {
    values: Vec<Option<f32>>,
    first_error: Option<String>,
    failed: Vec<(usize, String)>,
}

/// Completions as rewards see them; `columns` are the names of the dataset's further columns.
pub(super) fn batch(
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

impl Trainer {
    /// All rewards of all completions, with the host's figures about them.
    pub(super) fn score(&mut self, prompts: &[Arc<Prompt>], rollouts: &[Rollout], texts: &[String]) -> Result<Vec<RewardColumn>> {
        let step = self.state.global_step;
        let batch = Arc::new(batch(step, prompts, &self.columns, rollouts, texts));
        let mut rewards = Vec::with_capacity(self.rewards.len());
        let mut troubles = Vec::new();
        for index in 0..self.rewards.len() {
            let Scored { values, first_error, failed } = self.scores_of(index, &batch)?;
            let Reward { plugin, weight, .. } = &self.rewards[index];
            let (name, weight) = (plugin.name().to_owned(), *weight);
            self.note(reward_metrics(&name, &values));
            self.note([Metric::new(format!("plugins/{name}/errors"), failed.len() as f64, Reduction::Sum)]);
            troubles.extend(first_error.map(|error| (name.clone(), error, failed)));
            rewards.push(RewardColumn { name, weight, values });
        }
        let went_well = troubles.is_empty();
        for (name, error, failed) in troubles {
            let rows: Vec<usize> = failed.iter().map(|(row, _)| *row).collect();
            let what =
                if rows.is_empty() { "went well when tried again".to_owned() } else { format!("rows without a score: {rows:?}") };
            tracing::warn!("{error}; {what}");
            let reasons: Vec<&String> = failed.iter().take(3).map(|(_, error)| error).collect();
            let details = json!({ "plugin": name, "step": step, "reason": error, "rows": rows, "row_reasons": reasons });
            self.folder.event("plugin_error", details)?;
        }
        let scorable = (0..rollouts.len()).any(|row| rewards.iter().any(|r| r.values[row].is_some()));
        // A small generation may be of rows that no reward has anything to say of, and the next
        // one of others; many in a row are a mistake.
        self.state.unscored = if scorable { 0 } else { self.state.unscored + 1 };
        let bearable = scorable || went_well && self.state.unscored < MOST_UNSCORED;
        if !bearable {
            let times = if went_well { format!(", {MOST_UNSCORED} generations in a row") } else { String::new() };
            return Err(Error::Unfit(format!("no reward could score any completion at step {step}{times}")));
        }
        self.swaps.saw_scores(batch, &rewards);
        Ok(rewards)
    }

    /// One reward's scores of all completions. Each rank asks it for those of its prompts; one that
    /// remembers calls sees all of them at once, on the first rank.
    fn scores_of(&mut self, index: usize, batch: &RewardBatch) -> Result<Scored> {
        let Reward { plugin, on_error, .. } = &mut self.rewards[index];
        let rows = if plugin.info().stateless {
            let prompts = self.world.share(batch.prompts.len());
            let first = |prompt: usize| batch.prompt_of.partition_point(|of| (*of as usize) < prompt);
            first(prompts.start)..first(prompts.end)
        } else if self.world.is_first() {
            0..batch.prompt_of.len()
        } else {
            0..0
        };
        let Outcome { scores, first_error, failed } = plugin.score_or(batch, rows, *on_error)?;
        self.figures.extend(from_plugin(scores.metrics));
        let failed = failed.into_iter().map(|(row, error)| (row, error.to_string())).collect();
        let own = Scored { values: scores.rewards, first_error: first_error.map(|error| error.to_string()), failed };
        let mut parts = self.world.gather("scores", own)?.into_iter();
        let mut all = parts.next().unwrap_or(Scored { values: Vec::new(), first_error: None, failed: Vec::new() });
        for part in parts {
            all.values.extend(part.values);
            all.first_error = all.first_error.or(part.first_error);
            all.failed.extend(part.failed);
        }
        Ok(all)
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
