//! One fused pass of AdamW (Loshchilov and Hutter 2019) over a parameter.

use super::cpu::{read, write};
use super::{Error, Result};
use candle_core::Tensor;
use rayon::prelude::*;

/// The scalars of one update.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// Learning rate.
    pub lr: f64,
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// Added to the root of the second moment.
    pub eps: f64,
    /// Decoupled weight decay.
    pub weight_decay: f64,
    /// Number of this update, from 1.
    pub t: u64,
    /// Factor on the gradient (clipping).
    pub grad_scale: f32,
}

/// Updates `param` and the moments `m`, `v` in place from `grad`, in the order of operations of
/// PyTorch's AdamW. All four have the same shape.
pub fn update(param: &Tensor, grad: &Tensor, m: &Tensor, v: &Tensor, s: Step) -> Result<()> {
    let n = param.elem_count();
    if grad.elem_count() != n || m.elem_count() != n || v.elem_count() != n {
        return Err(Error::Shape { op: "adamw", detail: format!("parameter {:?}, gradient {:?}", param.shape(), grad.shape()) });
    }
    let bias1 = 1.0 - s.beta1.powf(s.t as f64);
    let bias2 = 1.0 - s.beta2.powf(s.t as f64);
    let decay = (1.0 - s.lr * s.weight_decay) as f32;
    let step_size = (s.lr / bias1) as f32;
    let root_bias2 = bias2.sqrt() as f32;
    let (b1, b2, eps) = (s.beta1 as f32, s.beta2 as f32, s.eps as f32);
    let grads = read(grad)?;
    let mut outcome = Ok(());
    write(param, |ps| {
        outcome = write(m, |ms| {
            let inner = write(v, |vs| {
                const CHUNK: usize = 1 << 14;
                let moments = ms.par_chunks_mut(CHUNK).zip(vs.par_chunks_mut(CHUNK));
                ps.par_chunks_mut(CHUNK).zip(grads.par_chunks(CHUNK)).zip(moments).for_each(|((ps, gs), (ms, vs))| {
                    for (((p, &g), m), v) in ps.iter_mut().zip(gs).zip(ms).zip(vs) {
                        let g = g * s.grad_scale;
                        *m += (1.0 - b1) * (g - *m);
                        *v = b2 * *v + (1.0 - b2) * g * g;
                        *p = *p * decay - step_size * *m / (v.sqrt() / root_bias2 + eps);
                    }
                });
            });
            debug_assert!(inner.is_ok());
        });
    })?;
    outcome
}
