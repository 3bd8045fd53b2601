//! The outcome of an episode.

use crate::data::{ChatMessage, TemplateVariables};
use crate::run::TurnRow;
use serde::{Deserialize, Serialize};

/// Outcome of an episode, besides its tokens.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
pub(crate) struct EpisodeOutcome {
    /// The environment's index in the run.
    pub environment: usize,
    /// Text of the prompt.
    pub prompt: String,
    /// The whole conversation: a JSON list of messages.
    pub messages: String,
    /// The template's variables, as JSON: [`TemplateVariables`].
    pub extras: String,
    /// Random seed of the episode.
    pub seed: u64,
    /// Turns of the episode, without their texts.
    pub turns: Vec<TurnRow>,
    /// The reward of each turn.
    pub rewards: Vec<Option<f32>>,
    /// The end of the output of an agent's program.
    #[serde(default)]
    pub output: Option<String>,
    /// Reason of the failure, if the episode failed.
    pub failed: Option<String>,
}

impl EpisodeOutcome {
    /// Returns the sum of the turns' rewards; none if no turn has one.
    pub(crate) fn reward(&self) -> Option<f32> {
        sum(&self.rewards)
    }

    /// Returns the conversation and the template's variables.
    pub(crate) fn conversation(&self) -> (Vec<ChatMessage>, TemplateVariables) {
        // This program wrote both.
        let [messages, extras] = [&self.messages, &self.extras];
        (serde_json::from_str(messages).unwrap_or_default(), serde_json::from_str(extras).unwrap_or_default())
    }
}

/// Returns the sum of turns' rewards; none if no turn has one.
pub(crate) fn sum(rewards: &[Option<f32>]) -> Option<f32> {
    let mut given = rewards.iter().flatten().copied().peekable();
    given.peek().is_some().then(|| given.map(f64::from).sum::<f64>() as f32)
}
