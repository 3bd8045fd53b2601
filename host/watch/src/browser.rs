//! The newest completions, one of which is chosen.

use crate::config::words::{count, counted, number};
use crate::text;
use rlhost_live::{CompletionEntry, CompletionIndex, line_at};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// Most completions whose texts are kept.
const MOST_CARDS: usize = 200;

/// Longest excerpt of a text, in bytes, and most scores that are shown.
const LONGEST_EXCERPT: usize = 1000;
const MOST_SCORES: usize = 50;

/// Which completions are shown.
#[derive(Default)]
pub(crate) struct CompletionBrowser {
    /// The number of the chosen one; none if it is always the newest.
    chosen: Option<usize>,
    generation: u64,
    cards: BTreeMap<usize, CompletionCard>,
}

/// A completion in the list.
#[derive(Clone, Debug)]
pub(crate) struct CompletionCard {
    /// Step, reward, length, and the scores of its rewards.
    pub figures: String,
    pub prompt: String,
    pub completion: String,
}

impl CompletionBrowser {
    /// Forgets what was read if completions that were there are no longer.
    pub fn follow(&mut self, completions: &CompletionIndex) {
        if completions.generation != self.generation {
            *self = Self { generation: completions.generation, ..Self::default() };
        }
    }

    /// Returns the number of the chosen one, of so many; none if there is none.
    pub fn chosen(&self, all: usize) -> Option<usize> {
        let newest = all.checked_sub(1)?;
        Some(self.chosen.map_or(newest, |chosen| chosen.min(newest)))
    }

    /// Chooses an older one, or a newer one if `by` is negative.
    pub fn go(&mut self, by: i64, all: usize) {
        let Some(now) = self.chosen(all) else { return };
        let to = (now as i64).saturating_sub(by).clamp(0, all as i64 - 1) as usize;
        self.chosen = Some(to).filter(|to| to + 1 < all);
    }

    /// Returns so many completions with their numbers, newer ones first, among them the chosen one.
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

/// Returns a line as an object.
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
        // The sum of one is that one.
        let reward = reward(entry).filter(|_| scores.len() != 1);
        let figures = [figures(entry)].into_iter().chain(reward).chain(scores);
        let excerpt = |key: &str| text::line(line.get(key).and_then(Value::as_str).unwrap_or_default(), LONGEST_EXCERPT);
        Self { figures: figures.collect::<Vec<_>>().join("  "), prompt: excerpt("prompt"), completion: excerpt("completion") }
    }

    fn unreadable(entry: &CompletionEntry) -> Self {
        Self { figures: figures(entry), prompt: String::new(), completion: "(it can't be read)".to_owned() }
    }
}

/// Says which step learns from a completion first, and how long it is.
pub(crate) fn figures(entry: &CompletionEntry) -> String {
    let end = if entry.cut_off { ", cut off" } else { "" };
    format!("step {}  {}{end}", count(entry.step), counted(entry.tokens.into(), "token"))
}

/// Names the sum of a completion's scores, each times its reward's weight.
pub(crate) fn reward(entry: &CompletionEntry) -> Option<String> {
    entry.reward.is_finite().then(|| format!("reward {}", number(entry.reward.into())))
}
