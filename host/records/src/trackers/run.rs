//! The data of a run that is exported to trackers.

use crate::config::{files, printable};
use crate::run::{EffectiveConfig, EventLine, RunFiles, each_metrics_row, each_own_line};
use jiff::Timestamp;
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

const MOST_METRICS: usize = 4096;
const MOST_VALUES: usize = 50_000_000;
const MOST_CELLS: usize = 200_000_000;
/// Maximum number of starts and resumes whose times are kept.
const MOST_BEGINNINGS: usize = 10_000;
/// Maximum lengths of the name of a metric or a setting, and of a setting's value, in bytes.
const LONGEST_NAME: usize = 200;
const LONGEST_SETTING: usize = 5000;

/// The reason why a run was not exported.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is nothing to export.
    #[error("{}: no metrics have been logged yet", .0.display())]
    Empty(PathBuf),
    /// A file can't be read.
    #[error("can't read {}: {source}", path.display())]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// A file can't be written.
    #[error("can't write {}: {source}", path.display())]
    Write {
        /// Path of the file.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
}

impl Error {
    /// Returns whether the user's input caused the error, rather than the machine or the program.
    pub fn is_mistake(&self) -> bool {
        match self {
            Self::Empty(_) => true,
            Self::Read { source, .. } | Self::Write { source, .. } => files::is_path_error(source),
        }
    }
}

/// The start of a process that continues the run after a step.
struct ProcessStart {
    step: u64,
    /// Time in milliseconds since 1970.
    time: i64,
}

/// A row of metrics.
pub(super) struct ExportedRow {
    pub step: u64,
    /// Time in milliseconds since 1970.
    pub time: i64,
    /// Values with the indices of their metrics.
    pub values: Vec<(usize, f64)>,
}

/// A run as it is exported.
pub(super) struct ExportedRun {
    /// Name of the run's folder, used for the exported files.
    pub name: String,
    /// Name that trackers show: `run_name`, or else the folder's name.
    pub title: String,
    /// Thirty-two hexadecimal digits that are stable for the same run.
    pub id: String,
    /// Start time in milliseconds since 1970.
    pub started: i64,
    pub ended: i64,
    /// Name of the last event among `finished`, `stopped` and `failed`, if any.
    pub end: Option<String>,
    /// Settings by dotted key.
    pub settings: BTreeMap<String, Value>,
    pub metrics: Vec<String>,
    pub rows: Vec<ExportedRow>,
    /// Notes on parts that could not be read.
    pub notes: Vec<String>,
}

/// Returns the settings of the run in this folder; the error is one line.
fn table(run: &Path) -> Result<toml::Table, String> {
    let config = EffectiveConfig::read(run).map_err(|error| error.to_string())?;
    config.text.parse().map_err(|error: toml::de::Error| error.message().to_owned())
}

impl ExportedRun {
    pub(super) fn read(path: &Path) -> Result<Self, Error> {
        let absolute = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let name = absolute.file_name().map(|name| printable(&name.to_string_lossy(), LONGEST_NAME)).unwrap_or_default();
        let (mut settings, mut notes) = (BTreeMap::new(), Vec::new());
        let table = table(path).unwrap_or_else(|error| {
            notes.push(printable(&format!("config.toml can't be read, so no settings are exported: {error}"), LONGEST_SETTING));
            toml::Table::new()
        });
        let title = table.get("run_name").and_then(toml::Value::as_str).map(|given| printable(given, LONGEST_NAME));
        let title = title.filter(|given| !given.trim().is_empty()).unwrap_or_else(|| name.clone());
        flatten("", &serde_json::to_value(table).unwrap_or_default(), &mut settings);
        let (mut started, mut end, mut beginnings) = (None, None, Vec::<ProcessStart>::new());
        // A run without events can still have metrics.
        let _ = each_own_line(path, &RunFiles(path).events(), |line| {
            let event = EventLine::from_fields(line);
            let time = event.time.map(Timestamp::as_millisecond);
            started = started.or(time);
            match event.kind {
                Some(kind) if kind.begins() => {
                    end = None;
                    let step = event.step.unwrap_or_default();
                    // Starts after the step from which the run resumes are undone.
                    beginnings.retain(|earlier| earlier.step < step);
                    if beginnings.len() < MOST_BEGINNINGS {
                        beginnings.extend(time.map(|time| ProcessStart { step, time }));
                    }
                }
                Some(kind) if kind.ends() => end = Some(event.name),
                _ => {}
            }
        });
        let started = started.unwrap_or_default();
        let id = Sha256::digest(format!("{name}\n{started}").as_bytes()).iter().take(16).map(|b| format!("{b:02x}")).collect();
        let mut this = Self {
            name,
            title,
            id,
            started,
            ended: started,
            end,
            settings,
            metrics: Vec::new(),
            rows: Vec::new(),
            notes: Vec::new(),
        };
        this.read_metrics(path, &beginnings, &mut notes)?;
        this.notes = notes;
        if this.rows.is_empty() { Err(Error::Empty(path.to_owned())) } else { Ok(this) }
    }

    fn read_metrics(&mut self, run: &Path, beginnings: &[ProcessStart], notes: &mut Vec<String>) -> Result<(), Error> {
        let (mut places, mut count, mut cut) = (BTreeMap::<String, usize>::new(), 0, false);
        let unread = each_metrics_row(run, |row| {
            if count >= MOST_VALUES {
                return;
            }
            let step = row.step;
            let seconds = row.value("time").filter(|s| (0.0..1e10).contains(s)).unwrap_or_default();
            // The clock of a resumed run restarts at 0.
            let beginning = beginnings.iter().rev().find(|beginning| beginning.step < step).map_or(self.started, |b| b.time);
            self.ended = self.ended.max(beginning.saturating_add((seconds * 1e3) as i64));
            let mut values = Vec::new();
            for (name, value) in row.values.iter().filter(|(name, _)| name != "time") {
                let Some(value) = *value else { continue };
                let known = places.len();
                let fits = known < MOST_METRICS && (known + 1) * (self.rows.len() + 1) <= MOST_CELLS;
                let place = match places.get(name) {
                    Some(place) => *place,
                    None if fits => {
                        places.insert(name.clone(), known);
                        self.metrics.push(printable(name, LONGEST_NAME));
                        known
                    }
                    None => {
                        cut = true;
                        continue;
                    }
                };
                values.push((place, value));
            }
            count += values.len();
            let fits = places.len() * (self.rows.len() + 1) <= MOST_CELLS;
            cut |= !fits;
            // A row without values is omitted.
            if fits && !values.is_empty() {
                self.rows.push(ExportedRow { step, time: self.ended, values });
            }
        });
        let unread = unread.map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => Error::Empty(run.to_owned()),
            _ => Error::Read { path: RunFiles(run).metrics(), source },
        })?;
        notes.extend(unread);
        if cut || count >= MOST_VALUES {
            let most = format!("{MOST_METRICS} metrics, {MOST_VALUES} values and {MOST_CELLS} cells of a table");
            notes.push(format!("metrics.jsonl is not exported as a whole; the maximum is {most}"));
        }
        Ok(())
    }

    /// Returns the names of the metrics, reduced to the characters that `keeps` accepts. Distinct names stay distinct, and none is a parent
    /// folder of another.
    pub(super) fn names(&self, keeps: impl Fn(char) -> bool) -> Vec<String> {
        let mut taken: BTreeSet<String> = BTreeSet::new();
        let plain = |name: &String| -> String { name.chars().map(|c| if keeps(c) { c } else { '_' }).collect() };
        let all: BTreeSet<String> = self.metrics.iter().map(plain).collect();
        let own = |name: &String| {
            let mut text = String::new();
            for part in plain(name).split('/').filter(|part| !["", ".", ".."].contains(part)) {
                // If `a` exists, `a/b` becomes `a.b`.
                let joint = if text.is_empty() {
                    ""
                } else if all.contains(&text) {
                    "."
                } else {
                    "/"
                };
                text = format!("{text}{joint}{part}");
            }
            while text.is_empty() || !taken.insert(text.clone()) {
                text.push('_');
            }
            text
        };
        self.metrics.iter().map(own).collect()
    }
}

/// Adds the leaves of a table under their dotted keys.
fn flatten(prefix: &str, value: &Value, into: &mut BTreeMap<String, Value>) {
    let below = |key: &str| if prefix.is_empty() { key.to_owned() } else { format!("{prefix}.{key}") };
    match value {
        Value::Object(table) => table.iter().for_each(|(key, value)| flatten(&below(key), value, into)),
        Value::Array(items) if items.iter().any(Value::is_object) => {
            items.iter().enumerate().for_each(|(i, item)| flatten(&below(&i.to_string()), item, into));
        }
        leaf => {
            let leaf = match leaf {
                Value::String(text) => Value::String(printable(text, LONGEST_SETTING)),
                other => other.clone(),
            };
            into.insert(printable(prefix, LONGEST_NAME), leaf);
        }
    }
}

/// Creates a folder inside `to`, with its parents. Rejects links in the path, which may lead anywhere.
pub(super) fn make(to: &Path, folder: &Path) -> Result<(), Error> {
    let fail = |path: &Path, source| Error::Write { path: path.to_owned(), source };
    fs::create_dir_all(to).map_err(|source| fail(to, source))?;
    let mut path = to.to_owned();
    for part in folder.strip_prefix(to).unwrap_or(folder) {
        path.push(part);
        files::create_folder(&path).map_err(|source| fail(&path, source))?;
    }
    Ok(())
}

/// Creates an empty folder inside `to`, replacing the results of an earlier export.
pub(super) fn make_anew(to: &Path, folder: &Path) -> Result<(), Error> {
    make(to, folder.parent().unwrap_or(to))?;
    match fs::remove_dir_all(folder) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => return Err(Error::Write { path: folder.to_owned(), source }),
        _ => {}
    }
    make(to, folder)
}

/// Writes a file atomically: it is renamed into place, so nothing is written through a link.
pub(super) fn write_file(path: &Path, fill: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<(), Error> {
    let fail = |source| Error::Write { path: path.to_owned(), source };
    let folder = path.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder).map_err(fail)?;
    #[cfg_attr(not(unix), allow(unused_mut))]
    let mut builder = tempfile::Builder::new();
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    let mut temporary = builder.prefix(".tmp").tempfile_in(folder).map_err(fail)?;
    let mut buffered = io::BufWriter::new(&mut temporary);
    fill(&mut buffered).and_then(|()| buffered.flush()).map_err(fail)?;
    drop(buffered);
    temporary.persist(path).map_err(|e| fail(e.error))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt::Write as _;

    fn read(metrics: &str) -> ExportedRun {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("metrics.jsonl"), metrics).unwrap();
        ExportedRun::read(folder.path()).unwrap()
    }

    #[test]
    fn rows_after_a_resume_have_the_times_of_the_process_that_logged_them() {
        let folder = tempfile::tempdir().unwrap();
        let rows = [(1, 10.0), (2, 20.0), (3, 5.0), (4, 15.0), (5, 1.0)];
        let rows = rows.map(|(step, time)| format!("{{\"step\":{step},\"time\":{time},\"loss\":1}}\n")).concat();
        fs::write(folder.path().join("metrics.jsonl"), rows).unwrap();
        // Resumed after step 2, again after step 2, and after step 4.
        let events = [("started", 0, "00:00"), ("resumed", 2, "00:01"), ("resumed", 2, "01:00"), ("resumed", 4, "02:00")];
        let event = |(name, step, time)| format!("{{\"event\":\"{name}\",\"step\":{step},\"time\":\"1970-01-01T{time}:00Z\"}}\n");
        fs::write(folder.path().join("events.jsonl"), events.map(event).concat()).unwrap();
        let run = ExportedRun::read(folder.path()).unwrap();
        let times: Vec<i64> = run.rows.iter().map(|row| row.time / 1000).collect();
        assert_eq!((times, run.ended), (vec![10, 20, 3605, 3615, 7201], 7_201_000));
    }

    #[test]
    fn a_table_of_all_metrics_has_a_size_and_rows_without_values_are_left_out() {
        let names: String = (0..MOST_METRICS).map(|i| format!(",\"{i}\":1")).collect();
        let mut metrics = format!("{{\"step\":0{names}}}\n");
        for step in 1..60_000 {
            let _ = writeln!(metrics, "{{\"step\":{step},\"7\":1}}\n{{\"step\":{step}}}");
        }
        let run = read(&metrics);
        assert_eq!((run.metrics.len(), run.rows.len()), (MOST_METRICS, MOST_CELLS / MOST_METRICS));
        assert!(run.notes.iter().any(|note| note.contains("200000000 cells of a table")), "{:?}", run.notes);
        let whole = read("{\"step\":1,\"a\":1}\n{\"step\":2}\n{\"step\":3,\"a\":null,\"b\":2}\n");
        assert_eq!((whole.rows.len(), whole.rows[1].step), (2, 3));
        assert!(!whole.notes.iter().any(|note| note.contains("metrics.jsonl")), "{:?}", whole.notes);
    }
}
