//! Writes everything a run records: the files of its folder, metrics, events and checkpoints.

mod best;
mod checkpoint_saves;
mod checkpoints;
mod completion_lines;
mod derived_metrics;
mod findings;
mod recorder;
mod reward_errors;
mod run_folder;
mod versions;

use crate::config::shell_word;
use crate::diagnosis::ReportedFinding;
pub(super) use best::{BestCheckpoint, CRITIC_METRICS, UPDATE_METRICS, no_such_metric};
pub(super) use recorder::StepRecorder;
pub use run_folder::RunFolder;
pub(super) use run_folder::{ResumePoint, keep_bytes, put};
pub(super) use versions::PluginVersions;

use super::experience::Experience;
use super::reward_failure::RewardFailure;
use super::{Error, Result};
use crate::config::{self, PluginEntry, RunConfig, words};
use crate::data::Tokenizer;
use crate::metrics::{self, Metric, MetricReduction, MetricsWindow, Prometheus};
use crate::plugin::{DerivedMetricHint, PluginSource};
use crate::run::RunEvent;
use checkpoint_saves::CheckpointSaves;
use derived_metrics::DerivedMetrics;
use findings::MetricsWatch;
use reward_errors::RewardErrors;
use serde::{Deserialize, Serialize};
use serde_json::Map;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The origin of a forked run.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub(super) struct Parent {
    /// The checkpoint's folder.
    pub checkpoint: PathBuf,
    pub step: u64,
}

/// Writes everything that a run records: the files of its folder, metrics, events and checkpoints.
pub(super) struct Journal {
    settings: Rc<RunConfig>,
    folder: RunFolder,
    /// Metrics of the steps since the last log line.
    window: MetricsWindow,
    /// Versions of the plugins that these metrics, and those of later steps, come from.
    versions: PluginVersions,
    /// Whether the steps of the window had other versions, weights or settings than the run now has.
    is_of_others: bool,
    /// Endpoint that serves the newest metrics, if any.
    scraped: Option<Prometheus>,
    saves: CheckpointSaves,
    /// The run's origins, if it is a fork; the latest last.
    parents: Vec<Parent>,
    reward_errors: RewardErrors,
    derived: DerivedMetrics,
    findings: MetricsWatch,
    progress: JournalProgress,
}

/// How far this process is.
struct JournalProgress {
    /// When training started.
    started: Instant,
    /// Number of steps done, for other threads.
    steps_done: Arc<AtomicU64>,
}

/// The part of the journal that a checkpoint holds.
pub(super) struct JournalState {
    /// Metrics not yet logged.
    pub window: MetricsWindow,
    /// Versions of the plugins that these metrics come from; empty if unknown.
    pub versions: PluginVersions,
    /// Metrics of the steps since the last checkpoint.
    pub since_save: MetricsWindow,
    pub best: Option<BestCheckpoint>,
    pub parents: Vec<Parent>,
}

impl Journal {
    /// Creates the journal of a run in this folder.
    pub(super) fn new(settings: Rc<RunConfig>, folder: RunFolder, scraped: Option<Prometheus>, usual_rate: f64) -> Self {
        let saves = CheckpointSaves::new(folder.path().to_owned());
        let (window, parents, reward_errors) = (MetricsWindow::default(), Vec::new(), RewardErrors::default());
        let findings = MetricsWatch::new(&folder, usual_rate);
        let (versions, is_of_others, derived) = (PluginVersions::new(), false, DerivedMetrics::default());
        let progress = JournalProgress { started: Instant::now(), steps_done: Arc::default() };
        Self {
            settings,
            folder,
            window,
            versions,
            is_of_others,
            scraped,
            saves,
            parents,
            reward_errors,
            derived,
            findings,
            progress,
        }
    }

    /// Marks the start of training.
    pub(super) fn begin(&mut self) {
        self.progress.started = Instant::now();
    }

    /// Returns the time since training started.
    pub(super) fn elapsed(&self) -> Duration {
        self.progress.started.elapsed()
    }

    /// Returns the run's folder.
    pub(super) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Returns the checkpoints that the run, or a run it continues, was forked from.
    pub(super) fn parents(&self) -> &[Parent] {
        &self.parents
    }

    /// Appends an event to events.jsonl.
    pub(super) fn event(&mut self, event: &RunEvent<'_>) -> Result<()> {
        self.findings.note_event(event);
        self.folder.event(event)
    }

    /// Records that a reward failed, and which rows have no score.
    pub(super) fn reward_failed(&mut self, step: u64, failure: &RewardFailure) -> Result<()> {
        let RewardFailure { name, error, failed } = failure;
        let rows: Vec<usize> = failed.iter().map(|(row, _)| *row).collect();
        let what = if rows.is_empty() { "succeeded when retried".to_owned() } else { format!("rows without a score: {rows:?}") };
        if let Some(described) = self.reward_errors.describe(name, error, step) {
            tracing::warn!("{}", words::followed_by(&described, &what));
        }
        let row_reasons = failed.iter().take(3).map(|(_, error)| error.as_str()).collect();
        self.event(&RunEvent::PluginError { plugin: name, step, reason: error, rows, row_reasons })
    }

    /// Logs a generation's completions, if enabled.
    pub(super) fn completions(&mut self, experience: &Experience, step: u64, tokenizer: &Tokenizer) -> Result<()> {
        self.folder.log_completions(self.settings.log_completions, experience, step, &self.versions, tokenizer)
    }

    /// Writes completions that a reward failed on to failed.jsonl: these rows, or all if none are known.
    pub(super) fn keep_failed(&mut self, experience: &Experience, rows: &[usize], error: &str, step: u64) -> Result<()> {
        self.folder.keep_failed(experience, rows, error, step, &self.versions)
    }

    /// Adds the metrics of a step.
    ///
    /// # Errors
    /// If `metric_for_best_model` should be among them but is not.
    pub(super) fn add(&mut self, figures: &MetricsWindow) -> Result<()> {
        self.window.merge(figures);
        if self.settings.best_model_metric().is_some() {
            self.saves.add(figures);
            self.check_best_metric()?;
        }
        Ok(())
    }

    /// Rejects a missing `metric_for_best_model` early. If all plugins ship with the host, it was already checked before the run began.
    fn check_best_metric(&self) -> Result<()> {
        let Some((name, _)) = self.settings.best_model_metric() else { return Ok(()) };
        let mut names: Vec<&str> = self.saves.names().filter(|n| !metrics::is_of_machine(n)).collect();
        // Steps that learn from earlier generations lack some metrics.
        let collected = names.contains(&"num_tokens");
        // An evaluation has the metrics of a step except those of its update, and some of its own.
        let plain = name.strip_prefix("eval_").unwrap_or(name);
        let of_evaluations = plain != name || self.settings.early_stopping_patience.is_some();
        if of_evaluations {
            names.retain(|name| !UPDATE_METRICS.contains(name) && !CRITIC_METRICS.contains(name));
        }
        if !collected || names.contains(&plain) || of_evaluations && self.settings.is_evaluation_metric(plain) {
            return Ok(());
        }
        Err(no_such_metric(&self.settings, name, &names))
    }

    /// Adds the metrics of an evaluation, for choosing the best checkpoint.
    ///
    /// # Errors
    /// If `metric_for_best_model` should be among them but is not.
    pub(super) fn add_evaluation(&mut self, figures: &BTreeMap<String, f64>) -> Result<()> {
        let early = self.settings.early_stopping_patience.is_some();
        let Some((name, _)) = self.settings.best_model_metric().filter(|(name, _)| early || name.starts_with("eval_")) else {
            return Ok(());
        };
        let name = &format!("eval_{}", name.trim_start_matches("eval_"));
        if !figures.contains_key(name) {
            let meant = config::did_you_mean(name, figures.keys().map(String::as_str));
            return Err(Error::setting("metric_for_best_model", format!("no metric is named {name:?}{meant}")));
        }
        let mut window = MetricsWindow::default();
        window.extend(figures.iter().map(|(name, value)| Metric::new(name, *value, MetricReduction::Last)));
        self.saves.add(&window);
        Ok(())
    }

    /// Takes the metrics of the steps since the last call.
    pub(super) fn take(&mut self) -> BTreeMap<String, f64> {
        self.window.take()
    }

    /// Writes a step's metrics to metrics.jsonl, with the versions of the plugins that they come from.
    pub(super) fn log(&mut self, step: u64, epoch: f64, figures: &BTreeMap<String, f64>) -> Result<()> {
        let mut line = Map::new();
        line.insert("step".into(), step.into());
        line.insert("epoch".into(), epoch.into());
        let seconds = self.progress.started.elapsed().as_secs_f64();
        line.insert("time".into(), seconds.into());
        line.extend(self.derived.derive(figures, seconds));
        line.extend(figures.iter().map(|(name, value)| (name.clone(), (*value).into())));
        let mut versions = self.versions.clone();
        if !figures.keys().any(|name| name.starts_with("eval_")) {
            // Rows of training don't include these.
            let eval_only: Vec<&str> = self.settings.plugin.iter().filter(|p| p.eval_only).map(PluginEntry::name).collect();
            versions.retain(|name, _| !eval_only.contains(&name.as_str()));
        }
        line.insert("versions".into(), versions::shown(&versions));
        if let Some(scraped) = &self.scraped {
            scraped.set_metrics(&line);
        }
        let begun = self.findings.add_row(&line, self.folder.config());
        self.folder.metrics(line)?;
        self.report_findings(step, &begun)
    }

    /// Sets the rules for derived metrics.
    pub(super) fn derive(&mut self, metrics: &[DerivedMetricHint]) {
        self.derived.set(metrics);
    }

    /// Returns the number of completed steps, which other threads may read during the run.
    pub(super) fn steps_done(&self) -> Arc<AtomicU64> {
        self.progress.steps_done.clone()
    }

    /// Updates the progress that the metrics endpoint and other threads show.
    pub(super) fn show_progress(&self, step: u64, swaps: u64) {
        self.progress.steps_done.store(step, Ordering::Relaxed);
        if let Some(scraped) = &self.scraped {
            scraped.set_progress(step, swaps);
        }
    }

    /// Creates the empty folder into which `rlhost swap` puts plugins.
    pub(super) fn open_inbox(&self) -> Result<PathBuf> {
        self.folder.open_inbox()
    }

    /// Writes a configuration to config.toml.
    pub(super) fn set_config(&mut self, config: &RunConfig) -> Result<()> {
        self.folder.set_config(config)
    }

    /// Follows the folder if it was renamed, and returns the new path; see [`RunFolder::follow`].
    pub(super) fn follow(&mut self, saves: bool) -> Result<Option<PathBuf>> {
        let now = self.folder.follow(saves)?;
        if let Some(now) = &now {
            self.saves.set_folder(now.clone());
        }
        Ok(now)
    }

    /// Deletes files that only an unfinished run needs, if the checkpoint of this step has them too.
    pub(super) fn tidy(&self, step: u64) {
        self.folder.tidy(step);
    }

    /// Returns the configuration as in config.toml.
    pub(super) fn config(&self) -> &str {
        self.folder.config()
    }

    /// Records that the plugin of this name now has these bytes, which are already stored.
    pub(super) fn use_plugin(&mut self, source: &PluginSource) {
        self.folder.use_plugin(source);
    }

    /// Returns the plugins in use.
    pub(super) fn plugins(&self) -> &[PluginSource] {
        self.folder.plugins()
    }

    /// Returns the part of the journal that a checkpoint holds now.
    pub(super) fn state(&self) -> JournalState {
        let (since_save, best) = self.saves.state();
        JournalState {
            window: self.window.clone(),
            versions: self.versions.clone(),
            since_save,
            best,
            parents: self.parents.clone(),
        }
    }

    /// Continues from the run's checkpoint of this step. `is_changed` says whether plugins have other weights or settings than in the
    /// checkpoint.
    pub(super) fn restore(&mut self, step: u64, kept: JournalState, is_changed: bool) {
        (self.window, self.parents) = (kept.window, kept.parents);
        self.derived.resume();
        self.progress.steps_done.store(step, Ordering::Relaxed);
        let are_others = !kept.versions.is_empty() && !versions::are_same(&kept.versions, &self.versions);
        if are_others {
            self.versions = kept.versions;
        }
        self.is_of_others = are_others || is_changed;
        self.saves.begin_at(step, kept.best, kept.since_save);
    }

    /// Turns the run into a fork, which has no checkpoint yet.
    pub(super) fn become_fork(&mut self, parent: Parent) {
        self.parents.push(parent);
        self.saves = CheckpointSaves::new(self.folder.path().to_owned());
    }
}

impl Journal {
    /// Writes a line for each finding to the log and to events.jsonl.
    pub(super) fn report_findings(&mut self, step: u64, begun: &[ReportedFinding]) -> Result<()> {
        for ReportedFinding { finding, .. } in begun {
            let advice = finding.advice.join("; ");
            tracing::warn!("{} Try {advice}. `rlhost diagnose {}` says more", finding.sentence, shell_word(self.path()));
            let (text, figures) = (finding.sentence.as_str(), finding.figures.as_slice());
            self.event(&RunEvent::Finding { finding: finding.name, step, text, figures, advice: &finding.advice })?;
        }
        Ok(())
    }
}
