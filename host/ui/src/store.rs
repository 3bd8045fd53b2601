//! The runs that were looked at.

use crate::run::{RunFiles, is_running};
use rlhost_live::LiveRun;
use serde_json::Value;
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

/// Most runs that are kept in memory.
const MOST_RUNS: usize = 300;

/// How long one request may read what is new.
pub(crate) const PATIENCE: Duration = Duration::from_millis(250);

/// What took long to find, and until when it need not be looked for again.
pub(crate) struct ExpiringValue<T> {
    pub value: T,
    pub expires_at: Instant,
}

/// A report as JSON.
#[derive(Clone)]
pub(crate) struct CachedReport {
    pub value: Arc<Value>,
    /// Bytes of the events, and how many metrics, it knows.
    pub events: u64,
    pub metrics: usize,
    /// When it was begun to be put together, and how long that took.
    pub begun: Instant,
    pub took: Duration,
}

/// A place for what was found.
pub(crate) type ExpiringSlot<T> = Arc<Mutex<Option<ExpiringValue<T>>>>;

/// A run that is kept.
struct StoredRun {
    /// When it was last looked at.
    used: Instant,
    run: Arc<Mutex<LiveRun>>,
    /// Why it does not learn, as last looked for.
    signs: ExpiringSlot<Value>,
    /// What a report says of it.
    report: ExpiringSlot<CachedReport>,
}

/// A run's files at a time: when each was written last, and its length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RunFilesStamp([Option<(SystemTime, u64)>; 4]);

impl RunFilesStamp {
    pub fn read(run: &Path) -> Self {
        let files = RunFiles(run);
        let stamp = |path: PathBuf| path.metadata().and_then(|found| Ok((found.modified()?, found.len()))).ok();
        Self([files.events(), files.metrics(), files.config(), files.written_config()].map(stamp))
    }
}

/// What the table has of a run.
#[derive(Clone)]
pub(crate) struct RunTableRow {
    pub row: Value,
    pub settings: Arc<BTreeMap<String, String>>,
}

/// The runs that were looked at, by their folders; and the rows of all that have ended, which are small and need not be read again.
#[derive(Default)]
pub(crate) struct RunStore {
    runs: Mutex<HashMap<PathBuf, StoredRun>>,
    ended: Mutex<HashMap<PathBuf, (RunFilesStamp, RunTableRow)>>,
}

impl RunStore {
    /// Returns a run; forgets the one that was not looked at for longest if there are too many.
    pub fn run(&self, path: &Path) -> Arc<Mutex<LiveRun>> {
        self.kept(path, |kept| Arc::clone(&kept.run))
    }

    /// Returns the signs of a run as last looked for.
    pub fn signs(&self, path: &Path) -> ExpiringSlot<Value> {
        self.kept(path, |kept| Arc::clone(&kept.signs))
    }

    /// Returns the report of a run as last put together.
    pub fn report(&self, path: &Path) -> ExpiringSlot<CachedReport> {
        self.kept(path, |kept| Arc::clone(&kept.report))
    }

    /// Returns whether a run is kept.
    pub fn has(&self, path: &Path) -> bool {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner).contains_key(path)
    }

    /// Returns the row of a run that has ended, if its files are as they were then.
    pub fn ended(&self, path: &Path) -> Option<RunTableRow> {
        let (stamp, row) = self.ended.lock().unwrap_or_else(PoisonError::into_inner).get(path).cloned()?;
        (stamp == RunFilesStamp::read(path) && is_running(path) != Some(true)).then_some(row)
    }

    /// Keeps the row of a run that has ended; `stamp` is from before its files were read.
    pub fn end(&self, path: &Path, stamp: RunFilesStamp, row: RunTableRow) {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner).insert(path.to_owned(), (stamp, row));
    }

    fn kept<T>(&self, path: &Path, part: impl FnOnce(&StoredRun) -> T) -> T {
        let mut runs = self.runs.lock().unwrap_or_else(PoisonError::into_inner);
        if runs.len() >= MOST_RUNS && !runs.contains_key(path) {
            let oldest = runs.iter().min_by_key(|(_, kept)| kept.used).map(|(path, _)| path.clone());
            oldest.map(|path| runs.remove(&path));
        }
        let new = || {
            let run = Arc::new(Mutex::new(LiveRun::new(path)));
            StoredRun { used: Instant::now(), run, signs: Arc::default(), report: Arc::default() }
        };
        let kept = runs.entry(path.to_owned()).or_insert_with(new);
        kept.used = Instant::now();
        part(kept)
    }
}

/// Locks a run; what a panic has left is a cache.
pub(crate) fn locked(run: &Mutex<LiveRun>) -> MutexGuard<'_, LiveRun> {
    run.lock().unwrap_or_else(PoisonError::into_inner)
}
