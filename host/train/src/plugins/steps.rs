//! Process rewards: what models say of the steps of completions, as a column that plugins see.

use super::scoring_batch::{RewardResults, ScoringBatch};
use crate::plugin::TextColumn;
use std::collections::BTreeMap;

/// What the models that value steps said of a generation: their places among the rewards, names and answers.
pub(super) type StepValues = BTreeMap<usize, (String, RewardResults)>;

/// Returns a generation as plugins see it beside models that value steps: each model has a column of its name, with a list of numbers
/// for each completion. Columns have a value a prompt, so each completion has a prompt of its own. None without such models.
pub(super) fn with_step_columns(judged: &ScoringBatch, given: &StepValues) -> Option<ScoringBatch> {
    let columns = given.values().map(|(name, answers)| {
        let list = |steps: &Vec<f32>| serde_json::json!(steps).to_string();
        TextColumn { name: name.clone(), values: answers.steps.iter().map(list).collect() }
    });
    (!given.is_empty()).then(|| with_columns(judged, columns.collect()))
}

/// Gives each completion a prompt of its own, and the batch these columns, with a value each.
pub(super) fn with_columns(judged: &ScoringBatch, own: Vec<TextColumn>) -> ScoringBatch {
    let rows: Vec<usize> = (0..judged.batch.prompt_of.len()).collect();
    let mut seen = judged.with_own_prompts(&rows);
    seen.batch.columns.retain(|column| own.iter().all(|own| own.name != column.name));
    seen.batch.columns.extend(own);
    seen
}
