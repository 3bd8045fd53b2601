//! Process rewards: what models say of the steps of completions, as a column that plugins see.

use super::scoring::{Answers, Judged};
use crate::plugin::{Column, RewardBatch};
use std::collections::BTreeMap;

/// What the models that value steps said of a generation: their places among the rewards, names and answers.
pub(super) type Given = BTreeMap<usize, (String, Answers)>;

/// Returns a generation as plugins see it beside models that value steps: each model has a column of its name, with a list of numbers
/// for each completion. Columns have a value a prompt, so each completion has a prompt of its own. None without such models.
pub(super) fn seen(judged: &Judged, given: &Given) -> Option<Judged> {
    let columns = given.values().map(|(name, answers)| {
        let list = |steps: &Vec<f32>| serde_json::json!(steps).to_string();
        Column { name: name.clone(), values: answers.steps.iter().map(list).collect() }
    });
    (!given.is_empty()).then(|| with_columns(judged, columns.collect()))
}

/// Gives each completion a prompt of its own, and the batch these columns, with a value each.
pub(super) fn with_columns(judged: &Judged, own: Vec<Column>) -> Judged {
    let batch = &judged.batch;
    let each = |values: &[String]| batch.prompt_of.iter().map(|prompt| values[*prompt as usize].clone()).collect();
    let hidden = |column: &&Column| own.iter().all(|own| own.name != column.name);
    let mut columns: Vec<Column> =
        batch.columns.iter().filter(hidden).map(|c| Column { name: c.name.clone(), values: each(&c.values) }).collect();
    columns.extend(own);
    let seen = RewardBatch {
        prompts: each(&batch.prompts),
        columns,
        prompt_of: (0..batch.prompt_of.len() as u32).collect(),
        step: batch.step,
        seed: batch.seed,
        completions: batch.completions.clone(),
        finished: batch.finished.clone(),
        offsets: batch.offsets.clone(),
        token_ids: batch.token_ids.clone(),
    };
    let prompts = batch.prompt_of.iter().map(|prompt| judged.prompts[*prompt as usize].clone()).collect();
    Judged { batch: seen, prompts, episodes: judged.episodes.clone() }
}
