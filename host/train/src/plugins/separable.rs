//! Tests whether an algorithm's loss can be computed on any split of a micro-batch.

use super::synthetic;
use crate::ops::dropout::mixed_bits;
use crate::plugin::columns::{ADVANTAGE, ENTROPY, FINISHED, LABEL, LOG_SUM_SQUARES, MARGIN, MICRO_BATCH_LABEL};
use crate::plugin::{self, AlgorithmPlugin, Batch, Column, MicroBatchLoss, Shape, Unit};
use std::ops::Range;

/// Number of rows or pairs, and of tokens in each sequence, in the test.
const TRIED: usize = 6;
const LENGTH: usize = 2;

/// Tests on synthetic completions whether an algorithm's loss is the sum of its rows' losses, which splitting requires. A loss may instead
/// compare the rows of a micro-batch, and the host has no other way to know. The plugin's state is restored afterwards.
///
/// # Errors
/// If the plugin's loss fails.
pub(crate) fn is_separable(algorithm: &mut AlgorithmPlugin) -> plugin::Result<bool> {
    let state = algorithm.snapshot()?;
    let columns = columns_of_loss(algorithm);
    let (shape, by) = (algorithm.data().shape, spread(algorithm));
    let mut derivatives = |items: Range<usize>| {
        let gradient = algorithm.loss(&synthetic_batch(items.clone(), &columns, shape, by));
        // Each loss starts from the same state.
        algorithm.restore(state.clone());
        gradient.map(|gradient| by_item(&gradient, items.len()))
    };
    let together = derivatives(0..TRIED)?;
    let alone = (0..TRIED).map(|item| derivatives(item..item + 1)).collect::<plugin::Result<Vec<_>>>()?.concat();
    let size = together.iter().fold(1e-6f32, |m, d| m.max(d.abs()));
    Ok(together.len() == alone.len() && together.iter().zip(&alone).all(|(a, b)| (a - b).abs() <= 1e-4 * size))
}

/// Returns the columns that an algorithm's loss needs, with their units. An algorithm that has not estimated anything yet estimates a
/// synthetic generation; if that fails, it also fails in its trial on a real one.
fn columns_of_loss(algorithm: &mut AlgorithmPlugin) -> Vec<(String, Unit)> {
    if algorithm.required_estimates().any(|name| algorithm.unit_of_estimate(name).is_none()) {
        let _ = algorithm.estimate(&synthetic::generation(&[LENGTH; TRIED], algorithm));
    }
    let needs = &algorithm.info().needs;
    needs.names().filter_map(|name| Some((name.to_owned(), synthetic::unit_in_loss(algorithm, name)?))).collect()
}

/// Returns the derivatives of a loss of this many items, item by item.
fn by_item(gradient: &MicroBatchLoss, items: usize) -> Vec<f32> {
    let of_item = |item: usize| {
        let part = move |column: &Column| {
            let size = column.values.len() / items;
            column.values[item * size..(item + 1) * size].to_vec()
        };
        gradient.derivatives.iter().flat_map(part).collect::<Vec<f32>>()
    };
    (0..items).flat_map(of_item).collect()
}

/// Returns a batch of synthetic rows or pairs, whose values don't depend on the batch.
fn synthetic_batch(items: Range<usize>, columns: &[(String, Unit)], shape: Shape, by: f32) -> Batch {
    let each = synthetic::sequences_of_item(shape);
    let sequences = items.start * each..items.end * each;
    let groups = (0..=sequences.len() as u32).step_by(each).collect();
    let mut batch = synthetic::batch(&vec![LENGTH; sequences.len()], groups, shape);
    batch.prompt_tokens = (0..=items.len()).map(|item| (item * LENGTH) as u32).collect();
    batch.scale = synthetic::batch(&[LENGTH; 2 * TRIED][..TRIED * each], vec![0; TRIED + 1], shape).scale;
    batch.scale.prompt_tokens = (TRIED * LENGTH) as u64;
    batch.scale.max_completion_length = LENGTH as u32;
    for (name, unit) in columns {
        let unit = *unit;
        let entries = match unit {
            Unit::Token => sequences.start * LENGTH..sequences.end * LENGTH,
            Unit::PromptToken => items.start * LENGTH..items.end * LENGTH,
            Unit::Sequence => sequences.clone(),
            // Columns of a micro-batch don't depend on how it is split.
            Unit::MicroBatch => 0..TRIED * each,
            Unit::Group | Unit::Turn => items.clone(),
        };
        batch.columns.push(Column::sparse(name, unit, entries.map(|entry| value(name, unit, entry, by))));
    }
    batch
}

/// Returns the spread of log-probabilities. Losses of pairs or labelled completions are almost linear while the policy equals the
/// reference, so they need a large spread; for others it is so small that ratios stay near one.
fn spread(algorithm: &AlgorithmPlugin) -> f32 {
    let compares = algorithm.data().shape == Shape::Pairs || algorithm.info().needs.has(LABEL);
    if compares { 1.0 } else { 0.1 }
}

/// Returns an entry of a column. Values vary randomly across and within rows, so that a loss that compares rows sees differences.
fn value(name: &str, unit: Unit, entry: usize, by: f32) -> Option<f32> {
    let row = if matches!(unit, Unit::Token | Unit::PromptToken) { entry / LENGTH } else { entry };
    let spread = 0.5 * noise(name, entry) + 0.5 * noise(name, TRIED * LENGTH * LENGTH + row);
    Some(match name {
        MARGIN => return None,
        FINISHED => 1.0,
        LABEL | MICRO_BATCH_LABEL => f32::from(u8::from(entry % 3 != 1)),
        ENTROPY => 2.0 + spread,
        LOG_SUM_SQUARES => -1.5 + by * spread,
        ADVANTAGE => [1.0, -0.6][row % 2],
        _ if name.ends_with("logp") => -1.5 + by * spread,
        _ => spread,
    })
}

/// Returns a number from -1 to 1 that depends only on a column's name and a place.
fn noise(name: &str, place: usize) -> f32 {
    let seed = name.bytes().fold(place as u64, |seed, byte| mixed_bits(seed ^ u64::from(byte)));
    (mixed_bits(seed) >> 40) as f32 / (1u64 << 23) as f32 - 1.0
}
