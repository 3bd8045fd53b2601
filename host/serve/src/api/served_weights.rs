//! Served weights and the names of adapters.

use crate::engine::EngineAdapter;
use crate::model::IncrementalDecoder;
use crate::weights::WeightLoader;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

/// Maximum number of adapters.
pub(super) const MOST_ADAPTERS: usize = 64;

/// Weights of the served model and of its adapters.
pub struct ServedWeights {
    pub(super) loader: WeightLoader,
    /// Whether requests may replace weights.
    pub(super) updates: bool,
    adapters: RwLock<BTreeMap<String, LoadedAdapter>>,
    /// Locked while weights are read.
    pub(super) updating: Mutex<()>,
    /// Newest version of any weights of this server.
    newest: AtomicU64,
}

/// Loaded adapter and the folder that it was read from.
pub(super) struct LoadedAdapter {
    pub path: PathBuf,
    pub weights: Arc<EngineAdapter>,
}

impl ServedWeights {
    /// Creates the record of an engine's weights, which start as version 0. With `updates`, requests may replace them.
    pub fn new(loader: WeightLoader, updates: bool) -> Self {
        let (adapters, updating) = Default::default();
        Self { loader, updates, adapters, updating, newest: AtomicU64::new(0) }
    }

    /// Loads an adapter, which requests then select by name.
    ///
    /// # Errors
    /// If the adapter can't be read or does not fit the model.
    pub fn load_adapter(&self, name: &str, path: &Path) -> std::result::Result<(), String> {
        let weights = self.loader.adapter(path).map_err(|e| e.to_string())?;
        self.add(name, path, weights);
        Ok(())
    }

    pub(super) fn add(&self, name: &str, path: &Path, weights: IncrementalDecoder) {
        let weights = Arc::new(EngineAdapter::new(weights, self.next_version()));
        self.write().insert(name.to_owned(), LoadedAdapter { path: path.to_owned(), weights });
    }

    pub(super) fn next_version(&self) -> u64 {
        1 + self.newest.fetch_add(1, Ordering::SeqCst)
    }

    pub(super) fn write(&self) -> std::sync::RwLockWriteGuard<'_, BTreeMap<String, LoadedAdapter>> {
        self.adapters.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn read(&self) -> std::sync::RwLockReadGuard<'_, BTreeMap<String, LoadedAdapter>> {
        self.adapters.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the adapter of this name.
    pub(super) fn adapter(&self, name: &str) -> Option<Arc<EngineAdapter>> {
        self.read().get(name).map(|adapter| Arc::clone(&adapter.weights))
    }

    /// Returns the names and folders of all adapters.
    pub(super) fn names(&self) -> Vec<(String, String)> {
        self.read().iter().map(|(name, adapter)| (name.clone(), adapter.path.display().to_string())).collect()
    }
}
