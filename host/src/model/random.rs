//! Creates models with random weights, to be trained from scratch.

use super::architecture::NormKind;
use super::{Architecture, Error, Result, Weights};
use candle_core::{Device, Tensor};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use serde_json::Value;
use std::path::Path;

/// The usual standard deviation of new weights, which transformers calls `initializer_range`.
pub(super) const DEVIATION: f64 = 0.02;

/// Returns a source of normally distributed numbers.
pub(super) fn normal(seed: u64, deviation: f64) -> impl FnMut() -> f64 {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut uniform = move || ((rng.next_u64() >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
    // Box and Muller.
    move || deviation * (-2.0 * uniform().ln()).sqrt() * (std::f64::consts::TAU * uniform()).cos()
}

/// Draws weights from a normal distribution with the usual deviation; norms are one and biases zero.
pub fn random_weights(a: &Architecture, seed: u64) -> Result<Weights> {
    let mut normal = normal(seed, DEVIATION);
    Weights::build(a, |name, shape| {
        let n = shape.iter().product();
        let mut values: Vec<f32> = Vec::new();
        if values.try_reserve_exact(n).is_err() {
            let detail = format!("not enough memory for {name} of shape {shape:?}; use smaller sizes");
            return Err(Error::Config { path: "config.json".into(), detail });
        }
        // A norm's weight that counts from one is no bias, and begins as one.
        if name.ends_with(".bias") || shape.len() == 1 && a.norm == NormKind::RmsFromOne {
            values.resize(n, 0.0);
        } else if shape.len() == 1 {
            values.resize(n, 1.0);
        } else {
            values.extend((0..n).map(|_| normal() as f32));
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
    std::fs::write(&path, text).map_err(|source| Error::Io { path, source })?;
    super::save::write_weights(&weights, &folder.join("model.safetensors"))?;
    Ok(weights.parameters())
}
