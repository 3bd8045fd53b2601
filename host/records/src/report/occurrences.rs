//! The table of events, in which repeated errors and warnings are one row with a count.

use super::sentences;
use super::timeline::{SETTINGS_REFUSED, TimelineEvent};
use super::words;
use crate::run::{EventKind, EventLine};
use serde::Serialize;
use std::borrow::Cow;
use std::collections::HashMap;

/// Numbers of first and of last rows shown.
const SHOWN: (usize, usize) = (150, 350);

/// A row of the table: an event, merged with its later repetitions.
#[derive(Debug, PartialEq, Serialize)]
pub struct Occurrence {
    /// Time of the first occurrence, in seconds since 1970.
    pub time: Option<f64>,
    /// Name of the event's kind.
    pub kind: String,
    /// Number of steps done, if the event has it.
    pub step: Option<u64>,
    /// Plugin of the event; empty if there is none.
    pub plugin: String,
    /// Description of the event.
    pub text: String,
    /// Whether a later resume undid the event.
    pub undone: bool,
    /// Number of occurrences.
    pub count: usize,
    /// Step or time of the last occurrence, if there are several.
    pub until: String,
    /// Index of the last occurrence among all events.
    pub latest: usize,
    /// Number of rows omitted before this one.
    pub left_out: usize,
}

/// An event and its later repetitions.
struct RepeatedEvent<'a> {
    first: &'a TimelineEvent,
    last: &'a EventLine,
    /// Index of the last occurrence among all events.
    latest: usize,
    count: usize,
    /// Number of completions without a score, over all occurrences.
    rows: usize,
}

/// Returns the rows of the table.
pub(super) fn rows(events: &[TimelineEvent]) -> Vec<Occurrence> {
    let mut all: Vec<RepeatedEvent<'_>> = Vec::new();
    let mut places: HashMap<(&str, &str, Cow<'_, str>, bool), usize> = HashMap::new();
    for (i, happened) in events.iter().enumerate() {
        let TimelineEvent { event, undone } = happened;
        let rows = sentences::unscored(event);
        let place = match repeats(event) {
            Some(text) => *places.entry((&event.name, event.text("plugin"), text, *undone)).or_insert(all.len()),
            None => all.len(),
        };
        match all.get_mut(place) {
            Some(known) => {
                (known.last, known.latest, known.count, known.rows) = (event, i, known.count + 1, known.rows + rows);
            }
            None => all.push(RepeatedEvent { first: happened, last: event, latest: i, count: 1, rows }),
        }
    }
    let (head, tail) = SHOWN;
    let left_out = all.len().saturating_sub(head + tail);
    let shown = all.iter().enumerate().filter(|(i, _)| *i < head || *i >= head + left_out);
    shown.map(|(i, known)| known.row(if i == head + left_out { left_out } else { 0 })).collect()
}

/// Returns the text that identifies repetitions of an event, if its kind may occur many times. An event that the run itself repeats differs
/// in steps, rows and values; a refusal is caused by a person, and is a repetition only if it is identical.
fn repeats(event: &EventLine) -> Option<Cow<'_, str>> {
    if event.name == SETTINGS_REFUSED {
        return Some(event.text("reason").into());
    }
    match event.kind? {
        EventKind::PluginRefused => Some(event.text("reason").into()),
        EventKind::PluginError | EventKind::CheckpointFailed => Some(without_numbers(event.text("reason")).into()),
        EventKind::Warning => Some(without_numbers(event.text("text")).into()),
        _ => None,
    }
}

/// Replaces each number, and each list of numbers, in a text by `#`. Numbers that are part of a name or a file position stay.
fn without_numbers(text: &str) -> String {
    const LIST: [&str; 3] = ["#, ", "# and ", "#, and "];
    let (mut shown, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(at) = rest.find(|c: char| c.is_ascii_digit()) {
        let (before, from) = rest.split_at(at);
        shown.push_str(before);
        let is_within = |(i, c): (usize, char)| match c {
            '+' | '-' => from[..i].ends_with(['e', 'E']),
            c => c.is_ascii_alphanumeric() || "._".contains(c),
        };
        let end = from.char_indices().find(|&at| !is_within(at)).map_or(from.len(), |(end, _)| end);
        // A full stop after a number does not belong to it.
        let number = from[..end].trim_end_matches('.');
        rest = &from[number.len()..];
        let is_part = shown.ends_with(|c: char| c.is_alphanumeric() || "_:#".contains(c)) || shown.ends_with("line ");
        if is_part || number.parse::<f64>().is_err() {
            shown.push_str(number);
            continue;
        }
        shown.truncate(shown.trim_end_matches('-').len());
        if let Some(list) = LIST.iter().find(|list| shown.ends_with(*list)) {
            shown.truncate(shown.len() - list.len());
        }
        shown.push('#');
    }
    shown.push_str(rest);
    shown
}

impl RepeatedEvent<'_> {
    fn row(&self, left_out: usize) -> Occurrence {
        let TimelineEvent { event, undone } = self.first;
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
            latest: self.latest,
            left_out,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_steps_and_rows_make_no_other_text() {
        let cases = [
            ("plugin rw, score in step 12: no row 3", "plugin rw, score in step #: no row #"),
            ("rows [1, 7, 30] and 4.", "rows [#] and #."),
            ("rows 1, 2 and 3 of 8", "rows # of #"),
            ("at -0.5, 1e-5 or 2.5", "at # or #"),
            // Another position is another error, and another name another thing.
            ("File \"rw.py\", line 12, in score2", "File \"rw.py\", line 12, in score2"),
            ("rw.js:12:5 f32 x_1 0ab1", "rw.js:12:5 f32 x_1 0ab1"),
            ("\u{fc}1 7\u{20ac}", "\u{fc}1 #\u{20ac}"),
        ];
        for (text, expected) in cases {
            assert_eq!(without_numbers(text), expected);
        }
    }
}
