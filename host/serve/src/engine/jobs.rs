//! Messages between callers and the engine's thread.

use super::adapters::EngineAdapter;
use super::counters::EngineCounters;
use super::pause::PauseMode;
use super::request::{EngineEvent, EngineRequest};
use crate::model::IncrementalDecoder;
use crate::ops::available_memory;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::task::{Context, Poll};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};
use tokio::sync::oneshot::Sender;

/// Memory for keys and values if the available memory is unknown, in bytes.
const DEFAULT_CACHE: u64 = 4 << 30;

/// Limits of an engine.
#[derive(Clone, Copy, Debug)]
pub struct EngineOptions {
    /// Maximum number of tokens of a prompt and its completion together.
    pub max_model_len: usize,
    /// Maximum number of sequences per round.
    pub max_num_seqs: usize,
    /// Maximum number of requests that wait to be admitted.
    pub max_waiting: usize,
    /// Memory for keys and values, including the prefix cache, in bytes.
    pub cache_bytes: usize,
    /// Whether prompts are read as fast as possible, although the next tokens of other sequences come later then.
    pub favours_throughput: bool,
}

impl EngineOptions {
    /// Returns the default memory for keys and values: a quarter of what is available.
    pub fn default_cache_bytes() -> u64 {
        available_memory().map_or(DEFAULT_CACHE, |bytes| bytes / 4)
    }
}

/// Command to the engine's thread.
pub(super) enum EngineCommand {
    Generate(Box<EngineJob>),
    /// Replace the weights of an adapter or of the model itself.
    Replace {
        adapter: Option<Arc<EngineAdapter>>,
        model: Box<IncrementalDecoder>,
        version: u64,
        done: Sender<()>,
    },
    Pause(PauseMode, Sender<()>),
    Resume(Sender<()>),
    /// Drop all cached prefixes.
    ClearPrefixCache(Sender<()>),
}

/// Request, and the channel for its tokens.
pub(super) struct EngineJob {
    pub request: EngineRequest,
    pub events: UnboundedSender<EngineEvent>,
}

/// Tokens of a request, as they are sampled. Dropping the stream cancels the request.
#[derive(Debug)]
pub struct TokenStream(UnboundedReceiver<EngineEvent>);

impl TokenStream {
    pub(super) fn new(events: UnboundedReceiver<EngineEvent>) -> Self {
        Self(events)
    }

    /// Creates a stream of these events.
    #[cfg(test)]
    pub(crate) fn from_events(events: Vec<EngineEvent>) -> Self {
        let (sender, stream) = tokio::sync::mpsc::unbounded_channel();
        events.into_iter().for_each(|event| sender.send(event).unwrap());
        Self(stream)
    }

    /// Waits for the next event; `None` after [`EngineEvent::Finished`] or [`EngineEvent::Failed`], or if the engine has ended.
    pub async fn next(&mut self) -> Option<EngineEvent> {
        self.0.recv().await
    }

    /// Polls for the next event.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<EngineEvent>> {
        self.0.poll_recv(context)
    }

    /// Blocks until the next event. Not for asynchronous code.
    pub fn blocking_next(&mut self) -> Option<EngineEvent> {
        self.0.blocking_recv()
    }
}

/// State shared by callers and the engine's thread.
pub(super) struct SharedEngineState {
    pub counters: EngineCounters,
    pub stopping: AtomicBool,
    pub paused: AtomicBool,
}
