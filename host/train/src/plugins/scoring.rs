//! Computes the rewards of a generation's completions. [`RunReward`] wraps anything that returns a column of scores for a batch: a plugin
//! or a model.

use super::pair_judge::{self, Matches};
use super::scoring_batch::{RewardResults, ScoringBatch};
use super::scoring_model::ScoringModel;
use super::{from_plugin, steps};
use crate::Result;
use crate::config::{self, ComparisonTarget, PluginEntry, RewardErrorAction};
use crate::data::ChatMessage;
use crate::dataset::Prompt;
use crate::dist::World;
use crate::experience::RewardScoreColumn;
use crate::experience::offsets;
use crate::metrics::{Metric, MetricReduction};
use crate::plugin::{self, CompletionExtra, RewardBatch, RewardPlugin, ScoringOutcome, Start, TextColumn};
use crate::reward_failure::RewardFailure;
use crate::rollout::Rollout;
use crate::step_metrics::StepMetrics;
use serde_json::{Map, Value};
use std::ops::Range;
use std::sync::Arc;

/// A reward of the run: a scorer with the weight of its scores.
pub(crate) struct RunReward {
    scorer: RewardScorer,
    /// Weight of the scores.
    weight: f32,
    on_error: RewardErrorAction,
    /// Target that completions are compared with, for a pair judge.
    compare: Option<ComparisonTarget>,
    /// Whether the reward scores only in evaluations.
    eval_only: bool,
}

/// A source of scores.
pub(crate) enum RewardScorer {
    Plugin(Box<RewardPlugin>),
    Model(Box<ScoringModel>),
}

impl RunReward {
    /// Creates a reward with the weight and error policy of its entry.
    pub(crate) fn new(by: RewardScorer, entry: &PluginEntry) -> Self {
        let PluginEntry { on_error, compare, eval_only, .. } = *entry;
        Self { scorer: by, weight: entry.weight as f32, on_error, compare, eval_only }
    }

    /// Returns the reward's name in metrics and events.
    pub(super) fn name(&self) -> &str {
        match &self.scorer {
            RewardScorer::Plugin(plugin) => plugin.name(),
            RewardScorer::Model(asked) => asked.model.name(),
        }
    }

    /// Returns the plugin, if the reward is one.
    pub(crate) fn plugin(&self) -> Option<&RewardPlugin> {
        if let RewardScorer::Plugin(plugin) = &self.scorer { Some(plugin) } else { None }
    }

    /// Returns the plugin mutably, if the reward is one.
    pub(crate) fn plugin_mut(&mut self) -> Option<&mut RewardPlugin> {
        if let RewardScorer::Plugin(plugin) = &mut self.scorer { Some(plugin) } else { None }
    }

    /// Returns the model mutably, if the reward is one.
    pub(crate) fn model_mut(&mut self) -> Option<&mut ScoringModel> {
        if let RewardScorer::Model(asked) = &mut self.scorer { Some(asked) } else { None }
    }

    /// Replaces the plugin and returns the old one. A model is not replaced: the given plugin is returned.
    pub(super) fn exchange(&mut self, plugin: RewardPlugin) -> RewardPlugin {
        match self.plugin_mut() {
            Some(own) => std::mem::replace(own, plugin),
            None => plugin,
        }
    }

    /// Replaces the model and returns the old one; returns none for a plugin.
    pub(super) fn exchange_model(&mut self, model: ScoringModel) -> Option<ScoringModel> {
        self.model_mut().map(|own| std::mem::replace(own, model))
    }

    /// Returns the model, if the reward is one.
    pub(crate) fn model(&self) -> Option<&ScoringModel> {
        if let RewardScorer::Model(asked) = &self.scorer { Some(asked) } else { None }
    }

    /// Sets the weight and the error policy.
    pub(super) fn set(&mut self, weight: f32, on_error: RewardErrorAction) {
        (self.weight, self.on_error) = (weight, on_error);
    }

    /// Returns the rows of a batch that this rank scores: those of its prompts. A reward that is stateful or sends requests scores all rows
    /// at once, on the first rank.
    fn rows(&self, world: &World, batch: &RewardBatch) -> Range<usize> {
        if self.plugin().is_none_or(RewardPlugin::is_divisible) {
            let prompts = world.share(batch.prompts.len());
            let first = |prompt: usize| batch.prompt_of.partition_point(|of| (*of as usize) < prompt);
            first(prompts.start)..first(prompts.end)
        } else if world.is_first() {
            0..batch.prompt_of.len()
        } else {
            0..0
        }
    }

    /// Returns whether the reward sees step values: only plugins that score completions individually do.
    fn sees_steps(&self) -> bool {
        self.plugin().is_some() && self.compare.is_none()
    }

    /// Returns the target that completions are compared with, for a pair judge.
    pub(super) fn compare(&self) -> Option<ComparisonTarget> {
        self.compare
    }

    /// Returns the scores of all completions, and the reward's own metrics of those that this rank scored.
    fn score(&mut self, world: &World, judged: &ScoringBatch) -> Result<(RewardResults, Vec<Metric>)> {
        let Some(compare) = self.compare else { return self.ask(world, judged) };
        if pair_judge::is_idle(judged, compare) {
            let detail =
                "has nothing to compare with: others needs two completions of a prompt, or the dataset's column \"reference\"";
            let place = format!("plugin.{}.compare", self.name());
            return Err(config::Error::Invalid { place, detail: detail.to_owned() }.into());
        }
        if self.model().is_some() {
            // Only plugins have metrics.
            let answers = pair_judge::by_model(judged, compare, |judged| Ok(self.ask(world, judged)?.0))?;
            return Ok((answers, Vec::new()));
        }
        let Some(matches) = Matches::new(judged, compare) else { return self.ask(world, judged) };
        let (answers, metrics) = self.ask(world, &matches.judged)?;
        Ok((matches.scores(answers), metrics))
    }

    /// Returns the scores of all completions of a batch, without comparisons.
    fn ask(&mut self, world: &World, judged: &ScoringBatch) -> Result<(RewardResults, Vec<Metric>)> {
        let (rows, on_error) = (self.rows(world, &judged.batch), self.on_error);
        let (own, metrics) = match &mut self.scorer {
            RewardScorer::Model(asked) => (asked.score(judged, rows, on_error)?, Vec::new()),
            RewardScorer::Plugin(plugin) => {
                let ScoringOutcome { scores, first_error, failed } = plugin.score_with_retries(&judged.batch, rows, on_error)?;
                let failed = failed.into_iter().map(|(row, error)| (row, error.to_string())).collect();
                let first_error = first_error.map(|error| error.to_string());
                (
                    RewardResults {
                        values: scores.rewards,
                        first_error,
                        failed,
                        extra: scores.extra,
                        ..RewardResults::default()
                    },
                    scores.metrics,
                )
            }
        };
        let mut all = RewardResults::default();
        for part in world.gather("scores", own)? {
            plugin::append_extra(&mut all.extra, all.values.len(), part.extra, part.values.len());
            all.values.extend(part.values);
            all.first_error = all.first_error.or(part.first_error);
            all.failed.extend(part.failed);
            all.steps.extend(part.steps);
        }
        Ok((all, from_plugin(metrics)))
    }
}

/// Scores of a batch.
pub(crate) struct BatchScores {
    /// One column per reward.
    pub columns: Vec<RewardScoreColumn>,
    /// Columns of rewards that score only in evaluations.
    pub for_evaluation: Vec<RewardScoreColumn>,
    /// Values that rewards logged for completions; empty if there are none.
    pub extra: Vec<CompletionExtra>,
    /// Failures of rewards, including those that a retry resolved.
    pub failures: Vec<RewardFailure>,
    /// Metrics of all rewards.
    pub figures: StepMetrics,
}

/// Returns completions as rewards see them; `columns` are the names of the dataset's other columns.
pub(crate) fn batch(
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
    let mut columns: Vec<TextColumn> =
        columns.iter().map(|name| TextColumn { name: name.clone(), values: values(name) }).collect();
    let asked = prompts.iter().map(|prompt| (prompt.messages.as_deref().map(|(messages, _)| messages), prompt.text.as_str()));
    columns.extend(plugin::conversations(asked));
    RewardBatch {
        step,
        // Each plugin's own seed is set before it is called.
        seed: 0,
        prompts: prompts.iter().map(|p| p.text.clone()).collect(),
        columns,
        prompt_of: rollouts.iter().map(|r| r.prompt as u32).collect(),
        completions: texts.to_vec(),
        finished: rollouts.iter().map(|r| r.finished).collect(),
        offsets: offsets(rollouts),
        token_ids: rollouts.iter().flat_map(|r| r.tokens.iter().copied()).collect(),
    }
}

/// Returns the start of an episode of a prompt.
pub(crate) fn start(prompt: &Prompt, episode: u64, seed: u64) -> Start {
    start_of(&prompt.conversation(), &prompt.columns, (episode, seed))
}

/// Returns the start of an episode with this number and random seed, for a row with this prompt and these other columns.
pub fn start_of(prompt: &[ChatMessage], columns: &Map<String, Value>, (episode, seed): (u64, u64)) -> Start {
    let message = |message: &ChatMessage| {
        let text = |name: &str| message.rest.get(name).and_then(Value::as_str).map(str::to_owned);
        plugin::Message {
            role: message.role.clone(),
            content: message.content.to_string(),
            name: text("name"),
            tool_call_id: text("tool_call_id"),
        }
    };
    let columns = columns.iter().map(|(name, value)| (name.clone(), value.to_string())).collect();
    Start { episode, seed, prompt: prompt.iter().map(message).collect(), columns }
}

/// Computes step values, before other rewards, which may read them. Returns the results by the rewards' indices.
fn step_values(
    rewards: &mut [RunReward],
    world: &World,
    judged: &ScoringBatch,
    asked: impl Fn(&RunReward) -> bool,
) -> Result<steps::StepValues> {
    let mut given = steps::StepValues::new();
    for (at, reward) in rewards.iter_mut().enumerate().filter(|(_, reward)| asked(reward)) {
        if reward.model().is_some_and(|asked| asked.model.judges_steps()) {
            let (answers, _) = reward.ask(world, judged)?;
            given.insert(at, (reward.name().to_owned(), answers));
        }
    }
    Ok(given)
}

/// Returns all rewards of all completions, with the host's metrics; rewards for evaluations score only in those. Also returns the
/// generation as plugins see it, if step values were added.
pub(crate) fn scored(
    rewards: &mut [RunReward],
    world: &World,
    judged: &ScoringBatch,
    evaluating: bool,
) -> Result<(BatchScores, Option<ScoringBatch>)> {
    let mut figures = StepMetrics::start();
    let (mut columns, mut failures, mut for_evaluation) = (Vec::with_capacity(rewards.len()), Vec::new(), Vec::new());
    let mut extra: Vec<CompletionExtra> = Vec::new();
    let asked = |reward: &RunReward| evaluating || !reward.eval_only;
    let mut given = step_values(rewards, world, judged, asked)?;
    let with_steps = steps::with_step_columns(judged, &given);
    for (at, reward) in rewards.iter_mut().enumerate().filter(|(_, reward)| asked(reward)) {
        let seen = with_steps.as_ref().filter(|_| reward.sees_steps()).unwrap_or(judged);
        let (answers, own) = match given.remove(&at) {
            Some((_, answers)) => (answers, Vec::new()),
            None => reward.score(world, seen)?,
        };
        let (name, RewardResults { values, first_error, failed, extra: own_extra, .. }) = (reward.name().to_owned(), answers);
        extra.resize(extra.len().max(own_extra.len()), CompletionExtra::new());
        extra.iter_mut().zip(own_extra).for_each(|(extra, own)| extra.extend(own));
        figures.add(own);
        let errors = Metric::new(format!("plugins/{name}/errors"), failed.len() as f64, MetricReduction::Sum);
        figures.add(world.once([errors]));
        failures.extend(first_error.map(|error| RewardFailure { name: name.clone(), error, failed }));
        let into = if reward.eval_only { &mut for_evaluation } else { &mut columns };
        into.push(RewardScoreColumn { name, weight: reward.weight, values });
    }
    Ok((BatchScores { columns, for_evaluation, extra, failures, figures }, with_steps))
}
