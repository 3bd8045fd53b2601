//! `/v1/messages` and `/v1/messages/count_tokens`: Anthropic's interface. A request is translated into one of OpenAI's form, so both
//! interfaces render, sample and read calls in the same way.

mod events;
mod request;

use super::app::App;
use super::chat::{Chat, Turn};
use super::choice::Choice;
use super::error::{ApiError, Result};
use super::fields::Fields;
use super::messages::conversation;
use super::reply::Reply;
use super::typed_events::{TypedEvents, finished_turn};
use events::Events;
use serde_json::{Value, json};
use std::sync::Arc;

/// The path of the interface.
pub(super) const PATH: &str = "/v1/messages";

/// A field that asks the server to store a conversation.
const THREAD: &str = "thread";

/// A request that has been read.
pub(super) struct Messages(Chat);

impl Messages {
    /// Reads a request.
    pub(super) fn read(app: &App, mut fields: Fields) -> Result<Self> {
        let limit = fields.take("max_tokens").ok_or_else(|| ApiError::field("max_tokens", "is missing"))?;
        let mut chat = request::chat(fields)?;
        chat.insert("max_tokens".into(), limit);
        Chat::read(app, Fields::of_object(chat, "")).map(Self)
    }

    /// Starts the turn, and answers when it is done, or with a stream.
    pub(super) async fn answer(self, app: Arc<App>) -> Result<Reply> {
        let Chat { form, sampling, stream, requests } = self.0;
        let (id, mut choice) = (format!("msg_{}", form.number()), app.start_one(requests, &sampling)?);
        if stream.is_some() {
            let events = Events::new(id, form.model.clone(), form.prompt.len());
            return Ok(Reply::events(TypedEvents::new(app, form, choice, Box::new(events))));
        }
        choice.complete().await?;
        let turn = finished_turn(&form, &app, &choice)?;
        let (reason, sequence) = stop_reason(&turn, &choice);
        Ok(Reply::json(json!({
            "id": id, "type": "message", "role": "assistant", "model": form.model, "content": content(&turn), "stop_reason": reason,
            "stop_sequence": sequence, "usage": usage(form.prompt.len(), &choice), "weight_versions": choice.weight_versions(),
        })))
    }
}

/// Answers `/v1/messages/count_tokens`.
pub(super) fn count_tokens(app: &App, fields: Fields) -> Result<Reply> {
    let mut chat = Fields::of_object(request::chat(fields)?, "");
    app.model_of(&mut chat)?;
    let conversation = conversation(&app.tokenizer, &mut chat)?;
    chat.finish()?;
    Ok(Reply::json(json!({"input_tokens": conversation.tokens.len()})))
}

/// Returns an error in Anthropic's form.
pub(super) fn error(error: &ApiError) -> Value {
    let kind = match error.status {
        401 => "authentication_error",
        403 => "permission_error",
        404 => "not_found_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        400..=499 => "invalid_request_error",
        503 => "overloaded_error",
        504 => "timeout_error",
        _ => "api_error",
    };
    let mut all = json!({"type": "error", "error": {"type": kind, "message": error.message()}});
    if error.param() == Some(THREAD) {
        // Clients then send the whole conversation, as to all servers that store nothing.
        all["error"]["details"] = json!({"error_code": "thread_unsupported_request", "unsupported": [THREAD]});
    }
    all
}

/// Returns the blocks of a turn.
fn content(turn: &Turn) -> Vec<Value> {
    let text = turn.content.as_str().filter(|text| !text.is_empty());
    let text = text.map(|text| json!({"type": "text", "text": text}));
    text.into_iter().chain(turn.calls.iter().map(tool_use)).collect()
}

/// Returns the block of a call.
fn tool_use(call: &Value) -> Value {
    let arguments = call["function"]["arguments"].as_str().unwrap_or_default();
    // What is no JSON stays a text.
    let input = serde_json::from_str(arguments).unwrap_or_else(|_| Value::from(arguments));
    json!({"type": "tool_use", "id": call["id"], "name": call["function"]["name"], "input": input})
}

/// Returns why a turn ended, and the stop text that ended it.
fn stop_reason(turn: &Turn, choice: &Choice) -> (&'static str, Value) {
    match (turn.finish, &choice.stopped) {
        (Some("tool_calls"), _) => ("tool_use", Value::Null),
        (Some("length"), _) => ("max_tokens", Value::Null),
        (_, Some(stop)) => ("stop_sequence", stop.as_str().into()),
        _ => ("end_turn", Value::Null),
    }
}

/// Returns the usage of a turn after a prompt of `prompt` tokens.
fn usage(prompt: usize, choice: &Choice) -> Value {
    let cached = choice.cached.min(prompt);
    json!({
        "input_tokens": prompt - cached, "cache_read_input_tokens": cached, "cache_creation_input_tokens": 0,
        "output_tokens": choice.tokens.len(),
    })
}

#[cfg(test)]
mod tests;
