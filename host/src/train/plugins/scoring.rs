//! Computes the rewards of a generation's completions. [`Reward`] is the interface: anything that returns a column of scores for
//! a batch can be behind it, a plugin or a model.

use super::{Plugins, from_plugin};
use crate::config::{OnError, PluginEntry};
use crate::data::Message;
use crate::dist::World;
use crate::metrics::{Metric, Reduction};
use crate::plugin::{self, Column, Outcome, RewardBatch, RewardColumn, RewardPlugin, Start};
use crate::rollout::Rollout;
use crate::train::Result;
use crate::train::dataset::Prompt;
use crate::train::experience::{Experience, offsets};
use crate::train::figures::Figures;
use crate::train::reward_model::{RewardModel, Said, Text};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::ops::Range;
use std::sync::Arc;

/// A reward of the run: what scores completions, and the weight of its scores.
pub(in crate::train) struct Reward {
    by: Scorer,
    /// Weight of its scores.
    weight: f32,
    on_error: OnError,
    /// Whether it scores only in evaluations.
    eval_only: bool,
}

/// What gives the scores.
pub(in crate::train) enum Scorer {
    Plugin(Box<RewardPlugin>),
    Model(Box<AskedModel>),
}

/// A reward model, and what it must know of the policy.
pub(in crate::train) struct AskedModel {
    pub model: RewardModel,
    /// Whether it reads the policy's tokens as they are.
    pub shares_tokens: bool,
    /// Whether the policy has a chat template, by which episodes are conversations.
    pub of_chat: bool,
}

/// A generation as all rewards see it: plugins the batch, models what it was made from.
pub(in crate::train) struct Judged<'a> {
    pub batch: RewardBatch,
    pub experience: &'a Experience,
}

impl Reward {
    /// Creates a reward with the weight and error policy of its entry.
    pub(in crate::train) fn new(by: Scorer, entry: &PluginEntry) -> Self {
        Self { by, weight: entry.weight as f32, on_error: entry.on_error, eval_only: entry.eval_only }
    }

    /// Returns its name in metrics and events.
    pub(super) fn name(&self) -> &str {
        match &self.by {
            Scorer::Plugin(plugin) => plugin.name(),
            Scorer::Model(asked) => asked.model.name(),
        }
    }

    /// Returns the plugin that scores, if it is one.
    pub(in crate::train) fn plugin(&self) -> Option<&RewardPlugin> {
        if let Scorer::Plugin(plugin) = &self.by { Some(plugin) } else { None }
    }

    /// Returns the plugin that scores, mutably.
    pub(in crate::train) fn plugin_mut(&mut self) -> Option<&mut RewardPlugin> {
        if let Scorer::Plugin(plugin) = &mut self.by { Some(plugin) } else { None }
    }

    /// Returns the model that scores, if it is one.
    pub(in crate::train) fn model_mut(&mut self) -> Option<&mut AskedModel> {
        if let Scorer::Model(asked) = &mut self.by { Some(asked) } else { None }
    }

    /// Replaces the plugin and returns the old one; a model is not replaced.
    pub(super) fn exchange(&mut self, plugin: RewardPlugin) -> RewardPlugin {
        match self.plugin_mut() {
            Some(own) => std::mem::replace(own, plugin),
            None => plugin,
        }
    }

    /// Sets the weight and the error policy.
    pub(super) fn set(&mut self, weight: f32, on_error: OnError) {
        (self.weight, self.on_error) = (weight, on_error);
    }

    /// Returns the rows of a batch that this rank scores: those of its prompts. A reward that is stateful or asks servers scores
    /// all rows at once, on the first rank.
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

    /// Returns its scores of all completions, and its own metrics of those that this rank scored.
    fn score(&mut self, world: &World, judged: &Judged<'_>) -> Result<(Answers, Vec<Metric>)> {
        let (rows, on_error) = (self.rows(world, &judged.batch), self.on_error);
        let (own, metrics) = match &mut self.by {
            Scorer::Model(asked) => (asked.score(judged, rows, on_error)?, Vec::new()),
            Scorer::Plugin(plugin) => {
                let Outcome { scores, first_error, failed } = plugin.score_or(&judged.batch, rows, on_error)?;
                let failed = failed.into_iter().map(|(row, error)| (row, error.to_string())).collect();
                let first_error = first_error.map(|error| error.to_string());
                (Answers { values: scores.rewards, first_error, failed }, scores.metrics)
            }
        };
        let mut all = Answers::default();
        for part in world.gather("scores", own)? {
            all.values.extend(part.values);
            all.first_error = all.first_error.or(part.first_error);
            all.failed.extend(part.failed);
        }
        Ok((all, from_plugin(metrics)))
    }
}

impl AskedModel {
    /// Scores some rows of a generation.
    fn score(&self, judged: &Judged<'_>, rows: Range<usize>, on_error: OnError) -> Result<Answers> {
        let (mut texts, mut answers) = (Vec::with_capacity(rows.len()), Answers::default());
        let mut scored = Vec::with_capacity(rows.len());
        // An episode that failed has no score, and may have no text.
        let failed = |row: usize| judged.experience.episodes.get(row).is_some_and(|episode| episode.failed.is_some());
        for row in rows.clone().filter(|row| !failed(*row)) {
            let text = self.text(judged, row).and_then(|text| self.model.check(&text).map(|()| text));
            match text {
                Ok(text) => {
                    scored.push(row);
                    texts.push(text);
                }
                Err(error) if on_error == OnError::Fail => return Err(error),
                Err(error) => {
                    answers.first_error.get_or_insert_with(|| error.to_string());
                    answers.failed.push((row, error.to_string()));
                }
            }
        }
        answers.values = vec![None; rows.len()];
        for (row, value) in scored.into_iter().zip(self.model.values(&texts)?) {
            answers.values[row - rows.start] = Some(value);
        }
        Ok(answers)
    }

    /// Returns a completion with its prompt in the model's tokens: the policy's own if the tokenizers are the same and the prompt
    /// is a text. A conversation is rendered with the model's own template, an episode's as a whole.
    fn text(&self, Judged { batch, experience }: &Judged<'_>, row: usize) -> Result<Text> {
        let group = experience.rollouts[row].prompt;
        let (prompt, episode) = (&experience.prompts[group], experience.episodes.get(row));
        let chat = if episode.is_some() { self.of_chat || self.model.tokenizer().has_chat() } else { prompt.chat };
        if self.shares_tokens && !chat {
            return Ok(Text { group, tokens: [experience.prompt_of(row), &experience.rollouts[row].tokens].concat() });
        }
        if let Some(episode) = episode.filter(|_| chat) {
            let (messages, extras) = episode.conversation();
            return self.model.conversation(group, messages, &extras);
        }
        self.model.text(&Said {
            group,
            prompt: episode.map_or(&prompt.text, |episode| &episode.prompt),
            asked: prompt.messages.as_deref().filter(|_| episode.is_none()),
            completion: &batch.completions[row],
            whole: None,
            ended: batch.finished[row],
        })
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
    start_of(&prompt.conversation(), &prompt.columns, (episode, seed))
}

/// Returns the start of an episode with this number and this random seed, of a row with this prompt and these other columns.
pub fn start_of(prompt: &[Message], columns: &Map<String, Value>, (episode, seed): (u64, u64)) -> Start {
    let message = |message: &Message| {
        let text = |name: &str| message.rest.get(name).and_then(Value::as_str).map(str::to_owned);
        plugin::Message {
            role: message.role.clone(),
            content: message.content.clone(),
            name: text("name"),
            tool_call_id: text("tool_call_id"),
        }
    };
    let columns = columns.iter().map(|(name, value)| (name.clone(), value.to_string())).collect();
    Start { episode, seed, prompt: prompt.iter().map(message).collect(), columns }
}

impl Plugins {
    /// Returns all rewards of all completions, with the host's metrics about them; those for evaluations alone only if it is one.
    pub(in crate::train) fn score(&mut self, judged: Judged<'_>, evaluating: bool) -> Result<Scored> {
        let mut figures = Figures::begin();
        let (mut columns, mut troubles) = (Vec::with_capacity(self.rewards.len()), Vec::new());
        let mut for_evaluation = Vec::new();
        for reward in self.rewards.iter_mut().filter(|reward| evaluating || !reward.eval_only) {
            let (Answers { values, first_error, failed }, own) = reward.score(&self.world, &judged)?;
            let name = reward.name().to_owned();
            figures.add(own);
            let errors = Metric::new(format!("plugins/{name}/errors"), failed.len() as f64, Reduction::Sum);
            figures.add(self.world.once([errors]));
            troubles.extend(first_error.map(|error| Trouble { name: name.clone(), error, failed }));
            let into = if reward.eval_only { &mut for_evaluation } else { &mut columns };
            into.push(RewardColumn { name, weight: reward.weight, values });
        }
        self.swaps.saw_scores(Arc::new(judged.batch), &columns);
        Ok(Scored { columns, for_evaluation, troubles, figures })
    }
}
