//! Scores of a run's completions, and the dataset rows of their prompts.

use crate::data::{ChatMessage, TemplateVariables};
use serde_json::{Map, Value};

/// Scores of recorded completions, and their source.
pub(super) type RescoringScores = (Vec<Option<f32>>, String);

/// A row of the run's dataset; empty if it is unusable.
#[derive(Clone, Default)]
pub(super) struct RescoringRow {
    /// The row's prompt as a conversation, with the template's variables; a text becomes a user message.
    pub prompt: (Vec<ChatMessage>, TemplateVariables),
    /// Whether the prompt is a conversation.
    pub(super) is_chat: bool,
    pub columns: Map<String, Value>,
}
