//! Scores of a run's completions, and the rows that they were made for.

use crate::data::{ChatMessage, TemplateVariables};
use serde_json::{Map, Value};

/// The scores of recorded completions, and their source.
pub(super) type RescoringScores = (Vec<Option<f32>>, String);

/// A row of the run's dataset; empty if it is unusable.
#[derive(Clone, Default)]
pub(super) struct RescoringRow {
    /// Its prompt as a conversation, with the template's variables; a text becomes a user message.
    pub prompt: (Vec<ChatMessage>, TemplateVariables),
    /// Whether it is a conversation.
    pub(super) is_chat: bool,
    pub columns: Map<String, Value>,
}
