//! The table of events, in which the same error or warning is one row with a count.

use super::sentences;
use super::story::{Happened, SETTINGS_REFUSED};
use super::words;
use crate::run::{EventKind, EventLine};
use serde::Serialize;
use std::collections::HashMap;

/// How many of the first and of the last rows are shown.
const SHOWN: (usize, usize) = (150, 350);

/// A row of the table.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct Row {
    pub time: String,
    pub name: String,
    pub step: String,
    pub text: String,
    pub undone: bool,
    /// How often it happened, and until when, if more than once.
    pub count: usize,
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
pub(super) fn rows(events: &[Happened]) -> Vec<Row> {
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
    fn row(&self, left_out: usize) -> Row {
        let Happened { event, undone } = self.first;
        let step = |event: &EventLine| event.step.map(words::count).unwrap_or_default();
        let until = match (self.count, step(self.last)) {
            (1, _) => String::new(),
            (_, last) if !last.is_empty() => format!("to step {last}"),
            _ => self.last.time.map(|time| format!("to {}", words::moment(time))).unwrap_or_default(),
        };
        Row {
            time: event.time.map(words::moment).unwrap_or_default(),
            name: event.name.replace('_', " "),
            step: step(event),
            text: if self.count > 1 { sentences::repeated(event, self.rows) } else { sentences::about(event) },
            undone: *undone,
            count: self.count,
            until,
            left_out,
        }
    }
}
