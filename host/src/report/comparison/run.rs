//! What a run brings to a comparison.

use crate::config::{json_lines, printable};
use crate::report::Error;
use crate::run::{EventKind, EventLine, Metrics, RunFiles, is_running, is_undone, short_hash};
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Longest name and longest value that are shown, in bytes.
const LONGEST_NAME: usize = 200;
const LONGEST_VALUE: usize = 300;

/// Most plugins and changes of plugins that are kept.
const MOST_PLUGINS: usize = 1000;
const MOST_CHANGES: usize = 10_000;

/// How the keys of versions begin.
pub(super) const VERSION: &str = "version of ";

/// A run of a comparison.
#[derive(Debug, Default)]
pub struct ComparedRun {
    /// The folder's name.
    pub name: String,
    /// Its path.
    pub path: PathBuf,
    /// `finished`, `running`, and so on.
    pub state: &'static str,
    /// Settings by their dotted keys, and versions of plugins.
    pub settings: BTreeMap<String, String>,
    /// Steps and values of each metric.
    pub series: BTreeMap<String, Vec<(u64, f64)>>,
    /// Steps after which other plugins score or teach.
    pub changes: Vec<u64>,
    /// The last logged step.
    pub last_step: u64,
}

impl ComparedRun {
    /// Reads the run in a folder; adds what can't be read to `notes`.
    pub(super) fn load(path: &Path, notes: &mut Vec<String>) -> Result<Self, Error> {
        crate::report::check(path)?;
        let absolute = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let name = absolute.file_name().map(|name| printable(&name.to_string_lossy(), LONGEST_NAME)).unwrap_or_default();
        let mut this = Self { name, path: path.to_owned(), ..Self::default() };
        let mut note = |text: &str| notes.push(format!("{}: {}", this.name, printable(text, 2 * LONGEST_VALUE)));
        let config = crate::report::text(&RunFiles(path).config())?;
        let table: toml::Table = config.parse().unwrap_or_else(|error: toml::de::Error| {
            note(&format!("config.toml can't be understood: {}", error.message()));
            toml::Table::new()
        });
        flatten("", &toml::Value::Table(table), &mut this.settings);
        let history = History::read(path).map_err(|source| Error::Read { path: RunFiles(path).events(), source })?;
        let metrics = match Metrics::load(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Metrics::default(),
            loaded => loaded.map_err(|source| Error::Read { path: RunFiles(path).metrics(), source })?,
        };
        metrics.notes.iter().for_each(|text| note(text));
        this.state = history.state(path);
        this.changes = history.changes();
        for (plugin, versions) in history.versions {
            let hashes: Vec<String> = versions.into_iter().map(|(_, hash)| short_hash(&hash).to_owned()).collect();
            this.settings.insert(format!("{VERSION}{}", printable(&plugin, LONGEST_NAME)), hashes.join(" \u{2192} "));
        }
        this.add(metrics);
        Ok(this)
    }

    fn add(&mut self, metrics: Metrics) {
        let mut before: Option<(u64, BTreeMap<String, String>)> = None;
        for row in metrics.rows {
            if let Some((step, versions)) = &before
                && !row.versions.is_empty()
                && *versions != row.versions
            {
                self.changes.push(*step);
            }
            if !row.versions.is_empty() {
                before = Some((row.step, row.versions));
            }
            self.last_step = self.last_step.max(row.step);
            for (name, value) in row.values.into_iter().filter(|(name, _)| !["epoch", "time"].contains(&name.as_str())) {
                if let Some(value) = value {
                    self.series.entry(name).or_default().push((row.step, value));
                }
            }
        }
        self.changes.sort_unstable();
        self.changes.dedup();
    }

    /// Returns how often the plugins had changed before a step was taken.
    pub(super) fn part(&self, step: u64) -> usize {
        self.changes.partition_point(|change| *change < step)
    }
}

/// What a run's events say.
#[derive(Default)]
struct History {
    /// The versions that each plugin had, each from a step on.
    versions: BTreeMap<String, Vec<(u64, String)>>,
    /// Steps after which weights or error policies are others.
    settings_changed: Vec<u64>,
    last: Option<EventKind>,
}

impl History {
    fn read(run: &Path) -> io::Result<Self> {
        let (mut this, mut begun) = (Self::default(), 0);
        let read = json_lines::each(&RunFiles(run).events(), |line| {
            let event = EventLine::of(line);
            let step = event.step.unwrap_or(begun);
            let Some(kind) = event.kind else { return };
            if kind.begins() || kind.ends() {
                this.last = Some(kind);
            }
            if kind.begins() {
                begun = step;
                this.settings_changed.retain(|change| !is_undone(*change, step));
                this.versions.values_mut().for_each(|versions| versions.retain(|(since, _)| !is_undone(*since, step)));
            }
            match kind {
                EventKind::SettingsChanged if this.settings_changed.len() < MOST_CHANGES => this.settings_changed.push(step),
                EventKind::PluginLoaded => {
                    let (plugin, hash) = (event.text("plugin"), event.text("hash"));
                    // The checkpoint of a swap's step may be from before it.
                    if let Some(versions) = this.versions.get_mut(plugin) {
                        versions.retain(|(since, own)| *since < step || own == hash);
                    }
                    this.is_version(plugin, hash, step);
                }
                EventKind::PluginSwapped | EventKind::PluginRolledBack => {
                    this.is_version(event.text("plugin"), event.text("to"), step);
                }
                _ => {}
            }
        });
        match read {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(this),
        }
    }

    /// Returns the steps after which something scores or teaches otherwise.
    fn changes(&self) -> Vec<u64> {
        let swaps = self.versions.values().flat_map(|versions| versions.iter().skip(1).map(|(since, _)| *since));
        swaps.chain(self.settings_changed.iter().copied()).collect()
    }

    /// Records that a plugin has this version from a step on.
    fn is_version(&mut self, plugin: &str, hash: &str, step: u64) {
        if hash.is_empty() || (self.versions.len() == MOST_PLUGINS && !self.versions.contains_key(plugin)) {
            return;
        }
        let versions = self.versions.entry(plugin.to_owned()).or_default();
        if versions.last().is_none_or(|(_, last)| last != hash) && versions.len() < MOST_CHANGES {
            versions.push((step, hash.to_owned()));
        }
    }

    fn state(&self, run: &Path) -> &'static str {
        match self.last {
            Some(EventKind::Finished) => "finished",
            Some(EventKind::Stopped) => "stopped",
            Some(EventKind::Failed) => "failed",
            _ if is_running(run) == Some(true) => "running",
            Some(_) => "interrupted",
            None => "unknown",
        }
    }
}

/// Adds the leaves of a value under their dotted keys. Entries of plugins go by their names.
fn flatten(prefix: &str, value: &toml::Value, into: &mut BTreeMap<String, String>) {
    let below = |key: &str| if prefix.is_empty() { key.to_owned() } else { format!("{prefix}.{key}") };
    match value {
        toml::Value::Table(table) => table.iter().for_each(|(key, value)| flatten(&below(key), value, into)),
        // A run without any.
        toml::Value::Array(items) if items.is_empty() && ["plugin", "environment"].contains(&prefix) => {}
        toml::Value::Array(items) if items.iter().any(toml::Value::is_table) => {
            for (i, item) in items.iter().enumerate() {
                let name = item.get("path").and_then(toml::Value::as_str).map(|path| {
                    let file = path.rsplit(['/', '\\']).find(|part| !part.is_empty()).unwrap_or(path);
                    file.strip_suffix(".wasm").unwrap_or(file).to_owned()
                });
                let key = name.map(|name| below(&name)).filter(|key| !into.contains_key(&format!("{key}.path")));
                flatten(&key.unwrap_or_else(|| below(&i.to_string())), item, into);
            }
        }
        toml::Value::String(text) => drop(into.insert(printable(prefix, LONGEST_NAME), printable(text, LONGEST_VALUE))),
        leaf => drop(into.insert(printable(prefix, LONGEST_NAME), printable(&leaf.to_string(), LONGEST_VALUE))),
    }
}
