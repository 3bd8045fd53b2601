//! A streamed turn for interfaces whose events have types: Anthropic's messages and OpenAI's responses.

use super::app::App;
use super::chat::{AssistantTurn, ChatResponseForm};
use super::choice::{ChoiceDelta, CompletionChoice};
use super::error::{ApiError, Result};
use super::reply::EventSource;
use serde_json::Value;
use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll};

/// Makes the events of an interface. Each has its type in `type`.
pub(super) trait EventWriter: Send {
    /// Returns the events before the turn's first token.
    fn begin(&mut self, choice: &CompletionChoice) -> Vec<Value>;

    /// Returns the events of more text, which is not empty.
    fn text(&mut self, text: &str) -> Vec<Value>;

    /// Returns the events of the calls and the end. The turn's text has been written.
    fn end(&mut self, choice: &CompletionChoice, turn: AssistantTurn) -> Vec<Value>;

    /// Returns the event of an error, which is the last.
    fn fail(&mut self, error: &ApiError) -> Value;
}

/// Returns what a completion says that has ended. These interfaces have no word for one that a pause ended: it is an error.
pub(super) fn finished_turn(form: &ChatResponseForm, app: &App, choice: &CompletionChoice) -> Result<AssistantTurn> {
    if choice.finish == Some("abort") {
        return Err(ApiError::new(503, "the server was paused, which ended the request; send it again"));
    }
    form.turn(app, choice)
}

/// The events of a turn.
pub(super) struct TypedEvents {
    app: Arc<App>,
    form: ChatResponseForm,
    /// None once it has ended.
    choice: Option<CompletionChoice>,
    writer: Box<dyn EventWriter>,
    ready: VecDeque<String>,
}

impl TypedEvents {
    pub(super) fn new(app: Arc<App>, form: ChatResponseForm, choice: CompletionChoice, writer: Box<dyn EventWriter>) -> Self {
        Self { app, form, choice: Some(choice), writer, ready: VecDeque::new() }
    }

    fn send(&mut self, events: Vec<Value>) {
        let written = |event: Value| format!("event: {}\ndata: {event}\n\n", event["type"].as_str().unwrap_or_default());
        self.ready.extend(events.into_iter().map(written));
    }

    /// Writes what an event has added. The text of a turn that could have calls is written as a whole at its end, since what looks like
    /// a call may be none.
    fn write(&mut self, choice: &CompletionChoice, delta: &ChoiceDelta) -> Result<()> {
        if delta.begins {
            let events = self.writer.begin(choice);
            self.send(events);
        }
        let turn = choice.finish.is_some().then(|| finished_turn(&self.form, &self.app, choice)).transpose()?;
        let text = match &turn {
            _ if self.form.tools.is_null() => &delta.text,
            Some(turn) => turn.content.as_str().unwrap_or_default(),
            None => "",
        };
        if !text.is_empty() {
            let events = self.writer.text(text);
            self.send(events);
        }
        if let Some(turn) = turn {
            let events = self.writer.end(choice, turn);
            self.send(events);
        }
        Ok(())
    }

    fn advance(&mut self, context: &mut Context<'_>) {
        let Some(mut choice) = self.choice.take() else { return };
        while let Poll::Ready(Some(delta)) = choice.poll_next(context) {
            if let Err(error) = delta.and_then(|delta| self.write(&choice, &delta)) {
                let event = self.writer.fail(&error);
                self.send(vec![event]);
                return;
            }
        }
        if choice.finish.is_none() {
            self.choice = Some(choice);
        }
    }
}

impl EventSource for TypedEvents {
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<String>> {
        if self.ready.is_empty() {
            self.advance(context);
        }
        // All that is ready is one frame.
        match self.ready.drain(..).reduce(|all, event| all + &event) {
            Some(events) => Poll::Ready(Some(events)),
            None if self.choice.is_none() => Poll::Ready(None),
            None => Poll::Pending,
        }
    }
}
