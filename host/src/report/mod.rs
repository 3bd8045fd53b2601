//! A run's folder as one page of HTML that holds everything it shows: figures over the steps with
//! what happened to the run, completions, plugins, events and configuration.
//!
//! It reads files of the folder alone, while the run goes on or after it, and needs nothing else of
//! the host. The page loads nothing from anywhere. What comes from the run is text to it: the
//! template escapes it, and the figures lie in a block of JSON in which no tag can begin.

mod charts;
mod figures;
mod lines;
mod page;
mod samples;
mod sentences;
mod story;
#[cfg(test)]
mod tests;
mod words;

use std::fs::{self, File, TryLockError};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

/// Name of the report in the run's folder.
pub const FILE: &str = "report.html";

/// Why there is no report; the message says what, where and what would be right.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The path is not that of a run.
    #[error("{}: {detail}", path.display())]
    NotARun {
        /// What was given.
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
    /// The page can't be put together.
    #[error("the report can't be put together: {0:#}")]
    Page(#[from] minijinja::Error),
}

/// Everything that a page is made of.
struct Run {
    /// The folder's name.
    name: String,
    /// config.toml as it stands there, and what it says.
    config: String,
    settings: toml::Table,
    figures: figures::Figures,
    story: story::Story,
    samples: Vec<samples::Sample>,
    /// Steps whose checkpoints are there.
    kept: Vec<u64>,
    /// Whether a process has the run in hand, if that can be known.
    at_work: Option<bool>,
    /// What could not be read.
    notes: Vec<String>,
}

/// The report on a run, as HTML.
///
/// # Errors
/// If the folder is no run's, or a file of it can't be read.
pub fn render(run: &Path) -> Result<String, Error> {
    page::render(&Run::read(run)?)
}

/// Writes the report into the run's folder, in one piece, and gives its path.
///
/// # Errors
/// As [`render`], and if it can't be written.
pub fn write(run: &Path) -> Result<PathBuf, Error> {
    let html = render(run)?;
    let path = run.join(FILE);
    let fail = |source| Error::Write { path: path.clone(), source };
    #[cfg_attr(not(unix), allow(unused_mut))]
    let mut builder = tempfile::Builder::new();
    // It is there to be passed on, unlike most temporary files.
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
        let mut notes = Vec::new();
        let config = text(&run.join("config.toml"))?;
        let settings = config.parse().unwrap_or_else(|error: toml::de::Error| {
            notes.push(format!("config.toml can't be understood: {}", error.message()));
            toml::Table::new()
        });
        // Before the files: what is read of a run that goes on is then newer than its state.
        let at_work = at_work(run);
        let kept = kept(run);
        let mut story = story::Story::read(&run.join("events.jsonl"), &mut notes)?;
        story.add_checkpoints(&kept);
        let figures = figures::Figures::read(&run.join("metrics.jsonl"), &mut notes)?;
        let changes: Vec<u64> = story.marks.iter().filter(|m| ["swap", "settings"].contains(&m.kind)).map(|m| m.step).collect();
        let samples = samples::read(&run.join("completions.jsonl"), &changes, &mut notes)?;
        let path = fs::canonicalize(run).unwrap_or_else(|_| run.to_owned());
        let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        Ok(Self { name, config, settings, figures, story, samples, kept, at_work, notes })
    }
}

/// Refuses what is no run's folder, with a word on what it might be instead.
fn check(path: &Path) -> Result<(), Error> {
    let refuse = |detail: String| Err(Error::NotARun { path: path.to_owned(), detail });
    let is_run = |path: &Path| path.join("config.toml").is_file() || path.join("events.jsonl").is_file();
    if !path.exists() {
        return refuse("there is no such folder; name that of a run".into());
    }
    if !path.is_dir() {
        return refuse("is a file; name the folder of a run".into());
    }
    if path.join("trainer_state.json").is_file() {
        let parent = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        return refuse(format!("is a checkpoint; name its run, as in {}", parent.display()));
    }
    if is_run(path) {
        return Ok(());
    }
    let inside = fs::read_dir(path).into_iter().flatten().filter_map(Result::ok).map(|entry| entry.path()).filter(|p| is_run(p));
    let advice = inside.max().map(|run| format!("; it holds some, as {}", run.display())).unwrap_or_default();
    refuse(format!("is not the folder of a run, which holds config.toml and events.jsonl{advice}"))
}

/// Opens a file, and waits for no pipe or device that stands in its place.
fn open(path: &Path) -> io::Result<File> {
    if fs::metadata(path)?.is_file() { File::open(path) } else { Err(io::Error::other("it is not a file")) }
}

/// A text file; nothing if it is not there.
fn text(path: &Path) -> Result<String, Error> {
    let mut bytes = Vec::new();
    match open(path).and_then(|mut file| file.read_to_end(&mut bytes)) {
        Ok(_) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        Err(source) => Err(Error::Read { path: path.to_owned(), source }),
    }
}

/// Steps of the checkpoints in a run's folder.
fn kept(run: &Path) -> Vec<u64> {
    let names = fs::read_dir(run).into_iter().flatten().filter_map(Result::ok).map(|entry| entry.file_name());
    let mut steps: Vec<u64> = names.filter_map(|name| name.to_str()?.strip_prefix("checkpoint-")?.parse().ok()).collect();
    steps.sort_unstable();
    steps
}

/// Whether a process holds the run's lock.
fn at_work(run: &Path) -> Option<bool> {
    // Shared, so that two who ask do not take each other for the one at work.
    match open(&run.join(".lock")).ok()?.try_lock_shared() {
        Ok(()) => Some(false),
        Err(TryLockError::WouldBlock) => Some(true),
        Err(TryLockError::Error(_)) => None,
    }
}
