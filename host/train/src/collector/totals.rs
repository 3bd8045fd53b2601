//! Rewards of completions, summed and compared within groups.

use super::super::experience::RewardScoreColumn;

/// Minimum difference of rewards, relative to the largest, or absolute if that is below one. Sums of f32 have rounding errors of about
/// 1e-7.
const MIN_DIFFERENCE: f64 = 1e-6;

/// A completion's reward.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RewardTotal {
    pub(super) sum: f64,
    /// Sum of the parts' magnitudes, which determines the rounding error.
    size: f64,
}

/// Returns the weighted sum of each completion's rewards, or one reward by name; none for a completion without a score.
pub(super) fn totals(columns: &[RewardScoreColumn], only: Option<&str>) -> Vec<Option<RewardTotal>> {
    let rows = columns.first().map_or(0, |column| column.values.len());
    let mut totals = vec![None; rows];
    for column in columns.iter().filter(|column| only.is_none_or(|name| name == column.name)) {
        let weight = if only.is_some() { 1.0 } else { f64::from(column.weight) };
        for (total, value) in totals.iter_mut().zip(&column.values) {
            let Some(value) = value else { continue };
            let part = weight * f64::from(*value);
            let total: &mut RewardTotal = total.get_or_insert_default();
            (total.sum, total.size) = (total.sum + part, total.size + part.abs());
        }
    }
    totals
}

/// Returns whether the rewards of a group differ by more than rounding.
pub(super) fn differ(group: &[Option<RewardTotal>]) -> bool {
    let scored = || group.iter().flatten();
    let fold = |of: fn(f64, f64) -> f64, from: f64| scored().map(|total| total.sum).fold(from, of);
    let size = scored().map(|total| total.size).fold(1.0, f64::max);
    fold(f64::max, f64::NEG_INFINITY) - fold(f64::min, f64::INFINITY) > MIN_DIFFERENCE * size
}
