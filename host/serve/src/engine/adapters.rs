//! Adapters: other weights than the engine's own, which requests name. An engine computes requests with and without them together.

use crate::model::{IncrementalDecoder, Prefix};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The id of the next adapter. The engine's own weights have none, or 0.
static NEXT: AtomicU64 = AtomicU64::new(1);

/// An adapter that requests name. It lives as long as a request does that names it.
pub struct EngineAdapter {
    id: u64,
    current: Mutex<Arc<EngineWeights>>,
}

/// A version of its weights.
pub(super) struct EngineWeights {
    pub model: IncrementalDecoder,
    pub none: Prefix,
    pub version: u64,
}

impl EngineWeights {
    pub(super) fn new(model: IncrementalDecoder, version: u64) -> Self {
        Self { none: model.no_prompt(), model, version }
    }
}

impl EngineAdapter {
    /// Creates it with weights of this version, of a model with the sizes of the engine's.
    pub fn new(model: IncrementalDecoder, version: u64) -> Self {
        let id = NEXT.fetch_add(1, Ordering::SeqCst);
        Self { id, current: Mutex::new(Arc::new(EngineWeights::new(model, version))) }
    }

    pub(super) fn id(&self) -> u64 {
        self.id
    }

    pub(super) fn current(&self) -> Arc<EngineWeights> {
        Arc::clone(&self.current.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Replaces its weights: the engine's thread does, between two rounds.
    pub(super) fn set(&self, loaded: EngineWeights) {
        *self.current.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(loaded);
    }

    /// Returns the salt of a request that names it: other weights have other keys and values.
    pub(super) fn salted(&self, salt: u64) -> u64 {
        let mut hasher = DefaultHasher::new();
        (self.id, salt).hash(&mut hasher);
        hasher.finish()
    }

    /// Returns the version of its weights.
    pub fn version(&self) -> u64 {
        self.current().version
    }
}
