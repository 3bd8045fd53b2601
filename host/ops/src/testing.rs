//! Random tensors for tests. A test draws the same values in every run, so a passing test can't fail because of its input.

use candle_core::{Device, Tensor};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use std::cell::RefCell;
use std::f64::consts::TAU;

thread_local! {
    // Every test runs on its own thread, so concurrent tests don't change its numbers.
    static NUMBERS: RefCell<ChaCha8Rng> = RefCell::new(ChaCha8Rng::seed_from_u64(0));
}

/// Draws the calling test's next `count` normally distributed numbers (Box-Muller transform).
pub(crate) fn random_values(count: usize) -> Vec<f32> {
    NUMBERS.with_borrow_mut(|rng| {
        let mut uniform = || ((rng.next_u64() >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
        let mut normal = || (-2.0 * uniform().ln()).sqrt() * (TAU * uniform()).cos();
        (0..count).map(|_| normal() as f32).collect()
    })
}

/// Draws a tensor of normal values in f32.
pub(crate) fn random(shape: &[usize]) -> Tensor {
    Tensor::from_vec(random_values(shape.iter().product()), shape, &Device::Cpu).unwrap()
}
