//! The table of events, in which the same error or warning is one row with a count.

use super::sentences;
use super::story::{Happened, SETTINGS_REFUSED};
use super::words;
use crate::run::{EventKind, EventLine};
use serde::Serialize;
use std::collections::HashMap;

/// How many of the first and of the last rows are shown.
const SHOWN: (usize, usize) = (150, 350);

/// A row of the table: an event, with the later ones that say the same.
#[derive(Debug, PartialEq, Serialize)]
pub struct Occurrence {
    /// When it happened first, in seconds since 1970.
    pub time: Option<f64>,
    /// The name of its kind.
    pub kind: String,
    /// The number of steps done, if it says so.
    pub step: Option<u64>,
    /// The plugin that it is about; empty if there is none.
    pub plugin: String,
    /// What it says.
    pub text: String,
    /// Whether a later resume took the run back to before it.
    pub undone: bool,
    /// How often it happened.
    pub count: usize,
    /// Until when it happened, if more than once.
    pub until: String,
    /// Number of rows omitted before this one.
    pub left_out: usize,
}

/// An event, with the later ones that say the same.
struct Occurrences<'a> {
    first: &'a Happened,
    last: &'a EventLine,
    count: usize,
    /// Completions without a score, over all of them.
    rows: usize,
}

/// Returns the rows of the table.
pub(super) fn rows(events: &[Happened]) -> Vec<Occurrence> {
    let mut all: Vec<Occurrences<'_>> = Vec::new();
    let mut places: HashMap<(&str, &str, &str, bool), usize> = HashMap::new();
    for happened in events {
        let Happened { event, undone } = happened;
        let rows = sentences::unscored(event);
        let place = match repeats(event) {
            Some(text) => *places.entry((&event.name, event.text("plugin"), text, *undone)).or_insert(all.len()),
            None => all.len(),
        };
        match all.get_mut(place) {
            Some(known) => (known.last, known.count, known.rows) = (event, known.count + 1, known.rows + rows),
            None => all.push(Occurrences { first: happened, last: event, count: 1, rows }),
        }
    }
    let (head, tail) = SHOWN;
    let left_out = all.len().saturating_sub(head + tail);
    let shown = all.iter().enumerate().filter(|(i, _)| *i < head || *i >= head + left_out);
    shown.map(|(i, known)| known.row(if i == head + left_out { left_out } else { 0 })).collect()
}

/// Returns what an event says, if it is of a kind that a run may repeat many times.
fn repeats(event: &EventLine) -> Option<&str> {
    if event.name == SETTINGS_REFUSED {
        return Some(event.text("reason"));
    }
    match event.kind? {
        EventKind::PluginError | EventKind::PluginRefused | EventKind::CheckpointFailed => Some(event.text("reason")),
        EventKind::Warning => Some(event.text("text")),
        _ => None,
    }
}

impl Occurrences<'_> {
    fn row(&self, left_out: usize) -> Occurrence {
        let Happened { event, undone } = self.first;
        let step = |event: &EventLine| event.step.map(words::count).unwrap_or_default();
        let until = match (self.count, step(self.last)) {
            (1, _) => String::new(),
            (_, last) if !last.is_empty() => format!("to step {last}"),
            _ => self.last.time.map(|time| format!("to {}", words::moment(time))).unwrap_or_default(),
        };
        Occurrence {
            time: event.time.map(|time| time.as_millisecond() as f64 / 1000.0),
            kind: event.name.clone(),
            step: event.step,
            plugin: event.text("plugin").to_owned(),
            text: if self.count > 1 { sentences::repeated(event, self.rows) } else { sentences::about(event) },
            undone: *undone,
            count: self.count,
            until,
            left_out,
        }
    }
}
