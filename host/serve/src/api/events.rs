//! Streamed responses: server-sent events, written when the connection is ready for more.

use super::choice::{ChoiceDelta, CompletionChoice, usage};
use super::error::{ApiError, Result};
use super::fields::Fields;
use super::reply::EventSource;
use serde_json::{Map, Value, json};
use std::collections::VecDeque;
use std::task::{Context, Poll};

/// Streaming options of a request.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct StreamFields {
    /// Whether the last chunk contains the usage.
    includes_usage: bool,
}

impl StreamFields {
    /// Removes and returns the streaming options; `None` if the response is not streamed.
    pub(super) fn take(fields: &mut Fields) -> Result<Option<Self>> {
        let (stream, options) = (fields.flag("stream")?, fields.object("stream_options")?);
        let mut options = Fields::from_object(options.unwrap_or_default(), "stream_options.");
        let includes_usage = options.flag("include_usage")?;
        options.only("continuous_usage_stats", &[json!(false)])?;
        options.ignore(&["include_obfuscation"]);
        options.finish()?;
        Ok(stream.then_some(Self { includes_usage }))
    }
}

/// Writes the chunks of a response.
pub(super) trait ChunkWriter: Send {
    /// Returns the fields common to all chunks.
    fn head(&self) -> Map<String, Value>;

    /// Returns the entries of `choices` for what an event added to a completion, one chunk each.
    fn chunk(&mut self, choice: &CompletionChoice, delta: &ChoiceDelta) -> Result<Vec<Value>>;
}

/// Events of a streamed response.
pub(super) struct ChunkEvents {
    choices: Vec<CompletionChoice>,
    chunks: Box<dyn ChunkWriter>,
    fields: StreamFields,
    prompt_tokens: usize,
    /// Events that can be sent.
    ready: VecDeque<String>,
    ended: bool,
}

impl ChunkEvents {
    pub(super) fn new(
        choices: Vec<CompletionChoice>,
        chunks: Box<dyn ChunkWriter>,
        fields: StreamFields,
        prompt_tokens: usize,
    ) -> Self {
        Self { choices, chunks, fields, prompt_tokens, ready: VecDeque::new(), ended: false }
    }

    fn event(&mut self, choices: Vec<Value>, usage: Option<Value>) {
        let mut all = self.chunks.head();
        all.insert("choices".into(), choices.into());
        if let Some(usage) = usage {
            all.insert("usage".into(), usage);
        }
        self.ready.push_back(format!("data: {}\n\n", Value::Object(all)));
    }

    fn fail(&mut self, error: &ApiError) {
        self.ready.push_back(format!("data: {}\n\n", error.to_json()));
        self.end();
    }

    fn end(&mut self) {
        self.ready.push_back("data: [DONE]\n\n".into());
        self.ended = true;
        // Dropping the streams cancels the requests that are still computed.
        self.choices.clear();
    }

    /// Turns new engine events into chunks.
    fn advance(&mut self, context: &mut Context<'_>) {
        for i in 0..self.choices.len() {
            while let Poll::Ready(Some(delta)) = self.choices[i].poll_next(context) {
                match delta.and_then(|delta| self.chunks.chunk(&self.choices[i], &delta)) {
                    Ok(entries) => entries.into_iter().for_each(|entry| self.event(vec![entry], None)),
                    Err(error) => return self.fail(&error),
                }
            }
        }
        if self.choices.iter().all(|choice| choice.finish.is_some()) {
            if self.fields.includes_usage {
                let usage = usage(self.prompt_tokens, &self.choices);
                self.event(Vec::new(), Some(usage));
            }
            self.end();
        }
    }
}

impl EventSource for ChunkEvents {
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<String>> {
        if self.ready.is_empty() && !self.ended {
            self.advance(context);
        }
        // Send all events that are ready as one frame.
        match self.ready.drain(..).reduce(|all, event| all + &event) {
            Some(events) => Poll::Ready(Some(events)),
            None if self.ended => Poll::Ready(None),
            None => Poll::Pending,
        }
    }
}
