//! The activation of a layer's MLP between its wide products and its down projection: `f(gate) * up`, or `f(gate)` alone. SiLU
//! with a gate is [`swiglu`].

use super::cpu::{filled, read, tensor};
#[cfg(feature = "cuda")]
use super::cuda;
use super::math::{exp, normal_below, sigmoid, tanh};
use super::simd::wide;
use super::{Error, Result, on_device, swiglu};
use candle_core::Tensor;
use rayon::prelude::*;

const CHUNK: usize = 1 << 13;

/// The function `f`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// `x * sigmoid(x)`
    Silu,
    /// `x` times the probability that a standard normal variable is below it (Hendrycks and Gimpel 2016, arXiv 1606.08415).
    Gelu,
    /// The same with that probability approximated by a hyperbolic tangent.
    GeluTanh,
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

/// Returns `f(gate) * up`, elementwise over equal shapes, or `f(gate)`.
pub fn forward(gate: &Tensor, up: Option<&Tensor>, f: Activation) -> Result<Tensor> {
    on_device!(gate, cuda::activation::forward(gate, up, f));
    match (f, up) {
        (Activation::Silu, Some(up)) => swiglu::forward(gate, up),
        (Activation::Silu, None) => forward_by(gate, up, silu),
        (Activation::Gelu, _) => forward_by(gate, up, gelu),
        (Activation::GeluTanh, _) => forward_by(gate, up, gelu_tanh),
    }
}

/// Returns the gradients of `gate` and `up`.
pub fn backward(gate: &Tensor, up: Option<&Tensor>, dy: &Tensor, f: Activation) -> Result<(Tensor, Option<Tensor>)> {
    on_device!(gate, cuda::activation::backward(gate, up, dy, f));
    match (f, up) {
        (Activation::Silu, Some(up)) => swiglu::backward(gate, up, dy).map(|(d_gate, d_up)| (d_gate, Some(d_up))),
        (Activation::Silu, None) => backward_by(gate, up, dy, silu),
        (Activation::Gelu, _) => backward_by(gate, up, dy, gelu),
        (Activation::GeluTanh, _) => backward_by(gate, up, dy, gelu_tanh),
    }
}

fn same_sizes(op: &'static str, gate: &Tensor, others: &[Option<&Tensor>]) -> Result<()> {
    match others.iter().flatten().find(|other| other.elem_count() != gate.elem_count()) {
        None => Ok(()),
        Some(other) => Err(Error::Shape { op, detail: format!("{:?} with {:?}", gate.shape(), other.shape()) }),
    }
}

fn forward_by(gate: &Tensor, up: Option<&Tensor>, f: impl Fn(f32) -> (f32, f32) + Sync) -> Result<Tensor> {
    same_sizes("activation", gate, &[up])?;
    let (gs, us) = (read(gate)?, up.map(read).transpose()?);
    // SAFETY: the chunks cover all of it.
    let out = unsafe {
        filled(gs.len(), |out| {
            out.par_chunks_mut(CHUNK).zip(gs.par_chunks(CHUNK)).enumerate().for_each(|(i, (out, gs))| match &us {
                None => wide!(for (y, &g) in out.iter_mut().zip(gs) {
                    y.write(f(g).0);
                }),
                Some(us) => wide!(for ((y, &g), &u) in out.iter_mut().zip(gs).zip(&us[i * CHUNK..]) {
                    y.write(f(g).0 * u);
                }),
            });
        })
    };
    tensor(out, gate.shape())
}

fn backward_by(
    gate: &Tensor,
    up: Option<&Tensor>,
    dy: &Tensor,
    f: impl Fn(f32) -> (f32, f32) + Sync,
) -> Result<(Tensor, Option<Tensor>)> {
    same_sizes("activation backward", gate, &[up, Some(dy)])?;
    let (gs, us, dys) = (read(gate)?, up.map(read).transpose()?, read(dy)?);
    let parts = || gs.par_chunks(CHUNK).zip(dys.par_chunks(CHUNK)).enumerate();
    // SAFETY: the chunks cover all of it.
    let d_gate = unsafe {
        filled(gs.len(), |d_gate| {
            d_gate.par_chunks_mut(CHUNK).zip(parts()).for_each(|(dg, (i, (g, dy)))| match &us {
                None => wide!(for ((dg, &g), &dy) in dg.iter_mut().zip(g).zip(dy) {
                    dg.write(dy * f(g).1);
                }),
                Some(us) => wide!(for (((dg, &g), &dy), &u) in dg.iter_mut().zip(g).zip(dy).zip(&us[i * CHUNK..]) {
                    dg.write(dy * f(g).1 * u);
                }),
            });
        })
    };
    let of_up = |_: &Tensor| {
        // SAFETY: the chunks cover all of it.
        let d_up = unsafe {
            filled(gs.len(), |d_up| {
                d_up.par_chunks_mut(CHUNK).zip(parts()).for_each(|(du, (_, (g, dy)))| {
                    wide!(for ((du, &g), &dy) in du.iter_mut().zip(g).zip(dy) {
                        du.write(dy * f(g).0);
                    });
                });
            })
        };
        tensor(d_up, gate.shape())
    };
    Ok((tensor(d_gate, gate.shape())?, up.map(of_up).transpose()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Device;

    #[test]
    fn values_and_slopes_are_those_of_the_definitions() {
        // By hand, from tables of the normal distribution: x * P(Z < x).
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
        let y = forward(&gate, Some(&up), Activation::Gelu).unwrap().to_vec1::<f32>().unwrap();
        assert_eq!(y, [gelu(0.3).0 * 2.0, gelu(-1.2).0 * -0.5]);
        let (d_gate, d_up) = backward(&gate, Some(&up), &dy, Activation::Gelu).unwrap();
        assert_eq!(d_gate.to_vec1::<f32>().unwrap(), [gelu(0.3).1 * 2.0, 4.0 * gelu(-1.2).1 * -0.5]);
        assert_eq!(d_up.unwrap().to_vec1::<f32>().unwrap(), [gelu(0.3).0, 4.0 * gelu(-1.2).0]);
        assert!(backward(&gate, None, &dy, Activation::Gelu).unwrap().1.is_none());
        assert!(forward(&gate, Some(&t(&[1.0])), Activation::GeluTanh).is_err());
    }
}
