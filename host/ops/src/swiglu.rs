//! The gated activation `silu(gate) * up` (Shazeer 2020).

#[cfg(feature = "cuda")]
use super::activation::Activation;
use super::cpu::{Shared, filled, filled_each, read, tensor};
#[cfg(feature = "cuda")]
use super::cuda;
use super::math::sigmoid;
use super::simd::wide;
use super::{Error, Result, on_device, team};
use candle_core::Tensor;
use rayon::prelude::*;
use std::mem::MaybeUninit;

const CHUNK: usize = 1 << 13;

/// Same, if the threads are awake ([`team::together`]).
const SHARED_CHUNK: usize = 1 << 10;

/// Returns `silu(gate) * up`, elementwise over equal shapes.
pub fn forward(gate: &Tensor, up: &Tensor) -> Result<Tensor> {
    on_device!(gate, cuda::activation::forward(gate, Some(up), Activation::Silu));
    let (gs, us) = (read(gate)?, read(up)?);
    if gs.len() != us.len() {
        return Err(Error::Shape { op: "swiglu", detail: format!("{:?} with {:?}", gate.shape(), up.shape()) });
    }
    // SAFETY: the parts are disjoint and cover all places.
    let out = unsafe {
        filled(gs.len(), |out| {
            let (n, out) = (out.len(), Shared::of(out));
            let size = if team::is_led() { SHARED_CHUNK } else { CHUNK };
            team::each(n.div_ceil(size), |part| {
                let places = part * size..n.min((part + 1) * size);
                let out = std::slice::from_raw_parts_mut(out.at(places.start).cast::<MaybeUninit<f32>>(), places.len());
                wide!(for ((y, &g), &u) in out.iter_mut().zip(&gs[places.clone()]).zip(&us[places]) {
                    y.write(g * sigmoid(g) * u);
                });
            });
        })
    };
    tensor(out, gate.shape())
}

/// Returns the gradients of `gate` and `up`.
pub fn backward(gate: &Tensor, up: &Tensor, dy: &Tensor) -> Result<(Tensor, Tensor)> {
    on_device!(gate, {
        let (d_gate, d_up) = cuda::activation::backward(gate, Some(up), dy, Activation::Silu)?;
        let missing = || Error::Shape { op: "swiglu backward", detail: "no gradient of the factor".into() };
        Ok((d_gate, d_up.ok_or_else(missing)?))
    });
    let (gs, us, dys) = (read(gate)?, read(up)?, read(dy)?);
    if gs.len() != us.len() || gs.len() != dys.len() {
        return Err(Error::Shape { op: "swiglu backward", detail: format!("{:?} with gradient {:?}", gate.shape(), dy.shape()) });
    }
    // SAFETY: the chunks of both cover them completely.
    let [d_gate, d_up] = unsafe {
        filled_each([gs.len(); 2], |[d_gate, d_up]| {
            let both = d_gate.par_chunks_mut(CHUNK).zip(d_up.par_chunks_mut(CHUNK));
            both.zip(gs.par_chunks(CHUNK).zip(us.par_chunks(CHUNK).zip(dys.par_chunks(CHUNK)))).for_each(
                |((dg, du), (g, (u, dy)))| {
                    wide!(for i in 0..g.len() {
                        let s = sigmoid(g[i]);
                        let silu = g[i] * s;
                        du[i].write(dy[i] * silu);
                        dg[i].write(dy[i] * u[i] * (s + silu * (1.0 - s)));
                    });
                },
            );
        })
    };
    Ok((tensor(d_gate, gate.shape())?, tensor(d_up, gate.shape())?))
}
