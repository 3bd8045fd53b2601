//! Response object and its output items.

use super::super::chat::{AssistantTurn, ChatResponseForm};
use super::super::choice::CompletionChoice;
use super::super::fields::Fields;
use serde_json::{Map, Value, json};

/// Returns the request fields that a response repeats, with their defaults.
fn defaults() -> [(&'static str, Value); 9] {
    [
        ("instructions", Value::Null),
        ("max_output_tokens", Value::Null),
        ("metadata", json!({})),
        ("parallel_tool_calls", json!(true)),
        ("reasoning", json!({"effort": null, "summary": null})),
        ("temperature", json!(1.0)),
        ("tool_choice", json!("auto")),
        ("tools", json!([])),
        ("top_p", json!(1.0)),
    ]
}

/// Returns the request fields that the response repeats.
pub(super) fn repeated(fields: &Fields) -> Map<String, Value> {
    let value = |(name, default): (&str, Value)| (name.to_owned(), fields.get(name).cloned().unwrap_or(default));
    defaults().into_iter().map(value).collect()
}

/// Fields common to all objects of a response.
pub(super) struct ResponseHead {
    /// Unique number of the response.
    number: String,
    model: String,
    created: i64,
    prompt_tokens: usize,
    repeated: Map<String, Value>,
}

impl ResponseHead {
    pub(super) fn new(form: &ChatResponseForm, repeated: Map<String, Value>) -> Self {
        let (number, model) = (form.number().to_owned(), form.model.clone());
        Self { number, model, created: form.created, prompt_tokens: form.prompt.len(), repeated }
    }

    /// Returns a response in progress.
    pub(super) fn begun(&self) -> Value {
        self.object("in_progress", Vec::new(), Value::Null)
    }

    fn object(&self, status: &str, output: Vec<Value>, usage: Value) -> Value {
        let reason = (status == "incomplete").then(|| json!({"reason": "max_output_tokens"}));
        let mut all = json!({
            "id": format!("resp_{}", self.number), "object": "response", "created_at": self.created, "status": status, "error": null,
            "incomplete_details": reason, "model": self.model, "output": output, "previous_response_id": null, "store": false,
            "background": false, "text": {"format": {"type": "text"}}, "truncation": "disabled", "usage": usage,
        });
        for (name, value) in &self.repeated {
            all[name] = value.clone();
        }
        all
    }

    /// Returns a finished response.
    pub(super) fn ended(&self, turn: &AssistantTurn, choice: &CompletionChoice) -> Value {
        let (prompt, completion) = (self.prompt_tokens, choice.tokens.len());
        let usage = json!({
            "input_tokens": prompt, "input_tokens_details": {"cached_tokens": choice.cached.min(prompt)},
            "output_tokens": completion, "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": prompt + completion,
        });
        let text = turn.content.as_str().unwrap_or_default();
        let message = writes_message(turn).then(|| self.message(text, status(turn)));
        let output = message.into_iter().chain(turn.calls.iter().map(|call| function_call(call, "completed")));
        let mut all = self.object(status(turn), output.collect(), usage);
        all["weight_versions"] = choice.weight_versions();
        all
    }

    /// Returns the id of the message item with the turn's text.
    pub(super) fn message_id(&self) -> String {
        format!("msg_{}", self.number)
    }

    /// Returns the message item with the turn's text.
    pub(super) fn message(&self, text: &str, status: &str) -> Value {
        let content = if status == "in_progress" { json!([]) } else { json!([part(text)]) };
        json!({"id": self.message_id(), "type": "message", "role": "assistant", "status": status, "content": content})
    }
}

/// Returns whether a turn has a message item; a turn without calls always has one.
pub(super) fn writes_message(turn: &AssistantTurn) -> bool {
    turn.calls.is_empty() || turn.content.as_str().is_some_and(|text| !text.is_empty())
}

/// Returns the status of a turn: incomplete if the token limit ended it.
pub(super) fn status(turn: &AssistantTurn) -> &'static str {
    if turn.finish == Some("length") { "incomplete" } else { "completed" }
}

/// Returns the text part of a message item.
pub(super) fn part(text: &str) -> Value {
    json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []})
}

/// Returns the item of a tool call.
pub(super) fn function_call(call: &Value, status: &str) -> Value {
    let id = call["id"].as_str().unwrap_or_default();
    json!({
        "id": format!("fc_{id}"), "type": "function_call", "call_id": id, "name": call["function"]["name"],
        "arguments": call["function"]["arguments"], "status": status,
    })
}
