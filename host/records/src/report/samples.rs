//! Picks a few completions from `completions.jsonl`, spread over the run. The file may be larger than memory, so a first pass
//! only finds where each step starts.

use super::Error;
use super::words;
use crate::config::json_lines::{LONGEST_COMPLETION, Line, Reader};
use crate::run::{Glance, GlanceMessage};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;

/// Steps shown, spread evenly from the first to the last.
const STEPS: usize = 8;
/// Most steps shown in total, including those at which a plugin changed.
const MOST_STEPS: usize = 14;
/// Completions shown per step.
const COMPLETIONS: usize = 4;
/// Steps of the file from which the shown ones are picked.
const MOST_PLACES: usize = 1 << 20;
/// Completions per step from which the shown ones are picked, and their bytes.
const MOST_READ: usize = 256;
const MOST_BYTES: u64 = 2 * LONGEST_COMPLETION;
/// Characters of a completion shown while its step is collapsed.
const GLANCE: usize = 200;
/// Messages shown of an episode.
const MOST_TURNS: usize = 100;
/// Characters shown of a prompt or completion.
const MOST_CHARACTERS: usize = 4000;

/// Completions of one prompt at one step.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct Sample {
    pub step: u64,
    pub prompt: Text,
    /// The start of the best one, on one line.
    pub glance: String,
    pub rewards: Vec<String>,
    pub completions: Vec<Completion>,
    /// Number of the prompt's completions in the file.
    pub of: usize,
}

/// A text, possibly truncated.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct Text {
    pub shown: String,
    /// Characters omitted.
    pub more: usize,
}

/// A completion and its scores.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct Completion {
    pub text: Text,
    pub tokens: usize,
    pub finished: bool,
    /// In the order of the sample's rewards.
    pub rewards: Vec<Option<String>>,
    pub advantage: Option<String>,
    /// What was said in turn, if it is an episode.
    pub turns: Vec<Turn>,
}

/// A message of an episode after its prompt.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct Turn {
    /// Who speaks; none for the model.
    pub role: Option<String>,
    pub text: Text,
    /// The reward of a turn of the model.
    pub reward: Option<String>,
}

/// Parses only the step of a line, without reading the rest into memory.
#[derive(Deserialize)]
struct Head {
    step: u64,
}

/// Position of a step's lines.
struct StepLines {
    begin: u64,
    lines: usize,
}

/// Returns samples of a run whose plugins changed at the steps `changes`.
pub(super) fn read(path: &Path, changes: &[u64], notes: &mut Vec<String>) -> Result<Vec<Sample>, Error> {
    let fail = |source| Error::Read { path: path.to_owned(), source };
    let mut reader = match Reader::open(path, LONGEST_COMPLETION) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        opened => opened.map_err(fail)?,
    };
    let places = places(&mut reader).map_err(fail)?;
    let steps: Vec<u64> = places.keys().copied().collect();
    let mut samples = Vec::new();
    for step in chosen(&steps, changes) {
        let place = &places[&step];
        reader.go_to(place.begin).map_err(fail)?;
        samples.extend(sample(&mut reader, step, place.lines).map_err(fail)?);
    }
    let file = super::name(path);
    if places.len() == MOST_PLACES {
        notes.push(format!("{file}: completions are shown of the first {MOST_PLACES} steps"));
    }
    notes.extend(reader.unread().notes(&file));
    Ok(samples)
}

fn places(reader: &mut Reader) -> io::Result<BTreeMap<u64, StepLines>> {
    let mut places: BTreeMap<u64, StepLines> = BTreeMap::new();
    let mut before = None;
    while let Some(Head { step }) = reader.object()? {
        let full = places.len() == MOST_PLACES;
        match places.get_mut(&step).filter(|_| before == Some(step)) {
            Some(place) => place.lines += 1,
            None if full => break,
            // For a step that appears again after others, the last occurrence counts.
            None => {
                places.insert(step, StepLines { begin: reader.place(), lines: 1 });
                before = Some(step);
            }
        }
    }
    Ok(places)
}

/// Picks the first step, the last, some between, and the first at or after each change.
fn chosen(steps: &[u64], changes: &[u64]) -> BTreeSet<u64> {
    let Some(last) = steps.len().checked_sub(1) else { return BTreeSet::new() };
    let spread = STEPS.min(steps.len());
    let mut chosen: BTreeSet<u64> = (0..spread).map(|i| steps[i * last / (spread - 1).max(1)]).collect();
    for change in changes {
        if chosen.len() < MOST_STEPS {
            chosen.extend(steps.iter().find(|step| *step >= change));
        }
    }
    chosen
}

/// Returns completions of a step's first prompt, from best to worst.
fn sample(reader: &mut Reader, step: u64, lines: usize) -> io::Result<Option<Sample>> {
    let mut rows: Vec<Glance> = Vec::new();
    let begin = reader.place();
    for _ in 0..lines.min(MOST_READ) {
        let Some(line) = reader.line()? else { break };
        let Line::Whole(text) = line else { continue };
        let Ok(row) = serde_json::from_slice::<Glance>(text) else { continue };
        if reader.place() - begin > MOST_BYTES {
            break;
        }
        if rows.first().is_some_and(|first| (&first.row, &first.prompt) != (&row.row, &row.prompt)) {
            break;
        }
        rows.push(row);
    }
    let worth = |row: &Glance| {
        let sum = || row.rewards.values().filter_map(Value::as_f64).sum();
        row.advantage.as_f64().unwrap_or_else(sum)
    };
    rows.sort_by(|a, b| worth(b).total_cmp(&worth(a)));
    let (of, shown) = (rows.len(), COMPLETIONS.min(rows.len()));
    let Some(first) = rows.first() else { return Ok(None) };
    let names: Vec<String> = first.rewards.keys().cloned().collect();
    let figure = |value: Option<&Value>| value.and_then(Value::as_f64).map(words::number);
    let completion = |row: &Glance| Completion {
        text: text(&row.completion),
        tokens: row.completion_ids.len(),
        finished: row.finished,
        rewards: names.iter().map(|name| figure(row.rewards.get(name))).collect(),
        advantage: figure(Some(&row.advantage)),
        turns: turns(row),
    };
    let completions = (0..shown).map(|i| completion(&rows[i * (of - 1) / (shown - 1).max(1)])).collect();
    let glance = words::shortened(&first.completion, GLANCE).0.split_whitespace().collect::<Vec<_>>().join(" ");
    Ok(Some(Sample { step, glance, prompt: text(&first.prompt), rewards: names, completions, of }))
}

/// Returns what was said in an episode after its prompt, which may have answers of the model too.
fn turns(row: &Glance) -> Vec<Turn> {
    let own: Vec<usize> = (0..row.messages.len()).filter(|&i| row.messages[i].role == "assistant").collect();
    let own = &own[own.len().saturating_sub(row.turns.len())..];
    let Some(&first) = own.first() else { return Vec::new() };
    let turn = |(i, GlanceMessage { role, content }): (usize, &GlanceMessage)| {
        let number = own.iter().position(|at| *at == i);
        let reward = number.and_then(|number| row.turn_rewards.get(number)).and_then(Value::as_f64).map(words::number);
        Turn { role: number.is_none().then(|| role.clone()), text: text(content), reward }
    };
    row.messages.iter().enumerate().skip(first).map(turn).take(MOST_TURNS).collect()
}

fn text(whole: &str) -> Text {
    let (shown, more) = words::shortened(whole, MOST_CHARACTERS);
    Text { shown: shown.to_owned(), more }
}
