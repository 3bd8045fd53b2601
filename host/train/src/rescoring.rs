//! Scores recorded completions again, in the same way as a run: for `rlhost replay`.

use super::dataset::Prompt;
use super::episode::EpisodeOutcome;
use super::plugins::{RewardScorer, RunReward, ScoringBatch, ScoringEpisode, ScoringModel, scored};
use super::{Result, name_resolution};
use crate::config::PluginEntry;
use crate::data::{ChatMessage, TemplateVariables, Tokenizer};
use crate::dist::World;
use crate::model::ComputeBackend;
use crate::plugin::{RewardBatch, RewardPlugin};
use std::sync::Arc;

/// A recorded prompt.
pub struct RecordedPrompt {
    /// Row of the prompt in the dataset.
    pub row: usize,
    /// Tokens of the prompt.
    pub tokens: Vec<u32>,
    /// The prompt's conversation, unless it is a text.
    pub messages: Option<(Vec<ChatMessage>, TemplateVariables)>,
}

/// A recorded episode.
pub struct RecordedConversation {
    /// The whole conversation.
    pub conversation: (Vec<ChatMessage>, TemplateVariables),
    /// Reason of the failure, if the episode failed.
    pub failed: Option<String>,
}

/// A recorded generation.
pub struct RecordedGeneration {
    /// Completions of the generation.
    pub batch: RewardBatch,
    /// Prompts of the batch.
    pub prompts: Vec<RecordedPrompt>,
    /// Episodes of the rows, if the rows are episodes.
    pub episodes: Vec<RecordedConversation>,
}

impl RecordedGeneration {
    fn judged(self) -> ScoringBatch {
        let Self { batch, prompts, episodes } = self;
        let prompt = |(RecordedPrompt { row, tokens, messages }, text): (RecordedPrompt, &String)| {
            let (text, chat, messages) = (text.clone(), messages.is_some(), messages.map(Box::new));
            Arc::new(Prompt { row, text, chat, messages, tokens, ..Prompt::default() })
        };
        let prompts: Vec<Arc<Prompt>> = prompts.into_iter().zip(&batch.prompts).map(prompt).collect();
        let told = |(RecordedConversation { conversation, failed }, prompt): (RecordedConversation, &u32)| {
            let prompt = &prompts[*prompt as usize];
            let [messages, extras] = [serde_json::to_string(&conversation.0), serde_json::to_string(&conversation.1)];
            let (messages, extras) = (messages.unwrap_or_default(), extras.unwrap_or_default());
            let episode = EpisodeOutcome { prompt: prompt.text.clone(), messages, extras, failed, ..EpisodeOutcome::default() };
            Arc::new(ScoringEpisode { episode, opening: prompt.tokens.clone() })
        };
        let episodes = episodes.into_iter().zip(&batch.prompt_of).map(told).collect();
        ScoringBatch { batch, prompts, episodes }
    }
}

/// A reward outside of a run, with the models whose step values it sees.
pub struct Rescorer {
    world: World,
    rewards: Vec<RunReward>,
}

impl Rescorer {
    /// Creates a rescorer from a plugin.
    pub fn from_plugin(plugin: RewardPlugin, entry: &PluginEntry) -> Self {
        Self { world: World::single_process(), rewards: vec![RunReward::new(RewardScorer::Plugin(Box::new(plugin)), entry)] }
    }

    /// Creates a rescorer from a reward model. If the model has the policy's tokenizer, it reads the policy's tokens.
    ///
    /// # Errors
    /// If the model can't be opened.
    pub fn from_model(entry: &PluginEntry, backend: &ComputeBackend, policys: Option<&Tokenizer>) -> Result<Self> {
        Ok(Self { world: World::single_process(), rewards: vec![model(entry, backend, policys)?] })
    }

    /// Returns the hash of the model's files, if the reward is a model.
    pub fn hash(&self) -> Option<&str> {
        self.rewards.last().and_then(RunReward::model).map(|asked| asked.model.hash())
    }

    /// Adds a model whose step values the reward sees.
    ///
    /// # Errors
    /// If the model can't be opened.
    pub fn with_step_model(mut self, entry: &PluginEntry, backend: &ComputeBackend, policys: Option<&Tokenizer>) -> Result<Self> {
        self.rewards.insert(0, model(entry, backend, policys)?);
        Ok(self)
    }

    /// Returns the scores of a generation.
    ///
    /// # Errors
    /// If the reward, or a model with step values, fails.
    pub fn score(&mut self, recording: RecordedGeneration) -> Result<Vec<Option<f32>>> {
        let (scored, _) = scored(&mut self.rewards, &self.world, &recording.judged(), true)?;
        let mut columns = scored.columns;
        columns.extend(scored.for_evaluation);
        Ok(columns.pop().map(|column| column.values).unwrap_or_default())
    }
}

fn model(entry: &PluginEntry, backend: &ComputeBackend, policys: Option<&Tokenizer>) -> Result<RunReward> {
    let (folder, _) = name_resolution::model_of(&entry.path)?;
    let mut asked = ScoringModel::open(entry, &folder, backend)?;
    if let Some(policys) = policys {
        asked.set_policy_tokenizer(policys);
    }
    Ok(RunReward::new(RewardScorer::Model(Box::new(asked)), entry))
}
