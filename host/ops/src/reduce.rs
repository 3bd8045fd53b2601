//! Reductions of tensors to a number, in an order that does not depend on the number of threads.

#[cfg(feature = "cuda")]
use super::cuda;
use super::simd::wide;
use super::slices::{PART, read};
use super::weight_storage::WeightValues;
use super::{Result, on_device};
use candle_core::{DType, Tensor};
use rayon::prelude::*;

/// Returns whether no value is infinite or NaN. CPU only.
pub fn all_finite(t: &Tensor) -> Result<bool> {
    Ok(of_parts(t, |part| part.iter().all(|x| x.is_finite()))?.into_iter().all(|finite| finite))
}

/// Computes `of` for each part of a tensor's values in f32. The parts are the same with any number of threads.
fn of_parts<T: Send>(t: &Tensor, of: impl Fn(&[f32]) -> T + Sync) -> Result<Vec<T>> {
    let (values, count) = (WeightValues::open(t.into())?, t.elem_count());
    let of_part = |i: usize| of(&values.values(i * PART..count.min((i + 1) * PART)));
    Ok((0..count.div_ceil(PART)).into_par_iter().map(of_part).collect())
}

/// Returns the sum of the squares of all values of tensors on one device, in f64 and in an order that does not depend on threads.
pub fn sum_of_squares<'a>(tensors: impl IntoIterator<Item = &'a Tensor>) -> Result<f64> {
    let tensors: Vec<&Tensor> = tensors.into_iter().collect();
    #[cfg(feature = "cuda")]
    if let Some(first) = tensors.first() {
        on_device!(first, cuda::sum_of_squares(&tensors));
    }
    tensors.into_iter().try_fold(0.0, |sum, t| Ok(sum + squares(t)?))
}

pub(super) fn squares(t: &Tensor) -> Result<f64> {
    /// Number of interleaved partial sums, as many as fit into vector registers. In a single sum, each addition would wait for the previous
    /// one.
    const LANES: usize = 32;
    let src = read(t)?;
    #[inline(always)]
    fn add(lanes: &mut [f64; LANES], group: &[f32]) {
        for (lane, &x) in lanes.iter_mut().zip(group) {
            *lane = f64::from(x).mul_add(f64::from(x), *lane);
        }
    }
    let part = |c: &[f32]| -> f64 {
        let mut lanes = [0f64; LANES];
        let (whole, rest) = c.as_chunks::<LANES>();
        wide!({
            for group in whole {
                add(&mut lanes, group);
            }
            add(&mut lanes, rest);
        });
        lanes.iter().sum()
    };
    let parts: Vec<f64> = src.par_chunks(1 << 13).map(part).collect();
    Ok(parts.iter().sum())
}

/// Returns a checksum that almost surely differs if any bit of a value does. A device's checksum differs from the CPU's.
pub fn checksum(t: &Tensor) -> Result<u64> {
    on_device!(t, cuda::checksum(t));
    const ODD: u64 = 0x9E37_79B9_7F4A_7C15;
    let mix = |sum: u64, x: u64| (sum.rotate_left(5) ^ x).wrapping_mul(ODD);
    // Codes are summed too, as numbers.
    let codes = if t.dtype() == DType::U8 { t.to_dtype(DType::F32)? } else { t.clone() };
    let parts = of_parts(&codes, |part| part.iter().fold(0, |sum, x| mix(sum, u64::from(x.to_bits()))))?;
    Ok(parts.into_iter().fold(0, mix))
}
