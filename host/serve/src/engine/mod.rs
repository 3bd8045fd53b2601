//! Continuous batching for requests that come and go: one thread owns the model and works in rounds.
//!
//! Between two rounds it admits requests, drops those whose client is gone, and takes new weights. In a round, each sequence that
//! generates reads its newest token, and sequences whose prompts are not read yet read a part of them, so a long prompt does not stall
//! the others for longer than a part takes.
//!
//! Sequences grow until the memory for keys and values is full. Then prefixes of earlier requests are dropped, then the newest
//! sequences pause: they forget their keys and values and compute them again when there is room.
//!
//! A sequence's keys and values are its own, from its first token on, and a token's depend only on the tokens before it, to the bit
//! ([`crate::model::Decoding::decode_at`]). So a request with a seed gives the same tokens and log-probabilities whatever else is in
//! the batch, however its prompt is divided into parts, whether a prefix of it was found in the cache (`prefixes.rs`), and whether it paused.

mod adapters;
mod chunks;
mod counters;
mod jobs;
mod pause;
mod prefixes;
mod request;
mod sequence;
mod worker;

pub use adapters::Adapter;
pub use counters::{Counters, Stage};
use jobs::{Command, Job, Shared};
pub use jobs::{Options, Stream};
pub use pause::PauseMode;
pub use request::{Event, Finish, RandomStream, Refusal, Request, Scoring, Stop, Token};

use crate::model::Decoding;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use tokio::sync::mpsc::unbounded_channel;
use tokio::sync::oneshot::{self, Receiver};
use worker::Worker;

/// A running engine. Dropping it ends it, and all requests with it.
pub struct Engine {
    options: Options,
    vocabulary: usize,
    shared: Arc<Shared>,
    /// None once it is being dropped.
    commands: Mutex<Option<Sender<Command>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Engine {
    /// Starts an engine on a model with the weights of this version. The context of the model bounds `max_model_len`.
    ///
    /// # Errors
    /// If its thread can't be started.
    pub fn start(model: Decoding, version: u64, options: Options) -> std::io::Result<Self> {
        let context = model.architecture().max_positions.min(options.max_model_len);
        let fitting = options.cache_bytes / model.bytes_a_position().max(1);
        if fitting < context {
            tracing::warn!(
                "memory for keys and values bounds prompt and completion to {fitting} tokens of {context}; --kv-cache-memory-bytes sets it"
            );
        }
        let options = Options { max_model_len: context.min(fitting), ..options };
        let vocabulary = model.architecture().vocab_size;
        let shared =
            Arc::new(Shared { counters: Counters::default(), stopping: AtomicBool::new(false), paused: AtomicBool::new(false) });
        let (commands, received) = mpsc::channel();
        let mut worker = Worker::new(model, version, options, Arc::clone(&shared));
        let thread = thread::Builder::new().name("engine".into()).spawn(move || worker.run(&received))?;
        Ok(Self { options, vocabulary, shared, commands: Mutex::new(Some(commands)), thread: Mutex::new(Some(thread)) })
    }

    /// Returns its limits.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Returns what it has done so far.
    pub fn counters(&self) -> &Counters {
        &self.shared.counters
    }

    /// Starts requests, all or none.
    ///
    /// # Errors
    /// If one can't be served: it is refused before anything is computed.
    pub fn submit(&self, requests: Vec<Request>) -> Result<Vec<Stream>, Refusal> {
        requests.iter().try_for_each(|request| self.check(request))?;
        if self.shared.stopping.load(Ordering::SeqCst) {
            return Err(Refusal::Stopping);
        }
        let count = requests.len();
        if !self.shared.counters.enqueue(count, self.options.max_waiting.max(1)) {
            return Err(Refusal::Full);
        }
        let commands = self.commands.lock().unwrap_or_else(PoisonError::into_inner);
        let commands = commands.as_ref().ok_or(Refusal::Gone)?;
        let start = |mut request: Request| {
            if let Some(adapter) = &request.adapter {
                request.salt = adapter.salted(request.salt);
            }
            let (events, stream) = unbounded_channel();
            let sent = commands.send(Command::Generate(Box::new(Job { request, events })));
            sent.map(|()| Stream::new(stream)).map_err(|_| Refusal::Gone)
        };
        requests.into_iter().map(start).collect()
    }

    /// Replaces the weights between two rounds and forgets all cached prefixes. Sequences under way continue with the new weights and
    /// the keys and values that they have; each token carries the version of the weights that it was sampled with. The receiver
    /// hears when it is done.
    ///
    /// # Errors
    /// If the engine has ended.
    pub fn replace(&self, model: Decoding, version: u64) -> Result<Receiver<()>, Refusal> {
        self.tell(|done| Command::Replace { adapter: None, model: Box::new(model), version, done })
    }

    /// Replaces an adapter's weights, as [`Engine::replace`] does the engine's own.
    ///
    /// # Errors
    /// If the engine has ended.
    pub fn replace_adapter(&self, adapter: Arc<Adapter>, model: Decoding, version: u64) -> Result<Receiver<()>, Refusal> {
        self.tell(|done| Command::Replace { adapter: Some(adapter), model: Box::new(model), version, done })
    }

    /// Pauses. The receiver hears when no token is computed any more.
    ///
    /// # Errors
    /// If the engine has ended.
    pub fn pause(&self, mode: PauseMode) -> Result<Receiver<()>, Refusal> {
        self.tell(|done| Command::Pause(mode, done))
    }

    /// Ends a pause. The receiver hears when it has ended.
    ///
    /// # Errors
    /// If the engine has ended.
    pub fn resume(&self) -> Result<Receiver<()>, Refusal> {
        self.tell(Command::Resume)
    }

    /// Forgets all cached prefixes. The receiver hears when it is done.
    ///
    /// # Errors
    /// If the engine has ended.
    pub fn forget_prefixes(&self) -> Result<Receiver<()>, Refusal> {
        self.tell(Command::Forget)
    }

    fn tell(&self, command: impl FnOnce(oneshot::Sender<()>) -> Command) -> Result<Receiver<()>, Refusal> {
        let (done, heard) = oneshot::channel();
        let commands = self.commands.lock().unwrap_or_else(PoisonError::into_inner);
        let sent = commands.as_ref().map(|commands| commands.send(command(done)));
        sent.and_then(Result::ok).map(|()| heard).ok_or(Refusal::Gone)
    }

    /// Returns whether it is paused.
    pub fn is_paused(&self) -> bool {
        self.shared.paused.load(Ordering::SeqCst)
    }

    /// Refuses all further requests. Those that were accepted go on.
    pub fn stop_accepting(&self) {
        self.shared.stopping.store(true, Ordering::SeqCst);
    }

    /// Returns whether its thread is running.
    pub fn is_running(&self) -> bool {
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }

    /// Ends it, with all requests under way: nothing is computed any more, and its weights are free.
    pub fn end(&self) {
        self.stop_accepting();
        *self.commands.lock().unwrap_or_else(PoisonError::into_inner) = None;
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // A panic has already been printed.
            let _ = thread.join();
        }
    }

    fn check(&self, request: &Request) -> Result<(), Refusal> {
        let (prompt, most) = (request.tokens.len(), self.options.max_model_len);
        if prompt == 0 {
            return Err(Refusal::Empty);
        }
        let bias = request.logit_bias.iter().map(|(token, _)| token);
        if let Some(&token) = request.tokens.iter().chain(bias).find(|&&token| token as usize >= self.vocabulary) {
            return Err(Refusal::UnknownToken { token, vocabulary: self.vocabulary });
        }
        if prompt + request.max_tokens > most {
            return Err(Refusal::TooLong { prompt, max_tokens: request.max_tokens, most });
        }
        Ok(())
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
pub(crate) mod tests;
