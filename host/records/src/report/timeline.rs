//! Reads `events.jsonl`: the history of a run.
//!
//! A run resumed from a step repeats the steps after it. What the earlier process did in those steps is no longer part of the run's
//! history. Its events stay in the file, and this module marks them as undone.

use super::Error;
use super::sentences;
use super::words;
use crate::run::{EventKind, EventLine, PluginVersion, WorkTime, is_undone};
use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;

/// Maximum memory of all events, and approximate memory of a value excluding its text, in bytes.
const MOST_MEMORY: usize = 256 << 20;
const VALUE: usize = 96;

/// Returns the approximate memory of a value, in bytes.
fn memory(value: &Value) -> usize {
    VALUE
        + match value {
            Value::String(text) => text.len(),
            Value::Array(items) => items.iter().map(memory).sum(),
            Value::Object(entries) => entries.iter().map(|(key, value)| key.len() + memory(value)).sum(),
            _ => 0,
        }
}

/// Name of the event for a refused edit of config.toml.
pub(super) const SETTINGS_REFUSED: &str = "settings_refused";

/// An event of the run.
#[derive(Clone, Debug)]
pub(super) struct TimelineEvent {
    pub event: EventLine,
    /// Whether a resume from an earlier step undid the event.
    pub undone: bool,
}

/// An event marked in the charts.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ChartMark {
    /// Number of the mark, from 1.
    pub number: usize,
    /// Number of steps done.
    pub step: u64,
    /// Kind of the mark.
    pub kind: &'static str,
    /// Word for the kind, as shown to the reader.
    pub word: &'static str,
    /// Description of the event.
    pub text: String,
}

/// A version of a plugin and the steps during which it was in use.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct VersionPeriod {
    pub plugin: String,
    pub role: String,
    pub version: String,
    pub hash: String,
    pub since: u64,
    /// Step at which another version replaced it.
    pub until: Option<u64>,
    pub how: &'static str,
    /// Number of this version among the plugin's, from 1, and a description of its settings.
    pub number: usize,
    pub settings: String,
    pub config: Value,
}

impl VersionPeriod {
    /// Returns what identifies the version.
    fn identity(&self) -> PluginVersion {
        match self.config.as_object() {
            Some(config) => PluginVersion::new(&self.hash, config),
            None => PluginVersion::from_hash(&self.hash),
        }
    }
}

/// A step after which a plugin's metrics are not comparable with earlier ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MetricBreak {
    pub step: u64,
    pub plugin: String,
    /// Whether only the weight of the scores changed, so that the scores themselves stay comparable.
    pub of_weight: bool,
}

/// The state of the run.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct RunStateText {
    /// One-word state.
    pub word: &'static str,
    /// Time or reason of the state.
    pub detail: String,
}

/// All events and the history derived from them.
#[derive(Debug, Default)]
pub(super) struct RunTimeline {
    pub events: Vec<TimelineEvent>,
    pub marks: Vec<ChartMark>,
    pub versions: Vec<VersionPeriod>,
    pub changes: Vec<MetricBreak>,
    /// Steps at which a checkpoint was written.
    pub checkpoints: Vec<u64>,
}

impl RunTimeline {
    /// Reads the file. Lines that can't be read are reported in `notes`.
    pub(super) fn read(path: &Path, notes: &mut Vec<String>) -> Result<Self, Error> {
        let mut this = Self::default();
        let (mut room, mut left_out) = (MOST_MEMORY, 0u64);
        super::each_line(path, notes, |line| match room.checked_sub(line.values().map(memory).sum::<usize>() + VALUE) {
            Some(left) => {
                room = left;
                this.events.push(TimelineEvent { event: EventLine::from_fields(line), undone: false });
            }
            None => left_out += 1,
        })?;
        if left_out > 0 {
            notes.push(format!("{}: {left_out} events are left out; they take too much memory", super::name(path)));
        }
        this.find_undone();
        this.follow();
        Ok(this)
    }

    /// Marks events that a later resume undid.
    fn find_undone(&mut self) {
        let mut behind: Option<u64> = None;
        // Plugins loaded by the process whose start was last read. Events are read backwards.
        let mut loaded: BTreeMap<String, PluginVersion> = BTreeMap::new();
        let mut loading: BTreeMap<String, PluginVersion> = BTreeMap::new();
        for TimelineEvent { event, undone } in self.events.iter_mut().rev() {
            if event.kind == Some(EventKind::PluginLoaded) {
                loading.insert(event.text("plugin").to_owned(), event.version("hash"));
            }
            let gone = match (event.step, behind) {
                (Some(step), Some(from)) if is_undone(step, from) => true,
                // A swap happens before its step: the checkpoint of that step may or may not include it. The plugins loaded from
                // it show which.
                (Some(step), Some(from)) if step == from && event.fields.contains_key("to") => {
                    let to = event.version("to");
                    !to.is_unknown() && loaded.get(event.text("plugin")).is_some_and(|own| !own.is_same(&to))
                }
                _ => false,
            };
            *undone = gone && !event.begins();
            if event.begins() {
                behind = event.step.map(|step| behind.map_or(step, |b| b.min(step)));
                loaded = std::mem::take(&mut loading);
            }
        }
    }

    fn follow(&mut self) {
        let events = std::mem::take(&mut self.events);
        for TimelineEvent { event, .. } in events.iter().filter(|e| !e.undone) {
            match event.kind {
                _ if event.name == SETTINGS_REFUSED => self.mark(event, "refused", sentences::refused(event)),
                Some(EventKind::PluginLoaded) => self.loaded(event, &events),
                Some(EventKind::PluginSwapped | EventKind::PluginRolledBack) => self.swapped(event),
                Some(EventKind::CheckpointSaved) => self.checkpoints.extend(event.step),
                Some(EventKind::SettingsChanged) => {
                    self.mark(event, "settings", sentences::about(event));
                    self.change(event, event.text("plugin"), true);
                }
                Some(EventKind::PluginRefused) => self.mark(event, "refused", sentences::refused(event)),
                Some(EventKind::Resumed) => self.mark(event, "resume", sentences::resumed(event)),
                Some(EventKind::Failed) => self.mark(event, "failure", sentences::about(event)),
                _ => {}
            }
        }
        self.events = events;
        self.marks.sort_by_key(|mark| mark.step);
        self.marks.iter_mut().enumerate().for_each(|(i, mark)| mark.number = i + 1);
        self.end_versions();
    }

    fn mark(&mut self, event: &EventLine, kind: &'static str, text: String) {
        if let Some(step) = event.step {
            let word = match kind {
                "swap" => "swapped",
                "rollback" => "rolled back",
                "resume" => "resumed",
                "failure" => "failed",
                "refused" => "refused",
                _ => "changed",
            };
            self.marks.push(ChartMark { number: 0, step, kind, word, text });
        }
    }

    fn change(&mut self, event: &EventLine, plugin: &str, of_weight: bool) {
        self.changes.extend(event.step.map(|step| MetricBreak { step, plugin: plugin.to_owned(), of_weight }));
    }

    /// Returns whether a plugin is the run's algorithm.
    pub(super) fn is_algorithm(&self, plugin: &str) -> bool {
        self.versions.iter().any(|v| v.plugin == plugin && !["reward", "environment", ""].contains(&v.role.as_str()))
    }

    fn current(&self, plugin: &str) -> Option<&VersionPeriod> {
        self.versions.iter().rev().find(|v| v.plugin == plugin)
    }

    /// Adds a plugin loaded at a start of the run.
    fn loaded(&mut self, event: &EventLine, events: &[TimelineEvent]) {
        let before = events.iter().map(|happened| &happened.event).take_while(|e| !std::ptr::eq(*e, event));
        let since = before.filter(|e| e.begins()).last().and_then(|e| e.step).unwrap_or(0);
        let version = VersionPeriod {
            plugin: event.text("plugin").to_owned(),
            role: event.text("role").to_owned(),
            version: event.text("version").to_owned(),
            hash: event.text("hash").to_owned(),
            since,
            until: None,
            how: if since == 0 { "from the start" } else { "loaded with the checkpoint" },
            number: 0,
            settings: String::new(),
            config: event.fields.get("config").cloned().unwrap_or_default(),
        };
        match self.current(&version.plugin) {
            Some(now) if now.hash == version.hash && now.config == version.config => {}
            before => {
                if before.is_some() {
                    self.changes.push(MetricBreak { step: since, plugin: version.plugin.clone(), of_weight: false });
                }
                self.versions.push(version);
            }
        }
    }

    /// Adds a plugin swapped in or rolled back to.
    fn swapped(&mut self, event: &EventLine) {
        let back = event.kind == Some(EventKind::PluginRolledBack);
        let (name, to, version) = (event.text("plugin"), event.text("to"), event.version("to"));
        let before = self.current(name).cloned();
        let known = self.versions.iter().rev().find(|v| v.plugin == name && v.identity().is_same(&version)).cloned();
        let config = event.fields.get("config").cloned();
        let config = config.or_else(|| known.as_ref().map(|v| v.config.clone())).unwrap_or_default();
        let settings_alone = !back && event.text("from") == to;
        let changed = before.as_ref().map(|v| sentences::differences(&v.config, &config)).unwrap_or_default();
        let with = |changed: &str| if changed.is_empty() { String::new() } else { format!("; {changed}") };
        let (kind, how, text) = if back {
            let of_settings = if event.text("from") == to { with(&changed) } else { String::new() };
            ("rollback", "rolled back", format!("{}{of_settings}", sentences::about(event)))
        } else if settings_alone {
            let (what, how) =
                if changed.is_empty() { ("loaded again".to_owned(), "loaded again") } else { (changed, "new settings") };
            ("settings", how, format!("{name}: {what}{}{}", sentences::shadow(event), sentences::by(event)))
        } else {
            ("swap", "swapped in", format!("{}{}", sentences::about(event), with(&changed)))
        };
        self.mark(event, kind, text);
        // A version that is loaded again scores as before.
        if before.as_ref().is_none_or(|v| v.hash != to || v.config != config) {
            self.change(event, name, false);
        }
        let stated = Some(event.text("version").to_owned()).filter(|version| !version.is_empty());
        self.versions.push(VersionPeriod {
            plugin: name.to_owned(),
            role: before.map(|v| v.role).unwrap_or_default(),
            version: stated.or(known.map(|v| v.version)).unwrap_or_default(),
            hash: to.to_owned(),
            since: event.step.unwrap_or(0),
            until: None,
            how,
            number: 0,
            settings: String::new(),
            config,
        });
    }

    /// Sorts the versions by plugin, sets the step until which each was used, and describes them.
    fn end_versions(&mut self) {
        let mut names: Vec<String> = Vec::new();
        for version in &self.versions {
            if !names.contains(&version.plugin) {
                names.push(version.plugin.clone());
            }
        }
        self.versions.sort_by_key(|v| names.iter().position(|name| *name == v.plugin));
        let nothing = Value::default();
        for i in 0..self.versions.len() {
            let before = i.checked_sub(1).filter(|before| self.versions[*before].plugin == self.versions[i].plugin);
            let config = before.map_or(&nothing, |i| &self.versions[i].config);
            let settings = match before {
                Some(_) => sentences::differences(config, &self.versions[i].config),
                None => sentences::settings(&self.versions[i].config),
            };
            // A version that came back keeps its old number.
            let own = &self.versions[i];
            let others = self.versions[..i].iter().filter(|v| v.plugin == own.plugin);
            let same = others.clone().find(|v| v.hash == own.hash && v.config == own.config).map(|v| v.number);
            let number = same.unwrap_or_else(|| 1 + others.map(|v| v.number).max().unwrap_or(0));
            (self.versions[i].number, self.versions[i].settings) = (number, settings);
            if let Some(before) = before {
                self.versions[before].until = Some(self.versions[i].since);
            }
        }
    }

    /// Adds existing checkpoints, even those without an event.
    pub(super) fn add_checkpoints(&mut self, steps: &[u64]) {
        self.checkpoints.extend(steps);
        self.checkpoints.sort_unstable();
        self.checkpoints.dedup();
    }

    fn all(&self) -> impl DoubleEndedIterator<Item = &EventLine> {
        self.events.iter().map(|happened| &happened.event)
    }

    /// Returns the event with which the current process started.
    pub(super) fn beginning(&self) -> Option<&EventLine> {
        self.all().rev().find(|e| e.begins())
    }

    /// Returns the events with which the run's processes started.
    pub(super) fn beginnings(&self) -> impl Iterator<Item = &EventLine> {
        self.all().filter(|e| e.begins())
    }

    /// Returns the very first event.
    pub(super) fn first(&self) -> Option<&EventLine> {
        self.all().find(|e| e.begins())
    }

    /// Returns the last step named by an event that was not undone.
    pub(super) fn last_step(&self) -> Option<u64> {
        self.events.iter().filter(|e| !e.undone).filter_map(|e| e.event.step).max()
    }

    /// Returns the state of the run. `at_work` is whether a process is running it, if that can be known; `logged` is the last
    /// step with metrics.
    pub(super) fn state(&self, at_work: Option<bool>, logged: Option<u64>) -> RunStateText {
        let after = |step: Option<u64>| match step {
            None | Some(0) => "before anything was logged".to_owned(),
            Some(step) => format!("after step {}", words::count(step)),
        };
        let last = self.all().rev().find(|e| e.begins() || e.ends());
        match last {
            Some(end) if end.ends() => {
                let (word, reason) = match end.kind {
                    Some(EventKind::Finished) => ("finished", ""),
                    Some(EventKind::Stopped) => ("stopped", "by a signal, after saving"),
                    _ => ("failed", end.text("reason")),
                };
                let joint = if reason.is_empty() { "" } else { ": " };
                RunStateText { word, detail: format!("{}{joint}{reason}", after(end.step)) }
            }
            None => RunStateText { word: "unknown", detail: "events.jsonl does not say how the run started".into() },
            Some(_) => {
                let step = logged.max(self.last_step());
                match at_work {
                    Some(true) => RunStateText { word: "running", detail: after(step) },
                    Some(false) => RunStateText {
                        word: "interrupted",
                        detail: format!("{}; the process ended without reporting why", after(step)),
                    },
                    None => RunStateText { word: "unfinished", detail: after(step) },
                }
            }
        }
    }

    /// Returns how long processes worked on the run, in seconds. `now` is the end of the current process if it is running, `logged` the
    /// time that it last logged.
    pub(super) fn seconds(&self, now: Option<Timestamp>, logged: Option<f64>) -> f64 {
        let mut worked = WorkTime::default();
        self.all().for_each(|event| worked.observe(event));
        worked.seconds(now, logged)
    }
}
