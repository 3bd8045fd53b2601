//! `/v1/messages` and `/v1/messages/count_tokens`: Anthropic's API. Requests are translated into OpenAI's form, so both APIs render, sample
//! and parse calls in the same way.

mod blocks;
mod events;
mod request;

use super::app::App;
use super::chat::ChatRequest;
use super::error::{ApiError, Result};
use super::fields::Fields;
use super::messages::conversation;
use super::reply::Reply;
use super::typed_events::{TypedEvents, finished_turn};
use blocks::{content, stop_reason, usage};
use events::MessagesEventWriter;
use serde_json::json;
use std::sync::Arc;

/// Parsed request for `/v1/messages`.
pub(super) struct MessagesRequest(ChatRequest);

impl MessagesRequest {
    /// Parses a request.
    pub(super) fn read(app: &App, mut fields: Fields) -> Result<Self> {
        let limit = fields.take("max_tokens").ok_or_else(|| ApiError::field("max_tokens", "is missing"))?;
        let mut chat = request::chat(fields)?;
        chat.insert("max_tokens".into(), limit);
        ChatRequest::read(app, Fields::from_object(chat, "")).map(Self)
    }

    /// Starts the turn and returns the finished response, or a stream.
    pub(super) async fn answer(self, app: Arc<App>) -> Result<Reply> {
        let ChatRequest { form, sampling, stream, requests } = self.0;
        let (id, mut choice) = (format!("msg_{}", form.number()), app.start_one(requests, &sampling)?);
        if stream.is_some() {
            let events = MessagesEventWriter::new(id, form.model.clone(), form.prompt.len());
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
    let mut chat = Fields::from_object(request::chat(fields)?, "");
    app.model_of(&mut chat)?;
    let conversation = conversation(app, &mut chat)?;
    chat.finish()?;
    Ok(Reply::json(json!({"input_tokens": conversation.tokens.len()})))
}

#[cfg(test)]
mod tests;
