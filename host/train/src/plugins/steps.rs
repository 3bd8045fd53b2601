//! Process rewards: models' values of the steps of completions, as a column that plugins see.

use super::scoring_batch::{RewardResults, ScoringBatch};
use crate::plugin::TextColumn;
use std::collections::BTreeMap;

/// Results of the models that compute step values, with their names, by their indices among the rewards.
pub(super) type StepValues = BTreeMap<usize, (String, RewardResults)>;

/// Returns a generation with step values, as plugins see it: each of the models has a column of its name, with a list of numbers per
/// completion. Columns have one value per prompt, so each completion gets a separate prompt. None without such models.
pub(super) fn with_step_columns(judged: &ScoringBatch, given: &StepValues) -> Option<ScoringBatch> {
    let columns = given.values().map(|(name, answers)| {
        let list = |steps: &Vec<f32>| serde_json::json!(steps).to_string();
        TextColumn { name: name.clone(), values: answers.steps.iter().map(list).collect() }
    });
    (!given.is_empty()).then(|| with_columns(judged, columns.collect()))
}

/// Gives each completion a separate prompt, and adds these columns, with one value per completion.
pub(super) fn with_columns(judged: &ScoringBatch, own: Vec<TextColumn>) -> ScoringBatch {
    let rows: Vec<usize> = (0..judged.batch.prompt_of.len()).collect();
    let mut seen = judged.with_own_prompts(&rows);
    seen.batch.columns.retain(|column| own.iter().all(|own| own.name != column.name));
    seen.batch.columns.extend(own);
    seen
}
