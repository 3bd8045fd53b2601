//! Completion in progress: converts its tokens to text and reports why it ended.

use super::error::{ApiError, Result};
use crate::engine::{EngineEvent, FinishReason, ScoredToken, TokenStream};
use crate::session::CallRecorder;
use crate::text::TextStream;
use serde_json::{Value, json};
use std::task::{Context, Poll};

/// One of the completions in a response.
pub(super) struct CompletionChoice {
    /// Index of the completion in the response.
    pub index: usize,
    stream: TokenStream,
    text: TextStream,
    /// Text so far.
    pub written: String,
    /// Tokens so far.
    pub tokens: Vec<ScoredToken>,
    /// Scored tokens of the prompt.
    pub scored: Vec<ScoredToken>,
    /// Number of prompt tokens found in the cache.
    pub cached: usize,
    /// Reason why the completion ended; `None` while it is in progress.
    pub finish: Option<&'static str>,
    /// Stop text that ended the completion.
    pub stopped: Option<String>,
    /// Recorder of the finished completion, if it belongs to a session.
    recorder: Option<CallRecorder>,
    /// Whether tokens are sent as they are sampled.
    streams: bool,
}

/// What one engine event adds to a completion.
#[derive(Default)]
pub(super) struct ChoiceDelta {
    pub text: String,
    /// New token, if the event is one.
    pub token: Option<ScoredToken>,
    /// Whether the event says that the prompt has been read.
    pub begins: bool,
}

impl CompletionChoice {
    pub(super) fn new(index: usize, stream: TokenStream, text: TextStream) -> Self {
        let (written, tokens, scored) = Default::default();
        Self {
            index,
            stream,
            text,
            written,
            tokens,
            scored,
            cached: 0,
            finish: None,
            stopped: None,
            recorder: None,
            streams: false,
        }
    }

    /// Sets the recorder of the finished completion.
    pub(super) fn with_recorder(mut self, recorder: Option<CallRecorder>) -> Self {
        self.recorder = recorder;
        self
    }

    /// Waits until the completion has ended.
    pub(super) async fn complete(&mut self) -> Result<()> {
        while self.finish.is_none() {
            let event = self.stream.next().await;
            self.accept(event)?;
        }
        Ok(())
    }

    /// Polls for the next addition; `None` after the end.
    pub(super) fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<ChoiceDelta>>> {
        if self.finish.is_some() {
            return Poll::Ready(None);
        }
        self.streams = true;
        self.stream.poll_next(context).map(|event| Some(self.accept(event)))
    }

    fn accept(&mut self, event: Option<EngineEvent>) -> Result<ChoiceDelta> {
        let delta = match event {
            None => return Err(ApiError::new(500, "the engine has ended after an error")),
            Some(EngineEvent::Failed(detail)) => return Err(ApiError::new(500, detail)),
            Some(EngineEvent::Prompt { scored, cached }) => {
                (self.scored, self.cached) = (scored, cached);
                ChoiceDelta { begins: true, ..ChoiceDelta::default() }
            }
            Some(EngineEvent::Token(token)) => {
                self.tokens.push(token.clone());
                ChoiceDelta { text: self.text.push(token.id)?, token: Some(token), begins: false }
            }
            Some(EngineEvent::Finished(finish)) => {
                self.finish = Some(match finish {
                    FinishReason::End | FinishReason::Stop => "stop",
                    FinishReason::Length => "length",
                    FinishReason::Abort => "abort",
                });
                ChoiceDelta { text: self.text.finish()?, ..ChoiceDelta::default() }
            }
        };
        if let Some(stop) = self.text.stopped() {
            self.stopped = Some(stop.to_owned());
            self.finish = Some("stop");
        }
        self.written += &delta.text;
        if let (Some(finish), Some(recorder)) = (self.finish, self.recorder.take_if(|_| self.finish.is_some())) {
            recorder.finish(&self.tokens, &self.written, finish == "stop");
        }
        Ok(delta)
    }

    /// Returns the token ids.
    pub(super) fn ids(&self) -> Vec<u32> {
        self.tokens.iter().map(|token| token.id).collect()
    }

    /// Returns the spans of tokens that each version of the weights sampled.
    pub(super) fn weight_versions(&self) -> Value {
        let mut end = 0;
        let spans = self.tokens.chunk_by(|a, b| a.version == b.version).map(|span| {
            let start = end;
            end += span.len();
            json!({"version": span[0].version.to_string(), "start": start, "end": end})
        });
        spans.collect()
    }
}

impl Drop for CompletionChoice {
    /// Records what the client has received when it closes a stream early; tokens beyond that had no effect.
    fn drop(&mut self) {
        if let Some(recorder) = self.recorder.take_if(|_| self.streams) {
            recorder.finish(&self.tokens, &self.written, false);
        }
    }
}

/// Returns the usage of a response: these completions, and prompts of `prompt` tokens in total.
pub(super) fn usage(prompt: usize, choices: &[CompletionChoice]) -> Value {
    let completion: usize = choices.iter().map(|choice| choice.tokens.len()).sum();
    let cached = choices.iter().map(|choice| choice.cached).max().unwrap_or(0);
    json!({
        "prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached.min(prompt)},
    })
}
