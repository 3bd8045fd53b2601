//! Renders a run's folder as one self-contained HTML page: metrics over the steps with marks for events, completions, plugins,
//! events and configuration.
//!
//! It reads only the folder's files, during or after the run and within bounds, since they may be anybody's, and uses nothing else of
//! the host but the readers of `config` and `run`, and the signs in `diagnosis`. The page loads nothing.
//! Everything from the run is treated as text: the template escapes it, and the metrics are in a block of JSON in which no tag
//! can start.

mod charts;
mod comparison;
mod configuration;
mod dependence;
mod eras;
mod evaluations;
mod figures;
mod occurrences;
mod page;
mod samples;
mod sentences;
mod story;
#[cfg(test)]
mod swap_tests;
#[cfg(test)]
mod tests;
mod words;

pub use comparison::{Best, ComparedRun, Comparison, Difference, Group, Spread};

use crate::config::json_lines;
use crate::diagnosis::{self, Diagnosis};
use crate::run::{CheckpointFiles, ConfigInForce, EventLine, RunFiles, is_running};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Returns the names of the metrics that the page has a place for, besides those of rewards and of a step's parts.
pub fn metrics_read() -> impl Iterator<Item = &'static str> {
    charts::metrics_read().chain(page::KEY_FIGURES.iter().map(|(name, _)| *name))
}

/// The library that draws charts, which defines `uPlot`, and its style.
pub const CHART_LIBRARY: &str = include_str!("vendor/uplot/uPlot.iife.min.js");
/// The style of [`CHART_LIBRARY`]'s elements.
pub const CHART_STYLE: &str = include_str!("vendor/uplot/uPlot.min.css");

/// Returns what an event says besides its name and step, as the report shows it.
#[must_use]
pub fn describe(event: &EventLine) -> String {
    sentences::about(event)
}

/// Returns the settings of a run by their dotted keys, as a comparison shows them.
///
/// # Errors
/// If its configuration can't be read.
pub fn settings_of(run: &Path) -> Result<BTreeMap<String, String>, Error> {
    let mut settings = BTreeMap::new();
    let table = config_of(run)?.text.parse().unwrap_or_default();
    comparison::flatten("", &toml::Value::Table(table), &mut settings);
    Ok(settings)
}

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The path is not a run's folder.
    #[error("{}: {detail}", path.display())]
    NotARun {
        /// The path.
        path: PathBuf,
        /// What it is, and what would be right.
        detail: String,
    },
    /// A file of the run can't be read.
    #[error("can't read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The report can't be written.
    #[error("can't write {}: {source}", path.display())]
    Write {
        /// The report.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The template can't be rendered.
    #[error("can't render the report: {0:#}")]
    Page(#[from] minijinja::Error),
}

/// Everything that goes into a page.
struct Run {
    /// The folder's name.
    name: String,
    /// The text of config.toml, and the values in it.
    config: String,
    settings: toml::Table,
    figures: figures::Figures,
    story: story::Story,
    samples: Vec<samples::Sample>,
    diagnosis: Diagnosis,
    /// Steps whose checkpoints still exist.
    kept: Vec<u64>,
    /// Whether a process is running the run, if that can be known.
    at_work: Option<bool>,
    /// What could not be read.
    notes: Vec<String>,
}

/// Renders the report of a run as HTML.
///
/// # Errors
/// If the folder is not a run's, or one of its files can't be read.
pub fn render(run: &Path) -> Result<String, Error> {
    page::render(&Run::read(run)?)
}

/// Writes the report into the run's folder, atomically. Returns its path.
///
/// # Errors
/// As [`render`], and if it can't be written.
pub fn write(run: &Path) -> Result<PathBuf, Error> {
    let html = render(run)?;
    let path = RunFiles(run).report();
    let fail = |source| Error::Write { path: path.clone(), source };
    #[cfg_attr(not(unix), allow(unused_mut))]
    let mut builder = tempfile::Builder::new();
    // Unlike most temporary files, it is meant to be shared.
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    let mut temporary = builder.prefix(".report-").suffix(".tmp").tempfile_in(run).map_err(fail)?;
    temporary.write_all(html.as_bytes()).map_err(fail)?;
    temporary.persist(&path).map_err(|e| fail(e.error))?;
    Ok(path)
}

impl Run {
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
        // Before the files, so that what is read of a running run is newer than its state.
        let at_work = is_running(run);
        let kept = files.steps().unwrap_or_default();
        let mut story = story::Story::read(&files.events(), &mut notes)?;
        story.add_checkpoints(&kept);
        let figures = figures::Figures::read(run, &mut notes)?;
        let changes: Vec<u64> = story.marks.iter().filter(|m| ["swap", "settings"].contains(&m.kind)).map(|m| m.step).collect();
        let samples = samples::read(&files.completions(), &changes, &mut notes)?;
        let diagnosis = diagnosis::read(run);
        let path = fs::canonicalize(run).unwrap_or_else(|_| run.to_owned());
        let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        Ok(Self { name, config, settings, figures, story, samples, diagnosis, kept, at_work, notes })
    }
}

/// Rejects a path that is not a run's folder. Says what it seems to be instead.
///
/// # Errors
/// If it is not one.
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
    if RunFiles(path).are_there() {
        return Ok(());
    }
    let inside = fs::read_dir(path)
        .into_iter()
        .flatten()
        .filter_map(Result::ok)
        .map(|entry| entry.path())
        .filter(|p| RunFiles(p).are_there());
    let advice = inside.max().map(|run| format!("; it contains some, such as {}", run.display())).unwrap_or_default();
    refuse(format!("is not the folder of a run, which contains config.toml and events.jsonl{advice}"))
}

/// Reads a run's configuration; one without any has an empty one.
fn config_of(run: &Path) -> Result<ConfigInForce, Error> {
    match ConfigInForce::read(run) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(ConfigInForce::default()),
        read => read.map_err(|source| Error::Read { path: RunFiles(run).config(), source }),
    }
}

/// Returns a file's name for a note.
fn name(path: &Path) -> String {
    path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

/// Calls `take` with each object in a file of JSON lines; a missing file has none. What can't be read is reported in `notes`.
fn each_line(path: &Path, notes: &mut Vec<String>, take: impl FnMut(Map<String, Value>)) -> Result<(), Error> {
    match json_lines::each(path, take) {
        Ok(unread) => notes.extend(unread.notes(&name(path))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(source) => return Err(Error::Read { path: path.to_owned(), source }),
    }
    Ok(())
}
