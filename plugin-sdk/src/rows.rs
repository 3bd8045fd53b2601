//! Rows of a batch, for algorithms: which tokens count, sums and means over them, and the expansion of a derivative with respect to a row's
//! sum to its tokens.
//!
//! ```
//! use rlhost_plugin_sdk::rows::{counted, masked_mean, rows, spread};
//!
//! let (offsets, mask) = ([0, 3, 5], [1, 0, 1, 1, 1]);
//! let (logp, old_logp) = ([-1.0f32, -9.0, -2.0, -0.5, -1.5], [-1.5f32, -9.0, -2.0, -1.0, -1.0]);
//! let mut d_logp = vec![0.0f32; 5];
//! for row in rows(&offsets) {
//!     // A loss that is the mean log-ratio of each row, added up.
//!     let n = counted(&mask, row.clone()).count() as f64;
//!     let _loss = masked_mean(&mask, row.clone(), |i| f64::from(logp[i] - old_logp[i]));
//!     spread(1.0 / n, &mask, row, &mut d_logp);
//! }
//! assert_eq!(d_logp, [0.5, 0.0, 0.5, 0.5, 0.5]);
//! ```

use std::ops::Range;

/// Returns the tokens of each row, as ranges.
pub fn rows(offsets: &[u32]) -> impl Iterator<Item = Range<usize>> + '_ {
    offsets.windows(2).map(|w| w[0] as usize..w[1] as usize)
}

/// Returns the tokens of a row that count: those whose mask is 1.
pub fn counted(mask: &[u8], row: Range<usize>) -> impl DoubleEndedIterator<Item = usize> + Clone + '_ {
    row.filter(|&i| mask[i] != 0)
}

/// Returns the sum of `value` over the tokens of a row that count.
pub fn masked_sum(mask: &[u8], row: Range<usize>, value: impl FnMut(usize) -> f64) -> f64 {
    counted(mask, row).map(value).sum()
}

/// Returns the mean of `value` over the tokens of a row that count; 0 if there are none.
pub fn masked_mean(mask: &[u8], row: Range<usize>, value: impl FnMut(usize) -> f64) -> f64 {
    let n = counted(mask, row.clone()).count().max(1) as f64;
    masked_sum(mask, row, value) / n
}

/// Adds a derivative with respect to a row's sum to the derivatives of its tokens that count. For a mean, divide by their number first.
pub fn spread(derivative: f64, mask: &[u8], row: Range<usize>, derivatives: &mut [f32]) {
    for i in counted(mask, row) {
        derivatives[i] = (f64::from(derivatives[i]) + derivative) as f32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MASK: [u8; 6] = [1, 0, 1, 0, 0, 1];

    #[test]
    fn sums_and_means_leave_masked_tokens_out() {
        let column = [1.0, 100.0, 4.0, 100.0, 100.0, 7.0];
        let rows: Vec<Range<usize>> = rows(&[0, 3, 5, 5, 6]).collect();
        assert_eq!(rows, [0..3, 3..5, 5..5, 5..6]);
        let sums: Vec<f64> = rows.iter().map(|r| masked_sum(&MASK, r.clone(), |i| column[i])).collect();
        assert_eq!(sums, [5.0, 0.0, 0.0, 7.0]);
        let means: Vec<f64> = rows.iter().map(|r| masked_mean(&MASK, r.clone(), |i| column[i])).collect();
        assert_eq!(means, [2.5, 0.0, 0.0, 7.0]);
        assert_eq!(counted(&MASK, 0..6).next_back(), Some(5));
    }

    #[test]
    fn a_spread_derivative_is_that_of_the_sum() {
        let f = |x: &[f64; 6]| masked_sum(&MASK, 0..3, |i| x[i]).powi(2) + masked_mean(&MASK, 3..6, |i| x[i]).exp();
        let at = [0.5, 1.0, -1.5, 2.0, 0.1, 0.7];
        let mut slopes = [0.0f32; 6];
        spread(2.0 * (0.5 - 1.5), &MASK, 0..3, &mut slopes);
        spread(0.7f64.exp(), &MASK, 3..6, &mut slopes);
        for i in 0..6 {
            let moved = |by: f64| {
                let mut x = at;
                x[i] += by;
                f(&x)
            };
            let difference = (moved(1e-5) - moved(-1e-5)) / 2e-5;
            assert!((f64::from(slopes[i]) - difference).abs() < 1e-6, "{slopes:?} at {i}: {difference}");
        }
        spread(1.0, &MASK, 0..3, &mut slopes);
        assert_eq!(slopes[..3], [-1.0, 0.0, -1.0]);
    }
}
