//! `/v1/responses`: OpenAI's newer API. Requests are translated into those of `/v1/chat/completions`. Responses are not stored.

mod events;
mod object;
mod request;

use super::app::App;
use super::chat::ChatRequest;
use super::error::Result;
use super::fields::Fields;
use super::reply::Reply;
use super::typed_events::{TypedEvents, finished_turn};
use events::ResponsesEventWriter;
use object::ResponseHead;
use serde_json::{Map, Value};
use std::sync::Arc;

/// Parsed request for `/v1/responses`.
pub(super) struct ResponsesRequest {
    chat: ChatRequest,
    /// Request fields that the response repeats.
    repeated: Map<String, Value>,
}

impl ResponsesRequest {
    /// Parses a request.
    pub(super) fn read(app: &App, mut fields: Fields) -> Result<Self> {
        let repeated = object::repeated(&fields);
        let chat = request::chat(&mut fields)?;
        fields.finish()?;
        Ok(Self { chat: ChatRequest::read(app, Fields::from_object(chat, ""))?, repeated })
    }

    /// Starts the turn and returns the finished response, or a stream.
    pub(super) async fn answer(self, app: Arc<App>) -> Result<Reply> {
        let ChatRequest { form, sampling, stream, requests } = self.chat;
        let mut choice = app.start_one(requests, &sampling)?;
        let head = ResponseHead::new(&form, self.repeated);
        if stream.is_some() {
            return Ok(Reply::events(TypedEvents::new(app, form, choice, Box::new(ResponsesEventWriter::new(head)))));
        }
        choice.complete().await?;
        let turn = finished_turn(&form, &app, &choice)?;
        Ok(Reply::json(head.ended(&turn, &choice)))
    }
}

#[cfg(test)]
mod tests;
