//! Tries a plugin before it is swapped in: on synthetic completions at first, later on the run's own.

use super::super::scoring_batch::RewardResults;
use crate::config::{ComparisonTarget, PluginEntry, RewardErrorAction};
use crate::dataset::Prompt;
use crate::flow::Flow;
use crate::metrics::ScoreComparison;
use crate::plugin::{
    AlgorithmPlugin, AnyPlugin, Batch, Column, EnvironmentPlugin, Error, Plugin, RequestPolicy, Result, RewardPlugin,
    ScoredGeneration, Shape, Start, TaughtColumn, TaughtGeneration, TextColumn, Tool, TurnSpan, Unit, WeightedReward, columns,
};
use crate::plugins::pair_judge::{self, Matches};
use crate::plugins::steps::with_columns;
use crate::plugins::synthetic::{self, RunFeatures};
use crate::plugins::{RunReward, ScoringBatch, ScoringModel, batch, start};
use crate::rollout::Rollout;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Number of prompts that plugins are tried on.
const PROMPTS: usize = 2;

/// The newest batches of a run, or synthetic ones before there are any.
#[derive(Clone)]
pub(crate) struct PluginTrial {
    /// Completions, with the scores of each reward.
    pub(super) scored: (Arc<ScoringBatch>, BTreeMap<String, Vec<Option<f32>>>),
    /// The newest completions with step values, if a model computes them, as seen by plugins that don't compare completions.
    pub(super) with_steps: Option<Arc<ScoringBatch>>,
    /// Rewards that compare completions, by name.
    compare: Arc<BTreeMap<String, ComparisonTarget>>,
    /// Data that the run's algorithm learns from.
    flow: Flow,
    extras: RunFeatures,
    /// The newest generation; none if the run generates nothing.
    pub(super) generation: Option<Arc<ScoredGeneration>>,
    /// Batch of the algorithm's loss.
    pub(super) loss: Arc<Batch>,
    /// Starts of episodes, for each environment's first prompts in the dataset.
    pub(super) starts: Arc<BTreeMap<String, Vec<Start>>>,
}

impl PluginTrial {
    /// Number of prompts that a trial uses.
    pub(crate) const PROMPTS: usize = PROMPTS;

    /// Creates synthetic completions of the dataset's first prompts, for a run with this algorithm. Each prompt has `group` of them, if the
    /// run generates groups. They alternate between empty ones and the prompt's first tokens.
    pub(crate) fn synthetic(
        prompts: &[Arc<Prompt>],
        dataset_columns: &[String],
        group: Option<usize>,
        (algorithm, flow): (&AlgorithmPlugin, Flow),
        extras: RunFeatures,
    ) -> Self {
        let (shape, has_labels) = (algorithm.data().shape, algorithm.info().needs.has(columns::LABEL));
        let prompts = &prompts[..prompts.len().min(PROMPTS)];
        let size = group.unwrap_or(2);
        let rollouts = made_up_rollouts(prompts, size);
        let text = |r: &Rollout| if r.finished { String::new() } else { prompts[r.prompt].text.clone() };
        let texts: Vec<String> = rollouts.iter().map(text).collect();
        let batch = batch(0, prompts, dataset_columns, &rollouts, &texts);
        let margins = prompts.iter().flat_map(|prompt| &prompt.answers).any(|answers| answers.margin.is_some());
        let lengths: Vec<usize> = rollouts.iter().map(|rollout| rollout.tokens.len()).collect();
        let groups: Vec<u32> = (0..=rollouts.len()).step_by(size.max(1)).map(|row| row as u32).collect();
        let generation = group.map(|_| {
            let mut batch = synthetic::batch(&lengths, groups.clone(), shape);
            batch.columns.push(synthetic::scores(rollouts.len()));
            let rewards = vec![WeightedReward { name: synthetic::SCORES.to_owned(), weight: 1.0 }];
            Arc::new(ScoredGeneration { batch, rewards })
        });
        let loss = match shape {
            Shape::Pairs => synthetic::batch(&[3, 2], vec![0, 2], shape),
            Shape::Completions if has_labels => synthetic::batch(&[3, 2], vec![0, 1, 2], shape),
            Shape::Completions => synthetic::batch(&lengths, groups, shape),
        };
        let scored = (Arc::new(ScoringBatch { batch, prompts: prompts.to_vec(), episodes: Vec::new() }), BTreeMap::new());
        Self {
            scored,
            with_steps: None,
            compare: Arc::default(),
            flow,
            extras: RunFeatures { margins, ..extras },
            generation,
            loss: Arc::new(loss),
            starts: Arc::default(),
        }
    }

    /// Returns the data that the run's algorithm learns from.
    pub(crate) fn flow(&self) -> Flow {
        self.flow
    }

    /// Returns the run's optional features, which not every algorithm needs.
    pub(super) fn extras(&self) -> RunFeatures {
        self.extras
    }

    /// Sets the rewards of the run, some of which compare completions.
    #[must_use]
    pub(crate) fn with_comparisons(self, rewards: &[RunReward]) -> Self {
        let compare = rewards.iter().filter_map(|reward| Some((reward.name().to_owned(), reward.compare()?)));
        let compare = Arc::new(compare.collect());
        let of_steps = rewards.iter().filter(|reward| reward.model().is_some_and(|asked| asked.model.judges_steps()));
        let judged = &self.scored.0;
        let made_up = || (0..judged.batch.prompt_of.len()).map(|row| ["[0.5, 1.0]", "[]"][row % 2].to_owned()).collect();
        let columns: Vec<TextColumn> =
            of_steps.map(|reward| TextColumn { name: reward.name().to_owned(), values: made_up() }).collect();
        let with_steps = (!columns.is_empty()).then(|| Arc::new(with_columns(judged, columns)));
        Self { compare, with_steps, ..self }
    }

    /// Tries a plugin and reports how it differs from the one that it would replace. The plugin also adopts its own exported state, as it
    /// would adopt its predecessor's. Afterwards it has no state.
    pub(super) fn run(&self, any: &mut AnyPlugin) -> Result<Value> {
        let report = match any {
            AnyPlugin::Reward(plugin) => self.reward(plugin),
            AnyPlugin::Algorithm(plugin) => self.algorithm(plugin).map(|()| Value::Null),
            AnyPlugin::Environment(plugin) => self.play(plugin).map(|()| Value::Null),
        };
        let plugin = any.plugin_mut();
        let kept = report.and_then(|report| {
            adopt_own_state(plugin)?;
            Ok(report)
        });
        plugin.restore(None);
        kept
    }

    /// Tries an algorithm, with synthetic values for columns that its predecessor did not need.
    fn algorithm(&self, plugin: &mut AlgorithmPlugin) -> Result<()> {
        if plugin.writes_teacher_prompts() {
            plugin.teacher_questions(taught(&self.scored.0)).map(drop)?;
        }
        if let Some(generation) = &self.generation {
            let mut generation = (**generation).clone();
            synthetic::fill_generation(&mut generation.batch, plugin, self.extras);
            plugin.assess(&generation).map(drop)?;
        }
        let mut batch = (*self.loss).clone();
        synthetic::fill_loss(&mut batch, plugin, self.extras);
        plugin.loss(&batch).map(drop)
    }

    /// Sets the starts of each environment's episodes from its first prompts. If a `partner`, an environment or agent, rewards turns, the
    /// synthetic completions become single-turn episodes.
    pub(crate) fn begin(&mut self, prompts: &[Arc<Prompt>], environments: &[PluginEntry], partner: Option<&str>) {
        let starts = environments.iter().enumerate().map(|(place, entry)| {
            let own = prompts.iter().filter(|prompt| prompt.acts_in(environments) == Some(place));
            let starts = own.take(PROMPTS).enumerate().map(|(i, prompt)| start(prompt, i as u64, 0)).collect();
            (entry.name().to_owned(), starts)
        });
        self.starts = Arc::new(starts.collect());
        if let (Some(partner), Some(generation)) = (partner, &mut self.generation) {
            *generation = Arc::new(one_turn_each(generation, partner));
        }
    }

    /// Plays an episode for each of the environment's first prompts.
    pub(crate) fn play(&self, environment: &EnvironmentPlugin) -> Result<()> {
        let text = |place: usize| ["1", ""][place % 2].to_owned();
        let says = |place: usize, number: usize, _: &[Tool]| (number < 2).then(|| (text(place), Vec::new(), true));
        let starts = self.starts.get(environment.name()).map(Vec::as_slice).unwrap_or_default();
        environment.rehearse(starts, says).map(drop)
    }

    fn reward(&self, plugin: &mut RewardPlugin) -> Result<Value> {
        let judged = &self.scored.0;
        let matches = self.compare.get(plugin.name()).and_then(|compare| Matches::new(judged, *compare));
        let new = match matches {
            Some(matches) => {
                let values = plugin.score_on_trial(&matches.judged.batch)?.rewards;
                matches.scores(RewardResults { values, ..RewardResults::default() }).values
            }
            None if self.compare.contains_key(plugin.name()) => plugin.score_on_trial(&judged.batch)?.rewards,
            None => plugin.score_on_trial(&self.with_steps.as_ref().unwrap_or(judged).batch)?.rewards,
        };
        Ok(self.compared(plugin.name(), &new))
    }

    /// Scores the newest completions with a reward model, and reports how the scores differ from those of the model that it would replace.
    pub(super) fn model(&self, asked: &ScoringModel) -> crate::Result<Value> {
        let judged = &self.scored.0;
        let all = |judged: &ScoringBatch| asked.score(judged, 0..judged.batch.prompt_of.len(), RewardErrorAction::Fail);
        let answers = match self.compare.get(asked.model.name()) {
            Some(compare) => pair_judge::by_model(judged, *compare, all)?,
            None => all(judged)?,
        };
        Ok(self.compared(asked.model.name(), &answers.values))
    }

    /// Compares scores of the newest completions with those of the reward of this name.
    fn compared(&self, name: &str, new: &[Option<f32>]) -> Value {
        self.scored.1.get(name).map_or(Value::Null, |old| json!(ScoreComparison::new(old, new)))
    }
}

/// Returns completions with rewards as an algorithm sees them that writes what a teacher reads. Every second reward is 1, the others are 0.
fn taught(judged: &ScoringBatch) -> TaughtGeneration {
    let ScoringBatch { batch, prompts, .. } = judged;
    let column = |column: &TextColumn| TaughtColumn { name: column.name.clone(), values: column.values.clone() };
    TaughtGeneration {
        step: batch.step,
        seed: batch.seed,
        questions: prompts.iter().map(|prompt| prompt.question().unwrap_or(&prompt.text).to_owned()).collect(),
        columns: batch.columns.iter().map(column).collect(),
        prompt_of: batch.prompt_of.clone(),
        completions: batch.completions.clone(),
        finished: batch.finished.clone(),
        rewards: (0..batch.prompt_of.len()).map(|row| Some((row % 2) as f32)).collect(),
    }
}

/// Lets a plugin adopt the state that it exports, as it would adopt its predecessor's.
fn adopt_own_state(plugin: &mut Plugin) -> Result<()> {
    plugin.snapshot()?.map_or(Ok(()), |state| plugin.adopt(state))
}

/// Returns a generation as single-turn episodes, with rewards from this environment or agent.
fn one_turn_each(generation: &ScoredGeneration, partner: &str) -> ScoredGeneration {
    let mut generation = generation.clone();
    let batch = &mut generation.batch;
    let spans = batch.tokens.windows(2).enumerate();
    batch.turns = spans.map(|(row, ends)| TurnSpan { sequence: row as u32, start: ends[0], end: ends[1] }).collect();
    for (reward, column) in generation.rewards.iter_mut().zip(&mut batch.columns) {
        (reward.name, column.name) = (partner.to_owned(), columns::reward(partner));
    }
    let of_turns =
        batch.columns.first().map(|scores| Column { name: columns::turn_reward(partner), unit: Unit::Turn, ..scores.clone() });
    batch.columns.extend(of_turns);
    generation
}

/// Creates completions that alternate between empty ones and the prompt's first tokens.
fn made_up_rollouts(prompts: &[Arc<Prompt>], group: usize) -> Vec<Rollout> {
    let rollout = |(prompt, sample): (usize, usize)| {
        let odd = (prompt + sample) % 2;
        let tokens: Vec<u32> = prompts[prompt].tokens.iter().take(1 + 3 * odd).copied().collect();
        Rollout { prompt, sample, logp: vec![-1.0; tokens.len()], tokens, finished: odd == 0, ..Rollout::default() }
    };
    (0..prompts.len()).flat_map(|p| (0..group).map(move |s| (p, s))).map(rollout).collect()
}

/// Tries the plugins that a run starts with. `bear` is called with the name and error of a failing plugin, and may return the error.
pub(crate) fn dry_run(
    trial: &PluginTrial,
    algorithm: &mut AlgorithmPlugin,
    rewards: &mut [RunReward],
    bear: &mut impl FnMut(&str, Error) -> crate::Result<()>,
) -> crate::Result<()> {
    let tried = trial.algorithm(algorithm).and_then(|()| adopt_own_state(algorithm));
    algorithm.restore(None);
    if let Err(error) = tried {
        bear(algorithm.name(), error)?;
    }
    // Plugins that may not send requests, on other ranks or in a replay, have no answers for synthetic completions.
    let can_be_tried =
        |plugin: &&mut RewardPlugin| plugin.http_client().is_none_or(|asker| asker.policy() == RequestPolicy::Allowed);
    for reward in rewards.iter_mut().filter_map(RunReward::plugin_mut).filter(can_be_tried) {
        if let Err(error) = trial.reward(reward) {
            bear(reward.name(), error)?;
        }
        reward.restore(None);
    }
    Ok(())
}
