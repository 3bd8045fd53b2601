//! Compares the plugin with independent closed forms in f64, and with numbers worked out by hand.

mod adaptive;
mod advantages;
mod closed_form;
mod losses;
mod masked_out;
mod metrics;
mod turns;

use super::*;
use rlhost_plugin_sdk::Metric;
use rlhost_plugin_sdk::policy::testing::{TestNoise, close, find_metric};
use rlhost_plugin_sdk::policy::{RewardColumn, Scale, Turns};

/// Returns a micro-batch of rows with these lengths. Some tokens are masked, with arbitrary values; the third row is fully masked, and the
/// fourth has no advantage.
fn batch(lengths: &[u32], seed: u64) -> Tokens {
    let mut noise = TestNoise(seed);
    let mut offsets = vec![0];
    let (mut mask, mut advantages) = (Vec::new(), Vec::new());
    for (row, &length) in lengths.iter().enumerate() {
        offsets.push(offsets[row] + length);
        mask.extend((0..length).map(|i| u8::from(row != 2 && (i == 0 || noise.draw() > -0.5))));
        advantages.extend(vec![if row == 3 { 0.0 } else { 1.5 * noise.draw() }; length as usize]);
    }
    let n = mask.len();
    let wild =
        |column: Vec<f32>| -> Vec<f32> { column.iter().zip(&mask).map(|(&x, &m)| if m == 0 { -40.0 } else { x }).collect() };
    let logp = noise.column(n, -1.5, 1.2);
    let near = |noise: &mut TestNoise, width: f32| -> Vec<f32> { logp.iter().map(|l| l + width * noise.draw()).collect() };
    let (old_logp, ref_logp, sampling_logp) = (near(&mut noise, 0.6), near(&mut noise, 0.7), near(&mut noise, 0.8));
    let tokens = mask.iter().filter(|&&m| m == 1).count() as u64 + 7;
    Tokens {
        step: 0,
        offsets,
        advantages,
        old_logp,
        ref_logp: Some(wild(ref_logp)),
        sampling_logp: Some(wild(sampling_logp)),
        entropy: Some(wild(noise.column(n, 1.5, 1.4))),
        logp: wild(logp.clone()),
        values: None,
        old_values: None,
        returns: None,
        scale: Scale { items: lengths.len() as u32 + 2, tokens, max_completion_length: 17, ..Scale::default() },
        mask,
    }
}

/// Splits the rows of a batch into two, with the scale of both.
fn halves(t: &Tokens, first: usize) -> [Tokens; 2] {
    let cut = t.offsets[first] as usize;
    let part = |rows: std::ops::Range<usize>, tokens: std::ops::Range<usize>| {
        let of = |column: &[f32]| column[tokens.clone()].to_vec();
        let maybe = |column: &Option<Vec<f32>>| column.as_ref().map(|c| of(c));
        Tokens {
            step: t.step,
            offsets: t.offsets[rows.start..=rows.end].iter().map(|o| o - t.offsets[rows.start]).collect(),
            mask: t.mask[tokens.clone()].to_vec(),
            advantages: of(&t.advantages),
            logp: of(&t.logp),
            old_logp: of(&t.old_logp),
            ref_logp: maybe(&t.ref_logp),
            sampling_logp: maybe(&t.sampling_logp),
            entropy: maybe(&t.entropy),
            values: None,
            old_values: None,
            returns: None,
            scale: t.scale,
        }
    };
    [part(0..first, 0..cut), part(first..t.offsets.len() - 1, cut..t.mask.len())]
}
