//! Reward models that are asked: read-only models that give each text one value.

use super::dataset::{self, valued_at};
use super::{Error, Result, named};
use crate::checkpoint;
use crate::data::{self, Dataset, Refused, Tokenizer};
use crate::model::{Frozen, ModelFolder, NewHead, Place};
use crate::ops::Forest;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Most tokens that go through the model at once, unless one text has more.
const MOST_TOKENS: usize = 8192;

/// A text to score. Neighbours of one `group` are expected to begin alike, and their common beginning is computed once.
pub(super) struct Text {
    pub group: usize,
    pub tokens: Vec<u32>,
}

/// The scores of rows, by their numbers.
pub type RowScores = Vec<(usize, Vec<f32>)>;

/// See the module documentation.
pub struct RewardModel {
    name: String,
    model: Frozen,
    tokenizer: Tokenizer,
    /// The token that ends no text: a text's value is that of its last other token.
    pad: Option<u32>,
}

impl RewardModel {
    /// Opens the model in a folder: one for sequence classification with one label, as transformers has it.
    ///
    /// # Errors
    /// If it is not such a model, or a file can't be read.
    pub fn open(name: String, folder: &Path, place: &Place) -> Result<Self> {
        let folder = ModelFolder::open(folder)?;
        if folder.value_head()?.is_none() {
            let detail = "has no score.weight: it is not a reward model. `rlhost reward` trains one";
            return Err(Error::Unfit(format!("{}: {detail}", folder.path().display())));
        }
        let decoder = folder.value_model_over(folder.trunk()?, NewHead::Zero)?.at(place)?;
        let tokenizer = Tokenizer::open(folder.tokenizer())?;
        let pad = folder.pad_token()?;
        Ok(Self { name, model: Frozen::new(decoder), tokenizer, pad })
    }

    /// Returns its name in metrics and errors.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Scores the rows of a dataset: completions, texts or conversations, each with one score, and pairs, with those of the chosen
    /// and of the rejected answer. Returns each row's number with its scores, and a warning that names rows that were left out.
    ///
    /// # Errors
    /// If the dataset can't be read, or a text is longer than the model's context.
    pub fn score_dataset(&self, dataset: &Dataset) -> Result<(RowScores, Option<String>)> {
        let mut refused = Refused::default();
        let rows = data::read_scored(dataset, &mut refused)?;
        let read = rows.into_iter().map(|row| {
            let (number, texts) = dataset::scored_texts(row, &self.tokenizer);
            (number, texts.map(|texts| (number, texts)))
        });
        let rows: Vec<(usize, Vec<Vec<u32>>)> = refused.sort(read)?;
        let texts: Vec<Text> =
            rows.iter().flat_map(|(row, all)| all.iter().map(|tokens| Text { group: *row, tokens: tokens.clone() })).collect();
        let mut values = self.values(&texts)?.into_iter();
        let scored: Vec<_> = rows.iter().map(|(row, texts)| (*row, values.by_ref().take(texts.len()).collect())).collect();
        let warning = refused.warning(scored.len())?;
        Ok((scored, warning))
    }

    /// Computes the values of texts.
    ///
    /// # Errors
    /// If one is empty, longer than the model's context, or has tokens that the model doesn't know.
    pub(super) fn values(&self, texts: &[Text]) -> Result<Vec<f32>> {
        texts.iter().try_for_each(|text| self.check(text))?;
        let mut values = Vec::with_capacity(texts.len());
        for part in together(texts) {
            let (forest, rows) = packed(&texts[part], self.pad);
            values.extend(self.model.values(&forest, &rows)?.unwrap_or_default());
        }
        Ok(values)
    }

    fn check(&self, text: &Text) -> Result<()> {
        let a = self.model.architecture();
        let wrong = |detail: String| Err(Error::Unfit(format!("reward model {}: {detail}", self.name)));
        if text.tokens.is_empty() {
            return wrong("a text has no tokens".into());
        }
        if text.tokens.len() > a.max_positions {
            let (length, most) = (text.tokens.len(), a.max_positions);
            return wrong(format!("a text of {length} tokens exceeds the model's context of {most}"));
        }
        match text.tokens.iter().find(|token| **token as usize >= a.vocab_size) {
            Some(token) => wrong(format!("its tokenizer gives token {token}, and the model has {}", a.vocab_size)),
            None => Ok(()),
        }
    }
}

/// Splits texts into parts that go through the model together.
fn together(texts: &[Text]) -> Vec<Range<usize>> {
    let (mut parts, mut first, mut tokens) = (Vec::new(), 0, 0);
    for (at, text) in texts.iter().enumerate() {
        if at > first && tokens + text.tokens.len() > MOST_TOKENS {
            parts.push(first..at);
            (first, tokens) = (at, 0);
        }
        tokens += text.tokens.len();
    }
    if first < texts.len() {
        parts.push(first..texts.len());
    }
    parts
}

/// Packs texts, and returns the packed positions whose states have their values.
fn packed(texts: &[Text], pad: Option<u32>) -> (Forest, Vec<usize>) {
    let (mut forest, mut rows) = (Forest::new(), Vec::with_capacity(texts.len()));
    for group in texts.chunk_by(|a, b| a.group == b.group) {
        let common = common_beginning(group);
        let beginning = (common > 0).then(|| forest.push(&group[0].tokens[..common], None));
        for Text { tokens, .. } in group {
            let own = forest.push(&tokens[common..], beginning);
            let at = valued_at(tokens, &[], pad);
            let start = |segment: usize| forest.segments()[segment].start;
            rows.push(match beginning {
                Some(beginning) if at < common => start(beginning) + at,
                _ => start(own) + at - common,
            });
        }
    }
    (forest, rows)
}

/// Returns the number of tokens with which all of several texts begin, and after which each goes on.
fn common_beginning(texts: &[Text]) -> usize {
    let [first, others @ ..] = texts else { return 0 };
    let same = |other: &Text| first.tokens.iter().zip(&other.tokens).take_while(|(a, b)| a == b).count();
    let shortest = texts.iter().map(|text| text.tokens.len()).min().unwrap_or(0);
    others.iter().map(same).min().map_or(0, |common| common.min(shortest.saturating_sub(1)))
}

/// Returns the folder of a model, or of the newest intact checkpoint if it is a run's, and a name that stays valid wherever and
/// whenever a run resumes; see [`named::model_of`].
///
/// # Errors
/// If it is a hub name and can't be downloaded, or a run without a checkpoint.
pub fn model_or_run(given: &str) -> Result<(PathBuf, String)> {
    let (folder, name) = named::model_of(given)?;
    let is_model = ["config.json", "adapter_config.json"].iter().any(|name| folder.join(name).exists());
    if is_model || !folder.join("events.jsonl").exists() {
        return Ok((folder, name));
    }
    let (_, newest, passed_over) = checkpoint::newest(&folder)?;
    for damaged in passed_over {
        tracing::warn!("{damaged}; skipping it");
    }
    tracing::info!("{}: using its newest checkpoint, {}", folder.display(), newest.display());
    let name = newest.display().to_string();
    Ok((newest, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(all: &[(usize, &[u32])]) -> Vec<Text> {
        all.iter().map(|(group, tokens)| Text { group: *group, tokens: tokens.to_vec() }).collect()
    }

    #[test]
    fn a_common_beginning_is_packed_once_and_each_text_goes_on_after_it() {
        let all = texts(&[(0, &[1, 2, 3, 4]), (0, &[1, 2, 5]), (1, &[1, 2]), (2, &[7, 7]), (2, &[7, 7])]);
        let (forest, rows) = packed(&all, None);
        assert_eq!(forest.tokens(), [1, 2, 3, 4, 5, 1, 2, 7, 7, 7]);
        assert_eq!(forest.positions(), [0, 1, 2, 3, 2, 0, 1, 0, 1, 1]);
        assert_eq!(rows, [3, 4, 6, 8, 9]);
    }

    #[test]
    fn a_value_is_that_of_the_last_token_that_is_not_padding() {
        let all = texts(&[(0, &[1, 2, 9, 4, 9, 9]), (0, &[1, 2, 9, 9]), (1, &[9, 9]), (2, &[9, 5])]);
        let (forest, rows) = packed(&all, Some(9));
        assert_eq!(forest.tokens(), [1, 2, 9, 4, 9, 9, 9, 9, 9, 9, 5]);
        assert_eq!(rows, [3, 1, 7, 10]);
    }

    #[test]
    fn texts_go_together_up_to_a_number_of_tokens() {
        let long = vec![0; MOST_TOKENS + 1];
        let half = vec![0; MOST_TOKENS / 2];
        let all = texts(&[(0, &half), (0, &half), (1, &[1]), (2, &long), (3, &[1])]);
        assert_eq!(together(&all), [0..2, 2..3, 3..4, 4..5]);
        assert!(together(&[]).is_empty());
    }
}
