//! Compares two scorings of the same completions.

use serde::{Deserialize, Serialize};
use std::fmt;

/// A comparison of two scorings. Its metrics cover the rows scored by both.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub struct ScoreComparison {
    /// Number of rows scored by both.
    pub rows: usize,
    /// Number of rows scored by only one.
    pub one_sided: usize,
    /// Mean of the old scores.
    pub old_mean: f64,
    /// Mean of the new scores.
    pub new_mean: f64,
    /// Mean absolute difference.
    pub mean_difference: f64,
    /// Largest absolute difference.
    pub max_difference: f64,
    /// Spearman's rank correlation, with mean ranks for ties; `None` if all scores of a side are equal.
    pub rank_correlation: Option<f64>,
}

impl ScoreComparison {
    /// Compares two scorings of the same rows.
    pub fn new(old: &[Option<f32>], new: &[Option<f32>]) -> Self {
        let both: Vec<(f64, f64)> = old.iter().zip(new).filter_map(|(a, b)| Some((f64::from((*a)?), f64::from((*b)?)))).collect();
        let n = both.len() as f64;
        let mean = |of: &dyn Fn(&(f64, f64)) -> f64| if both.is_empty() { 0.0 } else { both.iter().map(of).sum::<f64>() / n };
        let ranks = |of: &dyn Fn(&(f64, f64)) -> f64| mean_ranks(&both.iter().map(of).collect::<Vec<_>>());
        Self {
            rows: both.len(),
            one_sided: old.iter().zip(new).filter(|(a, b)| a.is_some() != b.is_some()).count(),
            old_mean: mean(&|p| p.0),
            new_mean: mean(&|p| p.1),
            mean_difference: mean(&|p| (p.0 - p.1).abs()),
            max_difference: both.iter().map(|p| (p.0 - p.1).abs()).fold(0.0, f64::max),
            rank_correlation: correlation(&ranks(&|p| p.0), &ranks(&|p| p.1)),
        }
    }
}

impl fmt::Display for ScoreComparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rows, old_mean, new_mean, .. } = self;
        write!(f, "on the last {rows} completions: mean {old_mean:.4} -> {new_mean:.4}")?;
        self.rank_correlation.map_or(Ok(()), |ranks| write!(f, ", rank correlation {ranks:.3}"))
    }
}

/// Returns the rank of each value, from 1; equal values get their mean rank.
fn mean_ranks(values: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|&a, &b| values[a].total_cmp(&values[b]));
    let mut ranks = vec![0.0; values.len()];
    let mut start = 0;
    for ties in order.chunk_by(|&a, &b| values[a] == values[b]) {
        let rank = start as f64 + (ties.len() as f64 + 1.0) / 2.0;
        ties.iter().for_each(|&i| ranks[i] = rank);
        start += ties.len();
    }
    ranks
}

/// Returns Pearson's correlation, or `None` if a side does not vary.
fn correlation(a: &[f64], b: &[f64]) -> Option<f64> {
    let n = a.len() as f64;
    let (ma, mb) = (a.iter().sum::<f64>() / n, b.iter().sum::<f64>() / n);
    let (mut ab, mut aa, mut bb) = (0.0, 0.0, 0.0);
    for (x, y) in a.iter().zip(b) {
        ab += (x - ma) * (y - mb);
        aa += (x - ma) * (x - ma);
        bb += (y - mb) * (y - mb);
    }
    (aa > 0.0 && bb > 0.0).then(|| ab / (aa * bb).sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_over_the_rows_that_both_scored() {
        let old = [Some(1.0), Some(2.0), None, Some(4.0), Some(2.0)];
        let new = [Some(10.0), Some(20.0), Some(5.0), None, Some(30.0)];
        let c = ScoreComparison::new(&old, &new);
        assert_eq!((c.rows, c.one_sided), (3, 2));
        assert_eq!((c.new_mean, c.mean_difference, c.max_difference), (20.0, 55.0 / 3.0, 28.0));
        // Ranks 1, 2.5, 2.5 against 1, 2, 3: covariance 1.5, variances 1.5 and 2.
        assert!((c.rank_correlation.unwrap() - 1.5 / 3.0f64.sqrt()).abs() < 1e-12);
        let turned = ScoreComparison::new(&[Some(1.0), Some(2.0)], &[Some(5.0), Some(3.0)]);
        assert_eq!(turned.rank_correlation, Some(-1.0));
        assert_eq!(ScoreComparison::new(&[Some(1.0), Some(1.0)], &[Some(5.0), Some(3.0)]).rank_correlation, None);
        assert_eq!(ScoreComparison::new(&[], &[]).rank_correlation, None);
    }
}
