//! Samples for testing plugins: completions of many shapes, and columns of random numbers.

use crate::data::{PromptRow, TextOrChat};
use crate::plugin::old::{Examples, Mismatched, Pairs, Prompts, Side, ValuedPairs};
use crate::plugin::old::{Generation, RewardColumn, Rollouts, Scale, Tokens, Turns};
use crate::plugin::{RewardBatch, TextColumn as Column};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
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

/// Returns a reward batch of `rows` completions, with the prompts and columns of a dataset, if they are given.
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
                |name: &&String| Column { name: (*name).clone(), values: given.iter().map(|row| value(row, name)).collect() };
            (given.iter().map(|row| text(&row.prompt)).collect(), names.iter().map(column).collect())
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

/// Random row lengths and columns.
struct Random(ChaCha8Rng);

impl Random {
    fn column(&mut self, tokens: usize, low: f32, high: f32) -> Vec<f32> {
        (0..tokens).map(|_| self.0.random_range(low..high)).collect()
    }

    fn offsets(&mut self, rows: usize, longest: u32) -> Vec<u32> {
        let mut offsets = vec![0];
        for _ in 0..rows {
            offsets.push(offsets.last().copied().unwrap_or(0) + self.0.random_range(1..=longest));
        }
        offsets
    }

    /// Returns a column of values close to another's.
    fn near(&mut self, column: &[f32], distance: f32) -> Vec<f32> {
        column.iter().map(|x| x + self.0.random_range(-distance..distance)).collect()
    }
}

/// Returns a generation of `rows` episodes and a micro-batch of all of them. Rows have about `longest / 2` tokens.
pub(super) fn policy(rows: usize, longest: u32) -> (Generation, Tokens) {
    let mut random = Random(ChaCha8Rng::seed_from_u64(5));
    let offsets = random.offsets(rows, longest);
    let n = offsets.last().copied().unwrap_or(0) as usize;
    let old_logp = random.column(n, -4.0, -0.1);
    let logp = random.near(&old_logp, 0.3);
    let ref_logp = random.near(&old_logp, 0.4);
    let old_values = random.column(n, -1.0, 1.0);
    let mask: Vec<u8> = (0..n).map(|_| u8::from(random.0.random_range(0..8) != 0)).collect();
    let entropy = random.column(n, 0.1, 3.0);
    let values = (0..rows).map(|row| (row % 7 != 6).then(|| random.0.random_range(-1.0..1.0))).collect();
    let rollouts = Rollouts {
        step: 3,
        rewards: vec![RewardColumn { name: "sample".to_owned(), weight: 1.0, values }],
        prompt_of: (0..rows).map(|row| (row / 4) as u32).collect(),
        finished: (0..rows).map(|row| row % 3 != 1).collect(),
        offsets: offsets.clone(),
        mask: mask.clone(),
        logp: old_logp.clone(),
        ref_logp: Some(ref_logp.clone()),
        values: Some(old_values.clone()),
        entropy: Some(entropy.clone()),
    };
    let tokens = Tokens {
        step: 3,
        offsets,
        scale: Scale {
            rows: rows as u32 * 2,
            tokens: 2 * mask.iter().map(|&m| u64::from(m)).sum::<u64>(),
            max_completion_length: longest,
        },
        mask,
        advantages: random.column(n, -1.5, 1.5),
        sampling_logp: Some(random.near(&old_logp, 0.01)),
        logp,
        old_logp,
        ref_logp: Some(ref_logp),
        entropy: Some(entropy),
        values: Some(random.near(&old_values, 0.1)),
        returns: Some(random.near(&old_values, 1.0)),
        old_values: Some(old_values),
    };
    let turns = turns(&rollouts, &mut random);
    (Generation { rollouts, turns: Some(turns) }, tokens)
}

/// Cuts each row behind its tokens that don't count, as if those were replies. The rewards of its turns add up to its own.
fn turns(rollouts: &Rollouts, random: &mut Random) -> Turns {
    let rows = rollouts.prompt_of.len();
    let mut turns = Turns { offsets: vec![0], ends: Vec::new(), rewards: Vec::new(), columns: vec![0; rows] };
    for row in 0..rows {
        let tokens = rollouts.offsets[row] as usize..rollouts.offsets[row + 1] as usize;
        let is_end = |at: &usize| rollouts.mask[*at] == 0 && *at > tokens.start && rollouts.mask[*at - 1] == 1;
        turns.ends.extend(tokens.clone().filter(is_end).map(|at| at as u32));
        turns.ends.push(tokens.end as u32);
        let mut left = rollouts.rewards[0].values[row];
        for _ in turns.rewards.len() + 1..turns.ends.len() {
            let given = left.map(|_| random.0.random_range(-1.0..1.0));
            left = left.zip(given).map(|(left, given): (f32, f32)| left - given);
            turns.rewards.push(given);
        }
        turns.rewards.push(left);
        turns.offsets.push(turns.ends.len() as u32);
    }
    turns
}

/// Returns `rows` pairs.
pub(super) fn pairs(rows: usize, longest: u32) -> Pairs {
    let mut random = Random(ChaCha8Rng::seed_from_u64(6));
    let mut side = || {
        let offsets = random.offsets(rows, longest);
        let n = offsets.last().copied().unwrap_or(0) as usize;
        let logp = random.column(n, -3.0, -0.1);
        let ref_logp = Some(random.near(&logp, 0.3));
        let mean_logits = Some(random.column(n, -1.0, 1.0));
        let log_sum_squares = Some(random.near(&logp, 0.5));
        Side { offsets, ref_logp, mean_logits, log_sum_squares, logp }
    };
    let (chosen, rejected) = (side(), side());
    let tokens = 2 * chosen.logp.len() as u64;
    let offsets = random.offsets(rows, longest);
    let n = offsets.last().copied().unwrap_or(0);
    let prompts = Some(Prompts { offsets, logp: random.column(n as usize, -4.0, -0.1), tokens: 2 * u64::from(n) });
    Pairs { step: 3, chosen, rejected, prompts, scale: Scale { rows: 2 * rows as u32, tokens, max_completion_length: longest } }
}

/// Returns `rows` labelled completions.
pub(super) fn examples(rows: usize, longest: u32) -> Examples {
    let mut random = Random(ChaCha8Rng::seed_from_u64(7));
    let offsets = random.offsets(rows, longest);
    let n = offsets.last().copied().unwrap_or(0) as usize;
    let (logp, sums) = (random.column(n, -3.0, -0.1), random.column(rows, -60.0, -20.0));
    let scale = Scale { rows: 2 * rows as u32, tokens: 2 * n as u64, max_completion_length: longest };
    let labels: Vec<bool> = (0..rows).map(|row| row % 3 != 1).collect();
    let desirable = labels.iter().filter(|label| **label).count() as u32;
    Examples {
        step: 3,
        desirable,
        undesirable: rows as u32 - desirable,
        labels,
        offsets,
        ref_logp: Some(random.near(&logp, 0.3)),
        mean_logits: Some(random.column(n, -1.0, 1.0)),
        mismatched: Some(Mismatched { ref_logp: random.near(&sums, 3.0), logp: sums }),
        logp,
        scale,
    }
}

/// Returns `rows` pairs with a value of each completion.
pub(super) fn valued_pairs(rows: usize) -> ValuedPairs {
    let mut random = Random(ChaCha8Rng::seed_from_u64(7));
    let scale = Scale { rows: 2 * rows as u32, tokens: 40 * rows as u64, max_completion_length: 20 };
    let (chosen, rejected) = (random.column(rows, -2.0, 2.0), random.column(rows, -2.0, 2.0));
    ValuedPairs { step: 3, chosen, rejected, margin: Some(random.column(rows, 0.0, 1.0)), scale }
}
