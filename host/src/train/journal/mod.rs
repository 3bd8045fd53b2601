//! What a run writes down: its folder's files, figures, events, and checkpoints.

mod best;
mod events;
mod run_folder;
mod saving;

pub(super) use best::Best;
pub(super) use events::{Begun, Event, Scoring};
pub use run_folder::{INBOX, RunFolder};
pub(super) use run_folder::{MADE_MODEL, WRITTEN_CONFIG, keep_bytes, put};

use super::experience::Experience;
use super::plugins::Trouble;
use super::{Error, Result};
use crate::config::{self, Config};
use crate::metrics::{self, Metric, Prometheus, Reduction, Window};
use crate::plugin::Source;
use saving::Saves;
use serde::{Deserialize, Serialize};
use serde_json::Map;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Where a forked run came from.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub(super) struct Parent {
    /// The checkpoint's folder.
    pub checkpoint: PathBuf,
    pub step: u64,
}

/// See the module.
pub(super) struct Journal {
    settings: Rc<Config>,
    folder: RunFolder,
    /// Figures of the steps since they were last logged.
    window: Window,
    /// Where the newest figures are served, if they are.
    scraped: Option<Prometheus>,
    saves: Saves,
    /// Where the run came from, if it is a fork; the latest last.
    parents: Vec<Parent>,
    /// When this process began to train.
    begun: Instant,
}

/// What a checkpoint holds of it.
pub(super) struct Kept {
    /// Figures not yet logged.
    pub window: Window,
    /// Figures of the steps since the last checkpoint.
    pub since_save: Window,
    pub best: Option<Best>,
    pub parents: Vec<Parent>,
}

impl Journal {
    /// Of a run in this folder.
    pub(super) fn new(settings: Rc<Config>, folder: RunFolder, scraped: Option<Prometheus>) -> Self {
        let saves = Saves::new(folder.path().to_owned());
        let (window, parents, begun) = (Window::default(), Vec::new(), Instant::now());
        Self { settings, folder, window, scraped, saves, parents, begun }
    }

    /// Training begins now.
    pub(super) fn begin(&mut self) {
        self.begun = Instant::now();
    }

    /// Time since training began.
    pub(super) fn took(&self) -> Duration {
        self.begun.elapsed()
    }

    /// The run's folder.
    pub(super) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Checkpoints that the run, or a run that it goes on from, was forked from.
    pub(super) fn parents(&self) -> &[Parent] {
        &self.parents
    }

    /// Adds to events.jsonl.
    pub(super) fn event(&mut self, event: &Event<'_>) -> Result<()> {
        self.folder.event(event)
    }

    /// Says that a reward has failed, and what that cost.
    pub(super) fn reward_failed(&mut self, step: u64, trouble: &Trouble) -> Result<()> {
        let Trouble { name, error, failed } = trouble;
        let rows: Vec<usize> = failed.iter().map(|(row, _)| *row).collect();
        let what = if rows.is_empty() { "succeeded when retried".to_owned() } else { format!("rows without a score: {rows:?}") };
        tracing::warn!("{error}; {what}");
        let row_reasons = failed.iter().take(3).map(|(_, error)| error.as_str()).collect();
        self.event(&Event::PluginError { plugin: name, step, reason: error, rows, row_reasons })
    }

    /// Writes a generation's completions down, where they are logged.
    pub(super) fn completions(&mut self, experience: &Experience) -> Result<()> {
        self.folder.log_completions(self.settings.log_completions, experience)
    }

    /// Adds the figures of a step.
    ///
    /// # Errors
    /// If `metric_for_best_model` is none of them.
    pub(super) fn add(&mut self, figures: &Window) -> Result<()> {
        self.window.merge(figures);
        if self.settings.best_by().is_some() {
            self.saves.add(figures);
            self.check_best_metric()?;
        }
        Ok(())
    }

    /// Refuses a `metric_for_best_model` that the run does not have, before much time has gone
    /// into it.
    fn check_best_metric(&self) -> Result<()> {
        let Some((name, _)) = self.settings.best_by() else { return Ok(()) };
        let names: Vec<&str> = self.saves.names().filter(|n| !metrics::is_of_machine(n)).collect();
        // Steps that learn from what was collected before have not all figures.
        let collected = names.contains(&"num_tokens");
        if !collected || names.contains(&name) || name.starts_with("eval_") {
            return Ok(());
        }
        let meant =
            config::nearest(name, names.iter().copied()).map(|near| format!("Did you mean {near:?}? ")).unwrap_or_default();
        Err(Error::Unfit(format!(
            "metric_for_best_model: no metric is named {name:?}. {meant}The metrics are {}",
            names.join(", ")
        )))
    }

    /// Adds the figures of an evaluation, for choosing the best checkpoint.
    ///
    /// # Errors
    /// If `metric_for_best_model` is to be one of them and is none.
    pub(super) fn add_evaluation(&mut self, figures: &BTreeMap<String, f64>) -> Result<()> {
        let Some((name, _)) = self.settings.best_by().filter(|(name, _)| name.starts_with("eval_")) else { return Ok(()) };
        if !figures.contains_key(name) {
            let near = config::nearest(name, figures.keys().map(String::as_str));
            let meant = near.map(|near| format!("; did you mean {near:?}?")).unwrap_or_default();
            return Err(Error::Unfit(format!("metric_for_best_model: no metric is named {name:?}{meant}")));
        }
        let mut window = Window::default();
        window.extend(figures.iter().map(|(name, value)| Metric::new(name, *value, Reduction::Last)));
        self.saves.add(&window);
        Ok(())
    }

    /// The figures of the steps since this was last asked.
    pub(super) fn take(&mut self) -> BTreeMap<String, f64> {
        self.window.take()
    }

    /// Writes figures of a step to metrics.jsonl.
    pub(super) fn log(&mut self, step: u64, epoch: f64, figures: &BTreeMap<String, f64>) -> Result<()> {
        let mut line = Map::new();
        line.insert("step".into(), step.into());
        line.insert("epoch".into(), epoch.into());
        line.insert("time".into(), self.begun.elapsed().as_secs_f64().into());
        line.extend(figures.iter().map(|(name, value)| (name.clone(), (*value).into())));
        if let Some(scraped) = &self.scraped {
            scraped.figures(&line);
        }
        self.folder.metrics(line)
    }

    /// Tells whoever scrapes the run's figures how far it is.
    pub(super) fn show_progress(&self, step: u64, swaps: u64) {
        if let Some(scraped) = &self.scraped {
            scraped.progress(step, swaps);
        }
    }

    /// The folder into which `rlhost swap` puts plugins, empty.
    pub(super) fn open_inbox(&self) -> Result<PathBuf> {
        self.folder.open_inbox()
    }

    /// Writes a configuration to config.toml.
    pub(super) fn set_config(&mut self, config: &Config) -> Result<()> {
        self.folder.set_config(config)
    }

    /// The configuration as it stands in config.toml.
    pub(super) fn config(&self) -> &str {
        self.folder.config()
    }

    /// From now on the plugin of this name has these bytes, which have been kept.
    pub(super) fn use_plugin(&mut self, source: &Source) {
        self.folder.use_plugin(source);
    }

    /// Name and file of each plugin in use.
    pub(super) fn plugin_files(&self) -> Vec<(String, PathBuf)> {
        self.folder.plugin_files()
    }

    /// What a checkpoint of this moment holds of it.
    pub(super) fn kept(&self) -> Kept {
        let (since_save, best) = self.saves.kept();
        Kept { window: self.window.clone(), since_save, best, parents: self.parents.clone() }
    }

    /// Goes on from a checkpoint of this step, which the run has.
    pub(super) fn restore(&mut self, step: u64, kept: Kept) {
        (self.window, self.parents) = (kept.window, kept.parents);
        self.saves.begin_at(step, kept.best, kept.since_save);
    }

    /// The run is a new one from here on: it has no checkpoint of its own yet.
    pub(super) fn become_fork(&mut self, parent: Parent) {
        self.parents.push(parent);
        self.saves = Saves::new(self.folder.path().to_owned());
    }
}
