//! The run that the view shows.

use crate::config::PluginEntry;
use crate::config::words::{counted, number};
use crate::run::{EventKind, short_hash};
use crate::text;
use rlhost_live::{CurveAxis, CurveQuery, LiveRun, RunState, config_of, folder_name};
use std::path::Path;
use std::time::{Duration, Instant};

/// Maximum length of names shown, in bytes.
const LONGEST_NAME: usize = 400;

/// Metrics that are shown first, in this order, if the run has them.
const FIRST: [&str; 20] = [
    "reward",
    "rewards/accuracies",
    "accuracy",
    "objective/scores",
    "loss",
    "policy_loss",
    "kl",
    "objective/kl",
    "ppo_kl",
    "teacher_kl",
    "entropy",
    "policy/entropy_avg",
    "mean_token_accuracy",
    "eval_reward",
    "eval_loss",
    "completions/mean_length",
    "completions/clipped_ratio",
    "reward_std",
    "grad_norm",
    "learning_rate",
];

/// The watched run.
pub(crate) struct WatchedRun {
    pub live: LiveRun,
    /// Name of the run's folder.
    pub name: String,
    /// Names of the algorithm and the model, once the configuration can be read.
    pub origin: Option<RunSubject>,
    pub state: RunState,
    /// Whether the run's folder no longer exists.
    pub is_gone: bool,
    /// Whether all of the files was read.
    pub is_read: bool,
    /// Why a file can't be read, if one can't.
    pub failed: Option<String>,
    stamp: ViewStamp,
}

/// The model and the algorithm of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RunSubject {
    pub algorithm: String,
    pub model: String,
}

/// A stamp that changes whenever the files have new contents or the run's state differs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct ViewStamp {
    places: [u64; 3],
    generations: [u64; 3],
    state: &'static str,
    is_gone: bool,
    is_known: bool,
    failed: Option<String>,
}

/// A plugin of the run with its scores.
pub(crate) struct PluginStatus {
    pub name: String,
    pub role: String,
    /// First digits of the version's hash.
    pub hash: String,
    /// Mean score at the newest step.
    pub mean: Option<f64>,
    /// Number of rows of the newest steps that the plugin failed to score.
    pub errors: Option<f64>,
}

/// A curve with at most as many points as requested.
pub(crate) struct MetricCurve {
    /// Steps and values.
    pub points: Vec<CurvePoint>,
    /// Number of rows per point.
    pub per_point: usize,
    /// First and last step of the run with metrics.
    pub first: u64,
    pub last: u64,
}

/// A point of a curve.
#[derive(Clone, Copy)]
pub(crate) struct CurvePoint {
    pub step: f64,
    pub value: f64,
}

/// A step after which another version of a plugin was in use.
pub(crate) struct SwapMark {
    pub step: f64,
    pub letter: char,
}

impl WatchedRun {
    /// Creates a view of the run in this folder. Nothing is read yet.
    pub fn new(run: &Path) -> Self {
        Self {
            live: LiveRun::new(run),
            name: text::line(&folder_name(run), LONGEST_NAME),
            origin: None,
            state: RunState::Empty,
            is_gone: false,
            is_read: false,
            failed: None,
            stamp: ViewStamp::default(),
        }
    }

    /// Reads new lines for at most about `patience`. Returns whether anything changed, in the files or in the run's state.
    pub fn refresh(&mut self, patience: Duration) -> bool {
        let until = Instant::now() + patience;
        let followed = &mut self.live;
        let read = followed.advance(until).and_then(|all| Ok(followed.advance_completions(until)? & all));
        // A file that can't be read now may be readable later: it is tried again at the regular interval.
        self.is_read = *read.as_ref().unwrap_or(&true);
        self.failed = read.err().map(|error| text::line(&format!("can't read the run's files: {error}"), LONGEST_NAME));
        self.state = followed.state();
        self.is_gone = !followed.path.is_dir();
        if self.origin.is_none() {
            self.origin = config_of(&followed.path).map(|config| RunSubject {
                algorithm: text::line(PluginEntry::new(config.algorithm).name(), LONGEST_NAME),
                model: text::line(&config.model.unwrap_or_else(|| "a built-in model".to_owned()), LONGEST_NAME),
            });
        }
        let stamp = self.stamp();
        let is_new = stamp != self.stamp;
        self.stamp = stamp;
        is_new
    }

    fn stamp(&self) -> ViewStamp {
        let LiveRun { metrics, events, completions, .. } = &self.live;
        ViewStamp {
            places: [metrics.place(), events.place(), completions.place()],
            generations: [metrics.generation, events.generation, completions.generation],
            state: self.state.name(),
            is_gone: self.is_gone,
            is_known: self.origin.is_some(),
            failed: self.failed.clone(),
        }
    }

    /// Returns whether a process is working on the run.
    pub fn is_at_work(&self) -> bool {
        matches!(self.state, RunState::Running | RunState::Paused)
    }

    /// Returns the number of steps taken; `None` before the first row of metrics.
    pub fn step(&self) -> Option<u64> {
        self.live.metrics.steps.last().copied()
    }

    /// Returns the fraction of the files that was read; that of the file with the lowest.
    pub fn share(&self) -> f64 {
        self.live.metrics.share().min(self.live.completions.share())
    }

    /// Returns the names of the metrics, most important first.
    pub fn metrics(&self) -> Vec<&str> {
        let all = || self.live.metrics.names().map(String::as_str);
        let first = FIRST.iter().filter_map(|first| all().find(|name| name == first));
        // Metrics that only count are left out.
        let rest = all().filter(|name| !FIRST.contains(name) && !["epoch", "num_tokens"].contains(name));
        first.chain(rest).collect()
    }

    /// Returns the curve of a metric with at most this many points.
    pub fn curve(&self, metric: &str, points: usize) -> MetricCurve {
        let ends = (f64::NEG_INFINITY, f64::INFINITY);
        let sampling = CurveQuery { axis: CurveAxis::Step, ends, points, breaks: &self.live.breaks() };
        let mut sampled = self.live.metrics.sample(&|name| name == metric, &sampling);
        let values = sampled.series.remove(metric).unwrap_or_default().y;
        let known = sampled.x.iter().zip(values).filter_map(|(step, value)| Some(CurvePoint { step: *step, value: value? }));
        let steps = &self.live.metrics.steps;
        let (first, last) = (steps.first().copied().unwrap_or(0), steps.last().copied().unwrap_or(0));
        MetricCurve { points: known.collect(), per_point: sampled.per_point, first, last }
    }

    /// Returns the last value of a metric.
    pub fn last(&self, metric: &str) -> Option<f64> {
        self.live.metrics.last(metric)
    }

    /// Returns the steps after which a plugin was swapped (S) or rolled back (R).
    pub fn marks(&self) -> Vec<SwapMark> {
        let changes = self.live.events.changes.iter().filter(|change| !change.undone);
        let mark = |(step, kind): (u64, EventKind)| {
            let letter = match kind {
                EventKind::PluginSwapped => 'S',
                EventKind::PluginRolledBack => 'R',
                _ => return None,
            };
            Some(SwapMark { step: step as f64, letter })
        };
        changes.filter_map(|change| mark((change.step, change.kind))).collect()
    }

    /// Returns the run's plugins, rewards first.
    pub fn plugins(&self) -> Vec<PluginStatus> {
        let LiveRun { metrics, events, .. } = &self.live;
        let plugin = |loaded: rlhost_live::RunPlugin| {
            let hash = events.current(&loaded.name).map_or("", |change| short_hash(change.version.hash()));
            PluginStatus {
                role: text::line(&loaded.role, LONGEST_NAME),
                hash: text::line(hash, LONGEST_NAME),
                mean: metrics.last(&format!("rewards/{}/mean", loaded.name)),
                errors: metrics.last(&format!("plugins/{}/errors", loaded.name)),
                name: text::line(&loaded.name, LONGEST_NAME),
            }
        };
        events.loaded().into_iter().map(plugin).collect()
    }

    /// Returns a note on missing data, if any is missing.
    pub fn note(&self) -> Option<String> {
        let (rows, events) = (self.live.metrics.left_out, self.live.events.left_out);
        let reading = || Some(format!("reading: {}%", number((self.share() * 100.0).floor()))).filter(|_| !self.is_read);
        let rows = || Some(format!("{} are left out", counted(rows, "row"))).filter(|_| rows > 0);
        let events = || Some(format!("{} are left out", counted(events, "event"))).filter(|_| events > 0);
        self.failed.clone().or_else(reading).or_else(rows).or_else(events)
    }
}
