//! Content blocks, stop reasons and usage of a message in Anthropic's form.

use super::super::chat::AssistantTurn;
use super::super::choice::CompletionChoice;
use serde_json::{Value, json};

/// Returns a turn as content blocks.
pub(super) fn content(turn: &AssistantTurn) -> Vec<Value> {
    let text = turn.content.as_str().filter(|text| !text.is_empty());
    let text = text.map(|text| json!({"type": "text", "text": text}));
    text.into_iter().chain(turn.calls.iter().map(tool_use)).collect()
}

/// Returns a tool call as a `tool_use` block.
pub(super) fn tool_use(call: &Value) -> Value {
    let arguments = call["function"]["arguments"].as_str().unwrap_or_default();
    // Arguments that are not JSON stay a string.
    let input = serde_json::from_str(arguments).unwrap_or_else(|_| Value::from(arguments));
    json!({"type": "tool_use", "id": call["id"], "name": call["function"]["name"], "input": input})
}

/// Returns the reason why a turn ended, and the stop text that ended it, if one did.
pub(super) fn stop_reason(turn: &AssistantTurn, choice: &CompletionChoice) -> (&'static str, Value) {
    match (turn.finish, &choice.stopped) {
        (Some("tool_calls"), _) => ("tool_use", Value::Null),
        (Some("length"), _) => ("max_tokens", Value::Null),
        (_, Some(stop)) => ("stop_sequence", stop.as_str().into()),
        _ => ("end_turn", Value::Null),
    }
}

/// Returns the usage of a turn after a prompt of `prompt` tokens.
pub(super) fn usage(prompt: usize, choice: &CompletionChoice) -> Value {
    let cached = choice.cached.min(prompt);
    json!({
        "input_tokens": prompt - cached, "cache_read_input_tokens": cached, "cache_creation_input_tokens": 0,
        "output_tokens": choice.tokens.len(),
    })
}
