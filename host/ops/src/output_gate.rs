//! A gate on the output of attention: `y = x sigmoid(gate)`, elementwise.

use super::capability::Capability;
use super::elementwise::cast;
use super::math::sigmoid;
use super::simd::wide;
use super::slices::{PART, filled, filled_each, read, tensor};
use super::{Error, Result};
use candle_core::{DType, Tensor};
use rayon::prelude::*;

fn check(x: &Tensor, gate: &Tensor) -> Result<()> {
    Capability::RecurrentLayers.require(x)?;
    if x.dims() == gate.dims() {
        return Ok(());
    }
    Err(Error::shape("output gate", format!("{:?} with {:?}", x.shape(), gate.shape())))
}

/// Returns `x sigmoid(gate)`.
pub fn forward(x: &Tensor, gate: &Tensor) -> Result<Tensor> {
    check(x, gate)?;
    let (xs, gates) = (cast(x, DType::F32)?, cast(gate, DType::F32)?);
    let (xs, gates) = (read(&xs)?, read(&gates)?);
    // SAFETY: the parts cover all of it.
    let out = unsafe {
        filled(xs.len(), |out| {
            out.par_chunks_mut(PART).zip(xs.par_chunks(PART).zip(gates.par_chunks(PART))).for_each(|(out, (xs, gates))| {
                wide!(for (y, (x, gate)) in out.iter_mut().zip(xs.iter().zip(gates)) {
                    y.write(x * sigmoid(*gate));
                });
            });
        })
    };
    tensor(out, x.shape())
}

/// Returns the gradients of `x` and of the gate, given that of the result.
pub fn backward(x: &Tensor, gate: &Tensor, dy: &Tensor) -> Result<(Tensor, Tensor)> {
    check(x, gate)?;
    check(x, dy)?;
    let (xs, gates) = (cast(x, DType::F32)?, cast(gate, DType::F32)?);
    let (xs, gates, dys) = (read(&xs)?, read(&gates)?, read(dy)?);
    // SAFETY: the parts of both cover them completely.
    let [dx, d_gate] = unsafe {
        filled_each([xs.len(); 2], |[dx, d_gate]| {
            let given = xs.par_chunks(PART).zip(gates.par_chunks(PART)).zip(dys.par_chunks(PART));
            dx.par_chunks_mut(PART).zip(d_gate.par_chunks_mut(PART)).zip(given).for_each(|((dx, dg), ((xs, gates), dys))| {
                wide!(for (((dx, dg), (x, gate)), dy) in dx.iter_mut().zip(dg).zip(xs.iter().zip(gates)).zip(dys) {
                    let open = sigmoid(*gate);
                    dx.write(dy * open);
                    dg.write(dy * x * open * (1.0 - open));
                });
            });
        })
    };
    Ok((tensor(dx, x.shape())?, tensor(d_gate, x.shape())?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::random;
    use candle_core::Var;

    #[test]
    fn values_and_gradients_are_those_of_the_definition() {
        let random = || (random(&[3, 70]) * 2.0).unwrap();
        let [x, gate] = [random(), random()].map(|t| Var::from_tensor(&t).unwrap());
        let (dy, open) = (random(), ((gate.neg().unwrap().exp().unwrap() + 1.0).unwrap()).recip().unwrap());
        let want = (x.as_tensor() * open).unwrap();
        let autograd = (&want * &dy).unwrap().sum_all().unwrap().backward().unwrap();
        let near = |a: &Tensor, b: &Tensor| {
            let far = (a - b).unwrap().abs().unwrap().max_all().unwrap().to_scalar::<f32>().unwrap();
            assert!(far < 1e-5, "{far}");
        };
        near(&forward(&x, &gate).unwrap(), &want);
        let (dx, d_gate) = backward(&x, &gate, &dy).unwrap();
        near(&dx, autograd.get(&x).unwrap());
        near(&d_gate, autograd.get(&gate).unwrap());
        assert!(forward(&x, &gate.narrow(0, 0, 2).unwrap()).is_err());
    }
}
