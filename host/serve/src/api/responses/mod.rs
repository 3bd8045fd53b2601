//! `/v1/responses`: OpenAI's newer interface. A request is translated into one of `/v1/chat/completions`. Nothing is stored.

mod events;
mod object;
mod request;

use super::app::App;
use super::chat::Chat;
use super::error::Result;
use super::fields::Fields;
use super::reply::Reply;
use super::typed_events::{TypedEvents, finished_turn};
use events::Events;
use object::Head;
use serde_json::{Map, Value};
use std::sync::Arc;

/// A request that has been read.
pub(super) struct Responses {
    chat: Chat,
    /// Fields of the request that its response repeats.
    repeated: Map<String, Value>,
}

impl Responses {
    /// Reads a request.
    pub(super) fn read(app: &App, mut fields: Fields) -> Result<Self> {
        let repeated = object::repeated(&fields);
        let chat = request::chat(&mut fields)?;
        fields.finish()?;
        Ok(Self { chat: Chat::read(app, Fields::of_object(chat, ""))?, repeated })
    }

    /// Starts the turn, and answers when it is done, or with a stream.
    pub(super) async fn answer(self, app: Arc<App>) -> Result<Reply> {
        let Chat { form, sampling, stream, requests } = self.chat;
        let mut choice = app.start_one(requests, &sampling)?;
        let head = Head::new(&form, self.repeated);
        if stream.is_some() {
            return Ok(Reply::events(TypedEvents::new(app, form, choice, Box::new(Events::new(head)))));
        }
        choice.complete().await?;
        let turn = finished_turn(&form, &app, &choice)?;
        Ok(Reply::json(head.ended(&turn, &choice)))
    }
}

#[cfg(test)]
mod tests;
