//! The files of a run as they grow: what was read stays in memory, and each look reads only what is new.

mod completions;
mod events;
mod metrics;
mod tail;

pub(crate) use completions::{Completions, Entry, line_at};
pub(crate) use events::{Change, Events};
pub(crate) use metrics::{Axis, Metrics, rounded};

use crate::run::RunFiles;
use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Most runs that are kept in memory.
const MOST_RUNS: usize = 300;

/// How long one request may read what is new.
pub(crate) const PATIENCE: Duration = Duration::from_millis(250);

/// A run.
pub(crate) struct Followed {
    pub path: PathBuf,
    pub metrics: Metrics,
    pub events: Events,
    pub completions: Completions,
}

impl Followed {
    pub fn new(path: &Path) -> Self {
        let files = RunFiles(path);
        Self {
            path: path.to_owned(),
            metrics: Metrics::new(files.metrics()),
            events: Events::new(files.events()),
            completions: Completions::new(files.completions()),
        }
    }

    /// Reads what is new of metrics and events. Returns whether all of it was read in time.
    ///
    /// # Errors
    /// If a file can't be read.
    pub fn advance(&mut self, until: Instant) -> io::Result<bool> {
        Ok(self.events.advance(until)? & self.metrics.advance(until)?)
    }
}

/// The runs that were looked at, by their folders.
#[derive(Default)]
pub(crate) struct Store(Mutex<HashMap<PathBuf, (Instant, Arc<Mutex<Followed>>)>>);

impl Store {
    /// Returns a run; forgets the one that was not looked at for longest if there are too many.
    pub fn run(&self, path: &Path) -> Arc<Mutex<Followed>> {
        let mut runs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if runs.len() >= MOST_RUNS && !runs.contains_key(path) {
            let oldest = runs.iter().min_by_key(|(_, (used, _))| *used).map(|(path, _)| path.clone());
            oldest.map(|path| runs.remove(&path));
        }
        let entry = runs.entry(path.to_owned());
        let (used, run) = entry.or_insert_with(|| (Instant::now(), Arc::new(Mutex::new(Followed::new(path)))));
        *used = Instant::now();
        Arc::clone(run)
    }
}

/// Locks a run; what a panic has left is a cache.
pub(crate) fn locked(run: &Mutex<Followed>) -> MutexGuard<'_, Followed> {
    run.lock().unwrap_or_else(PoisonError::into_inner)
}
