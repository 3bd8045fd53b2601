//! Elementwise operations, and copies of tensors.

#[cfg(feature = "cuda")]
use super::cuda;
use super::math::tanh;
use super::rounding::rounded;
use super::simd::wide;
use super::slices::{PART, filled, read, tensor, write};
use super::weight_storage::WeightValues;
use super::{Error, Result, on_device};
use candle_core::{DType, Device, Shape, Tensor};
use rayon::prelude::*;
use std::mem::MaybeUninit;

/// Creates an f32 tensor of these values.
pub fn from_vec(values: Vec<f32>, shape: impl Into<Shape>, device: &Device) -> Result<Tensor> {
    match device {
        Device::Cpu => tensor(values, shape),
        #[cfg(feature = "cuda")]
        Device::Cuda(_) => cuda::from_vec(&values, shape, device),
        _ => Ok(Tensor::from_vec(values, shape, device)?),
    }
}

/// Returns zeros with the shape, type and device of a tensor.
pub fn zeros_like(t: &Tensor) -> Result<Tensor> {
    on_device!(t, cuda::zeros_like(t));
    if t.dtype() != DType::F32 || t.elem_count() < 2 * PART {
        return Ok(t.zeros_like()?);
    }
    // SAFETY: the parts cover all of it.
    let zeros = unsafe {
        filled(t.elem_count(), |all| {
            all.par_chunks_mut(PART).for_each(|part| part.fill(MaybeUninit::new(0.0)));
        })
    };
    tensor(zeros, t.shape())
}

/// Returns a copy of the values in f32 in host memory, which later changes don't affect.
pub fn on_host(t: &Tensor) -> Result<Tensor> {
    match t.device() {
        Device::Cpu => Ok(t.copy()?),
        _ => tensor(to_vec(t)?, t.shape()),
    }
}

/// Copies the values into new storage.
pub fn copied(t: &Tensor) -> Result<Tensor> {
    on_device!(t, cuda::copy(t));
    Ok(t.copy()?)
}

/// Converts the values to another precision. Returns the same tensor if it already has that precision.
pub fn cast(t: &Tensor, dtype: DType) -> Result<Tensor> {
    on_device!(t, cuda::cast(t, dtype));
    match (t.dtype(), dtype) {
        (own, wanted) if own == wanted => Ok(t.clone()),
        (DType::F32, DType::BF16) => Ok(Tensor::from_vec(rounded(&read(t)?), t.shape(), &Device::Cpu)?),
        (DType::BF16 | DType::F16, DType::F32) => tensor(WeightValues::open(t.into())?.all(t.elem_count()), t.shape()),
        _ => Ok(t.to_dtype(dtype)?),
    }
}

/// Returns `(1 - alpha) own + alpha other` as a new tensor of the type of `own`.
pub fn interpolate(own: &Tensor, other: &Tensor, alpha: f64) -> Result<Tensor> {
    on_device!(own, cuda::interpolate(own, other, alpha));
    Ok(((own * (1.0 - alpha))? + (other * alpha)?)?)
}

/// Copies a tensor's values to a vector in f32, in row-major order.
pub fn to_vec(t: &Tensor) -> Result<Vec<f32>> {
    on_device!(t, cuda::to_vec(t));
    Ok(WeightValues::open(t.into())?.all(t.elem_count()))
}

/// Adds elementwise: `into += t`.
pub fn add_into(into: &Tensor, t: &Tensor) -> Result<()> {
    on_device!(into, cuda::add_into(into, t));
    let src = read(t)?;
    if into.elem_count() != src.len() {
        return Err(Error::Shape { op: "add_into", detail: format!("{:?} += {:?}", into.shape(), t.shape()) });
    }
    write(into, |dst| {
        dst.par_chunks_mut(PART).zip(src.par_chunks(PART)).for_each(|(d, s)| {
            wide!(for (d, s) in d.iter_mut().zip(s) {
                *d += s;
            });
        });
    })
}

/// Returns `factor * t`.
pub fn scaled(t: &Tensor, factor: f32) -> Result<Tensor> {
    on_device!(t, cuda::scaled_and_added(t, factor, 0.0));
    each(t, |x| x * factor)
}

/// Returns `t + 1`, for norms whose weights are stored as offsets from one.
pub fn plus_one(t: &Tensor) -> Result<Tensor> {
    on_device!(t, cuda::scaled_and_added(t, 1.0, 1.0));
    each(t, |x| x + 1.0)
}

/// Returns `cap * tanh(t / cap)`.
pub fn bounded_by(t: &Tensor, cap: f32) -> Result<Tensor> {
    on_device!(t, cuda::bounded_by(t, cap));
    each(t, |x| cap * tanh(x / cap))
}

fn each(t: &Tensor, f: impl Fn(f32) -> f32 + Sync) -> Result<Tensor> {
    let src = read(t)?;
    // SAFETY: the chunks cover all of it.
    let out = unsafe {
        filled(src.len(), |out| {
            out.par_chunks_mut(PART).zip(src.par_chunks(PART)).for_each(|(out, src)| {
                wide!(for (o, s) in out.iter_mut().zip(src) {
                    o.write(f(*s));
                });
            });
        })
    };
    tensor(out, t.shape())
}

/// Sets every value to zero.
pub fn fill_zero(t: &Tensor) -> Result<()> {
    on_device!(t, cuda::fill_zero(t));
    write(t, |dst| dst.par_chunks_mut(PART).for_each(|d| d.fill(0.0)))
}
