//! Streamed turns in APIs with typed events: Anthropic's messages and OpenAI's responses.

use super::app::App;
use super::chat::{AssistantTurn, ChatResponseForm};
use super::choice::{ChoiceDelta, CompletionChoice};
use super::error::{ApiError, Result};
use super::reply::EventSource;
use serde_json::Value;
use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll};

/// Writes the events of an API. Each event names its type in `type`.
pub(super) trait EventWriter: Send {
    /// Returns the events that precede the turn's first token.
    fn begin(&mut self, choice: &CompletionChoice) -> Vec<Value>;

    /// Returns the events of new text, which is not empty.
    fn text(&mut self, text: &str) -> Vec<Value>;

    /// Returns the events of the calls and of the end. The turn's text has been written already.
    fn end(&mut self, choice: &CompletionChoice, turn: AssistantTurn) -> Vec<Value>;

    /// Returns the event of an error, which is the last event.
    fn fail(&mut self, error: &ApiError) -> Value;
}

/// Parses a completion that has ended. These APIs have no stop reason for a completion that a pause ended, so it is an error.
pub(super) fn finished_turn(form: &ChatResponseForm, app: &App, choice: &CompletionChoice) -> Result<AssistantTurn> {
    if choice.finish == Some("abort") {
        return Err(ApiError::new(503, "the server was paused, which ended the request; send it again"));
    }
    form.turn(app, choice)
}

/// Events of a turn.
pub(super) struct TypedEvents {
    app: Arc<App>,
    form: ChatResponseForm,
    /// Completion in progress; `None` once it has ended.
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

    /// Writes the events of an addition. The text of a turn that may contain calls is written in one piece at its end, since what looks
    /// like a call may turn out to be text.
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
        // Send all events that are ready as one frame.
        match self.ready.drain(..).reduce(|all, event| all + &event) {
            Some(events) => Poll::Ready(Some(events)),
            None if self.choice.is_none() => Poll::Ready(None),
            None => Poll::Pending,
        }
    }
}
