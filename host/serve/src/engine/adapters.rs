//! Adapters: weights other than the engine's own, which requests select by name. One round may compute requests with and without adapters.

use crate::model::{IncrementalDecoder, Prefix};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Id of the next adapter; 0 stands for the engine's own weights.
static NEXT: AtomicU64 = AtomicU64::new(1);

/// Adapter that requests select by name. It stays in memory while a request uses it.
pub struct EngineAdapter {
    id: u64,
    current: Mutex<Arc<EngineWeights>>,
}

/// Version of an adapter's weights.
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
    /// Creates an adapter with weights of this version. The model must have the sizes of the engine's.
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

    /// Replaces the weights; called by the engine's thread between two rounds.
    pub(super) fn set(&self, loaded: EngineWeights) {
        *self.current.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(loaded);
    }

    /// Returns the salt of a request that uses this adapter: other weights have other keys and values.
    pub(super) fn salted(&self, salt: u64) -> u64 {
        let mut hasher = DefaultHasher::new();
        (self.id, salt).hash(&mut hasher);
        hasher.finish()
    }

    /// Returns the version of the weights.
    pub fn version(&self) -> u64 {
        self.current().version
    }
}
