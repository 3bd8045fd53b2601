//! The events of a run: what happened, and which versions its plugins had.

use super::tail::{FileTail, TailEvent};
use crate::config::printable;
use crate::report;
use crate::run::{EventKind, EventLine, PluginVersion, RunAction, WorkTime, is_undone};
use serde::Serialize;
use serde_json::{Map, Value};
use std::io;
use std::path::PathBuf;
use std::time::Instant;

/// Longest line that is read, and longest name and text that are kept, in bytes.
const LONGEST_LINE: u64 = 1 << 20;
const LONGEST_NAME: usize = 200;
const LONGEST_TEXT: usize = 4000;

/// Most keys that the user set.
const MOST_SET: usize = 500;

/// Most events that are kept.
const MOST_EVENTS: usize = 20_000;

/// An event, as it is shown.
#[derive(Clone, Debug, Serialize)]
pub struct EventRow {
    /// Seconds since 1970.
    pub time: Option<f64>,
    /// The name of its kind.
    pub kind: String,
    /// The number of steps done, if it says so.
    pub step: Option<u64>,
    /// The plugin that it is about; empty if there is none.
    pub plugin: String,
    /// What it says, in one line or several.
    pub text: String,
    /// The name of the request that it answers.
    pub request: String,
    /// Whether a later resume took the run back to before it.
    pub undone: bool,
}

/// A version of a plugin that the run has had or refused.
#[derive(Clone, Debug)]
pub struct PluginChange {
    /// Seconds since 1970.
    pub time: Option<f64>,
    /// Whether it was loaded, swapped in, returned to or refused.
    pub kind: EventKind,
    /// The number of steps done.
    pub step: u64,
    /// The plugin's role, if it was loaded.
    pub role: String,
    /// The plugin's name.
    pub plugin: String,
    /// The version.
    pub version: PluginVersion,
    /// The version that the plugin states.
    pub stated: String,
    /// Its settings.
    pub config: Map<String, Value>,
    /// How its scores of the newest batch differ from its predecessor's, if it was swapped in.
    pub shadow: Value,
    /// How long training waited for a swap.
    pub pause_ms: Option<f64>,
    /// Why it was refused or rolled back.
    pub reason: String,
    /// Whether a later resume took the run back to before it.
    pub undone: bool,
}

/// A plugin that the run has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunPlugin {
    /// Its name.
    pub name: String,
    /// Its role, as in `reward`.
    pub role: String,
}

/// The events of a run.
pub struct LiveEvents {
    tail: FileTail,
    /// Increases whenever events that were there are no longer, or changed.
    pub generation: u64,
    /// The events, oldest first.
    pub all: Vec<EventRow>,
    /// Versions of plugins, oldest first.
    pub changes: Vec<PluginChange>,
    /// Whether the run waits until somebody requests that it goes on.
    pub paused: bool,
    /// Whether the last process on the run began or how it ended.
    pub last: Option<EventKind>,
    /// The number of steps that the run takes.
    pub max_steps: Option<u64>,
    /// Seconds since 1970.
    pub started: Option<f64>,
    /// How long processes worked on the run.
    pub worked: WorkTime,
    /// Keys of the configuration that the user set.
    pub set: Vec<String>,
    /// Events that were left out for want of room.
    pub left_out: u64,
}

impl LiveEvents {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self {
            tail: FileTail::new(path, LONGEST_LINE),
            generation: 0,
            all: Vec::new(),
            changes: Vec::new(),
            paused: false,
            last: None,
            max_steps: None,
            started: None,
            worked: WorkTime::default(),
            set: Vec::new(),
            left_out: 0,
        }
    }

    /// Returns how many bytes of the file were read.
    #[must_use]
    pub fn place(&self) -> u64 {
        self.tail.place()
    }

    /// Reads what is new. Returns whether all of it was read in time.
    ///
    /// # Errors
    /// If the file can't be read.
    pub fn advance(&mut self, until: Instant) -> io::Result<bool> {
        // Taken out, so that events can be added while it reads.
        let mut tail = std::mem::replace(&mut self.tail, FileTail::new(PathBuf::new(), 0));
        let read = tail.advance(until, |piece| match piece {
            TailEvent::Restart => {
                let generation = self.generation + 1;
                *self = Self { generation, ..Self::new(PathBuf::new()) };
            }
            TailEvent::Line(_, text) => {
                if let Ok(line) = serde_json::from_slice::<Map<String, Value>>(text) {
                    self.add(&EventLine::from_fields(line));
                }
            }
        });
        self.tail = tail;
        read
    }

    fn add(&mut self, event: &EventLine) {
        let time = event.time.map(|time| time.as_millisecond() as f64 / 1000.0);
        self.worked.observe(event);
        if let Some(kind) = event.kind {
            if kind.begins() || kind.ends() {
                (self.last, self.paused) = (Some(kind), false);
            }
            if kind == EventKind::Requested && event.text("refused").is_empty() {
                match RunAction::parse(event.text("action")) {
                    Some(RunAction::Pause) => self.paused = true,
                    Some(RunAction::Continue) => self.paused = false,
                    _ => {}
                }
            }
            if kind.begins() {
                self.max_steps = event.fields.get("max_steps").and_then(Value::as_u64).or(self.max_steps);
                self.started = self.started.or(time);
                let set = event.fields.get("set").and_then(Value::as_array).into_iter().flatten();
                self.set = set.filter_map(Value::as_str).take(MOST_SET).map(|key| printable(key, LONGEST_NAME)).collect();
                self.undo(event.step.unwrap_or(0));
            }
            if matches!(
                kind,
                EventKind::PluginLoaded | EventKind::PluginSwapped | EventKind::PluginRolledBack | EventKind::PluginRefused
            ) {
                self.change(kind, event, time);
            }
        }
        if self.all.len() == MOST_EVENTS {
            self.left_out += 1;
            return;
        }
        self.all.push(EventRow {
            time,
            kind: printable(&event.name, LONGEST_NAME),
            step: event.step,
            plugin: printable(event.text("plugin"), LONGEST_NAME),
            text: lines(&report::describe(event)),
            request: printable(event.text("request"), LONGEST_NAME),
            undone: false,
        });
    }

    /// Returns the plugins that were loaded, rewards first: they are what is changed most.
    #[must_use]
    pub fn loaded(&self) -> Vec<RunPlugin> {
        let mut all: Vec<RunPlugin> = Vec::new();
        for change in self.changes.iter().filter(|change| !change.role.is_empty()) {
            if !all.iter().any(|loaded| loaded.name == change.plugin) {
                all.push(RunPlugin { name: change.plugin.clone(), role: change.role.clone() });
            }
        }
        all.sort_by_key(|loaded| !loaded.role.starts_with("reward"));
        all
    }

    /// Returns the version of a plugin that the run has now.
    #[must_use]
    pub fn current(&self, plugin: &str) -> Option<&PluginChange> {
        let is_own =
            |change: &&PluginChange| change.plugin == plugin && change.kind != EventKind::PluginRefused && !change.undone;
        self.changes.iter().rev().find(is_own)
    }

    /// Returns the names of the algorithm and the rewards that were loaded, the algorithm first.
    #[must_use]
    pub fn plugins(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        let is_algorithm = |change: &&PluginChange| change.role == "algorithm";
        let is_reward = |change: &&PluginChange| change.role.starts_with("reward");
        let all = self.changes.iter().filter(is_algorithm).chain(self.changes.iter().filter(is_reward));
        for change in all.filter(|change| change.kind == EventKind::PluginLoaded) {
            if !names.contains(&change.plugin.as_str()) {
                names.push(&change.plugin);
            }
        }
        names
    }

    fn undo(&mut self, from: u64) {
        let mut any = false;
        for event in self.all.iter_mut().filter(|event| event.step.is_some_and(|step| is_undone(step, from))) {
            (event.undone, any) = (true, true);
        }
        self.changes.iter_mut().filter(|change| is_undone(change.step, from)).for_each(|change| change.undone = true);
        self.generation += u64::from(any);
    }

    fn change(&mut self, kind: EventKind, event: &EventLine, time: Option<f64>) {
        if self.changes.len() == MOST_EVENTS {
            return;
        }
        let side = match kind {
            EventKind::PluginLoaded | EventKind::PluginRefused => "hash",
            _ => "to",
        };
        let text = |key: &str| printable(event.text(key), LONGEST_NAME);
        self.changes.push(PluginChange {
            time,
            kind,
            // What a resume loads is in place from the step that it begins with.
            step: event.step.or_else(|| self.all.iter().rev().find_map(|earlier| earlier.step)).unwrap_or(0),
            role: text("role"),
            plugin: text("plugin"),
            version: event.version(side),
            stated: text("version"),
            config: event.fields.get("config").and_then(Value::as_object).cloned().unwrap_or_default(),
            shadow: event.fields.get("shadow").cloned().unwrap_or_default(),
            pause_ms: event.number("pause_ms"),
            reason: lines(event.text("reason")),
            undone: false,
        });
    }
}

/// Returns a text of several lines, with everything in it visible, in bounded memory.
fn lines(text: &str) -> String {
    let mut end = text.len().min(LONGEST_TEXT);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let shown = text[..end].split('\n').map(|line| printable(&line.replace('\t', "    "), LONGEST_TEXT));
    let mut shown = shown.collect::<Vec<_>>().join("\n");
    if end < text.len() {
        shown.push('\u{2026}');
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn versions_are_followed_and_a_resume_undoes_what_came_after_it() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let text = concat!(
            "{\"time\":\"2026-01-02T03:04:05Z\",\"event\":\"started\",\"step\":0,\"max_steps\":40}\n",
            "{\"event\":\"plugin_loaded\",\"role\":\"reward\",\"plugin\":\"a\",\"hash\":\"01ab\",\"settings\":\"cd\",\"config\":{\"x\":1}}\n",
            "{\"event\":\"plugin_swapped\",\"plugin\":\"a\",\"from\":\"01ab\",\"to\":\"02ab\",\"step\":9,\"request\":\"a@7\"}\n",
            "{\"event\":\"plugin_refused\",\"plugin\":\"a\\u202e\",\"step\":3,\"reason\":\"line\\nanother\\u001b[31m\"}\n",
            "{\"event\":\"resumed\",\"step\":5,\"max_steps\":50}\n{\"event\":\"something_newer\",\"step\":6}\n",
        );
        std::fs::write(file.path(), text).unwrap();
        let mut events = LiveEvents::new(file.path().to_owned());
        assert!(events.advance(Instant::now() + Duration::from_secs(60)).unwrap());
        let undone: Vec<bool> = events.all.iter().map(|event| event.undone).collect();
        assert_eq!(undone, [false, false, true, false, false, false]);
        assert_eq!((events.last, events.max_steps), (Some(EventKind::Resumed), Some(50)));
        assert_eq!(events.started, Some(1_767_323_045.0));
        assert_eq!((events.changes.len(), events.changes[0].version.to_string()), (3, "01ab+cd".to_owned()));
        assert_eq!((events.changes[1].version.hash(), events.all[2].request.as_str()), ("02ab", "a@7"));
        assert_eq!(events.changes[2].plugin, "a\\u{202e}");
        assert_eq!(events.changes[2].reason, "line\nanother\\u{1b}[31m");
        assert_eq!(events.all[5].kind, "something_newer");
    }

    #[test]
    fn a_run_is_paused_between_a_request_that_it_took_and_the_next() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut text = String::new();
        let mut after = |line: &str| {
            text.push_str(line);
            text.push('\n');
            std::fs::write(file.path(), &text).unwrap();
            let mut events = LiveEvents::new(file.path().to_owned());
            events.advance(Instant::now() + Duration::from_secs(60)).unwrap();
            events.paused
        };
        assert!(!after(r#"{"event":"started","step":0}"#));
        assert!(!after(r#"{"event":"requested","action":"pause","step":1,"refused":"no"}"#));
        assert!(after(r#"{"event":"requested","action":"pause","step":2}"#));
        assert!(after(r#"{"event":"requested","action":"save","step":2}"#));
        assert!(!after(r#"{"event":"requested","action":"continue","step":2}"#));
        assert!(after(r#"{"event":"requested","action":"pause","step":3}"#));
        assert!(!after(r#"{"event":"stopped","step":3}"#));
    }
}
