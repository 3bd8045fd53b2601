//! Random tensors for tests. A test draws the same values in every run, so that one which passes cannot fail by chance of its input.

use candle_core::{Device, Tensor};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use std::cell::RefCell;
use std::f64::consts::TAU;

thread_local! {
    // Every test has a thread of its own, so that tests which run beside it don't change what it draws.
    static NUMBERS: RefCell<ChaCha8Rng> = RefCell::new(ChaCha8Rng::seed_from_u64(0));
}

/// Draws the next `count` numbers of the calling test from the normal distribution (method of Box and Muller).
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
