//! What a run brings to a comparison.

use crate::config::printable;
use crate::report::Error;
use crate::report::configuration::entry_name;
use crate::report::dependence::Dependence;
use crate::report::timeline::MetricBreak;
use crate::run::{EventKind, EventLine, PluginVersion, RunFiles, RunMetrics, each_own_line, is_running, is_undone, short_hash};
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
    /// What scores or teaches otherwise after a step, in the order of the steps.
    pub(super) changes: Vec<MetricBreak>,
    /// The algorithm's name; empty if it is not known.
    pub(super) algorithm: String,
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
        let config = crate::report::config_of(path)?;
        config.note.iter().for_each(|text| note(text));
        let table: toml::Table = config.text.parse().unwrap_or_else(|error: toml::de::Error| {
            note(&format!("config.toml can't be understood: {}", error.message()));
            toml::Table::new()
        });
        flatten("", &toml::Value::Table(table), &mut this.settings);
        let history = EventHistory::read(path).map_err(|source| Error::Read { path: RunFiles(path).events(), source })?;
        let metrics = match RunMetrics::load(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => RunMetrics::default(),
            loaded => loaded.map_err(|source| Error::Read { path: RunFiles(path).metrics(), source })?,
        };
        metrics.notes.iter().for_each(|text| note(text));
        this.state = history.state(path);
        this.changes = history.changes();
        this.algorithm.clone_from(&history.algorithm);
        for (plugin, versions) in history.versions {
            this.settings.insert(format!("{VERSION}{}", printable(&plugin, LONGEST_NAME)), in_words(&versions));
        }
        this.add(metrics);
        Ok(this)
    }

    fn add(&mut self, metrics: RunMetrics) {
        let mut before: Option<(u64, BTreeMap<String, PluginVersion>)> = None;
        for row in metrics.rows {
            for (plugin, version) in &row.versions {
                if let Some((step, versions)) = &before
                    && versions.get(plugin).is_some_and(|old| !old.is_same(version))
                {
                    self.changes.push(MetricBreak { step: *step, plugin: plugin.clone(), of_weight: false });
                }
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
        self.changes.sort_by_key(|change| change.step);
        self.changes.dedup();
    }

    /// Returns the steps after which a metric is another.
    pub(super) fn breaks(&self, metric: &str) -> Vec<u64> {
        let dependence = Dependence::new(metric);
        let is_of_it =
            |change: &&MetricBreak| dependence.is_affected_by(&change.plugin, change.plugin == self.algorithm, change.of_weight);
        let mut steps: Vec<u64> = self.changes.iter().filter(is_of_it).map(|change| change.step).collect();
        steps.dedup();
        steps
    }
}

/// What a run's events say.
#[derive(Default)]
struct EventHistory {
    /// The versions that each plugin had, each from a step on.
    versions: BTreeMap<String, Vec<(u64, PluginVersion)>>,
    /// Steps after which weights or error policies are others, with the reward.
    settings_changed: Vec<(u64, String)>,
    algorithm: String,
    last: Option<EventKind>,
}

impl EventHistory {
    fn read(run: &Path) -> io::Result<Self> {
        let (mut this, mut begun) = (Self::default(), 0);
        let read = each_own_line(run, &RunFiles(run).events(), |line| {
            let event = EventLine::from_fields(line);
            let step = event.step.unwrap_or(begun);
            let Some(kind) = event.kind else { return };
            if kind.begins() || kind.ends() {
                this.last = Some(kind);
            }
            if kind.begins() {
                begun = step;
                this.settings_changed.retain(|(change, _)| !is_undone(*change, step));
                this.versions.values_mut().for_each(|versions| versions.retain(|(since, _)| !is_undone(*since, step)));
            }
            match kind {
                EventKind::SettingsChanged if this.settings_changed.len() < MOST_CHANGES => {
                    this.settings_changed.push((step, event.text("plugin").to_owned()));
                }
                EventKind::PluginLoaded => {
                    let (plugin, version) = (event.text("plugin"), event.version("hash"));
                    if !["reward", "reward model", "environment", ""].contains(&event.text("role")) {
                        plugin.clone_into(&mut this.algorithm);
                    }
                    // The checkpoint of a swap's step may be from before it.
                    if let Some(versions) = this.versions.get_mut(plugin) {
                        versions.retain(|(since, own)| *since < step || own.is_same(&version));
                    }
                    this.record_version(plugin, version, step);
                }
                EventKind::PluginSwapped | EventKind::PluginRolledBack => {
                    this.record_version(event.text("plugin"), event.version("to"), step);
                }
                _ => {}
            }
        });
        match read {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(this),
        }
    }

    /// Returns what scores or teaches otherwise after a step.
    fn changes(&self) -> Vec<MetricBreak> {
        let change = |step: u64, plugin: &String, of_weight| MetricBreak { step, plugin: plugin.clone(), of_weight };
        let swaps = self
            .versions
            .iter()
            .flat_map(|(plugin, versions)| versions.iter().skip(1).map(move |(since, _)| change(*since, plugin, false)));
        swaps.chain(self.settings_changed.iter().map(|(step, plugin)| change(*step, plugin, true))).collect()
    }

    /// Records that a plugin has this version from a step on.
    fn record_version(&mut self, plugin: &str, version: PluginVersion, step: u64) {
        if version.is_unknown() || (self.versions.len() == MOST_PLUGINS && !self.versions.contains_key(plugin)) {
            return;
        }
        let versions = self.versions.entry(plugin.to_owned()).or_default();
        if versions.last().is_none_or(|(_, last)| !last.is_same(&version)) && versions.len() < MOST_CHANGES {
            versions.push((step, version));
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

/// Names the versions that a plugin had: by their hashes, and by their settings where these changed during the run. What they were from
/// the start is among the settings.
fn in_words(versions: &[(u64, PluginVersion)]) -> String {
    let has_settings = versions.windows(2).any(|pair| pair[0].1.hash() == pair[1].1.hash());
    let name = |(_, version): &(u64, PluginVersion)| match has_settings {
        true => version.short(),
        false => short_hash(version.hash()).to_owned(),
    };
    versions.iter().map(name).collect::<Vec<_>>().join(" \u{2192} ")
}

/// Adds the leaves of a value under their dotted keys. Entries of plugins go by their names.
pub(in crate::report) fn flatten(prefix: &str, value: &toml::Value, into: &mut BTreeMap<String, String>) {
    let below = |key: &str| if prefix.is_empty() { key.to_owned() } else { format!("{prefix}.{key}") };
    match value {
        toml::Value::Table(table) => table.iter().for_each(|(key, value)| flatten(&below(key), value, into)),
        // A run without any.
        toml::Value::Array(items) if items.is_empty() && ["plugin", "environment"].contains(&prefix) => {}
        toml::Value::Array(items) if items.iter().any(toml::Value::is_table) => {
            for (i, item) in items.iter().enumerate() {
                let name = item.get("path").map(|_| entry_name(item));
                let key = name.map(|name| below(&name)).filter(|key| !into.contains_key(&format!("{key}.path")));
                flatten(&key.unwrap_or_else(|| below(&i.to_string())), item, into);
            }
        }
        toml::Value::String(text) => drop(into.insert(printable(prefix, LONGEST_NAME), printable(text, LONGEST_VALUE))),
        leaf => drop(into.insert(printable(prefix, LONGEST_NAME), printable(&leaf.to_string(), LONGEST_VALUE))),
    }
}
