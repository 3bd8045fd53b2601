//! Tries a plugin before it is swapped in: on synthetic completions at first, later on the run's own.

use crate::config::{Compare, OnError, PluginEntry};
use crate::metrics::Comparison;
use crate::plugin::{AnyPlugin, Asking, Column, Error, Examples, Mismatched, Needs, Pairs, Prompts, Result, Scale, Side, Tokens};
use crate::plugin::{EnvironmentPlugin, Generation, RewardColumn, RewardPlugin, Rollouts, Start, Tool, Turns, ValuedPairs};
use crate::rollout::Rollout;
use crate::train::dataset::Prompt;
use crate::train::plugins::comparing::{self, Matches};
use crate::train::plugins::scoring::Answers;
use crate::train::plugins::steps::with_columns;
use crate::train::plugins::{AskedModel, Judged, Reward, batch, start};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Prompts that plugins are tried on.
const PROMPTS: usize = 2;

/// The newest batch of each kind.
#[derive(Clone)]
pub(in crate::train) struct Trial {
    /// Completions, and how each reward scored them.
    pub(super) scored: (Arc<Judged>, BTreeMap<String, Vec<Option<f32>>>),
    /// The same completions with the values of their steps, if a model gives any: as plugins see them that compare nothing.
    pub(super) with_steps: Option<Arc<Judged>>,
    /// Rewards that compare completions, by name.
    compare: Arc<BTreeMap<String, Compare>>,
    pub(super) generation: Arc<Generation>,
    pub(super) tokens: Arc<Tokens>,
    pub(super) pairs: Arc<Pairs>,
    /// Episodes of each environment's first prompts in the dataset.
    pub(super) starts: Arc<BTreeMap<String, Vec<Start>>>,
    pub(super) examples: Arc<Examples>,
    pub(super) values: Arc<ValuedPairs>,
}

impl Trial {
    /// Number of prompts that it takes.
    pub(in crate::train) const PROMPTS: usize = PROMPTS;

    /// Makes synthetic completions of the dataset's first prompts, `group` of each, with the columns that the algorithm `needs`.
    /// They are empty and made of the prompt's first tokens in turn.
    pub(in crate::train) fn made_up(prompts: &[Arc<Prompt>], columns: &[String], group: usize, needs: &Needs) -> Self {
        let (with_reference, with_critic, prompts) = (needs.ref_logp, needs.values, &prompts[..prompts.len().min(PROMPTS)]);
        let rollouts = made_up_rollouts(prompts, group);
        let text = |r: &Rollout| if r.finished { String::new() } else { prompts[r.prompt].text.clone() };
        let texts: Vec<String> = rollouts.iter().map(text).collect();
        let batch = batch(0, prompts, columns, &rollouts, &texts);
        let (offsets, logp) = (batch.offsets.clone(), vec![-1.0; batch.token_ids.len()]);
        let ref_logp = with_reference.then(|| vec![-1.1; logp.len()]);
        let values_of_critic = with_critic.then(|| vec![0.0; logp.len()]);
        let mask = vec![1; logp.len()];
        let values = (0..rollouts.len()).map(|row| Some(row as f32)).collect();
        let seen = Rollouts {
            step: 0,
            rewards: vec![RewardColumn { name: "made_up".to_owned(), weight: 1.0, values }],
            prompt_of: batch.prompt_of.clone(),
            finished: batch.finished.clone(),
            offsets: offsets.clone(),
            mask: mask.clone(),
            logp: logp.clone(),
            ref_logp: ref_logp.clone(),
            values: values_of_critic.clone(),
            entropy: None,
        };
        let scale = Scale { rows: rollouts.len() as u32, tokens: logp.len() as u64, max_completion_length: 4 };
        let tokens = Tokens {
            step: 0,
            offsets,
            mask,
            advantages: logp.iter().enumerate().map(|(i, _)| if i % 2 == 0 { 1.0 } else { -1.0 }).collect(),
            logp: logp.clone(),
            old_logp: vec![-1.05; logp.len()],
            ref_logp,
            sampling_logp: needs.sampling_logp.then(|| logp.clone()),
            entropy: needs.entropy.then(|| vec![1.0; logp.len()]),
            values: values_of_critic.clone(),
            old_values: values_of_critic,
            returns: with_critic.then(|| vec![0.1; logp.len()]),
            scale,
        };
        let side = |logp: f32, tokens: usize| made_up_side(logp, tokens, with_reference, needs);
        let scale = Scale { rows: 1, tokens: 3, max_completion_length: 4 };
        let pairs = Pairs { step: 0, chosen: side(-1.0, 3), rejected: side(-1.5, 2), prompts: None, scale };
        let has_margin = prompts.iter().flat_map(|prompt| &prompt.answers).any(|answers| answers.margin.is_some());
        let margin = has_margin.then(|| vec![0.5]);
        let values = ValuedPairs { step: 0, chosen: vec![0.5], rejected: vec![-0.25], margin, scale };
        let scored = (Arc::new(Judged { batch, prompts: prompts.to_vec(), episodes: Vec::new() }), BTreeMap::new());
        Self {
            scored,
            with_steps: None,
            compare: Arc::default(),
            generation: Arc::new(seen.into()),
            tokens: Arc::new(tokens),
            pairs: Arc::new(pairs),
            starts: Arc::default(),
            examples: Arc::new(made_up_examples(needs)),
            values: Arc::new(values),
        }
    }

    /// Returns the trial for a run with these rewards.
    #[must_use]
    pub(in crate::train) fn comparing(self, rewards: &[Reward]) -> Self {
        let compare = rewards.iter().filter_map(|reward| Some((reward.name().to_owned(), reward.compare()?)));
        let compare = Arc::new(compare.collect());
        let of_steps = rewards.iter().filter(|reward| reward.model().is_some_and(|asked| asked.model.judges_steps()));
        let judged = &self.scored.0;
        let made_up = || (0..judged.batch.prompt_of.len()).map(|row| ["[0.5, 1.0]", "[]"][row % 2].to_owned()).collect();
        let columns: Vec<Column> = of_steps.map(|reward| Column { name: reward.name().to_owned(), values: made_up() }).collect();
        let with_steps = (!columns.is_empty()).then(|| Arc::new(with_columns(judged, columns)));
        Self { compare, with_steps, ..self }
    }

    /// Tries a plugin and reports how it differs from the one it would replace. It also takes back the state that it then has, as it
    /// would its predecessor's. It is left without a state.
    pub(super) fn run(&self, any: &mut AnyPlugin) -> Result<Value> {
        let report = match any {
            AnyPlugin::Reward(plugin) => self.reward(plugin),
            AnyPlugin::Policy(plugin) => {
                plugin.estimate(&self.generation).and_then(|_| plugin.loss(&with_all(&self.tokens))).map(|_| Value::Null)
            }
            AnyPlugin::Preference(plugin) => {
                let chosen = if plugin.is_online() { plugin.choose(&self.generation.rollouts).map(drop) } else { Ok(()) };
                chosen.and_then(|()| plugin.loss(&pairs_with_all(&self.pairs))).map(|_| Value::Null)
            }
            AnyPlugin::Environment(plugin) => self.play(plugin).map(|()| Value::Null),
            AnyPlugin::Labelled(plugin) => plugin.loss(&examples_with_all(&self.examples)).map(|_| Value::Null),
            AnyPlugin::RewardModel(plugin) => plugin.loss(&self.values).map(|_| Value::Null),
        };
        let plugin = any.plugin_mut();
        let kept = report.and_then(|report| {
            plugin.snapshot()?.map_or(Ok(()), |state| plugin.adopt(state))?;
            Ok(report)
        });
        plugin.restore(None);
        kept
    }

    /// Takes the starts of each environment's episodes from its first prompts. The synthetic completions are then episodes of a turn.
    pub(in crate::train) fn begin(&mut self, prompts: &[Arc<Prompt>], environments: &[PluginEntry]) {
        let starts = environments.iter().enumerate().map(|(place, entry)| {
            let own = prompts.iter().filter(|prompt| prompt.acts_in(environments) == Some(place));
            let starts = own.take(PROMPTS).enumerate().map(|(i, prompt)| start(prompt, i as u64, 0)).collect();
            (entry.name().to_owned(), starts)
        });
        self.starts = Arc::new(starts.collect());
        if !environments.is_empty() {
            let rollouts = self.generation.rollouts.clone();
            self.generation = Arc::new(Generation { turns: Some(one_turn_each(&rollouts)), rollouts });
        }
    }

    /// Plays an episode of each of the environment's first prompts.
    pub(in crate::train) fn play(&self, environment: &EnvironmentPlugin) -> Result<()> {
        let text = |place: usize| ["1", ""][place % 2].to_owned();
        let says = |place: usize, number: usize, _: &[Tool]| (number < 2).then(|| (text(place), Vec::new(), true));
        let starts = self.starts.get(environment.name()).map(Vec::as_slice).unwrap_or_default();
        environment.rehearse(starts, says).map(drop)
    }

    fn reward(&self, plugin: &mut RewardPlugin) -> Result<Value> {
        let judged = &self.scored.0;
        let matches = self.compare.get(plugin.name()).and_then(|compare| Matches::of(judged, *compare));
        let new = match matches {
            Some(matches) => {
                let values = plugin.score_on_trial(&matches.judged.batch)?.rewards;
                matches.scores(Answers { values, ..Answers::default() }).values
            }
            None if self.compare.contains_key(plugin.name()) => plugin.score_on_trial(&judged.batch)?.rewards,
            None => plugin.score_on_trial(&self.with_steps.as_ref().unwrap_or(judged).batch)?.rewards,
        };
        Ok(self.compared(plugin.name(), &new))
    }

    /// Scores the newest completions with a reward model, and reports how it differs from the one it would replace.
    pub(super) fn model(&self, asked: &AskedModel) -> crate::train::Result<Value> {
        let judged = &self.scored.0;
        let all = |judged: &Judged| asked.score(judged, 0..judged.batch.prompt_of.len(), OnError::Fail);
        let answers = match self.compare.get(asked.model.name()) {
            Some(compare) => comparing::by_model(judged, *compare, all)?,
            None => all(judged)?,
        };
        Ok(self.compared(asked.model.name(), &answers.values))
    }

    /// Compares scores of the newest completions with those that the reward of that name gave them.
    fn compared(&self, name: &str, new: &[Option<f32>]) -> Value {
        self.scored.1.get(name).map_or(Value::Null, |old| json!(Comparison::of(old, new)))
    }
}

/// Returns tokens with synthetic columns in the place of those that the plugin's predecessor did not ask for.
fn with_all(tokens: &Tokens) -> Tokens {
    let mut tokens = tokens.clone();
    let (old_logp, rows) = (&tokens.old_logp, tokens.logp.len());
    tokens.sampling_logp.get_or_insert_with(|| old_logp.clone());
    tokens.entropy.get_or_insert_with(|| vec![1.0; rows]);
    tokens
}

/// Returns completions as episodes of one turn, rewarded by the first reward.
fn one_turn_each(rollouts: &Rollouts) -> Turns {
    let rows = rollouts.prompt_of.len();
    let rewards = rollouts.rewards.first().map_or_else(|| vec![None; rows], |column| column.values.clone());
    Turns { offsets: (0..=rows as u32).collect(), ends: rollouts.offsets[1..].to_vec(), rewards, columns: vec![0; rows] }
}

/// Makes completions that are empty and made of the prompt's first tokens in turn.
fn made_up_rollouts(prompts: &[Arc<Prompt>], group: usize) -> Vec<Rollout> {
    let rollout = |(prompt, sample): (usize, usize)| {
        let odd = (prompt + sample) % 2;
        let tokens: Vec<u32> = prompts[prompt].tokens.iter().take(1 + 3 * odd).copied().collect();
        Rollout { prompt, sample, logp: vec![-1.0; tokens.len()], tokens, finished: odd == 0, ..Rollout::default() }
    };
    (0..prompts.len()).flat_map(|p| (0..group).map(move |s| (p, s))).map(rollout).collect()
}

/// Makes a synthetic completion of a pair.
fn made_up_side(logp: f32, tokens: usize, with_reference: bool, needs: &Needs) -> Side {
    Side {
        offsets: vec![0, tokens as u32],
        logp: vec![logp; tokens],
        ref_logp: with_reference.then(|| vec![logp - 0.1; tokens]),
        mean_logits: needs.mean_logits.then(|| vec![0.0; tokens]),
        ..Side::default()
    }
}

/// Makes two synthetic rows, one of them undesirable.
fn made_up_examples(needs: &Needs) -> Examples {
    Examples {
        step: 0,
        labels: vec![true, false],
        desirable: 1,
        undesirable: 1,
        offsets: vec![0, 3, 5],
        logp: vec![-1.0; 5],
        ref_logp: needs.ref_logp.then(|| vec![-1.1; 5]),
        mean_logits: needs.mean_logits.then(|| vec![0.0; 5]),
        mismatched: None,
        scale: Scale { rows: 2, tokens: 5, max_completion_length: 4 },
    }
}

/// Does the same as [`with_all`] for labelled completions.
fn examples_with_all(examples: &Examples) -> Examples {
    let mut examples = examples.clone();
    let (tokens, rows) = (examples.logp.len(), examples.labels.len());
    examples.mean_logits.get_or_insert_with(|| vec![0.0; tokens]);
    examples.mismatched.get_or_insert_with(|| Mismatched { logp: vec![-3.0; rows], ref_logp: vec![-3.5; rows] });
    examples
}

/// Does the same for pairs.
fn pairs_with_all(pairs: &Pairs) -> Pairs {
    let mut pairs = pairs.clone();
    for side in [&mut pairs.chosen, &mut pairs.rejected] {
        let tokens = side.logp.len();
        side.mean_logits.get_or_insert_with(|| vec![0.0; tokens]);
        side.log_sum_squares.get_or_insert_with(|| vec![-1.0; tokens]);
    }
    let ends = 0..pairs.chosen.offsets.len() as u32;
    let prompts =
        || Prompts { logp: vec![-2.0; ends.len().saturating_sub(1)], tokens: pairs.scale.tokens, offsets: ends.collect() };
    pairs.prompts.get_or_insert_with(prompts);
    pairs
}

/// Tries the plugins that a run starts with; `bear` gets the name of one that fails, and its error, which it may return.
pub(in crate::train) fn dry_run(
    trial: &Trial,
    algorithm: &mut AnyPlugin,
    rewards: &mut [Reward],
    bear: &mut impl FnMut(&str, Error) -> crate::train::Result<()>,
) -> crate::train::Result<()> {
    if let Err(error) = trial.run(algorithm) {
        bear(algorithm.plugin().name(), error)?;
    }
    // Where servers may not be asked, on other ranks or in a replay, there is no answer about synthetic completions.
    let can_be_tried = |plugin: &&mut RewardPlugin| plugin.asker().is_none_or(|asker| asker.asking() == Asking::Freely);
    for reward in rewards.iter_mut().filter_map(Reward::plugin_mut).filter(can_be_tried) {
        if let Err(error) = trial.reward(reward) {
            bear(reward.name(), error)?;
        }
        reward.restore(None);
    }
    Ok(())
}
