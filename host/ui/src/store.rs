//! The runs that were looked at.

use rlhost_followed::Followed;
use serde_json::Value;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Most runs that are kept in memory.
const MOST_RUNS: usize = 300;

/// How long one request may read what is new.
pub(crate) const PATIENCE: Duration = Duration::from_millis(250);

/// What took long to find, and until when it need not be looked for again.
pub(crate) struct Cached<T> {
    pub value: T,
    pub until: Instant,
}

/// A report as JSON.
#[derive(Clone)]
pub(crate) struct Told {
    pub value: Arc<Value>,
    /// Bytes of the events, and how many metrics, it knows.
    pub events: u64,
    pub metrics: usize,
    /// When it was begun to be put together, and how long that took.
    pub begun: Instant,
    pub took: Duration,
}

/// A place for what was found.
pub(crate) type Slot<T> = Arc<Mutex<Option<Cached<T>>>>;

/// A run that is kept.
struct Kept {
    /// When it was last looked at.
    used: Instant,
    run: Arc<Mutex<Followed>>,
    /// Why it does not learn, as last looked for.
    signs: Slot<Value>,
    /// What a report says of it.
    report: Slot<Told>,
}

/// The runs that were looked at, by their folders.
#[derive(Default)]
pub(crate) struct Store(Mutex<HashMap<PathBuf, Kept>>);

impl Store {
    /// Returns a run; forgets the one that was not looked at for longest if there are too many.
    pub fn run(&self, path: &Path) -> Arc<Mutex<Followed>> {
        self.kept(path, |kept| Arc::clone(&kept.run))
    }

    /// Returns the signs of a run as last looked for.
    pub fn signs(&self, path: &Path) -> Slot<Value> {
        self.kept(path, |kept| Arc::clone(&kept.signs))
    }

    /// Returns the report of a run as last put together.
    pub fn report(&self, path: &Path) -> Slot<Told> {
        self.kept(path, |kept| Arc::clone(&kept.report))
    }

    fn kept<T>(&self, path: &Path, part: impl FnOnce(&Kept) -> T) -> T {
        let mut runs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if runs.len() >= MOST_RUNS && !runs.contains_key(path) {
            let oldest = runs.iter().min_by_key(|(_, kept)| kept.used).map(|(path, _)| path.clone());
            oldest.map(|path| runs.remove(&path));
        }
        let new = || {
            let run = Arc::new(Mutex::new(Followed::new(path)));
            Kept { used: Instant::now(), run, signs: Arc::default(), report: Arc::default() }
        };
        let kept = runs.entry(path.to_owned()).or_insert_with(new);
        kept.used = Instant::now();
        part(kept)
    }
}

/// Locks a run; what a panic has left is a cache.
pub(crate) fn locked(run: &Mutex<Followed>) -> MutexGuard<'_, Followed> {
    run.lock().unwrap_or_else(PoisonError::into_inner)
}
