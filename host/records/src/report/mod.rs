//! Reports of a run and comparisons of several: marks and versions, eras between swaps, key metrics, evaluations, and which metrics share a
//! chart. The page of `rlhost ui` shows them, live or in a static file.
//!
//! This module reads only the run's files, during or after the run and within bounds, since they may be from anybody. It uses nothing else
//! of the host except the readers of `config` and `run`.

mod charts;
mod comparison;
mod configuration;
mod contents;
mod dependence;
mod eras;
mod evaluations;
mod occurrences;
mod sentences;
mod series;
#[cfg(test)]
mod swap_tests;
#[cfg(test)]
mod tests;
mod timeline;
mod words;

pub use charts::{Chart, ChartKind, ChartLine, Charts, Section};
pub use comparison::{ComparedRun, GroupCurve, MetricGoal, RunComparison, SeedGroup, SeedSpread, SettingDifference};
pub use configuration::ConfigListing;
pub use contents::{Fact, FigureRow, KeyFigure, LoggedSteps, ReportSummary, RunReport, VersionRow, visible_json};
pub use eras::Era;
pub use evaluations::EvaluationRow;
pub use occurrences::Occurrence;
pub use timeline::{ChartMark, RunStateText};

use crate::run::{CheckpointFiles, EffectiveConfig, EventLine, RunFiles, each_own_line, is_running};
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Returns the names of the metrics with a fixed place on the page, except those of rewards and of a step's parts.
pub fn metrics_read() -> impl Iterator<Item = &'static str> {
    charts::metrics_read().chain(contents::KEY_FIGURES.iter().map(|(name, _)| *name))
}

/// Returns charts of several runs, one for each of these metrics.
#[must_use]
pub fn charts_of(metrics: &BTreeSet<String>) -> Charts {
    charts::one_by_one(metrics)
}

/// Describes an event, without its name and step, as the report shows it.
#[must_use]
pub fn describe(event: &EventLine) -> String {
    sentences::about(event)
}

/// Returns whether a swap loaded the version that was in use again, which scores as before.
#[must_use]
pub fn is_loaded_again(event: &EventLine) -> bool {
    sentences::is_loaded_again(event)
}

/// Returns the settings of a run by dotted key, as a comparison shows them.
///
/// # Errors
/// If the run's configuration can't be read.
pub fn settings_of(run: &Path) -> Result<BTreeMap<String, String>, Error> {
    let mut settings = BTreeMap::new();
    let table = config_of(run)?.text.parse().unwrap_or_default();
    comparison::flatten("", &toml::Value::Table(table), &mut settings);
    Ok(settings)
}

/// The reason why there is no report.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The path is not a run's folder.
    #[error("{}: {detail}", path.display())]
    NotARun {
        /// Path that was given.
        path: PathBuf,
        /// What the path is instead, and what would be valid.
        detail: String,
    },
    /// A file of the run can't be read.
    #[error("can't read {}: {source}", path.display())]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// The report can't be written.
    #[error("can't write {}: {source}", path.display())]
    Write {
        /// Path of the report.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
}

/// Everything that a report reads of a run.
struct ReportSource {
    /// Text of config.toml, and its parsed values.
    config: String,
    settings: toml::Table,
    figures: series::ReportMetrics,
    story: timeline::RunTimeline,
    /// Steps whose checkpoints still exist.
    kept: Vec<u64>,
    /// Whether a process is running the run, if known.
    at_work: Option<bool>,
    /// Parts that could not be read.
    notes: Vec<String>,
}

impl RunReport {
    /// Reads the run in a folder.
    ///
    /// # Errors
    /// If the folder is not a run's, or one of its files can't be read.
    pub fn load(run: &Path) -> Result<Self, Error> {
        Ok(Self::new(ReportSource::read(run)?))
    }
}

impl ReportSource {
    fn read(run: &Path) -> Result<Self, Error> {
        check(run)?;
        let (files, mut notes) = (RunFiles(run), Vec::new());
        let config = config_of(run)?;
        notes.extend(config.note);
        let config = config.text;
        let settings = config.parse().unwrap_or_else(|error: toml::de::Error| {
            notes.push(format!("config.toml can't be understood: {}", error.message()));
            toml::Table::new()
        });
        // Read before the files, so that they are newer than the state of a running run.
        let at_work = is_running(run);
        let kept = files.steps().unwrap_or_default();
        let mut story = timeline::RunTimeline::read(&files.events(), &mut notes)?;
        story.add_checkpoints(&kept);
        let figures = series::ReportMetrics::read(run, &mut notes)?;
        Ok(Self { config, settings, figures, story, kept, at_work, notes })
    }
}

/// Rejects a path that is not a run's folder, and says what it seems to be instead.
///
/// # Errors
/// If the path is not a run's folder.
pub fn check(path: &Path) -> Result<(), Error> {
    let refuse = |detail: String| Err(Error::NotARun { path: path.to_owned(), detail });
    if !path.exists() {
        return refuse("there is no such folder; give the folder of a run".into());
    }
    if !path.is_dir() {
        return refuse("is a file; give the folder of a run".into());
    }
    if CheckpointFiles::find(path).summary().is_file() {
        let parent = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        return refuse(format!("is a checkpoint; give its run's folder, {}", parent.display()));
    }
    if RunFiles(path).exist() {
        return Ok(());
    }
    let inside =
        fs::read_dir(path).into_iter().flatten().filter_map(Result::ok).map(|entry| entry.path()).filter(|p| RunFiles(p).exist());
    let advice = inside.max().map(|run| format!("; it contains some, such as {}", run.display())).unwrap_or_default();
    refuse(format!("is not the folder of a run, which contains config.toml and events.jsonl{advice}"))
}

/// Reads a run's configuration; it is empty if the run has none.
fn config_of(run: &Path) -> Result<EffectiveConfig, Error> {
    match EffectiveConfig::read(run) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(EffectiveConfig::default()),
        read => read.map_err(|source| Error::Read { path: RunFiles(run).config(), source }),
    }
}

/// Returns a file's name for a note.
fn name(path: &Path) -> String {
    path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

/// Calls `take` with each object in a JSON Lines file of a run's folder; a missing file has none. Anything that can't be read is reported
/// in `notes`.
fn each_line(path: &Path, notes: &mut Vec<String>, take: impl FnMut(Map<String, Value>)) -> Result<(), Error> {
    match each_own_line(path.parent().unwrap_or(path), path, take) {
        Ok(unread) => notes.extend(unread.notes(&name(path))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(source) => return Err(Error::Read { path: path.to_owned(), source }),
    }
    Ok(())
}
