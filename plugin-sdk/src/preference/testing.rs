//! Synthetic pairs and a check of gradients, for an algorithm's own tests.

use super::{PairPrompts, PairSide, PreferenceGradient, PreferencePairs, Scale};
use crate::policy::testing::TestNoise;
use std::ops::Range;

fn side(noise: &mut TestNoise, lengths: &[u32]) -> PairSide {
    let mut offsets = vec![0];
    lengths.iter().for_each(|n| offsets.push(offsets[offsets.len() - 1] + n));
    let logp: Vec<f32> = (0..lengths.iter().sum()).map(|_| -3.0 * noise.unit()).collect();
    let ref_logp = Some(logp.iter().map(|l| l + 4.0 * noise.unit() - 2.0).collect());
    let mean_logits = Some(logp.iter().map(|_| noise.unit()).collect());
    PairSide { offsets, logp, ref_logp, mean_logits, log_sum_squares: None }
}

/// Returns five pairs of unequal lengths with reference log-probabilities and logits: a micro-batch of a step with seven pairs, whose
/// chosen completions have 31 tokens.
#[must_use]
pub fn pairs(seed: u64) -> PreferencePairs {
    let mut noise = TestNoise(seed);
    let (chosen, rejected) = (side(&mut noise, &[4, 1, 3, 6, 2]), side(&mut noise, &[2, 5, 3, 1, 4]));
    PreferencePairs { chosen, rejected, scale: Scale { items: 7, tokens: 31, ..Scale::default() }, ..PreferencePairs::default() }
}

/// Returns some of the pairs, as a smaller micro-batch of the same step.
#[must_use]
pub fn part(pairs: &PreferencePairs, rows: Range<usize>) -> PreferencePairs {
    let side = |side: &PairSide| {
        let offsets = &side.offsets[rows.start..=rows.end];
        let tokens = offsets[0] as usize..offsets[offsets.len() - 1] as usize;
        let cut = |values: &Option<Vec<f32>>| values.as_ref().map(|v| v[tokens.clone()].to_vec());
        PairSide {
            offsets: offsets.iter().map(|o| o - offsets[0]).collect(),
            logp: side.logp[tokens.clone()].to_vec(),
            ref_logp: cut(&side.ref_logp),
            mean_logits: cut(&side.mean_logits),
            log_sum_squares: cut(&side.log_sum_squares),
        }
    };
    let prompts = pairs.prompts.as_ref().map(|prompts| {
        let offsets = &prompts.offsets[rows.start..=rows.end];
        let logp = prompts.logp[offsets[0] as usize..offsets[offsets.len() - 1] as usize].to_vec();
        PairPrompts { offsets: offsets.iter().map(|o| o - offsets[0]).collect(), logp }
    });
    PreferencePairs { chosen: side(&pairs.chosen), rejected: side(&pairs.rejected), prompts, ..pairs.clone() }
}

/// Computes a loss for the pairs of [`pairs`] in micro-batches of two, one and two, and combines the results.
pub fn in_parts(pairs: &PreferencePairs, mut loss: impl FnMut(&PreferencePairs) -> PreferenceGradient) -> PreferenceGradient {
    let mut sum = PreferenceGradient::default();
    for rows in [0..2, 2..3, 3..5] {
        let given = loss(&part(pairs, rows));
        sum.loss += given.loss;
        sum.d_chosen.extend(given.d_chosen);
        sum.d_rejected.extend(given.d_rejected);
    }
    sum
}

/// Compares a gradient with an independent implementation of the loss, a function of the log-probabilities of all chosen and all rejected
/// tokens: its value and, by central differences, each derivative, to 1e-5 relative.
///
/// # Panics
/// If they differ.
pub fn assert_follows(got: &PreferenceGradient, pairs: &PreferencePairs, what: &str, wanted: impl Fn(&[f64], &[f64]) -> f64) {
    let close = |got: f64, want: f64, where_: &str| {
        assert!((got - want).abs() <= 1e-5 * want.abs() + 1e-9, "{what}: {where_}: {got} against {want}");
    };
    let wide = |values: &[f32]| -> Vec<f64> { values.iter().map(|&v| f64::from(v)).collect() };
    let (chosen, rejected) = (wide(&pairs.chosen.logp), wide(&pairs.rejected.logp));
    close(got.loss, wanted(&chosen, &rejected), "loss");
    let h = 1e-5;
    let moved = |at: &[f64], i: usize, by: f64| [&at[..i], &[at[i] + by], &at[i + 1..]].concat();
    assert_eq!((got.d_chosen.len(), got.d_rejected.len()), (chosen.len(), rejected.len()), "{what}");
    for (i, &slope) in got.d_chosen.iter().enumerate() {
        let at = |by: f64| wanted(&moved(&chosen, i, by), &rejected);
        close(f64::from(slope), (at(h) - at(-h)) / (2.0 * h), &format!("chosen token {i}"));
    }
    for (i, &slope) in got.d_rejected.iter().enumerate() {
        let at = |by: f64| wanted(&chosen, &moved(&rejected, i, by));
        close(f64::from(slope), (at(h) - at(-h)) / (2.0 * h), &format!("rejected token {i}"));
    }
}
