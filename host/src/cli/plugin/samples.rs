//! Samples for testing rewards: completions of many shapes.

use crate::data::{PromptRow, TextOrChat};
use crate::plugin::{RewardBatch, TextColumn, conversations};
use serde_json::Value;
use std::collections::BTreeSet;

const PROMPTS: [&str; 4] = ["What is 3 + 4?", "Summarise: the cat sat on the mat.\nTL;DR:", "", "Schreibe höflich: 你好 🙂"];

const COMPLETIONS: [&str; 10] = [
    "",
    " ",
    "7",
    "<think>\n3 + 4 is 7\n</think>\nThe answer is 7. #### 7",
    "A cat sat on a mat.",
    "{\"answer\": [1, 2.5, null], \"ok\": true}",
    "höflich, 你好 🙂 – wirklich\u{0} \u{202e}",
    "the the the the the the the the the the the the the the the the",
    "\\boxed{3/4} costs $1,234.50, or 12% less\r\n\tno?",
    "{\"answer\": ",
];

/// Returns a reward batch of `rows` completions, with the prompts and columns of a dataset if they are given.
pub(super) fn rewards(given: Option<&[PromptRow]>, rows: usize) -> RewardBatch {
    let (prompts, columns) = match given {
        None => (PROMPTS.map(str::to_owned).to_vec(), Vec::new()),
        Some(given) => {
            let given = &given[..given.len().min(rows.div_ceil(2).max(1))];
            let text = |prompt: &TextOrChat| match prompt {
                TextOrChat::Text(text) => text.clone(),
                TextOrChat::Chat(messages) => messages.iter().map(|m| m.content.to_string()).collect::<Vec<_>>().join("\n"),
            };
            let names: BTreeSet<&String> = given.iter().flat_map(|row| row.columns.keys()).collect();
            let value = |row: &PromptRow, name: &str| row.columns.get(name).unwrap_or(&Value::Null).to_string();
            let column =
                |name: &&String| TextColumn { name: (*name).clone(), values: given.iter().map(|row| value(row, name)).collect() };
            let mut columns: Vec<TextColumn> = names.iter().map(column).collect();
            columns.extend(conversations(given.iter().map(|row| match &row.prompt {
                TextOrChat::Text(text) => (None, text.as_str()),
                TextOrChat::Chat(messages) => (Some(messages), ""),
            })));
            (given.iter().map(|row| text(&row.prompt)).collect(), columns)
        }
    };
    let texts: Vec<String> = (0..rows).map(|i| COMPLETIONS[i % COMPLETIONS.len()].to_owned()).collect();
    let ids: Vec<Vec<u32>> = texts.iter().map(|t| t.bytes().map(u32::from).chain([0]).collect()).collect();
    let mut offsets = vec![0];
    for ids in &ids {
        offsets.push(offsets.last().copied().unwrap_or(0) + ids.len() as u32);
    }
    RewardBatch {
        step: 3,
        seed: 0,
        prompt_of: (0..rows).map(|row| (row * prompts.len() / rows.max(1)) as u32).collect(),
        prompts,
        columns,
        finished: (0..rows).map(|row| row % 3 != 1).collect(),
        completions: texts,
        offsets,
        token_ids: ids.concat(),
    }
}
