//! Activation of an MLP between its gate and up projections and its down projection: `f(gate) * up` (Shazeer 2020, arXiv 2002.05202), or
//! `f(gate)` alone. Inputs are read in f32 or, as a layer may store them, in bf16.

#[cfg(feature = "cuda")]
use super::cuda;
use super::elementwise::{cast, from_vec, to_vec};
use super::math::{exp, normal_below, sigmoid, tanh};
use super::rounding::FloatElement;
use super::simd::wide;
use super::slices::{SharedPointer, filled, filled_each, read, read_as, tensor_of, write};
use super::{Capability, Error, Result, on_device, team};
use candle_core::{DType, Tensor};
use half::bf16;
use rayon::prelude::*;
use std::mem::MaybeUninit;

/// Number of values per task.
const CHUNK: usize = 1 << 13;

/// Number of values per task if the threads are spinning ([`team::with_team`]).
const SHARED_CHUNK: usize = 1 << 10;

/// The function `f`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Activation {
    /// `x * sigmoid(x)`.
    Silu,
    /// `x` times the probability that a standard normal variable is below it (Hendrycks and Gimpel 2016, arXiv 1606.08415).
    Gelu,
    /// GELU with the normal probability approximated by a hyperbolic tangent.
    GeluTanh,
    /// The square of the positive part (So et al. 2021, arXiv 2109.08668).
    SquaredRelu,
    /// `x * sigmoid(alpha * x)` of `min(gate, limit)`, times one plus the up projection, which is clamped to the limit (gpt-oss).
    Clamped {
        /// Factor within the logistic function.
        alpha: f32,
        /// Maximum gate, and maximum magnitude of the up projection.
        limit: f32,
    },
}

#[cfg(feature = "cuda")]
impl Activation {
    /// Returns the prefix of the names of the activation's kernels on a device.
    pub(super) fn kernel(self) -> &'static str {
        match self {
            Self::Silu => "silu",
            Self::Gelu => "gelu",
            Self::GeluTanh => "gelu_tanh",
            // Rejected before these names are used.
            Self::SquaredRelu => "squared_relu",
            Self::Clamped { .. } => "clamped",
        }
    }
}

/// Returns the function's value and slope.
#[inline(always)]
fn silu(x: f32) -> (f32, f32) {
    let s = sigmoid(x);
    (x * s, s + x * s * (1.0 - s))
}

#[inline(always)]
fn gelu(x: f32) -> (f32, f32) {
    const DENSITY_AT_ZERO: f32 = 0.398_942_3;
    let below = normal_below(x);
    (x * below, below + x * DENSITY_AT_ZERO * exp(-0.5 * x * x))
}

#[inline(always)]
fn gelu_tanh(x: f32) -> (f32, f32) {
    const ROOT: f32 = 0.797_884_6;
    const CUBIC: f32 = 0.044_715;
    let t = tanh(ROOT * (x + CUBIC * x * x * x));
    let slope = ROOT * (1.0 + 3.0 * CUBIC * x * x);
    (0.5 * x * (1.0 + t), 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * slope)
}

#[inline(always)]
fn squared_relu(x: f32) -> (f32, f32) {
    let positive = x.max(0.0);
    (positive * positive, 2.0 * positive)
}

#[inline(always)]
fn clamped(x: f32, alpha: f32, limit: f32) -> (f32, f32) {
    let (gate, s) = (x.min(limit), sigmoid(alpha * x.min(limit)));
    (gate * s, if x > limit { 0.0 } else { s + alpha * gate * s * (1.0 - s) })
}

/// Returns the gates in f32, and one plus each up value after that is clamped to the limit.
fn within(gate: &Tensor, up: Option<&Tensor>, limit: f32) -> Result<(Tensor, Tensor)> {
    Capability::ExpertBiases.require(gate)?;
    let up = up.ok_or_else(|| Error::Shape { op: "activation", detail: "a clamped gate without its factor".into() })?;
    let factors = to_vec(up)?.into_iter().map(|u| u.clamp(-limit, limit) + 1.0).collect();
    Ok((cast(gate, DType::F32)?, from_vec(factors, up.shape(), up.device())?))
}

/// Returns `f(gate) * up`, elementwise over equal shapes, or `f(gate)`. On the CPU, the result is in f32 or, if `rounds`, in bf16.
pub fn forward(gate: &Tensor, up: Option<&Tensor>, f: Activation, rounds: bool) -> Result<Tensor> {
    if let Activation::Clamped { alpha, limit } = f {
        let (gate, factor) = within(gate, up, limit)?;
        return forward_by(&gate, Some(&factor), |x| clamped(x, alpha, limit), rounds);
    }
    if f == Activation::SquaredRelu {
        Capability::SquaredRelu.require(gate)?;
    }
    on_device!(gate, cuda::activation::forward(gate, up, f.kernel()));
    match f {
        Activation::Silu | Activation::Clamped { .. } => forward_by(gate, up, silu, rounds),
        Activation::Gelu => forward_by(gate, up, gelu, rounds),
        Activation::GeluTanh => forward_by(gate, up, gelu_tanh, rounds),
        Activation::SquaredRelu => forward_by(gate, up, squared_relu, rounds),
    }
}

/// Returns the gradients of `gate` and `up`, given that of the result in f32. On the CPU, they are in f32 or, if `rounds`, in bf16.
pub fn backward(
    gate: &Tensor,
    up: Option<&Tensor>,
    dy: &Tensor,
    f: Activation,
    rounds: bool,
) -> Result<(Tensor, Option<Tensor>)> {
    if let Activation::Clamped { alpha, limit } = f {
        let (gate, factor) = within(gate, up, limit)?;
        let (d_gate, d_factor) =
            backward_by(&gate, Some(&factor), dy, |x| clamped(x, alpha, limit), |dy, u, slope| dy * u * slope, false)?;
        let to = if rounds { DType::BF16 } else { DType::F32 };
        if let (Some(d_factor), Some(up)) = (&d_factor, up) {
            let up = to_vec(up)?;
            write(d_factor, |d| d.iter_mut().zip(&up).filter(|(_, u)| u.abs() > limit).for_each(|(d, _)| *d = 0.0))?;
        }
        return Ok((cast(&d_gate, to)?, d_factor.map(|d| cast(&d, to)).transpose()?));
    }
    if f == Activation::SquaredRelu {
        Capability::SquaredRelu.require(gate)?;
    }
    on_device!(gate, cuda::activation::backward(gate, up, dy, f.kernel()));
    match f {
        // The order of the factors is fixed, so that runs stay bit-identical across versions.
        Activation::Silu | Activation::Clamped { .. } => backward_by(gate, up, dy, silu, |dy, u, slope| dy * u * slope, rounds),
        Activation::Gelu => backward_by(gate, up, dy, gelu, |dy, u, slope| dy * slope * u, rounds),
        Activation::GeluTanh => backward_by(gate, up, dy, gelu_tanh, |dy, u, slope| dy * slope * u, rounds),
        Activation::SquaredRelu => backward_by(gate, up, dy, squared_relu, |dy, u, slope| dy * slope * u, rounds),
    }
}

fn same_sizes(op: &'static str, gate: &Tensor, others: &[Option<&Tensor>]) -> Result<()> {
    match others.iter().flatten().find(|other| other.elem_count() != gate.elem_count()) {
        None => Ok(()),
        Some(other) => Err(Error::Shape { op, detail: format!("{:?} with {:?}", gate.shape(), other.shape()) }),
    }
}

fn forward_by(gate: &Tensor, up: Option<&Tensor>, f: impl Fn(f32) -> (f32, f32) + Sync, rounds: bool) -> Result<Tensor> {
    same_sizes("activation", gate, &[up])?;
    match (gate.dtype() == DType::BF16, rounds) {
        (false, false) => values::<f32, f32>(gate, up, f),
        (false, true) => values::<f32, bf16>(gate, up, f),
        (true, false) => values::<bf16, f32>(gate, up, f),
        (true, true) => values::<bf16, bf16>(gate, up, f),
    }
}

fn values<I: FloatElement, O: FloatElement>(
    gate: &Tensor,
    up: Option<&Tensor>,
    f: impl Fn(f32) -> (f32, f32) + Sync,
) -> Result<Tensor> {
    let (gs, us) = (read_as::<I>(gate)?, up.map(read_as::<I>).transpose()?);
    // SAFETY: the parts are disjoint and cover all places.
    let out = unsafe {
        filled::<O>(gs.len(), |out| {
            let (n, out) = (out.len(), SharedPointer::from_uninit(out));
            let size = if team::is_leader() { SHARED_CHUNK } else { CHUNK };
            team::for_each_part(n.div_ceil(size), |part| {
                let places = part * size..n.min((part + 1) * size);
                let out = std::slice::from_raw_parts_mut(out.at(places.start).cast::<MaybeUninit<O>>(), places.len());
                let gs = &gs[places.clone()];
                match &us {
                    None => wide!(for (y, g) in out.iter_mut().zip(gs) {
                        y.write(O::nearest(f(g.in_f32()).0));
                    }),
                    Some(us) => wide!(for ((y, g), u) in out.iter_mut().zip(gs).zip(&us[places]) {
                        y.write(O::nearest(f(g.in_f32()).0 * u.in_f32()));
                    }),
                }
            });
        })
    };
    tensor_of(out, gate.shape())
}

fn backward_by(
    gate: &Tensor,
    up: Option<&Tensor>,
    dy: &Tensor,
    f: impl Fn(f32) -> (f32, f32) + Sync,
    of_gate: impl Fn(f32, f32, f32) -> f32 + Sync,
    rounds: bool,
) -> Result<(Tensor, Option<Tensor>)> {
    same_sizes("activation backward", gate, &[up, Some(dy)])?;
    match (gate.dtype() == DType::BF16, rounds) {
        (false, false) => gradients::<f32, f32>(gate, up, dy, f, of_gate),
        (false, true) => gradients::<f32, bf16>(gate, up, dy, f, of_gate),
        (true, false) => gradients::<bf16, f32>(gate, up, dy, f, of_gate),
        (true, true) => gradients::<bf16, bf16>(gate, up, dy, f, of_gate),
    }
}

fn gradients<I: FloatElement, O: FloatElement>(
    gate: &Tensor,
    up: Option<&Tensor>,
    dy: &Tensor,
    f: impl Fn(f32) -> (f32, f32) + Sync,
    of_gate: impl Fn(f32, f32, f32) -> f32 + Sync,
) -> Result<(Tensor, Option<Tensor>)> {
    let (gs, dys) = (read_as::<I>(gate)?, read(dy)?);
    let parts = gs.par_chunks(CHUNK).zip(dys.par_chunks(CHUNK));
    let Some(up) = up else {
        // SAFETY: the chunks cover all of it.
        let d_gate: Vec<O> = unsafe {
            filled(gs.len(), |d_gate| {
                d_gate.par_chunks_mut(CHUNK).zip(parts).for_each(|(dg, (g, dy))| {
                    wide!(for ((dg, g), dy) in dg.iter_mut().zip(g).zip(dy) {
                        dg.write(O::nearest(dy * f(g.in_f32()).1));
                    });
                });
            })
        };
        return Ok((tensor_of(d_gate, gate.shape())?, None));
    };
    let us = read_as::<I>(up)?;
    // SAFETY: the chunks of both cover them completely.
    let [d_gate, d_up]: [Vec<O>; 2] = unsafe {
        filled_each([gs.len(); 2], |[d_gate, d_up]| {
            let both = d_gate.par_chunks_mut(CHUNK).zip(d_up.par_chunks_mut(CHUNK));
            both.zip(parts.zip(us.par_chunks(CHUNK))).for_each(|((dg, du), ((g, dy), u))| {
                wide!(for (((dg, du), (g, u)), dy) in dg.iter_mut().zip(du).zip(g.iter().zip(u)).zip(dy) {
                    let (value, slope) = f(g.in_f32());
                    du.write(O::nearest(dy * value));
                    dg.write(O::nearest(of_gate(*dy, u.in_f32(), slope)));
                });
            });
        })
    };
    Ok((tensor_of(d_gate, gate.shape())?, Some(tensor_of(d_up, gate.shape())?)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Device;

    #[test]
    fn values_and_slopes_are_those_of_the_definitions() {
        // Computed by hand from tables of the normal distribution: x * P(Z < x).
        for (x, want) in [(-2.0f32, -2.0 * 0.022_750_13), (-0.5, -0.5 * 0.308_537_54), (0.0, 0.0), (1.0, 0.841_344_8)] {
            assert!((gelu(x).0 - want).abs() < 2e-7, "gelu({x}) = {}", gelu(x).0);
            assert!((gelu_tanh(x).0 - want).abs() < 5e-4, "an approximation of it");
        }
        let exact = |x: f64| 0.5 * x * (1.0 + (0.797_884_560_802_865_4 * (x + 0.044_715 * x * x * x)).tanh());
        for f in [silu, gelu, gelu_tanh] {
            for i in -40..40 {
                let x = i as f32 * 0.2;
                let slope = (f64::from(f(x + 1e-2).0) - f64::from(f(x - 1e-2).0)) / 2e-2;
                assert!((slope - f64::from(f(x).1)).abs() < 1e-4, "{x}: {slope} and {}", f(x).1);
                assert!((f64::from(gelu_tanh(x).0) - exact(f64::from(x))).abs() < 1e-6 * (1.0 + f64::from(x).abs()));
            }
        }
    }

    #[test]
    fn a_gate_multiplies_and_both_parts_have_gradients() {
        let t = |values: &[f32]| Tensor::from_slice(values, values.len(), &Device::Cpu).unwrap();
        let (gate, up, dy) = (t(&[0.3, -1.2]), t(&[2.0, -0.5]), t(&[1.0, 4.0]));
        let y = forward(&gate, Some(&up), Activation::Gelu, false).unwrap().to_vec1::<f32>().unwrap();
        assert_eq!(y, [gelu(0.3).0 * 2.0, gelu(-1.2).0 * -0.5]);
        let (d_gate, d_up) = backward(&gate, Some(&up), &dy, Activation::Gelu, false).unwrap();
        assert_eq!(d_gate.to_vec1::<f32>().unwrap(), [gelu(0.3).1 * 2.0, 4.0 * gelu(-1.2).1 * -0.5]);
        assert_eq!(d_up.unwrap().to_vec1::<f32>().unwrap(), [gelu(0.3).0, 4.0 * gelu(-1.2).0]);
        assert!(backward(&gate, None, &dy, Activation::Gelu, false).unwrap().1.is_none());
        assert!(forward(&gate, Some(&t(&[1.0])), Activation::GeluTanh, false).is_err());
    }

    #[test]
    fn a_clamped_gate_and_its_factor_stop_at_the_limit() {
        let t = |values: &[f32]| Tensor::from_slice(values, values.len(), &Device::Cpu).unwrap();
        let (gates, ups) = ([0.5f32, 9.0, -9.0, 2.0, -1.0], [1.0f32, -8.0, 0.5, 8.0, 2.5]);
        let f = Activation::Clamped { alpha: 1.702, limit: 7.0 };
        let of = |g: f64, u: f64| {
            let g = g.min(7.0);
            g / (1.0 + (-1.702 * g).exp()) * (u.clamp(-7.0, 7.0) + 1.0)
        };
        let y = forward(&t(&gates), Some(&t(&ups)), f, false).unwrap().to_vec1::<f32>().unwrap();
        let dy = t(&[1.0, 2.0, -1.0, 0.5, 3.0]);
        let (d_gate, d_up) = backward(&t(&gates), Some(&t(&ups)), &dy, f, false).unwrap();
        let [d_gate, d_up, dy] = [d_gate, d_up.unwrap(), dy].map(|t| t.to_vec1::<f32>().unwrap());
        for i in 0..gates.len() {
            let (g, u, h) = (f64::from(gates[i]), f64::from(ups[i]), 1e-4);
            assert!((f64::from(y[i]) - of(g, u)).abs() < 1e-5 * (1.0 + of(g, u).abs()), "{i}");
            let slope_g = (of(g + h, u) - of(g - h, u)) / (2.0 * h) * f64::from(dy[i]);
            let slope_u = (of(g, u + h) - of(g, u - h)) / (2.0 * h) * f64::from(dy[i]);
            assert!((f64::from(d_gate[i]) - slope_g).abs() < 1e-4 * (1.0 + slope_g.abs()), "{i}: {} {slope_g}", d_gate[i]);
            assert!((f64::from(d_up[i]) - slope_u).abs() < 1e-4 * (1.0 + slope_u.abs()), "{i}: {} {slope_u}", d_up[i]);
        }
        assert!(forward(&t(&gates), None, f, false).is_err());
    }

    #[test]
    fn values_in_bf16_are_read_exactly_and_written_rounded() {
        let n = CHUNK + 37;
        let values = |step: usize| (0..n).map(|i| ((i * step) % 1009) as f32 / 200.0 - 2.5).collect::<Vec<f32>>();
        let of = |values: Vec<f32>| Tensor::from_vec(values, n, &Device::Cpu).unwrap();
        let cast = |t: &Tensor, dtype| crate::cast(t, dtype).unwrap();
        let halves = |t: &Tensor| (cast(t, DType::BF16), cast(&cast(t, DType::BF16), DType::F32));
        let ((gate, wide_gate), (up, wide_up), dy) = (halves(&of(values(7))), halves(&of(values(11))), of(values(13)));
        let same = |got: &Tensor, want: &Tensor| {
            assert_eq!(got.dtype(), DType::BF16);
            assert_eq!(crate::to_vec(got).unwrap(), crate::to_vec(&cast(want, DType::BF16)).unwrap());
        };
        assert_eq!((squared_relu(-3.0), squared_relu(1.5)), ((0.0, 0.0), (2.25, 3.0)));
        for f in [Activation::Silu, Activation::Gelu, Activation::GeluTanh, Activation::SquaredRelu] {
            for (up, wide_up) in [(None, None), (Some(&up), Some(&wide_up))] {
                let want = forward(&wide_gate, wide_up, f, false).unwrap();
                same(&forward(&wide_gate, wide_up, f, true).unwrap(), &want);
                same(&forward(&gate, up, f, true).unwrap(), &want);
                assert_eq!(crate::to_vec(&forward(&gate, up, f, false).unwrap()).unwrap(), crate::to_vec(&want).unwrap());
                let (want, want_up) = backward(&wide_gate, wide_up, &dy, f, false).unwrap();
                let (got, got_up) = backward(&gate, up, &dy, f, true).unwrap();
                same(&got, &want);
                want_up.iter().zip(&got_up).for_each(|(want, got)| same(got, want));
            }
        }
    }
}
