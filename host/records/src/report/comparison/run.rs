//! A run of a comparison: its settings, versions of plugins, and metrics.

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

/// Maximum lengths of a name and of a value that are shown, in bytes.
const LONGEST_NAME: usize = 200;
const LONGEST_VALUE: usize = 300;

/// Maximum number of plugins and of changes of plugins in memory.
const MOST_PLUGINS: usize = 1000;
const MOST_CHANGES: usize = 10_000;

/// Prefix of the keys of versions.
pub(super) const VERSION: &str = "version of ";

/// A run of a comparison.
#[derive(Debug, Default)]
pub struct ComparedRun {
    /// Name of the folder.
    pub name: String,
    /// Path of the folder.
    pub path: PathBuf,
    /// State of the run: `finished`, `running`, and so on.
    pub state: &'static str,
    /// Settings by dotted key, and versions of plugins.
    pub settings: BTreeMap<String, String>,
    /// Steps and values of each metric.
    pub series: BTreeMap<String, Vec<(u64, f64)>>,
    /// Changes of plugins and weights, with the steps after which scoring or training differs, in order.
    pub(super) changes: Vec<MetricBreak>,
    /// Name of the algorithm; empty if it is unknown.
    pub(super) algorithm: String,
    /// Last logged step.
    pub last_step: u64,
}

impl ComparedRun {
    /// Reads the run in a folder. Adds notes on anything that can't be read to `notes`.
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

    /// Returns the steps after which a metric's meaning changes.
    pub(super) fn breaks(&self, metric: &str) -> Vec<u64> {
        let dependence = Dependence::new(metric);
        let is_of_it =
            |change: &&MetricBreak| dependence.is_affected_by(&change.plugin, change.plugin == self.algorithm, change.of_weight);
        let mut steps: Vec<u64> = self.changes.iter().filter(is_of_it).map(|change| change.step).collect();
        steps.dedup();
        steps
    }
}

/// The history of a run's plugins and its end, from its events.
#[derive(Default)]
struct EventHistory {
    /// Versions of each plugin, each with the step from which it was in use.
    versions: BTreeMap<String, Vec<(u64, PluginVersion)>>,
    /// Steps after which a weight or error policy differs, with the name of the reward.
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
                    // The checkpoint of a swap's step may be from before the swap.
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

    /// Returns the changes after which scoring or training differs.
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

/// Names the versions that a plugin had: by their hashes, and by their settings if these changed during the run. The settings at the start
/// are already among the run's settings.
fn in_words(versions: &[(u64, PluginVersion)]) -> String {
    let has_settings = versions.windows(2).any(|pair| pair[0].1.hash() == pair[1].1.hash());
    let name = |(_, version): &(u64, PluginVersion)| match has_settings {
        true => version.short(),
        false => short_hash(version.hash()).to_owned(),
    };
    versions.iter().map(name).collect::<Vec<_>>().join(" \u{2192} ")
}

/// Adds the leaves of a value under their dotted keys. The key of a plugin's entry is the plugin's name.
pub(in crate::report) fn flatten(prefix: &str, value: &toml::Value, into: &mut BTreeMap<String, String>) {
    let below = |key: &str| if prefix.is_empty() { key.to_owned() } else { format!("{prefix}.{key}") };
    match value {
        toml::Value::Table(table) => table.iter().for_each(|(key, value)| flatten(&below(key), value, into)),
        // A run without plugins or environments.
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
