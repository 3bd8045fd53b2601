//! Creates models with random weights, to be trained from scratch.

use super::switches::NormKind;
use super::{Architecture, Error, Result, Weights};
use crate::activity::{Activity, ProgressTask, ProgressUnit};
use candle_core::{Device, Tensor};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use rayon::prelude::*;
use serde_json::Value;
use std::path::Path;

/// Standard deviation of new weights in transformers (`initializer_range`).
pub(super) const DEVIATION: f64 = 0.02;

/// Minimum of new decay rates.
const SLOWEST: f32 = 0.01;
const FASTEST: f32 = 16.0;

/// A sequence of normally distributed numbers.
#[derive(Clone)]
pub(super) struct NormalSampler {
    rng: ChaCha8Rng,
    deviation: f64,
}

/// Number of values that a thread draws at a time.
const AT_ONCE: usize = 1 << 16;

/// Number of 32-bit words of the generator per value.
const WORDS: u128 = 4;

impl NormalSampler {
    pub fn new(seed: u64, deviation: f64) -> Self {
        Self { rng: ChaCha8Rng::seed_from_u64(seed), deviation }
    }

    /// Sets all values to the next numbers.
    pub fn fill(&mut self, values: &mut [f32]) {
        self.fill_counted(values, |_| {});
    }

    /// Fills values like [`NormalSampler::fill`], and calls `count` with each number of values set.
    fn fill_counted(&mut self, values: &mut [f32], count: impl Fn(usize) + Sync) {
        let begin = self.rng.get_word_pos();
        values.par_chunks_mut(AT_ONCE).enumerate().for_each(|(chunk, values)| {
            let mut own = self.clone();
            own.rng.set_word_pos(begin + WORDS * (chunk * AT_ONCE) as u128);
            values.iter_mut().for_each(|value| *value = own.draw() as f32);
            count(values.len());
        });
        self.rng.set_word_pos(begin + WORDS * values.len() as u128);
    }

    /// Draws a value by the Box-Muller transform.
    fn draw(&mut self) -> f64 {
        let mut uniform = || ((self.rng.next_u64() >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
        self.deviation * (-2.0 * uniform().ln()).sqrt() * (std::f64::consts::TAU * uniform()).cos()
    }
}

/// Draws weights from a normal distribution with the usual deviation; norms are one and biases zero. In recurrent networks,
/// `dt_bias` is one. Decay rates of gated delta networks are spread evenly over the range from which transformers draws them; those of state
/// spaces are the numbers of their heads, as there.
pub fn random_weights(a: &Architecture, seed: u64) -> Result<Weights> {
    let mut normal = NormalSampler::new(seed, DEVIATION);
    let numbers: usize = a.parameters().iter().map(|(_, shape)| shape.iter().product::<usize>()).sum();
    let task = ProgressTask::new(Activity::DrawingWeights).with_total((numbers * size_of::<f32>()) as u64, ProgressUnit::Bytes);
    let count = |numbers: usize| task.add((numbers * size_of::<f32>()) as u64);
    Weights::build(a, |name, shape| {
        let n = shape.iter().product();
        let mut values: Vec<f32> = Vec::new();
        if values.try_reserve_exact(n).is_err() {
            let detail = format!("not enough memory for {name} of shape {shape:?}; use smaller sizes");
            return Err(Error::Config { path: "config.json".into(), detail });
        }
        // Parameters that don't start at zero: `.dt_bias` is not a bias, and this norm's weight is not stored as an offset from one.
        let of_network = [".dt_bias", ".A_log", ".linear_attn.norm.weight"].iter().any(|end| name.ends_with(end));
        let from_one = shape.len() == 1 && a.norm == NormKind::RmsFromOne && !of_network;
        let is_bias = name.ends_with("bias") && !of_network;
        let is_zero = is_bias || name.ends_with(".sinks") || from_one;
        values.resize(n, if shape.len() == 1 && !is_zero { 1.0 } else { 0.0 });
        if name.ends_with(".A_log") {
            let rate = |i: usize| match name.ends_with(".mamba.A_log") || name.ends_with(".mixer.A_log") {
                true => (i + 1) as f32,
                false => SLOWEST + (FASTEST - SLOWEST) * (i as f32 + 0.5) / n as f32,
            };
            values.iter_mut().enumerate().for_each(|(i, value)| *value = rate(i).ln());
        }
        if shape.len() > 1 && !is_zero {
            normal.fill_counted(&mut values, count);
        } else {
            count(n);
        }
        Ok(Tensor::from_vec(values, shape, &Device::Cpu)?)
    })
}

/// Writes `config.json` and a random `model.safetensors` into the existing folder; returns the number of parameters.
pub fn write_random(config: &Value, folder: &Path, seed: u64) -> Result<usize> {
    let path = folder.join("config.json");
    let text = format!("{config:#}\n");
    let architecture = Architecture::parse(&text).map_err(|detail| Error::Config { path: path.clone(), detail })?;
    let weights = random_weights(&architecture, seed)?;
    std::fs::write(&path, text).map_err(|source| Error::Write { path, source })?;
    let _task = ProgressTask::new(Activity::WritingModel);
    super::write::write_weights(&weights, &folder.join("model.safetensors"))?;
    Ok(weights.parameters())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn threads_draw_the_numbers_of_one_sequence() {
        let mut one = NormalSampler::new(7, 0.02);
        let want: Vec<f32> = (0..3 * AT_ONCE + 5).map(|_| one.draw() as f32).collect();
        let (mut all, mut got) = (NormalSampler::new(7, 0.02), vec![0.0; want.len()]);
        let (first, rest) = got.split_at_mut(AT_ONCE + 3);
        all.fill(first);
        let counted = AtomicUsize::new(0);
        all.fill_counted(rest, |numbers| {
            counted.fetch_add(numbers, Ordering::Relaxed);
        });
        assert_eq!(counted.into_inner(), 2 * AT_ONCE + 2);
        assert_eq!(got, want);
        let mean_square = want.iter().map(|x| f64::from(x * x)).sum::<f64>() / want.len() as f64;
        assert!((mean_square.sqrt() / 0.02 - 1.0).abs() < 0.01, "{mean_square}");
    }
}
