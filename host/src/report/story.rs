//! `events.jsonl`: what happened to the run, in its own order.
//!
//! A run that is resumed from a step takes the steps behind it again. What an earlier part of the
//! run did there is not part of its history any more; the events stay in the file, and here they
//! count as undone.

use super::Error;
use super::lines;
use super::sentences;
use super::words;
use jiff::Timestamp;
use serde::Serialize;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::path::Path;

/// One line of the file.
#[derive(Clone, Debug)]
pub(super) struct Event {
    pub time: Option<Timestamp>,
    pub name: String,
    pub step: Option<u64>,
    pub fields: Map<String, Value>,
    /// Whether the run went back behind it.
    pub undone: bool,
}

impl Event {
    fn new(mut fields: Map<String, Value>) -> Self {
        let mut text = |key: &str| fields.shift_remove(key).and_then(|v| v.as_str().map(str::to_owned)).unwrap_or_default();
        let (time, name) = (text("time"), text("event"));
        let step = fields.get("step").and_then(Value::as_u64);
        Self { time: time.parse().ok(), name, step, fields, undone: false }
    }

    /// A field that is a text; empty if there is none.
    pub(super) fn text(&self, key: &str) -> &str {
        self.fields.get(key).and_then(Value::as_str).unwrap_or_default()
    }

    pub(super) fn number(&self, key: &str) -> Option<f64> {
        self.fields.get(key).and_then(Value::as_f64)
    }

    /// Whether a process began to work on the run.
    fn begins(&self) -> bool {
        ["started", "resumed", "forked"].contains(&self.name.as_str())
    }

    /// Whether a process said that it ended.
    fn ends(&self) -> bool {
        ["finished", "stopped", "failed"].contains(&self.name.as_str())
    }
}

/// Something that the charts mark.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Mark {
    pub number: usize,
    pub step: u64,
    pub kind: &'static str,
    /// The kind, as the reader sees it.
    pub word: &'static str,
    pub text: String,
}

/// A plugin as it was from a step on.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Version {
    pub plugin: String,
    pub role: String,
    pub version: String,
    pub hash: String,
    pub since: u64,
    /// The step at which another took its place.
    pub until: Option<u64>,
    pub how: &'static str,
    #[serde(skip)]
    pub config: Value,
}

/// Where the run stands.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct State {
    pub word: &'static str,
    pub detail: String,
}

/// All events, and what follows from them.
#[derive(Debug, Default)]
pub(super) struct Story {
    pub events: Vec<Event>,
    pub marks: Vec<Mark>,
    pub versions: Vec<Version>,
    /// Steps at which a checkpoint was written.
    pub checkpoints: Vec<u64>,
}

impl Story {
    /// Reads it; what is no event goes to `notes`.
    pub(super) fn read(path: &Path, notes: &mut Vec<String>) -> Result<Self, Error> {
        let mut this = Self::default();
        lines::each(path, notes, |line| this.events.push(Event::new(line)))?;
        this.find_undone();
        this.follow();
        Ok(this)
    }

    /// Takes note of what a later part of the run went back behind.
    fn find_undone(&mut self) {
        let mut behind: Option<u64> = None;
        // What the part of the run that began last, in the order of reading, had loaded.
        let mut loaded: BTreeMap<String, String> = BTreeMap::new();
        let mut loading: BTreeMap<String, String> = BTreeMap::new();
        for event in self.events.iter_mut().rev() {
            if event.name == "plugin_loaded" {
                loading.insert(event.text("plugin").to_owned(), event.text("hash").to_owned());
            }
            let gone = match (event.step, behind) {
                (Some(step), Some(from)) if step > from => true,
                // A swap comes before its step is taken: the checkpoint of that step may have it
                // or not, and what was loaded from it tells.
                (Some(step), Some(from)) if step == from && event.fields.contains_key("to") => {
                    !event.text("to").is_empty() && loaded.get(event.text("plugin")).is_some_and(|hash| hash != event.text("to"))
                }
                _ => false,
            };
            event.undone = gone && !event.begins();
            if event.begins() {
                behind = event.step.map(|step| behind.map_or(step, |b| b.min(step)));
                loaded = std::mem::take(&mut loading);
            }
        }
    }

    fn follow(&mut self) {
        let events = std::mem::take(&mut self.events);
        for event in events.iter().filter(|e| !e.undone) {
            match event.name.as_str() {
                "plugin_loaded" => self.loaded(event, &events),
                "plugin_swapped" | "plugin_rolled_back" => self.swapped(event),
                "checkpoint_saved" => self.checkpoints.extend(event.step),
                "settings_changed" => self.mark(event, "settings", sentences::about(event)),
                "resumed" => self.mark(event, "resume", sentences::resumed(event)),
                "failed" => self.mark(event, "failure", sentences::about(event)),
                _ => {}
            }
        }
        self.events = events;
        self.marks.sort_by_key(|mark| mark.step);
        self.marks.iter_mut().enumerate().for_each(|(i, mark)| mark.number = i + 1);
        self.end_versions();
    }

    fn mark(&mut self, event: &Event, kind: &'static str, text: String) {
        if let Some(step) = event.step {
            let word = match kind {
                "swap" => "swapped",
                "rollback" => "rolled back",
                "resume" => "resumed",
                "failure" => "failed",
                _ => "changed",
            };
            self.marks.push(Mark { number: 0, step, kind, word, text });
        }
    }

    fn current(&self, plugin: &str) -> Option<&Version> {
        self.versions.iter().rev().find(|v| v.plugin == plugin)
    }

    /// A plugin that a part of the run began with.
    fn loaded(&mut self, event: &Event, events: &[Event]) {
        let before = events.iter().take_while(|e| !std::ptr::eq(*e, event));
        let since = before.filter(|e| e.begins()).last().and_then(|e| e.step).unwrap_or(0);
        let version = Version {
            plugin: event.text("plugin").to_owned(),
            role: event.text("role").to_owned(),
            version: event.text("version").to_owned(),
            hash: event.text("hash").to_owned(),
            since,
            until: None,
            how: if since == 0 { "from the beginning" } else { "loaded with the checkpoint" },
            config: event.fields.get("config").cloned().unwrap_or_default(),
        };
        match self.current(&version.plugin) {
            Some(now) if now.hash == version.hash && now.config == version.config => {}
            _ => self.versions.push(version),
        }
    }

    /// A plugin that took another's place, or gave it back.
    fn swapped(&mut self, event: &Event) {
        let back = event.name == "plugin_rolled_back";
        let (name, to) = (event.text("plugin"), event.text("to"));
        let before = self.current(name).cloned();
        let known = self.versions.iter().rev().find(|v| v.plugin == name && v.hash == to).cloned();
        let config = event.fields.get("config").cloned();
        let config = config.or_else(|| known.as_ref().map(|v| v.config.clone())).unwrap_or_default();
        let settings_alone = !back && event.text("from") == to;
        let changed = before.as_ref().map(|v| sentences::differences(&v.config, &config)).unwrap_or_default();
        let (kind, how, text) = if back {
            ("rollback", "given its place back", sentences::about(event))
        } else if settings_alone {
            let what = if changed.is_empty() { "loaded again".to_owned() } else { changed };
            ("settings", "other settings", format!("{name}: {what}{}", sentences::shadow(event)))
        } else {
            let with = if changed.is_empty() { String::new() } else { format!("; {changed}") };
            ("swap", "swapped in", format!("{}{with}", sentences::about(event)))
        };
        self.mark(event, kind, text);
        self.versions.push(Version {
            plugin: name.to_owned(),
            role: before.map(|v| v.role).unwrap_or_default(),
            version: known.map(|v| v.version).unwrap_or_default(),
            hash: to.to_owned(),
            since: event.step.unwrap_or(0),
            until: None,
            how,
            config,
        });
    }

    /// Groups the versions by plugin and says until when each one held.
    fn end_versions(&mut self) {
        let mut names: Vec<String> = Vec::new();
        for version in &self.versions {
            if !names.contains(&version.plugin) {
                names.push(version.plugin.clone());
            }
        }
        self.versions.sort_by_key(|v| names.iter().position(|name| *name == v.plugin));
        for i in 1..self.versions.len() {
            if self.versions[i].plugin == self.versions[i - 1].plugin {
                self.versions[i - 1].until = Some(self.versions[i].since);
            }
        }
    }

    /// Takes note of checkpoints that are there, whether or not an event says so.
    pub(super) fn add_checkpoints(&mut self, steps: &[u64]) {
        self.checkpoints.extend(steps);
        self.checkpoints.sort_unstable();
        self.checkpoints.dedup();
    }

    /// The event with which the present part of the run began.
    pub(super) fn beginning(&self) -> Option<&Event> {
        self.events.iter().rev().find(|e| e.begins())
    }

    /// The very first one.
    pub(super) fn first(&self) -> Option<&Event> {
        self.events.iter().find(|e| e.begins())
    }

    /// The last one that the run did not go back behind and that names a step.
    pub(super) fn last_step(&self) -> Option<u64> {
        self.events.iter().filter(|e| !e.undone).filter_map(|e| e.step).max()
    }

    /// Where the run stands; `at_work` is whether a process has the folder in hand, if that can be
    /// known, and `logged` the last step with figures.
    pub(super) fn state(&self, at_work: Option<bool>, logged: Option<u64>) -> State {
        let after = |step: Option<u64>| match step {
            None | Some(0) => "before anything was logged".to_owned(),
            Some(step) => format!("after step {}", words::count(step)),
        };
        let last = self.events.iter().rev().find(|e| e.begins() || e.ends());
        match last {
            Some(end) if end.ends() => {
                let (word, reason) = match end.name.as_str() {
                    "finished" => ("finished", ""),
                    "stopped" => ("stopped", "by a signal, after saving"),
                    _ => ("failed", end.text("reason")),
                };
                let joint = if reason.is_empty() { "" } else { ": " };
                State { word, detail: format!("{}{joint}{reason}", after(end.step)) }
            }
            None => State { word: "unknown", detail: "events.jsonl says nothing of how the run began".into() },
            Some(_) => {
                let step = logged.max(self.last_step());
                match at_work {
                    Some(true) => State { word: "running", detail: after(step) },
                    Some(false) => State { word: "interrupted", detail: format!("{}: it ended without a word", after(step)) },
                    None => State { word: "unfinished", detail: after(step) },
                }
            }
        }
    }

    /// Seconds that processes worked on the run, `now` being the present one's end if it is at work,
    /// and `logged` the time that it logged last.
    pub(super) fn seconds(&self, now: Option<Timestamp>, logged: Option<f64>) -> f64 {
        let mut seconds = 0.0;
        let mut part: Option<(Timestamp, Timestamp)> = None;
        let length = |part: Option<(Timestamp, Timestamp)>| part.map_or(0.0, |(from, to)| to.duration_since(from).as_secs_f64());
        for event in &self.events {
            if event.begins() {
                seconds += length(part.take());
                part = event.time.map(|time| (time, time));
            } else if let Some(spent) = event.number("seconds").filter(|_| event.ends()) {
                seconds += spent;
                part = None;
            } else if let (Some((_, to)), Some(time)) = (&mut part, event.time) {
                *to = time;
            }
        }
        // Events are timed to the second; one that ended without a word may have none after its first.
        let last = part.map(|(from, to)| length(Some((from, now.unwrap_or(to)))).max(logged.unwrap_or(0.0)));
        seconds + last.unwrap_or(0.0)
    }
}
