//! The files of a run as they grow: what was read stays in memory, and each look reads only what is new.

mod completions;
mod events;
mod metrics;
mod tail;

pub(crate) use completions::{Completions, Entry, line_at};
pub(crate) use events::{Change, Events};
pub(crate) use metrics::{Axis, Metrics, rounded};

use crate::report;
use crate::run::{ConfigInForce, RunFiles};
use serde_json::Value;
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

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
    settings: Settings,
    /// Why it does not learn, as last looked for.
    pub signs: Arc<Mutex<Option<Signs>>>,
}

/// Signs of why a run does not learn, and until when they need not be looked for again.
pub(crate) struct Signs {
    pub value: Value,
    pub until: Instant,
}

/// The settings of a run, and the file that they were read from as it was then.
#[derive(Default)]
struct Settings {
    read: Option<(PathBuf, SystemTime, u64)>,
    values: Arc<BTreeMap<String, String>>,
}

impl Followed {
    pub fn new(path: &Path) -> Self {
        let files = RunFiles(path);
        Self {
            path: path.to_owned(),
            metrics: Metrics::new(files.metrics()),
            events: Events::new(files.events()),
            completions: Completions::new(files.completions()),
            settings: Settings::default(),
            signs: Arc::default(),
        }
    }

    /// Returns the run's settings by their dotted keys; none if they can't be read.
    pub fn settings(&mut self) -> Arc<BTreeMap<String, String>> {
        let path = ConfigInForce::path(&self.path);
        let stamp = path.metadata().and_then(|found| Ok((found.modified()?, found.len()))).ok();
        let stamp = stamp.map(|(modified, length)| (path, modified, length));
        if stamp.is_none() || stamp != self.settings.read {
            self.settings.values = Arc::new(report::settings_of(&self.path).unwrap_or_default());
            self.settings.read = stamp;
        }
        Arc::clone(&self.settings.values)
    }

    /// Reads what is new of metrics and events. Returns whether all of it was read in time.
    ///
    /// # Errors
    /// If a file can't be read.
    pub fn advance(&mut self, until: Instant) -> io::Result<bool> {
        Ok(self.events.advance(until)? & self.metrics.advance(until)?)
    }
}

/// A run, and when it was last looked at.
type Used = (Instant, Arc<Mutex<Followed>>);

/// The runs that were looked at, by their folders.
#[derive(Default)]
pub(crate) struct Store(Mutex<HashMap<PathBuf, Used>>);

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
