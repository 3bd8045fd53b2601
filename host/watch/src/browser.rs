//! The list of the newest completions, in which one can be selected.

use crate::config::words::{count, counted, number};
use crate::text;
use rlhost_live::{CompletionEntry, CompletionIndex, line_at};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// Maximum number of completions whose texts are in memory.
const MOST_CARDS: usize = 200;

/// Maximum length of an excerpt of a text, in bytes, and maximum number of scores shown.
const LONGEST_EXCERPT: usize = 1000;
const MOST_SCORES: usize = 50;

/// The selection in the list of completions.
#[derive(Default)]
pub(crate) struct CompletionBrowser {
    /// Number of the selected completion; `None` to follow the newest.
    chosen: Option<usize>,
    generation: u64,
    cards: BTreeMap<usize, CompletionCard>,
}

/// A completion in the list.
#[derive(Clone, Debug)]
pub(crate) struct CompletionCard {
    /// Step, reward, length, and the scores of the rewards.
    pub figures: String,
    pub prompt: String,
    pub completion: String,
}

impl CompletionBrowser {
    /// Clears the cached texts if completions have been removed.
    pub fn follow(&mut self, completions: &CompletionIndex) {
        if completions.generation != self.generation {
            *self = Self { generation: completions.generation, ..Self::default() };
        }
    }

    /// Returns the number of the selected completion out of `all`; `None` if there are none.
    pub fn chosen(&self, all: usize) -> Option<usize> {
        let newest = all.checked_sub(1)?;
        Some(self.chosen.map_or(newest, |chosen| chosen.min(newest)))
    }

    /// Selects an older completion, or a newer one if `by` is negative.
    pub fn go(&mut self, by: i64, all: usize) {
        let Some(now) = self.chosen(all) else { return };
        let to = (now as i64).saturating_sub(by).clamp(0, all as i64 - 1) as usize;
        self.chosen = Some(to).filter(|to| to + 1 < all);
    }

    /// Returns up to `most` completions with their numbers, newest first, including the selected one.
    pub fn cards(&mut self, completions: &CompletionIndex, most: usize) -> Vec<(usize, CompletionCard)> {
        let all = completions.entries.len();
        let Some(chosen) = self.chosen(all) else { return Vec::new() };
        let top = chosen.max(most.min(all).saturating_sub(1));
        let shown = (0..=top).rev().take(most);
        let mut reader = None;
        if self.cards.len() > MOST_CARDS {
            self.cards.clear();
        }
        let mut card = |number: usize| {
            if let Some(card) = self.cards.get(&number) {
                return card.clone();
            }
            if reader.is_none() {
                reader = completions.open().ok();
            }
            let entry = &completions.entries[number];
            let line = reader.as_mut().and_then(|reader| line_at(reader, entry.place).ok().flatten().and_then(parsed));
            let Some(line) = line else { return CompletionCard::unreadable(entry) };
            let card = CompletionCard::new(entry, &line);
            self.cards.insert(number, card.clone());
            card
        };
        shown.map(|number| (number, card(number))).collect()
    }
}

/// Parses a line as an object.
pub(crate) fn parsed(line: &[u8]) -> Option<Map<String, Value>> {
    serde_json::from_slice(line).ok()
}

impl CompletionCard {
    fn new(entry: &CompletionEntry, line: &Map<String, Value>) -> Self {
        let scores = line.get("rewards").and_then(Value::as_object).into_iter().flatten().take(MOST_SCORES);
        let score = |(name, score): (&String, &Value)| {
            let score = score.as_f64().map_or_else(|| "none".to_owned(), number);
            format!("{} {score}", text::line(name, LONGEST_EXCERPT))
        };
        let scores: Vec<String> = scores.map(score).collect();
        // With a single score, the sum equals it.
        let reward = reward(entry).filter(|_| scores.len() != 1);
        let figures = [figures(entry)].into_iter().chain(reward).chain(scores);
        let excerpt = |key: &str| text::line(line.get(key).and_then(Value::as_str).unwrap_or_default(), LONGEST_EXCERPT);
        Self { figures: figures.collect::<Vec<_>>().join("  "), prompt: excerpt("prompt"), completion: excerpt("completion") }
    }

    fn unreadable(entry: &CompletionEntry) -> Self {
        Self { figures: figures(entry), prompt: String::new(), completion: "(it can't be read)".to_owned() }
    }
}

/// Describes the first step that trains on a completion, and the completion's length.
pub(crate) fn figures(entry: &CompletionEntry) -> String {
    let end = if entry.cut_off { ", cut off" } else { "" };
    format!("step {}  {}{end}", count(entry.step), counted(entry.tokens.into(), "token"))
}

/// Describes the sum of a completion's scores, each times its reward's weight.
pub(crate) fn reward(entry: &CompletionEntry) -> Option<String> {
    entry.reward.is_finite().then(|| format!("reward {}", number(entry.reward.into())))
}
