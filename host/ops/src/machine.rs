//! Measures a device's limits with a model's own operations, for comparison with a run's speed.

use super::simd::wide;
use super::slices::read;
use super::{Precision, Result, cast, from_vec, linear, sum_of_squares};
use candle_core::{DType, Device, Tensor};
use rayon::prelude::*;
use std::time::{Duration, Instant};

/// Time spent on each measurement, after a warm-up round.
const PATIENCE: Duration = Duration::from_millis(300);

/// Minimum duration of a measured product, so that the overhead of starting it is negligible.
const LONG_ENOUGH: Duration = Duration::from_millis(10);

/// Number of reads of memory before waiting for a device.
const PASSES: usize = 4;

/// Sizes of the square matrices that are tried.
const SMALLEST: usize = 1024;
const LARGEST: usize = 8192;

/// Returns the shortest time of a round. Other work on the machine makes rounds longer, never shorter.
fn fastest(device: &Device, mut round: impl FnMut() -> Result<()>) -> Result<Duration> {
    let mut timed = || -> Result<Duration> {
        let begun = Instant::now();
        round()?;
        device.synchronize()?;
        Ok(begun.elapsed())
    };
    timed()?;
    let (begun, mut least) = (Instant::now(), timed()?);
    while begun.elapsed() < PATIENCE {
        least = least.min(timed()?);
    }
    Ok(least)
}

/// Returns the bandwidth of reading `bytes` of f32 repeatedly, in bytes per second. Data that fits into a cache is read from the cache,
/// like weights from token to token.
pub fn read_rate(device: &Device, bytes: usize) -> Result<f64> {
    let values = (bytes / size_of::<f32>()).max(1);
    // On the CPU, zeros could all map to the same page of memory.
    let t = if device.is_cpu() { Tensor::ones(values, DType::F32, device)? } else { Tensor::zeros(values, DType::F32, device)? };
    let time = if device.is_cpu() {
        let values = read(&t)?;
        fastest(device, || {
            std::hint::black_box((0..PASSES).map(|_| sum(&values)).sum::<f32>());
            Ok(())
        })?
    } else {
        fastest(device, || sum_of_squares([&t; PASSES]).map(drop))?
    };
    Ok((PASSES * values * size_of::<f32>()) as f64 / time.as_secs_f64())
}

/// Sums values as fast as they can be read, on all threads.
fn sum(values: &[f32]) -> f32 {
    /// Number of interleaved sums: enough registers that no addition waits for another.
    const LANES: usize = 128;
    let part = |values: &[f32]| {
        let mut lanes = [0f32; LANES];
        wide!(for group in values.as_chunks::<LANES>().0 {
            lanes.iter_mut().zip(group).for_each(|(lane, x)| *lane += x);
        });
        lanes.iter().sum::<f32>()
    };
    values.par_chunks(values.len().div_ceil(rayon::current_num_threads()).max(1)).map(part).sum()
}

/// Returns a square matrix of irregular numbers from -1 to 1. With zeros, a device uses less power and is faster.
fn noise(n: usize, seed: u32, dtype: DType, device: &Device) -> Result<Tensor> {
    // Numerical Recipes' linear congruential generator; the high bits are used.
    let next = |x: &mut u32| {
        *x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (*x >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    let mut state = seed;
    cast(&from_vec((0..n * n).map(|_| next(&mut state)).collect(), (n, n), device)?, dtype)
}

/// Returns floating-point operations per second in products of square matrices, at the smallest size that keeps the device busy. On the
/// CPU, operands are rounded to `dtype`.
pub fn product_rate(device: &Device, dtype: DType) -> Result<f64> {
    let mut n = SMALLEST;
    let precision = if dtype == DType::BF16 { Precision::Bf16 } else { Precision::F32 };
    let of_inputs = if device.is_cpu() { DType::F32 } else { dtype };
    loop {
        let (x, w) = (noise(n, 1, of_inputs, device)?, noise(n, 2, dtype, device)?);
        let time = fastest(device, || linear::forward(&x, &w, None, precision).map(drop))?;
        if time >= LONG_ENOUGH || n >= LARGEST {
            return Ok(2.0 * (n as f64).powi(3) / time.as_secs_f64());
        }
        n *= 2;
    }
}
