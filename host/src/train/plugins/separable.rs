//! Tests whether an algorithm's loss can be computed on any split of a micro-batch.

use crate::plugin::{self, AnyPlugin, Examples, Info, Mismatched, Needs, Pairs, Prompts, Scale, Side, Tokens, ValuedPairs};
use std::ops::Range;

/// Number of rows or pairs, and of tokens in each, on which a loss is tried.
const TRIED: usize = 6;
const LENGTH: usize = 2;

/// Tests on synthetic completions whether an algorithm's loss is the sum of its rows' losses, which splitting requires. A loss
/// may instead compare the rows of a micro-batch with each other, and the host has no other way to know. The plugin's state is
/// restored afterwards.
///
/// # Errors
/// If the plugin's loss fails.
pub(in crate::train) fn is_separable(algorithm: &mut AnyPlugin) -> plugin::Result<bool> {
    let state = algorithm.plugin_mut().snapshot()?;
    let needs = &algorithm.plugin().info().needs.clone();
    let each = (0..TRIED).map(|row| row..row + 1);
    let mut derivatives = |rows: Range<usize>| {
        let derivatives = derivatives(algorithm, rows, needs);
        // Each loss follows from the same state.
        algorithm.plugin_mut().restore(state.clone());
        derivatives
    };
    let together = derivatives(0..TRIED)?;
    let alone = each.map(derivatives).collect::<plugin::Result<Vec<_>>>()?.concat();
    let size = together.iter().fold(1e-6f32, |m, d| m.max(d.abs()));
    Ok(together.iter().zip(&alone).all(|(a, b)| (a - b).abs() <= 1e-4 * size))
}

/// Returns the derivatives of a loss of these synthetic completions, row by row.
fn derivatives(algorithm: &mut AnyPlugin, rows: Range<usize>, needs: &Needs) -> plugin::Result<Vec<f32>> {
    Ok(match algorithm {
        AnyPlugin::Policy(policy) => {
            let gradient = policy.loss(&made_up_tokens(rows, needs))?;
            by_row(&[Some(gradient.d_logp), gradient.d_entropy, gradient.d_values], LENGTH)
        }
        AnyPlugin::Preference(preference) => {
            let gradient = preference.loss(&made_up_pairs(rows, preference.info()))?;
            by_row(&[Some(gradient.d_chosen), Some(gradient.d_rejected), gradient.d_prompts], LENGTH)
        }
        AnyPlugin::Labelled(labelled) => labelled.loss(&made_up_examples(rows, labelled.info()))?.d_logp,
        AnyPlugin::RewardModel(plugin) => {
            let gradient = plugin.loss(&made_up_values(rows))?;
            by_row(&[Some(gradient.d_chosen), Some(gradient.d_rejected)], 1)
        }
        AnyPlugin::Reward(_) | AnyPlugin::Environment(_) => Vec::new(),
    })
}

/// Returns columns row by row, of which each has this many entries in a column.
fn by_row(columns: &[Option<Vec<f32>>], length: usize) -> Vec<f32> {
    let rows = columns.iter().flatten().map(|column| column.len() / length).max().unwrap_or_default();
    (0..rows).flat_map(|row| columns.iter().flatten().flat_map(move |c| &c[row * length..(row + 1) * length])).copied().collect()
}

const SCALE: Scale = Scale { rows: TRIED as u32, tokens: (TRIED * LENGTH) as u64, max_completion_length: LENGTH as u32 };

/// Returns an oscillating column for `rows`, with a frequency that depends on `kind`.
fn wave(rows: &Range<usize>, kind: f32) -> Vec<f32> {
    (rows.start * LENGTH..rows.end * LENGTH).map(|i| (i as f32 * (1.0 + 0.7 * kind)).sin()).collect()
}

/// Returns log-probabilities that differ from each other by this much.
fn logp(rows: &Range<usize>, kind: f32, by: f32) -> Vec<f32> {
    wave(rows, kind).into_iter().map(|w| -1.5 + by * w).collect()
}

fn offsets(rows: &Range<usize>) -> Vec<u32> {
    (0..=rows.len()).map(|row| (row * LENGTH) as u32).collect()
}

fn made_up_tokens(rows: Range<usize>, needs: &Needs) -> Tokens {
    let critic = |kind: f32| needs.values.then(|| wave(&rows, kind));
    Tokens {
        step: 0,
        offsets: offsets(&rows),
        mask: vec![1; rows.len() * LENGTH],
        advantages: rows.clone().flat_map(|row| [if row % 2 == 0 { 1.0 } else { -0.6 }; LENGTH]).collect(),
        logp: logp(&rows, 1.0, 0.1),
        old_logp: logp(&rows, 2.0, 0.1),
        ref_logp: needs.ref_logp.then(|| logp(&rows, 3.0, 0.1)),
        sampling_logp: needs.sampling_logp.then(|| logp(&rows, 4.0, 0.1)),
        entropy: needs.entropy.then(|| wave(&rows, 5.0).into_iter().map(|w| 2.0 + w).collect()),
        values: critic(6.0),
        old_values: critic(7.0),
        returns: critic(8.0),
        scale: SCALE,
    }
}

fn made_up_examples(rows: Range<usize>, info: &Info) -> Examples {
    // A micro-batch's mismatched completions are the same however it is split.
    let column = |kind: f32| wave(&(0..TRIED), kind).into_iter().step_by(LENGTH).collect();
    Examples {
        step: 0,
        offsets: offsets(&rows),
        logp: logp(&rows, 1.0, 1.0),
        ref_logp: info.needs.ref_logp.then(|| logp(&rows, 2.0, 1.0)),
        mean_logits: info.needs.mean_logits.then(|| wave(&rows, 3.0)),
        mismatched: info.hints.mismatched.then(|| Mismatched { logp: column(4.0), ref_logp: column(5.0) }),
        labels: rows.map(|row| row % 3 != 1).collect(),
        desirable: 4,
        undesirable: 2,
        scale: SCALE,
    }
}

fn made_up_pairs(rows: Range<usize>, Info { needs, hints, .. }: &Info) -> Pairs {
    // By enough that a loss which is nearly a straight line where the policy is the reference is no line any more.
    let side = |kind: f32| Side {
        offsets: offsets(&rows),
        logp: logp(&rows, kind, 1.0),
        ref_logp: needs.ref_logp.then(|| logp(&rows, kind + 1.0, 1.0)),
        mean_logits: needs.mean_logits.then(|| wave(&rows, kind + 2.0)),
        log_sum_squares: hints.log_sum_squares.then(|| logp(&rows, kind + 0.5, 1.0)),
    };
    let prompts = Prompts { offsets: offsets(&rows), logp: logp(&rows, 7.0, 1.0), tokens: SCALE.tokens };
    let prompts = hints.prompt_logp.then_some(prompts);
    Pairs { step: 0, chosen: side(1.0), rejected: side(4.0), prompts, scale: SCALE }
}

fn made_up_values(rows: Range<usize>) -> ValuedPairs {
    let side = |kind: f32| wave(&rows, kind).into_iter().step_by(LENGTH).collect();
    ValuedPairs { step: 0, chosen: side(1.0), rejected: side(2.0), margin: None, scale: SCALE }
}
