//! Updates a parameter in one fused pass of AdamW (Loshchilov and Hutter 2019).

#[cfg(feature = "cuda")]
use super::cuda;
use super::elementwise::to_vec;
use super::simd::wide;
use super::slices::{read, write};
use super::{Error, Result, on_device};
use candle_core::Tensor;
use rayon::prelude::*;

pub use super::update::{AdamWStep, Parameter};

/// Returns whether [`update`] would produce a value or moment that is not finite. Reads all four tensors and writes none.
///
/// # Errors
/// If the sizes differ or a tensor can't be read.
pub fn overflows(param: &Tensor, grad: &Tensor, m: &Tensor, v: &Tensor, s: AdamWStep) -> Result<bool> {
    let s = s.scalars();
    let (ps, gs, ms, vs) = (to_vec(param)?, to_vec(grad)?, to_vec(m)?, to_vec(v)?);
    if gs.len() != ps.len() || ms.len() != ps.len() || vs.len() != ps.len() {
        return Err(Error::Shape { op: "adamw", detail: format!("parameter {:?}, gradient {:?}", param.shape(), grad.shape()) });
    }
    let lost = |i: usize| {
        let g = gs[i] * s.grad_scale;
        let (m, v) = (ms[i] + (1.0 - s.beta1) * (g - ms[i]), s.beta2 * vs[i] + (1.0 - s.beta2) * g * g);
        let p = ps[i] * s.decay - s.step_size * m / (v.sqrt() / s.root_bias2 + s.eps);
        !(p.is_finite() && m.is_finite() && v.is_finite())
    };
    Ok((0..ps.len()).into_par_iter().any(lost))
}

/// Updates `param` and the moments `m`, `v` in place from `grad`, in PyTorch's order of operations. All four have the same shape. Also
/// writes the new values to `rounded`, the bf16 copy of the parameter that the model computes with, if given.
pub fn update(param: &Tensor, grad: &Tensor, m: &Tensor, v: &Tensor, rounded: Option<&Tensor>, s: AdamWStep) -> Result<()> {
    let n = param.elem_count();
    if grad.elem_count() != n || m.elem_count() != n || v.elem_count() != n {
        return Err(Error::Shape { op: "adamw", detail: format!("parameter {:?}, gradient {:?}", param.shape(), grad.shape()) });
    }
    let s = s.scalars();
    on_device!(param, cuda::adamw(param, grad, m, v, rounded, s));
    if rounded.is_some() {
        return Err(Error::Shape { op: "adamw", detail: "the CPU has no rounded copies: everything is f32".into() });
    }
    let (b1, b2) = (s.beta1, s.beta2);
    let grads = read(grad)?;
    let mut outcome = Ok(());
    write(param, |ps| {
        outcome = write(m, |ms| {
            let inner = write(v, |vs| {
                const CHUNK: usize = 1 << 14;
                let moments = ms.par_chunks_mut(CHUNK).zip(vs.par_chunks_mut(CHUNK));
                ps.par_chunks_mut(CHUNK).zip(grads.par_chunks(CHUNK)).zip(moments).for_each(|((ps, gs), (ms, vs))| {
                    wide!(for (((p, &g), m), v) in ps.iter_mut().zip(gs).zip(ms).zip(vs) {
                        let g = g * s.grad_scale;
                        *m += (1.0 - b1) * (g - *m);
                        *v = b2 * *v + (1.0 - b2) * g * g;
                        *p = *p * s.decay - s.step_size * *m / (v.sqrt() / s.root_bias2 + s.eps);
                    });
                });
            });
            debug_assert!(inner.is_ok());
        });
    })?;
    outcome
}
