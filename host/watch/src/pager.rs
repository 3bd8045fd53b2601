//! Shows one completion in full.

use crate::browser::{figures, parsed, reward};
use crate::config::words::{count, number};
use crate::run::PluginVersion;
use crate::text;
use rlhost_live::{CompletionEntry, CompletionIndex, line_at};
use serde_json::{Map, Value};

/// Maximum length of texts shown, in bytes.
const LONGEST_TEXT: usize = 200_000;
const LONGEST_NAME: usize = 400;

/// Maximum number of messages of an episode, and of rewards and values, shown.
const MOST_MESSAGES: usize = 400;
const MOST_VALUES: usize = 200;

/// A completion shown in full.
pub(crate) struct CompletionPager {
    /// Number of the completion.
    pub number: usize,
    lines: Vec<PagerRow>,
    /// Width to which the lines are wrapped.
    width: usize,
    rows: Vec<PagerRow>,
    /// First row shown.
    from: usize,
    /// Number of rows last shown.
    height: usize,
}

/// A row of the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PagerRow {
    pub text: String,
    pub is_heading: bool,
}

impl CompletionPager {
    /// Reads a completion.
    pub fn read(completions: &CompletionIndex, number: usize) -> Option<Self> {
        let entry = completions.entries.get(number)?;
        let mut reader = completions.open().ok();
        let line = reader.as_mut().and_then(|reader| line_at(reader, entry.place).ok().flatten().and_then(parsed));
        let lines =
            line.map_or_else(|| vec![PagerRow::heading("This completion can't be read.")], |line| described(entry, &line));
        Some(Self { number, lines, width: 0, rows: Vec::new(), from: 0, height: 0 })
    }

    /// Scrolls by this many rows.
    pub fn scroll(&mut self, by: i64) {
        let last = self.rows.len().saturating_sub(self.height) as i64;
        self.from = (self.from as i64).saturating_add(by).clamp(0, last.max(0)) as usize;
    }

    /// Returns the number of rows last shown.
    pub fn page(&self) -> i64 {
        self.height.max(1) as i64
    }

    /// Returns the rows to show in an area of this size.
    pub fn rows(&mut self, width: usize, height: usize) -> &[PagerRow] {
        if width != self.width {
            let of = |line: &PagerRow| {
                let rows = text::wrapped(&line.text, width).into_iter();
                rows.map(|text| PagerRow { text, is_heading: line.is_heading }).collect::<Vec<_>>()
            };
            (self.rows, self.width) = (self.lines.iter().flat_map(of).collect(), width);
        }
        self.height = height;
        self.scroll(0);
        &self.rows[self.from..self.rows.len().min(self.from + height)]
    }

    /// Returns the part of the text above the end of the visible rows, in percent.
    pub fn seen(&self) -> usize {
        (self.from + self.height).min(self.rows.len()) * 100 / self.rows.len().max(1)
    }
}

impl PagerRow {
    fn heading(text: &str) -> Self {
        Self { text: text.to_owned(), is_heading: true }
    }

    fn plain(text: String) -> Self {
        Self { text, is_heading: false }
    }
}

/// Describes a completion in lines.
fn described(entry: &CompletionEntry, line: &Map<String, Value>) -> Vec<PagerRow> {
    let advantage = entry.advantage.is_finite().then(|| format!("advantage {}", number(entry.advantage.into())));
    let place = format!("row {} of the dataset", count(entry.row));
    let facts = [figures(entry)].into_iter().chain(reward(entry)).chain(advantage).chain([place]);
    let mut rows = vec![PagerRow::plain(facts.collect::<Vec<_>>().join("  "))];
    rows.extend(scores(line));
    for (key, title) in [("extra", "logged beside them"), ("error", "a reward failed"), ("failed", "the episode failed")] {
        rows.extend(value(line, key, title));
    }
    rows.extend(section("Prompt", line.get("prompt")));
    let messages = line.get("messages").and_then(Value::as_array);
    match messages {
        // The messages already contain the completion's text, turn by turn.
        Some(messages) => {
            for message in messages.iter().take(MOST_MESSAGES) {
                let role = message.get("role").and_then(Value::as_str).unwrap_or("message");
                rows.extend(section(&text::line(role, LONGEST_NAME), message.get("content")));
                let calls = message.get("tool_calls").filter(|calls| !calls.is_null());
                rows.extend(calls.map(|calls| PagerRow::plain(text::line(&format!("calls {calls}"), LONGEST_TEXT))));
            }
            if messages.len() > MOST_MESSAGES {
                rows.push(PagerRow::heading(&format!("... and {} messages more", messages.len() - MOST_MESSAGES)));
            }
        }
        None => rows.extend(section("Completion", line.get("completion"))),
    }
    let output = line.get("agent_output").filter(|output| !output.is_null());
    rows.extend(output.into_iter().flat_map(|output| section("What the agent's program wrote", Some(output))));
    rows
}

/// Lists each reward's score and version.
fn scores(line: &Map<String, Value>) -> Vec<PagerRow> {
    let versions = line.get("plugins").and_then(Value::as_object);
    let scores = line.get("rewards").and_then(Value::as_object).into_iter().flatten().take(MOST_VALUES);
    let row = |(name, score): (&String, &Value)| {
        let score = score.as_f64().map_or_else(|| "no score".to_owned(), number);
        let version =
            versions.and_then(|all| all.get(name)).and_then(Value::as_str).map(|text| PluginVersion::parse(text).short());
        let version = version.map(|version| format!("  ({})", text::line(&version, LONGEST_NAME))).unwrap_or_default();
        PagerRow::plain(format!("{}: {score}{version}", text::line(name, LONGEST_NAME)))
    };
    scores.map(row).collect()
}

/// Describes a value that most completions lack.
fn value(line: &Map<String, Value>, key: &str, title: &str) -> Option<PagerRow> {
    let value = line.get(key).filter(|value| !value.is_null())?;
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    Some(PagerRow::plain(format!("{title}: {}", text::line(&text, LONGEST_TEXT))))
}

/// Returns a text under a heading, after an empty line.
fn section(title: &str, text: Option<&Value>) -> Vec<PagerRow> {
    let text = match text {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Null) | None => String::new(),
        Some(other) => other.to_string(),
    };
    let lines = text::lines(&text, LONGEST_TEXT).into_iter().map(PagerRow::plain);
    [PagerRow::plain(String::new()), PagerRow::heading(title)].into_iter().chain(lines).collect()
}
