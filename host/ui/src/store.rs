//! Cache of the runs that were viewed.

use crate::run::{RunFiles, is_running};
use rlhost_live::LiveRun;
use serde_json::Value;
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

/// Maximum number of runs in memory.
const MOST_RUNS: usize = 300;

/// Maximum time that one request spends on reading new data.
pub(crate) const PATIENCE: Duration = Duration::from_millis(250);

/// Expensive result, and the time until which it is valid.
pub(crate) struct ExpiringValue<T> {
    pub value: T,
    pub expires_at: Instant,
}

/// Cached report as JSON.
#[derive(Clone)]
pub(crate) struct CachedReport {
    pub value: Arc<Value>,
    /// Length of the events, in bytes, and number of metrics that the report covers.
    pub events: u64,
    pub metrics: usize,
    /// When the report was started, and how long it took.
    pub begun: Instant,
    pub took: Duration,
}

/// Cache slot of an expensive result.
pub(crate) type ExpiringSlot<T> = Arc<Mutex<Option<ExpiringValue<T>>>>;

/// Cached run.
struct StoredRun {
    /// Time of the last use.
    used: Instant,
    run: Arc<Mutex<LiveRun>>,
    /// Latest diagnosis of why the run does not learn.
    signs: ExpiringSlot<Value>,
    /// Latest report.
    report: ExpiringSlot<CachedReport>,
}

/// Modification times and lengths of a run's files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RunFilesStamp([Option<(SystemTime, u64)>; 4]);

impl RunFilesStamp {
    pub fn read(run: &Path) -> Self {
        let files = RunFiles(run);
        let stamp = |path: PathBuf| path.metadata().and_then(|found| Ok((found.modified()?, found.len()))).ok();
        Self([files.events(), files.metrics(), files.config(), files.written_config()].map(stamp))
    }
}

/// Row of a run in the table.
#[derive(Clone)]
pub(crate) struct RunTableRow {
    pub row: Value,
    pub settings: Arc<BTreeMap<String, String>>,
}

/// Viewed runs by folder, and the rows of all ended runs, which are small and need not be read again.
#[derive(Default)]
pub(crate) struct RunStore {
    runs: Mutex<HashMap<PathBuf, StoredRun>>,
    ended: Mutex<HashMap<PathBuf, (RunFilesStamp, RunTableRow)>>,
}

impl RunStore {
    /// Returns a run; drops the least recently used one if there are too many.
    pub fn run(&self, path: &Path) -> Arc<Mutex<LiveRun>> {
        self.kept(path, |kept| Arc::clone(&kept.run))
    }

    /// Returns the slot of a run's diagnosis.
    pub fn signs(&self, path: &Path) -> ExpiringSlot<Value> {
        self.kept(path, |kept| Arc::clone(&kept.signs))
    }

    /// Returns the slot of a run's report.
    pub fn report(&self, path: &Path) -> ExpiringSlot<CachedReport> {
        self.kept(path, |kept| Arc::clone(&kept.report))
    }

    /// Returns whether a run is cached.
    pub fn has(&self, path: &Path) -> bool {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner).contains_key(path)
    }

    /// Returns the row of an ended run, if its files have not changed.
    pub fn ended(&self, path: &Path) -> Option<RunTableRow> {
        let (stamp, row) = self.ended.lock().unwrap_or_else(PoisonError::into_inner).get(path).cloned()?;
        (stamp == RunFilesStamp::read(path) && is_running(path) != Some(true)).then_some(row)
    }

    /// Stores the row of an ended run; `stamp` was taken before its files were read.
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

/// Locks a run; after a panic, the data is still usable as a cache.
pub(crate) fn locked(run: &Mutex<LiveRun>) -> MutexGuard<'_, LiveRun> {
    run.lock().unwrap_or_else(PoisonError::into_inner)
}
