//! Pair judges: rewards that compare two answers. A completion's score is its mean over the answers that it is compared with.
//!
//! For a plugin, each match is a separate prompt with one completion. The column `reference` has the other answer, and the plugin scores
//! the completion; both orders are scored. A reward model scores all answers individually; the probability that one is better is the
//! logistic function of the difference of scores, as in its training.

use super::scoring_batch::{RewardResults, ScoringBatch};
use crate::Result;
use crate::config::ComparisonTarget;
use crate::plugin::{RewardBatch, TextColumn};
use std::ops::Range;

/// Column with the answer that a completion is compared with.
pub(crate) const REFERENCE: &str = "reference";

/// Matches between completions.
pub(super) struct Matches {
    /// The matches as a batch for plugins.
    pub judged: ScoringBatch,
    /// For each match, the row of the completion that it scores.
    completion_of: Vec<usize>,
    rows: usize,
}

impl Matches {
    /// Matches each completion with the others of its prompt. Returns none if completions are compared with the dataset's references, which
    /// the plugin already sees.
    pub(super) fn new(judged: &ScoringBatch, compare: ComparisonTarget) -> Option<Self> {
        let batch = &judged.batch;
        if compare == ComparisonTarget::Reference || has_no_pairs(&groups(judged)) && reference(batch).is_some() {
            return None;
        }
        let (of, other): (Vec<usize>, Vec<usize>) = pairs(judged).into_iter().unzip();
        let texts = other.iter().map(|row| serde_json::Value::from(batch.completions[*row].as_str()).to_string());
        let mut matches = judged.with_own_prompts(&of);
        let columns = &mut matches.batch.columns;
        columns.retain(|column| column.name != REFERENCE);
        columns.insert(0, TextColumn { name: REFERENCE.to_owned(), values: texts.collect() });
        Some(Self { judged: matches, completion_of: of, rows: batch.prompt_of.len() })
    }

    /// Returns the completions' scores: for each, the mean over its matches that have a score.
    pub(super) fn scores(&self, answers: RewardResults) -> RewardResults {
        let mut values = vec![Mean::default(); self.rows];
        for (row, score) in self.completion_of.iter().zip(answers.values) {
            values[*row].add(score);
        }
        let values: Vec<Option<f32>> = values.iter().map(Mean::value).collect();
        let mut failed: Vec<(usize, String)> =
            answers.failed.into_iter().filter_map(|(at, error)| Some((*self.completion_of.get(at)?, error))).collect();
        failed.retain(|(row, _)| values[*row].is_none());
        failed.dedup_by_key(|(row, _)| *row);
        RewardResults { values, first_error: answers.first_error, failed, ..RewardResults::default() }
    }
}

#[derive(Clone, Default)]
struct Mean {
    sum: f32,
    count: usize,
}

impl Mean {
    fn add(&mut self, value: Option<f32>) {
        self.sum += value.unwrap_or(0.0);
        self.count += usize::from(value.is_some());
    }

    fn value(&self) -> Option<f32> {
        (self.count > 0).then(|| self.sum / self.count as f32)
    }
}

/// Returns the rows of each prompt's completions. Each episode has its own prompt; episodes of the same dataset row form a group.
fn groups(judged: &ScoringBatch) -> Vec<Range<usize>> {
    let ScoringBatch { batch, prompts, episodes } = judged;
    let (mut start, apart) = (0, batch.prompts.len() == batch.prompt_of.len() && !episodes.is_empty());
    let row = |of: &u32| prompts.get(*of as usize).map(|prompt| prompt.row);
    let lengths = batch.prompt_of.chunk_by(|a, b| if apart { row(a) == row(b) } else { a == b }).map(<[u32]>::len);
    lengths
        .map(|length| {
            start += length;
            start - length..start
        })
        .collect()
}

/// Returns all ordered pairs of completions of the same prompt.
fn pairs(judged: &ScoringBatch) -> Vec<(usize, usize)> {
    let of = |group: Range<usize>, row: usize| group.filter(move |other| *other != row).map(move |other| (row, other));
    groups(judged).into_iter().flat_map(|group| group.clone().flat_map(move |row| of(group.clone(), row))).collect()
}

/// Returns whether no prompt has two completions.
fn has_no_pairs(groups: &[Range<usize>]) -> bool {
    groups.iter().all(|group| group.len() < 2)
}

fn reference(batch: &RewardBatch) -> Option<&TextColumn> {
    batch.columns.iter().find(|column| column.name == REFERENCE)
}

/// Returns whether there is nothing to compare completions with.
pub(super) fn is_idle(judged: &ScoringBatch, compare: ComparisonTarget) -> bool {
    compare == ComparisonTarget::Others && has_no_pairs(&groups(judged)) && reference(&judged.batch).is_none()
}

/// Compares completions with a reward model; `ask` scores the answers of a batch, and the references if they are needed.
pub(super) fn by_model(
    judged: &ScoringBatch,
    compare: ComparisonTarget,
    mut ask: impl FnMut(&ScoringBatch) -> Result<RewardResults>,
) -> Result<RewardResults> {
    let answers = ask(judged)?;
    let references = references(judged, compare).map(|references| ask(&references)).transpose()?;
    Ok(probabilities(judged, answers, references.as_ref()))
}

/// Returns the dataset's references as completions of their prompts, if completions are compared with them; a prompt without a reference
/// has an empty answer.
fn references(judged: &ScoringBatch, compare: ComparisonTarget) -> Option<ScoringBatch> {
    let batch = &judged.batch;
    let column = reference(batch).filter(|_| compare == ComparisonTarget::Reference || has_no_pairs(&groups(judged)))?;
    let text = |value: &String| serde_json::from_str::<String>(value).unwrap_or_default();
    let prompts = batch.prompts.len();
    let references = RewardBatch {
        step: batch.step,
        seed: batch.seed,
        prompts: batch.prompts.clone(),
        columns: Vec::new(),
        prompt_of: (0..prompts as u32).collect(),
        completions: column.values.iter().map(text).collect(),
        finished: vec![true; prompts],
        offsets: vec![0; prompts + 1],
        token_ids: Vec::new(),
    };
    Some(ScoringBatch { batch: references, prompts: judged.prompts.clone(), episodes: Vec::new() })
}

/// Converts a reward model's scores to the probability of being better than the reference, or to its mean over the other completions of the
/// prompt.
fn probabilities(judged: &ScoringBatch, answers: RewardResults, references: Option<&RewardResults>) -> RewardResults {
    let batch = &judged.batch;
    let better = |own: Option<f32>, other: Option<f32>| Some(1.0 / (1.0 + (other? - own?).exp()));
    let text = |prompt: usize| reference(batch).is_some_and(|column| column.values[prompt].starts_with('"'));
    let mut values = Vec::with_capacity(answers.values.len());
    for group in groups(judged) {
        let own = &answers.values[group.clone()];
        values.extend(own.iter().enumerate().map(|(at, value)| match references {
            Some(references) => {
                let prompt = batch.prompt_of[group.start] as usize;
                better(*value, references.values[prompt].filter(|_| text(prompt)))
            }
            None => {
                let mut mean = Mean::default();
                let others = own.iter().enumerate().filter(|(other, _)| *other != at);
                others.for_each(|(_, other)| mean.add(better(*value, *other)));
                mean.value()
            }
        }));
    }
    RewardResults { values, ..answers }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(prompt_of: &[u32], columns: Vec<TextColumn>) -> ScoringBatch {
        let rows = prompt_of.len();
        let batch = RewardBatch {
            step: 0,
            seed: 0,
            prompts: vec!["p".into(), "q".into()],
            columns,
            prompt_of: prompt_of.to_vec(),
            completions: (0..rows).map(|row| format!("c{row}")).collect(),
            finished: vec![true; rows],
            offsets: (0..=rows as u32).collect(),
            token_ids: (0..rows as u32).collect(),
        };
        ScoringBatch { batch, prompts: Vec::new(), episodes: Vec::new() }
    }

    fn column(values: [&str; 2]) -> Vec<TextColumn> {
        vec![TextColumn { name: REFERENCE.into(), values: values.map(str::to_owned).to_vec() }]
    }

    fn scored(values: &[Option<f32>]) -> RewardResults {
        RewardResults { values: values.to_vec(), ..RewardResults::default() }
    }

    #[test]
    fn each_completion_meets_each_other_of_its_prompt_and_is_scored_by_the_mean() {
        let judged = judged(&[0, 0, 0, 1, 1], Vec::new());
        let pairs = pairs(&judged);
        assert_eq!(pairs, [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1), (3, 4), (4, 3)]);
        let of = pairs.iter().map(|(row, _)| *row).collect();
        let matches = Matches { judged, completion_of: of, rows: 5 };
        let answers = scored(&[Some(1.0), Some(0.5), None, None, Some(0.0), None, Some(1.0), Some(0.0)]);
        let failed = vec![(2, "a".to_owned()), (3, "b".to_owned()), (5, "c".to_owned())];
        let scores = matches.scores(RewardResults { failed, ..answers });
        assert_eq!(scores.values, [Some(0.75), None, Some(0.0), Some(1.0), Some(0.0)]);
        assert_eq!(scores.failed, [(1, "a".to_owned())]);
    }

    #[test]
    fn a_model_gives_the_probability_of_being_better() {
        let close = |got: &RewardResults, want: &[Option<f32>]| {
            let near = |(a, b): (&Option<f32>, &Option<f32>)| match (a, b) {
                (Some(a), Some(b)) => (a - b).abs() < 1e-6,
                (a, b) => a == b,
            };
            assert!(got.values.len() == want.len() && got.values.iter().zip(want).all(near), "{:?}", got.values);
        };
        let s = |x: f32| 1.0 / (1.0 + (-x).exp());
        let pair = judged(&[0, 0, 1], Vec::new());
        assert!(references(&pair, ComparisonTarget::Others).is_none());
        close(&probabilities(&pair, scored(&[Some(2.0), Some(-1.0), Some(0.0)]), None), &[Some(s(3.0)), Some(s(-3.0)), None]);
        // A prompt without a reference has no score.
        let given = judged(&[0, 1], column(["\"gold\"", "null"]));
        let asked = references(&given, ComparisonTarget::Others).unwrap();
        assert_eq!(asked.batch.completions, ["gold", ""]);
        close(
            &probabilities(&given, scored(&[Some(2.0), Some(0.0)]), Some(&scored(&[Some(1.0), Some(0.0)]))),
            &[Some(s(1.0)), None],
        );
        assert!(references(&judged(&[0, 0], column(["\"a\"", "\"b\""])), ComparisonTarget::Others).is_none());
    }
}
