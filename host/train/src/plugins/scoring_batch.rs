//! Completions to be scored, and the results of scoring.

use super::super::dataset::Prompt;
use super::super::episode::EpisodeOutcome;
use super::super::{Error, Result};
use crate::config::RewardErrorAction;
use crate::plugin::{CompletionExtra, RewardBatch, TextColumn};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// A generation as all rewards see it.
pub(crate) struct ScoringBatch {
    pub batch: RewardBatch,
    /// Prompts of the batch.
    pub prompts: Vec<Arc<Prompt>>,
    /// Episodes of the rows; empty without an environment, or if no model scores.
    pub episodes: Vec<Arc<ScoringEpisode>>,
}

impl ScoringBatch {
    /// Returns these rows, which may repeat, each with a separate prompt.
    pub(super) fn with_own_prompts(&self, rows: &[usize]) -> Self {
        let batch = &self.batch;
        let prompt = |row: &usize| batch.prompt_of[*row] as usize;
        let each = |values: &[String]| rows.iter().map(|row| values[prompt(row)].clone()).collect();
        let tokens = |row: &usize| &batch.token_ids[batch.offsets[*row] as usize..batch.offsets[*row + 1] as usize];
        let ends = rows.iter().scan(0, |end, row| {
            *end += tokens(row).len() as u32;
            Some(*end)
        });
        let apart = RewardBatch {
            step: batch.step,
            seed: batch.seed,
            prompts: each(&batch.prompts),
            columns: batch.columns.iter().map(|c| TextColumn { name: c.name.clone(), values: each(&c.values) }).collect(),
            prompt_of: (0..rows.len() as u32).collect(),
            completions: rows.iter().map(|row| batch.completions[*row].clone()).collect(),
            finished: rows.iter().map(|row| batch.finished[*row]).collect(),
            offsets: std::iter::once(0).chain(ends).collect(),
            token_ids: rows.iter().flat_map(tokens).copied().collect(),
        };
        let prompts = rows.iter().map(|row| self.prompts[prompt(row)].clone()).collect();
        let episodes = rows.iter().filter_map(|row| self.episodes.get(*row).cloned()).collect();
        Self { batch: apart, prompts, episodes }
    }
}

/// Results for some rows: the scores, the error of a failed first attempt, and the rows that failed individually.
#[derive(Default, Deserialize, Serialize)]
pub(super) struct RewardResults {
    pub values: Vec<Option<f32>>,
    pub first_error: Option<String>,
    pub failed: Vec<(usize, String)>,
    /// Values of the rows' steps, from a model that computes them.
    pub steps: Vec<Vec<f32>>,
    /// Values that the reward logged for the rows; empty if there are none.
    pub extra: Vec<CompletionExtra>,
}

impl RewardResults {
    /// Records that a row failed, if failures are tolerated; otherwise returns the error.
    pub(super) fn note_failure(&mut self, row: usize, error: Error, on_error: RewardErrorAction) -> Result<()> {
        if on_error != RewardErrorAction::Unscorable {
            return Err(error);
        }
        let error = error.to_string();
        self.first_error.get_or_insert_with(|| error.clone());
        self.failed.push((row, error));
        Ok(())
    }
}

/// The parts of an episode that a reward model needs.
pub(crate) struct ScoringEpisode {
    pub episode: EpisodeOutcome,
    /// Tokens of the episode's own prompt.
    pub opening: Vec<u32>,
}
