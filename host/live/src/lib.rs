//! Follows the files of a run as they grow: everything read stays in memory, within limits, and each refresh reads only new lines.
//!
//! For programs that show a run while it trains: the page of `rlhost ui`, and `rlhost watch`.

mod completions;
mod events;
mod metrics;
mod tail;

pub use completions::{CompletionEntry, CompletionIndex, line_at};
pub use events::{EventRow, LiveEvents, PluginChange, RunPlugin};
pub use metrics::{CurveAxis, CurveQuery, LiveMetrics, SampledCurves, SampledSeries, rounded};

use rlhost_config as config;
use rlhost_records::{report, run};

use config::{Overrides, PluginEntry, RunConfig, printable};
use run::{EffectiveConfig, EventKind, RunFiles, is_running};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Instant, SystemTime};

/// Maximum length of a run's name, in bytes.
const LONGEST_NAME: usize = 500;

/// A run whose files are followed.
pub struct LiveRun {
    /// Folder of the run.
    pub path: PathBuf,
    /// Metrics of the run.
    pub metrics: LiveMetrics,
    /// Events of the run.
    pub events: LiveEvents,
    /// Completions of the run.
    pub completions: CompletionIndex,
    settings: SettingsCache,
}

/// The state of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunState {
    /// A process is working on the run.
    Running,
    /// A process is paused until somebody requests that it continue.
    Paused,
    /// The run took its last step.
    Finished,
    /// The run was stopped, after a checkpoint.
    Stopped,
    /// The run ended with an error.
    Failed,
    /// The run's process is gone without having reported its end.
    Interrupted,
    /// The run has no events yet.
    Empty,
}

/// Cached settings, and the state of their file when they were read.
#[derive(Default)]
struct SettingsCache {
    read: Option<(PathBuf, SystemTime, u64)>,
    values: Arc<BTreeMap<String, String>>,
}

impl LiveRun {
    /// Creates a follower of the run in this folder. Nothing is read yet.
    #[must_use]
    pub fn new(path: &Path) -> Self {
        let files = RunFiles(path);
        Self {
            path: path.to_owned(),
            metrics: LiveMetrics::new(files.metrics()),
            events: LiveEvents::new(files.events()),
            completions: CompletionIndex::new(files.completions()),
            settings: SettingsCache::default(),
        }
    }

    /// Returns the run's settings by dotted key; empty if they can't be read.
    pub fn settings(&mut self) -> Arc<BTreeMap<String, String>> {
        let stamp = EffectiveConfig::own_path(&self.path).and_then(|path| {
            let found = path.metadata()?;
            Ok((path, found.modified()?, found.len()))
        });
        let stamp = stamp.ok();
        if stamp.is_none() || stamp != self.settings.read {
            self.settings.values = Arc::new(report::settings_of(&self.path).unwrap_or_default());
            self.settings.read = stamp;
        }
        Arc::clone(&self.settings.values)
    }

    /// Reads new metrics and events. Returns whether all of them were read in time.
    ///
    /// # Errors
    /// If a file can't be read.
    pub fn advance(&mut self, until: Instant) -> io::Result<bool> {
        Ok(self.events.advance(until)? & self.metrics.advance(until)?)
    }

    /// Reads new completions. Returns whether all of them were read in time.
    ///
    /// # Errors
    /// If the file can't be read.
    pub fn advance_completions(&mut self, until: Instant) -> io::Result<bool> {
        if self.completions.weights.is_empty() && self.completions.share() < 1.0 {
            let entries = config_of(&self.path).map(|config| config.plugin).unwrap_or_default();
            let weight = |entry: &PluginEntry| (entry.name().to_owned(), entry.weight);
            self.completions.weights = entries.iter().map(weight).collect();
        }
        self.completions.advance(until)
    }

    /// Returns the steps after which metrics may not be comparable with earlier ones, since a plugin was swapped or its weight changed.
    #[must_use]
    pub fn breaks(&self) -> Vec<u64> {
        const CHANGES: [EventKind; 3] = [EventKind::PluginSwapped, EventKind::PluginRolledBack, EventKind::SettingsChanged];
        let is_change = |event: &&EventRow| EventKind::from_name(&event.kind).is_some_and(|kind| CHANGES.contains(&kind));
        let in_force = self.events.all.iter().filter(|event| !event.undone && !event.loaded_again);
        let of_events = in_force.filter(is_change).filter_map(|event| event.step);
        let steps: BTreeSet<u64> = of_events.chain(self.metrics.breaks()).collect();
        steps.into_iter().collect()
    }

    /// Returns the last step that the run's metrics or events name, since metrics may be logged less often than every step; `None` if nothing
    /// has happened yet.
    #[must_use]
    pub fn last_step(&self) -> Option<u64> {
        self.metrics.steps.last().copied().max(self.events.last_step())
    }

    /// Returns the state of the run.
    #[must_use]
    pub fn state(&self) -> RunState {
        match (is_running(&self.path), self.events.last) {
            (Some(true), _) if self.events.paused => RunState::Paused,
            (Some(true), _) => RunState::Running,
            (_, Some(EventKind::Finished)) => RunState::Finished,
            (_, Some(EventKind::Stopped)) => RunState::Stopped,
            (_, Some(EventKind::Failed)) => RunState::Failed,
            (_, Some(_)) => RunState::Interrupted,
            (_, None) => RunState::Empty,
        }
    }

    /// Returns how long the run's processes worked on it, in seconds; `None` if nothing has happened yet.
    #[must_use]
    pub fn seconds(&self, state: RunState) -> Option<f64> {
        let is_at_work = matches!(state, RunState::Running | RunState::Paused);
        let logged = self.metrics.seconds_of_process();
        self.events.last.map(|_| self.events.worked.seconds(is_at_work.then(config::now), logged)).or(self.metrics.seconds())
    }

    /// Returns the estimated remaining time of a running run in seconds, based on its newest steps.
    #[must_use]
    pub fn remaining_seconds(&self, state: RunState) -> Option<f64> {
        let step = *self.metrics.steps.last().filter(|_| state == RunState::Running)?;
        Some(self.events.max_steps?.saturating_sub(step) as f64 / self.metrics.rate()?)
    }
}

impl RunState {
    /// Returns the name of the state.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Paused => "paused",
            Self::Finished => "finished",
            Self::Stopped => "stopped",
            Self::Failed => "failed",
            Self::Interrupted => "interrupted",
            Self::Empty => "empty",
        }
    }
}

/// Returns the configuration of a run; `None` if it can't be read.
#[must_use]
pub fn config_of(run: &Path) -> Option<RunConfig> {
    let path = EffectiveConfig::own_path(run).ok()?;
    config::read([path.as_path()], &Overrides::default()).ok()
}

/// Returns the name of a run's folder without its path, printable.
#[must_use]
pub fn folder_name(run: &Path) -> String {
    let path = fs::canonicalize(run).unwrap_or_else(|_| run.to_owned());
    path.file_name().map_or_else(|| "run".to_owned(), |name| printable(&name.to_string_lossy(), LONGEST_NAME))
}
