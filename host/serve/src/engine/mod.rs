//! Continuous batching: one thread owns the model and computes requests in rounds.
//!
//! Between two rounds it admits requests, drops those whose client has disconnected, and installs new weights. In a round, each sequence
//! that generates reads its newest token, and sequences whose prompts are not fully read read a part of them. So a long prompt stalls the
//! others for no longer than one part takes.
//!
//! Sequences grow until the memory for keys and values is full. Then prefixes of earlier requests are dropped; if that is not enough, the
//! newest sequences pause: they drop their keys and values and recompute them when there is room.
//!
//! Sequences share no keys and values, and those of a token depend, to the bit, only on the tokens before it
//! ([`crate::model::IncrementalDecoder::decode_at`]). So a request with a seed yields the same tokens and log-probabilities whatever else
//! is in the batch, however its prompt is split into parts, whether a prefix was found in the cache (`prefix_cache.rs`), and whether it
//! paused.

mod adapters;
mod counters;
mod gathering;
mod jobs;
mod pause;
mod prefill_budget;
mod prefix_cache;
mod request;
mod round_parts;
mod sequence;
mod worker;

pub use adapters::EngineAdapter;
pub use counters::{CounterKind, EngineCounters};
use jobs::{EngineCommand, EngineJob, SharedEngineState};
pub use jobs::{EngineOptions, TokenStream};
pub use pause::PauseMode;
pub use request::{
    EngineEvent, EngineRequest, FinishReason, LogprobSettings, RandomStream, RequestRefusal, ScoredToken, StopPredicate,
};

use crate::model::IncrementalDecoder;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use tokio::sync::mpsc::unbounded_channel;
use tokio::sync::oneshot::{self, Receiver};
use worker::EngineWorker;

/// Running engine. Dropping it ends all its requests.
pub struct InferenceEngine {
    options: EngineOptions,
    vocabulary: usize,
    shared: Arc<SharedEngineState>,
    /// `None` once the engine is being dropped.
    commands: Mutex<Option<Sender<EngineCommand>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl InferenceEngine {
    /// Starts an engine for a model with weights of this version. The model's context bounds `max_model_len`.
    ///
    /// # Errors
    /// If the thread can't be started.
    pub fn start(model: IncrementalDecoder, version: u64, options: EngineOptions) -> std::io::Result<Self> {
        let context = model.architecture().max_positions.min(options.max_model_len);
        let for_positions = options.cache_bytes.saturating_sub(model.bytes_of_states());
        let fitting = for_positions / model.bytes_per_position().max(1);
        if fitting < context {
            tracing::warn!(
                "memory for keys and values bounds prompt and completion to {fitting} tokens of {context}; --kv-cache-memory-bytes sets it"
            );
        }
        let options = EngineOptions { max_model_len: context.min(fitting), ..options };
        let vocabulary = model.architecture().vocab_size;
        let shared = Arc::new(SharedEngineState {
            counters: EngineCounters::default(),
            stopping: AtomicBool::new(false),
            paused: AtomicBool::new(false),
        });
        let (commands, received) = mpsc::channel();
        let mut worker = EngineWorker::new(model, version, options, Arc::clone(&shared));
        let thread = thread::Builder::new().name("engine".into()).spawn(move || worker.run(&received))?;
        Ok(Self { options, vocabulary, shared, commands: Mutex::new(Some(commands)), thread: Mutex::new(Some(thread)) })
    }

    /// Returns the limits of the engine.
    pub fn options(&self) -> &EngineOptions {
        &self.options
    }

    /// Returns the counters of the engine.
    pub fn counters(&self) -> &EngineCounters {
        &self.shared.counters
    }

    /// Starts all requests, or none.
    ///
    /// # Errors
    /// If a request can't be served; then nothing is computed.
    pub fn submit(&self, requests: Vec<EngineRequest>) -> Result<Vec<TokenStream>, RequestRefusal> {
        requests.iter().try_for_each(|request| self.check(request))?;
        if self.shared.stopping.load(Ordering::SeqCst) {
            return Err(RequestRefusal::Stopping);
        }
        let count = requests.len();
        if !self.shared.counters.enqueue(count, self.options.max_waiting.max(1)) {
            return Err(RequestRefusal::Full);
        }
        let commands = self.commands.lock().unwrap_or_else(PoisonError::into_inner);
        let commands = commands.as_ref().ok_or(RequestRefusal::EngineEnded)?;
        let start = |mut request: EngineRequest| {
            if let Some(adapter) = &request.adapter {
                request.salt = adapter.salted(request.salt);
            }
            let (events, stream) = unbounded_channel();
            let sent = commands.send(EngineCommand::Generate(Box::new(EngineJob { request, events })));
            sent.map(|()| TokenStream::new(stream)).map_err(|_| RequestRefusal::EngineEnded)
        };
        requests.into_iter().map(start).collect()
    }

    /// Replaces the weights between two rounds and drops all cached prefixes. Sequences in progress continue with the new weights and the
    /// keys and values that they have; each token carries the version of the weights that sampled it. The receiver resolves when the
    /// weights are in place.
    ///
    /// # Errors
    /// If the engine has ended.
    pub fn replace(&self, model: IncrementalDecoder, version: u64) -> Result<Receiver<()>, RequestRefusal> {
        self.tell(|done| EngineCommand::Replace { adapter: None, model: Box::new(model), version, done })
    }

    /// Replaces an adapter's weights, as [`InferenceEngine::replace`] replaces the engine's own.
    ///
    /// # Errors
    /// If the engine has ended.
    pub fn replace_adapter(
        &self,
        adapter: Arc<EngineAdapter>,
        model: IncrementalDecoder,
        version: u64,
    ) -> Result<Receiver<()>, RequestRefusal> {
        self.tell(|done| EngineCommand::Replace { adapter: Some(adapter), model: Box::new(model), version, done })
    }

    /// Pauses the engine. The receiver resolves when no token is computed any more.
    ///
    /// # Errors
    /// If the engine has ended.
    pub fn pause(&self, mode: PauseMode) -> Result<Receiver<()>, RequestRefusal> {
        self.tell(|done| EngineCommand::Pause(mode, done))
    }

    /// Ends a pause. The receiver resolves when the engine works again.
    ///
    /// # Errors
    /// If the engine has ended.
    pub fn resume(&self) -> Result<Receiver<()>, RequestRefusal> {
        self.tell(EngineCommand::Resume)
    }

    /// Drops all cached prefixes. The receiver resolves when they are gone.
    ///
    /// # Errors
    /// If the engine has ended.
    pub fn forget_prefixes(&self) -> Result<Receiver<()>, RequestRefusal> {
        self.tell(EngineCommand::ClearPrefixCache)
    }

    fn tell(&self, command: impl FnOnce(oneshot::Sender<()>) -> EngineCommand) -> Result<Receiver<()>, RequestRefusal> {
        let (done, heard) = oneshot::channel();
        let commands = self.commands.lock().unwrap_or_else(PoisonError::into_inner);
        let sent = commands.as_ref().map(|commands| commands.send(command(done)));
        sent.and_then(Result::ok).map(|()| heard).ok_or(RequestRefusal::EngineEnded)
    }

    /// Returns whether the engine is paused.
    pub fn is_paused(&self) -> bool {
        self.shared.paused.load(Ordering::SeqCst)
    }

    /// Rejects all further requests. Accepted requests continue.
    pub fn stop_accepting(&self) {
        self.shared.stopping.store(true, Ordering::SeqCst);
    }

    /// Returns whether the engine's thread is running.
    pub fn is_running(&self) -> bool {
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }

    /// Ends the engine and all requests in progress: computation has stopped on return, and the weights are freed.
    pub fn end(&self) {
        self.stop_accepting();
        *self.commands.lock().unwrap_or_else(PoisonError::into_inner) = None;
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // A panic has already been printed.
            let _ = thread.join();
        }
    }

    fn check(&self, request: &EngineRequest) -> Result<(), RequestRefusal> {
        let (prompt, most) = (request.tokens.len(), self.options.max_model_len);
        if prompt == 0 {
            return Err(RequestRefusal::Empty);
        }
        let bias = request.logit_bias.iter().map(|(token, _)| token);
        if let Some(&token) = request.tokens.iter().chain(bias).find(|&&token| token as usize >= self.vocabulary) {
            return Err(RequestRefusal::UnknownToken { token, vocabulary: self.vocabulary });
        }
        if prompt + request.max_tokens > most {
            return Err(RequestRefusal::TooLong { prompt, max_tokens: request.max_tokens, most });
        }
        Ok(())
    }
}

impl Drop for InferenceEngine {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
pub(crate) mod tests;
