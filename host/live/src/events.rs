//! The events of a run, and the versions of its plugins.

use super::tail::{FileTail, TailEvent};
use crate::config::printable;
use crate::report;
use crate::run::{EventKind, EventLine, PluginVersion, RunAction, WorkTime, is_undone};
use serde::Serialize;
use serde_json::{Map, Value};
use std::io;
use std::path::PathBuf;
use std::time::Instant;

/// Maximum length of a line that is read, and of a name and a text in memory, in bytes.
const LONGEST_LINE: u64 = 1 << 20;
const LONGEST_NAME: usize = 200;
const LONGEST_TEXT: usize = 4000;

/// Maximum number of events in memory.
const MOST_EVENTS: usize = 20_000;

/// An event, as it is shown.
#[derive(Clone, Debug, Serialize)]
pub struct EventRow {
    /// Time in seconds since 1970.
    pub time: Option<f64>,
    /// Name of the event's kind.
    pub kind: String,
    /// Number of steps done, if the event has it.
    pub step: Option<u64>,
    /// Plugin of the event; empty if there is none.
    pub plugin: String,
    /// Description, in one or several lines.
    pub text: String,
    /// Name of the request that the event answers.
    pub request: String,
    /// Whether the event is a swap to the version that was in use, whose scores stay comparable with earlier ones.
    pub loaded_again: bool,
    /// Whether a later resume undid the event.
    pub undone: bool,
}

/// A version of a plugin that the run has used or refused.
#[derive(Clone, Debug)]
pub struct PluginChange {
    /// Time in seconds since 1970.
    pub time: Option<f64>,
    /// Kind of the change: loaded, swapped in, rolled back to or refused.
    pub kind: EventKind,
    /// Number of steps done.
    pub step: u64,
    /// Role of the plugin, if it was loaded.
    pub role: String,
    /// Name of the plugin.
    pub plugin: String,
    /// Version of the plugin.
    pub version: PluginVersion,
    /// Version that the plugin gives itself.
    pub stated: String,
    /// Settings of the plugin.
    pub config: Map<String, Value>,
    /// Comparison of its scores of the newest batch with its predecessor's, if it was swapped in.
    pub shadow: Value,
    /// Time that training paused for a swap, in milliseconds.
    pub pause_ms: Option<f64>,
    /// Why the version was refused or rolled back.
    pub reason: String,
    /// Whether a later resume undid the change.
    pub undone: bool,
}

/// A plugin of the run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunPlugin {
    /// Name of the plugin.
    pub name: String,
    /// Role of the plugin, such as `reward`.
    pub role: String,
}

/// The events of a run.
pub struct LiveEvents {
    tail: FileTail,
    /// Increases whenever earlier events are removed or changed.
    pub generation: u64,
    /// The events, oldest first.
    pub all: Vec<EventRow>,
    /// Versions of plugins, oldest first.
    pub changes: Vec<PluginChange>,
    /// Whether the run is paused until somebody requests that it continue.
    pub paused: bool,
    /// Last event that began or ended a process of the run.
    pub last: Option<EventKind>,
    /// Total number of steps of the run.
    pub max_steps: Option<u64>,
    /// Start of the run, in seconds since 1970.
    pub started: Option<f64>,
    /// Time that processes worked on the run.
    pub worked: WorkTime,
    /// Number of events omitted for lack of space.
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
            left_out: 0,
        }
    }

    /// Returns the number of bytes that were read.
    #[must_use]
    pub fn place(&self) -> u64 {
        self.tail.place()
    }

    /// Reads new lines. Returns whether all of them were read in time.
    ///
    /// # Errors
    /// If the file can't be read.
    pub fn advance(&mut self, until: Instant) -> io::Result<bool> {
        // Taken out of `self`, so that events can be added while reading.
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
            loaded_again: report::is_loaded_again(event),
            undone: false,
        });
    }

    /// Returns the step of the last event that has one and was not undone.
    pub(crate) fn last_step(&self) -> Option<u64> {
        self.all.iter().rev().filter(|event| !event.undone).find_map(|event| event.step)
    }

    /// Returns the loaded plugins, rewards first, since they are changed most often.
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

    /// Returns the version of a plugin that is in use.
    #[must_use]
    pub fn current(&self, plugin: &str) -> Option<&PluginChange> {
        let is_own =
            |change: &&PluginChange| change.plugin == plugin && change.kind != EventKind::PluginRefused && !change.undone;
        self.changes.iter().rev().find(is_own)
    }

    /// Returns the names of the loaded algorithm and rewards, algorithm first.
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
            // A plugin loaded by a resume is in use from the step at which it begins.
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

/// Returns a text of several lines, with invisible characters made visible, in bounded memory.
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
        assert_eq!((events.all[5].kind.as_str(), events.last_step()), ("something_newer", Some(6)));
    }

    #[test]
    fn a_version_that_is_loaded_again_is_no_other_one() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let swap = |from: &str, settings: &str| {
            serde_json::json!({
                "event": "plugin_swapped", "plugin": "a", "step": 3,
                "from": from, "to": "02ab", "from_settings": "cd", "to_settings": settings,
            })
        };
        let swaps = [swap("01ab", "cd"), swap("02ab", "ef"), swap("02ab", "cd")];
        std::fs::write(file.path(), swaps.map(|swap| format!("{swap}\n")).concat()).unwrap();
        let mut events = LiveEvents::new(file.path().to_owned());
        assert!(events.advance(Instant::now() + Duration::from_secs(60)).unwrap());
        assert_eq!(events.all.iter().map(|event| event.loaded_again).collect::<Vec<_>>(), [false, false, true]);
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
