//! Scores recorded completions again, as a run scores its own: for `rlhost replay`.

use super::dataset::Prompt;
use super::episode::Episode;
use super::plugins::{AskedModel, Judged, Reward, Scorer, Told, scored};
use super::{Result, named};
use crate::config::PluginEntry;
use crate::data::{Extras, Message, Tokenizer};
use crate::dist::World;
use crate::model::Backend;
use crate::plugin::{RewardBatch, RewardPlugin};
use std::sync::{Arc, OnceLock};

/// A prompt as it was recorded.
pub struct Asked {
    /// Its row of the dataset.
    pub row: usize,
    /// Its tokens.
    pub tokens: Vec<u32>,
    /// The conversation, unless it is a text.
    pub messages: Option<(Vec<Message>, Extras)>,
}

/// An episode as it was recorded.
pub struct Played {
    /// The whole conversation.
    pub conversation: (Vec<Message>, Extras),
    /// Why it failed, if it did.
    pub failed: Option<String>,
}

/// A recorded generation.
pub struct Recording {
    /// Its completions.
    pub batch: RewardBatch,
    /// The batch's prompts.
    pub prompts: Vec<Asked>,
    /// What each row is besides its text, if the rows are episodes.
    pub episodes: Vec<Played>,
}

impl Recording {
    fn judged(self) -> Judged {
        let Self { batch, prompts, episodes } = self;
        let prompt = |(Asked { row, tokens, messages }, text): (Asked, &String)| {
            let (ref_logp, mismatched_ref_logp) = (OnceLock::new(), OnceLock::new());
            let (text, chat, messages, columns) = (text.clone(), messages.is_some(), messages.map(Box::new), Default::default());
            let (index, answers) = (0, None);
            Arc::new(Prompt { row, index, text, chat, messages, tokens, columns, answers, ref_logp, mismatched_ref_logp })
        };
        let prompts: Vec<Arc<Prompt>> = prompts.into_iter().zip(&batch.prompts).map(prompt).collect();
        let told = |(Played { conversation, failed }, prompt): (Played, &u32)| {
            let prompt = &prompts[*prompt as usize];
            let [messages, extras] = [serde_json::to_string(&conversation.0), serde_json::to_string(&conversation.1)];
            let (messages, extras) = (messages.unwrap_or_default(), extras.unwrap_or_default());
            let episode = Episode { prompt: prompt.text.clone(), messages, extras, failed, ..Episode::default() };
            Arc::new(Told { episode, opening: prompt.tokens.clone() })
        };
        let episodes = episodes.into_iter().zip(&batch.prompt_of).map(told).collect();
        Judged { batch, prompts, episodes }
    }
}

/// A reward outside a run, with the models whose step values it sees.
pub struct Rescorer {
    world: World,
    rewards: Vec<Reward>,
}

impl Rescorer {
    /// Creates one that scores with a plugin.
    pub fn of_plugin(plugin: RewardPlugin, entry: &PluginEntry) -> Self {
        Self { world: World::alone(), rewards: vec![Reward::new(Scorer::Plugin(Box::new(plugin)), entry)] }
    }

    /// Creates one that scores with a reward model. Where its tokenizer is that of the policy, it reads the policy's tokens.
    ///
    /// # Errors
    /// If the model can't be opened.
    pub fn of_model(entry: &PluginEntry, backend: &Backend, policys: Option<&Tokenizer>) -> Result<Self> {
        Ok(Self { world: World::alone(), rewards: vec![model(entry, backend, policys)?] })
    }

    /// Returns the hash of the model's files, if it is one.
    pub fn hash(&self) -> Option<&str> {
        self.rewards.last().and_then(Reward::model).map(|asked| asked.model.hash())
    }

    /// Puts before it a model whose step values it sees.
    ///
    /// # Errors
    /// If the model can't be opened.
    pub fn beside(mut self, entry: &PluginEntry, backend: &Backend, policys: Option<&Tokenizer>) -> Result<Self> {
        self.rewards.insert(0, model(entry, backend, policys)?);
        Ok(self)
    }

    /// Returns the scores of a generation.
    ///
    /// # Errors
    /// If the reward fails, or a model before it.
    pub fn score(&mut self, recording: Recording) -> Result<Vec<Option<f32>>> {
        let (scored, _) = scored(&mut self.rewards, &self.world, &recording.judged(), true)?;
        let mut columns = scored.columns;
        columns.extend(scored.for_evaluation);
        Ok(columns.pop().map(|column| column.values).unwrap_or_default())
    }
}

fn model(entry: &PluginEntry, backend: &Backend, policys: Option<&Tokenizer>) -> Result<Reward> {
    let (folder, _) = named::model_of(&entry.path)?;
    let mut asked = AskedModel::open(entry, &folder, backend)?;
    if let Some(policys) = policys {
        asked.meet(policys);
    }
    Ok(Reward::new(Scorer::Model(Box::new(asked)), entry))
}
