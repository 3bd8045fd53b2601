//! An index of a run's completions: the offset of each in the file, and the values that they are sorted and filtered by.

use super::tail::{FileTail, TailEvent, open};
use crate::config::json_lines::{BoundedLine, JsonLinesReader, LONGEST_COMPLETION};
use crate::run::is_completion_undone;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::time::Instant;

/// Maximum number of completions in the index.
const MOST_ENTRIES: usize = 4 << 20;

/// A completion in the index.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CompletionEntry {
    /// Offset of the completion's line.
    pub place: u64,
    /// First step that trains on the completion.
    pub step: u64,
    /// Row of the dataset.
    pub row: u64,
    /// Sum of the scores, each times its reward's weight; NaN if there is none.
    pub reward: f32,
    /// Advantage of the completion, or of its first token; NaN if there is none.
    pub advantage: f32,
    /// Number of sampled tokens.
    pub tokens: u32,
    /// Whether the completion was cut off by a limit.
    pub cut_off: bool,
}

/// The fields of a line that the index needs.
#[derive(Deserialize)]
struct IndexedCompletion {
    step: u64,
    #[serde(default)]
    row: Value,
    #[serde(default)]
    completion_ids: Option<Vec<IgnoredAny>>,
    #[serde(default)]
    finished: Option<bool>,
    #[serde(default)]
    rewards: Map<String, Value>,
    #[serde(default)]
    advantage: Value,
}

/// The index of a run's completions.
pub struct CompletionIndex {
    tail: FileTail,
    /// Increases whenever indexed completions become invalid.
    pub generation: u64,
    /// Completions, in the order of the file.
    pub entries: Vec<CompletionEntry>,
    /// Weights of rewards other than 1.
    pub weights: BTreeMap<String, f64>,
}

impl CompletionIndex {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self { tail: FileTail::new(path, LONGEST_COMPLETION), generation: 0, entries: Vec::new(), weights: BTreeMap::new() }
    }

    /// Returns the fraction of the file that was read, from 0 to 1.
    #[must_use]
    pub fn share(&self) -> f64 {
        self.tail.share()
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
        let Self { tail, generation, entries, weights } = self;
        tail.advance(until, |piece| match piece {
            TailEvent::Restart => {
                *generation += 1;
                entries.clear();
            }
            TailEvent::Line(place, text) => {
                let Ok(head) = serde_json::from_slice::<IndexedCompletion>(text) else { return };
                let before = entries.len();
                while entries.last().is_some_and(|last| last.step > head.step && is_completion_undone(last.step, head.step)) {
                    entries.pop();
                }
                if entries.len() < before {
                    // Removes completions of the resumed step itself, which is repeated.
                    while entries.last().is_some_and(|last| last.step == head.step) {
                        entries.pop();
                    }
                    *generation += 1;
                }
                if entries.len() < MOST_ENTRIES {
                    entries.push(head.entry(place, weights));
                }
            }
        })
    }

    /// Opens the file for reading lines.
    ///
    /// # Errors
    /// If the file can't be read.
    pub fn open(&self) -> io::Result<JsonLinesReader> {
        Ok(open(self.tail.path(), LONGEST_COMPLETION)?.with_limit(u64::MAX))
    }
}

impl IndexedCompletion {
    fn entry(&self, place: u64, weights: &BTreeMap<String, f64>) -> CompletionEntry {
        let scores = self.rewards.iter().filter_map(|(name, score)| Some((name, score.as_f64()?)));
        let parts: Vec<f64> = scores.map(|(name, score)| score * weights.get(name).unwrap_or(&1.0)).collect();
        CompletionEntry {
            place,
            step: self.step,
            row: self.row.as_u64().unwrap_or(0),
            reward: if parts.is_empty() { f32::NAN } else { parts.iter().sum::<f64>() as f32 },
            advantage: self.advantage.as_f64().map_or(f32::NAN, |advantage| advantage as f32),
            tokens: self.completion_ids.as_ref().map_or(0, |ids| u32::try_from(ids.len()).unwrap_or(u32::MAX)),
            cut_off: self.finished == Some(false),
        }
    }
}

/// Returns the line at an offset; `None` if it no longer exists.
///
/// # Errors
/// If the file can't be read.
pub fn line_at(reader: &mut JsonLinesReader, place: u64) -> io::Result<Option<&[u8]>> {
    reader.seek(place)?;
    let is_whole = matches!(reader.next_line()?, Some(BoundedLine::Whole(_)));
    Ok(is_whole.then(|| reader.text()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt::Write;
    use std::time::Duration;

    #[test]
    fn completions_are_listed_without_those_that_a_resume_undid() {
        let mut text = String::new();
        for (step, reward) in [(0, 1.0), (1, 2.0), (1, 3.0), (2, 4.0), (1, 5.0), (1, 6.0)] {
            let _ = writeln!(
                text,
                "{{\"step\":{step},\"row\":7,\"completion_ids\":[1,2],\"finished\":false,\"rewards\":{{\"a\":{reward},\"b\":null}},\"advantage\":null}}"
            );
        }
        text.push_str("{\"step\":\"x\"}\n[]\n{\"step\":2}\n{\"step\":");
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        let mut completions = CompletionIndex::new(file.path().to_owned());
        completions.weights = BTreeMap::from([("a".to_owned(), 2.0)]);
        assert!(completions.advance(Instant::now() + Duration::from_secs(60)).unwrap());
        let seen: Vec<(u64, f32)> = completions.entries.iter().map(|e| (e.step, e.reward)).collect();
        assert_eq!(seen[..3], [(0, 2.0), (1, 10.0), (1, 12.0)]);
        assert!(seen.len() == 4 && seen[3].1.is_nan());
        let entry = completions.entries[1];
        assert!((entry.row, entry.tokens, entry.cut_off) == (7, 2, true) && entry.advantage.is_nan());
        let mut reader = completions.open().unwrap();
        let line = line_at(&mut reader, entry.place).unwrap().unwrap();
        assert!(line.starts_with(b"{\"step\":1") && line.ends_with(b"null}\n"));
    }
}
