//! Counters of an engine, which any thread may read.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Counters of an engine. Each is exact, but a set of them need not be from the same moment.
#[derive(Debug, Default)]
pub struct EngineCounters {
    /// Requests that wait to be admitted.
    waiting: AtomicUsize,
    /// Requests that have been admitted.
    running: AtomicUsize,
    totals: [AtomicU64; CounterKind::COUNT],
    /// Bytes of keys and values in the prefix cache.
    cached_bytes: AtomicUsize,
    version: AtomicU64,
}

/// Totals since the engine started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CounterKind {
    /// Tokens of prompts, computed or found in the cache.
    PromptTokens,
    /// Prompt tokens found in the cache.
    CachedTokens,
    /// Sampled tokens.
    SampledTokens,
    /// Requests that ended on their own.
    Stopped,
    /// Requests that ended at their token limit.
    AtLength,
    /// Requests whose client disconnected.
    Abandoned,
    /// Requests ended by a pause.
    Aborted,
    /// Requests that failed.
    Failed,
    /// Rounds.
    Rounds,
}

impl CounterKind {
    const COUNT: usize = 9;
}

impl EngineCounters {
    /// Counts more waiting requests, unless there would be more than `most`. A group larger than `most` is accepted if no other request
    /// waits.
    pub(super) fn enqueue(&self, count: usize, most: usize) -> bool {
        let add = |waiting: usize| (waiting == 0 || waiting + count <= most).then_some(waiting + count);
        self.waiting.fetch_update(Ordering::SeqCst, Ordering::SeqCst, add).is_ok()
    }

    pub(super) fn leave_queue(&self) {
        self.waiting.fetch_sub(1, Ordering::SeqCst);
    }

    pub(super) fn set_running(&self, running: usize) {
        self.running.store(running, Ordering::SeqCst);
    }

    pub(super) fn set_cached_bytes(&self, bytes: usize) {
        self.cached_bytes.store(bytes, Ordering::SeqCst);
    }

    pub(super) fn set_version(&self, version: u64) {
        self.version.store(version, Ordering::SeqCst);
    }

    pub(super) fn add(&self, stage: CounterKind, count: usize) {
        self.totals[stage as usize].fetch_add(count as u64, Ordering::SeqCst);
    }

    /// Returns the number of waiting requests.
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::SeqCst)
    }

    /// Returns the number of admitted requests.
    pub fn running(&self) -> usize {
        self.running.load(Ordering::SeqCst)
    }

    /// Returns the size of the prefix cache in bytes.
    pub fn cached_bytes(&self) -> usize {
        self.cached_bytes.load(Ordering::SeqCst)
    }

    /// Returns the version of the weights.
    pub fn version(&self) -> u64 {
        self.version.load(Ordering::SeqCst)
    }

    /// Returns a total.
    pub fn total(&self, stage: CounterKind) -> u64 {
        self.totals[stage as usize].load(Ordering::SeqCst)
    }
}
