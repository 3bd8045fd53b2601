//! Adapters with magnitudes (DoRA) in training and scoring.

use super::backward::{GradientSlot, gradient_of_adapter};
use super::masked_linear::MaskedLinear;
use super::weights::Linear;
use crate::ops::magnitude::Magnitude;
use crate::ops::{self, linear};
use candle_core::Tensor;

impl<'a> MaskedLinear<'a> {
    /// Returns the magnitudes of the map's adapter, if it has any.
    ///
    /// # Errors
    /// If the pass has not computed the lengths that the magnitudes replace.
    pub(super) fn magnitude(&self) -> ops::Result<Option<Magnitude<'a>>> {
        let Some(values) = self.linear.adapter.as_ref().and_then(|adapter| adapter.magnitude.as_ref()) else { return Ok(None) };
        Ok(Some(Magnitude { values, lengths: self.lengths.ok_or_else(without_lengths)? }))
    }

    /// Returns the adapter's input after dropout in training; `None` without dropout.
    fn dropped(&self, x: &Tensor) -> ops::Result<Option<Tensor>> {
        self.mask.as_ref().map(|mask| mask.apply(x)).transpose()
    }

    /// Computes the product with `V`, the weight with its adapter, before magnitudes.
    fn undirected(&self, x: &Tensor) -> ops::Result<Tensor> {
        let u = linear::forward(x, self.linear.matrix(), None, self.precision)?;
        if let Some(adapter) = self.adapter() {
            adapter.forward_into(x, &u)?;
        }
        Ok(u)
    }

    /// Computes the product with `m V / |V|`. With dropout, as in `peft`, the dropped input `x'` replaces `x` in all that the
    /// adapter changes: the result is `W x + (m V / |V| - W) x'`.
    pub(super) fn directed(&self, x: &Tensor) -> ops::Result<Tensor> {
        let (magnitude, dropped) = (self.magnitude()?.ok_or_else(without_lengths)?, self.dropped(x)?);
        let y = self.undirected(dropped.as_ref().unwrap_or(x))?;
        magnitude.apply(&y, self.linear.bias.as_ref())?;
        if let Some(dropped) = dropped {
            let rest = ops::scaled(&dropped, -1.0)?;
            ops::add_into(&rest, x)?;
            ops::add_into(&y, &linear::forward(&rest, self.linear.matrix(), None, self.precision)?)?;
        }
        Ok(y)
    }

    /// Adds the gradients of the adapter's parameters to `grad` and that of the input to `dx`. Computes the product with `V`
    /// again, which is as large as the layer's output.
    pub(super) fn directed_backward(&self, x: &Tensor, dy: &Tensor, grad: &Linear<GradientSlot>, dx: &Tensor) -> ops::Result<()> {
        let (magnitude, dropped) = (self.magnitude()?.ok_or_else(without_lengths)?, self.dropped(x)?);
        let adapter = self.adapter().ok_or_else(without_lengths)?;
        let (w, gradient) = (self.linear.matrix(), gradient_of_adapter(grad));
        let d_magnitude = grad.adapter.as_ref().and_then(|adapter| adapter.magnitude.as_ref()?.as_ref());
        let read = dropped.as_ref().unwrap_or(x);
        let du = magnitude.backward(&self.undirected(read)?, dy, d_magnitude)?;
        let Some(mask) = &self.mask else {
            linear::backward_input_into(dx, &du, w, self.precision)?;
            return adapter.backward(x, &du, gradient, Some(dx));
        };
        linear::backward_input_into(dx, dy, w, self.precision)?;
        let d_rest = ops::scaled(dy, -1.0)?;
        ops::add_into(&d_rest, &du)?;
        let d_dropped = linear::backward_input(&d_rest, w, self.precision)?;
        adapter.backward(read, &du, gradient, Some(&d_dropped))?;
        mask.add_applied(&d_dropped, dx)
    }
}

fn without_lengths() -> ops::Error {
    ops::Error::Shape { op: "magnitude", detail: "a pass without the lengths of an adapter's directions".into() }
}

#[cfg(test)]
mod tests {
    use super::super::random::NormalSampler;
    use super::*;
    use crate::model::weights::LinearAdapter;
    use crate::ops::Precision;
    use crate::ops::dropout::DropoutMask;
    use crate::ops::magnitude;
    use candle_core::{Device, Var};

    /// Returns a layer's output, and the gradients of its input, `A`, `B` and the magnitudes.
    fn of_layer(p: f64, x: &Tensor, dy: &Tensor, linear: &Linear) -> (Tensor, [Tensor; 4]) {
        let rows: Vec<u64> = (0..x.dims()[0] as u64).collect();
        let adapter = linear.adapter.as_ref().unwrap();
        let lengths = magnitude::lengths(linear.matrix(), &adapter.low_rank()).unwrap();
        let mask = (p > 0.0).then_some(DropoutMask { rows: &rows, key: 3, p });
        let masked = MaskedLinear { linear, mask, lengths: Some(&lengths), precision: Precision::F32 };
        let zeros = |t: &Tensor| t.zeros_like().unwrap();
        let [a, b, m] = [&adapter.a, &adapter.b, adapter.magnitude.as_ref().unwrap()].map(zeros);
        let of_adapter = LinearAdapter {
            a: Some(a.clone()),
            b: Some(b.clone()),
            bias: None,
            magnitude: Some(Some(m.clone())),
            alpha: 0.0,
            scale: adapter.scale,
        };
        let grad = Linear { adapter: Some(of_adapter), ..Linear::new(None, Some(None)) };
        let dx = zeros(x);
        masked.directed_backward(x, dy, &grad, &dx).unwrap();
        (masked.directed(x).unwrap(), [dx, a, b, m])
    }

    #[test]
    fn with_dropout_the_adapter_changes_what_is_left_of_the_input_as_in_peft() {
        let mut normal = NormalSampler::new(1, 1.0);
        let mut random = |shape: &[usize]| {
            let mut values = vec![0.0; shape.iter().product()];
            normal.fill(&mut values);
            Tensor::from_vec(values, shape, &Device::Cpu).unwrap()
        };
        let (n, d_in, d_out, r, scale) = (7, 12, 9, 3, 1.5);
        let [x, dy, w, bias] = [&[n, d_in][..], &[n, d_out], &[d_out, d_in], &[d_out]].map(&mut random);
        let [a, b, m] = [&[r, d_in][..], &[d_out, r], &[d_out]].map(random);
        for p in [0.0, 0.4] {
            let [x, a, b, m] = [&x, &a, &b, &m].map(|t| Var::from_tensor(t).unwrap());
            let adapter = LinearAdapter {
                a: a.as_tensor().clone(),
                b: b.as_tensor().clone(),
                bias: None,
                magnitude: Some(m.as_tensor().clone()),
                alpha: 0.0,
                scale,
            };
            let linear = Linear { adapter: Some(adapter), ..Linear::new(w.clone(), Some(bias.clone())) };
            let (got, gradients) = of_layer(p, &x, &dy, &linear);
            let rows: Vec<u64> = (0..n as u64).collect();
            let kept = DropoutMask { rows: &rows, key: 3, p }.apply(&x.ones_like().unwrap()).unwrap();
            let v = (&w + (b.matmul(&a).unwrap() * f64::from(scale)).unwrap()).unwrap();
            let lengths = v.detach().sqr().unwrap().sum(1).unwrap().sqrt().unwrap();
            let directed = v.broadcast_mul(&(m.as_tensor() / lengths).unwrap().unsqueeze(1).unwrap()).unwrap();
            let change = (x.as_tensor() * kept).unwrap().matmul(&(directed - &w).unwrap().t().unwrap()).unwrap();
            let want = (x.matmul(&w.t().unwrap()).unwrap() + change).unwrap().broadcast_add(&bias).unwrap();
            let autograd = (&want * &dy).unwrap().sum_all().unwrap().backward().unwrap();
            let near = |a: &Tensor, b: &Tensor| {
                let far = (a - b).unwrap().abs().unwrap().max_all().unwrap().to_scalar::<f32>().unwrap();
                assert!(far < 1e-4, "p {p}: {far}");
            };
            near(&got, &want);
            for (var, gradient) in [&x, &a, &b, &m].into_iter().zip(&gradients) {
                near(gradient, autograd.get(var).unwrap());
            }
        }
    }
}
