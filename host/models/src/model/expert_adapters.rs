//! Adapters of experts, stacked like the experts' matrices.

use super::masked_linear::MaskedLinear;
use super::weights::{Linear, LinearAdapter};
use crate::ops::experts::{self, Routes};
use crate::ops::low_rank::LowRankAdapter;
use crate::ops::{self, Precision};
use candle_core::Tensor;

/// Converts `B` of all experts from the layout of `peft`'s files, `[out, r E]` with the experts adjacent, to `[E, out, r]`.
pub(super) fn stacked(b: &Tensor, experts: usize) -> candle_core::Result<Tensor> {
    let (d_out, all) = b.dims2()?;
    b.reshape((d_out, all / experts, experts))?.permute((2, 0, 1))?.contiguous()
}

/// Converts a matrix of a stack's adapter to the layout of `peft`'s files: `A` to `[E r, in]`, `B` to `[out, r E]`.
pub(super) fn flat(t: &Tensor, is_b: bool) -> candle_core::Result<Tensor> {
    let (experts, rows, columns) = t.dims3()?;
    if is_b {
        t.permute((1, 2, 0))?.contiguous()?.reshape((rows, columns * experts))
    } else {
        t.reshape((experts * rows, columns))
    }
}

impl LinearAdapter {
    /// Returns a stack of weights `[E, out, in]` with each expert's adapter merged in.
    pub(super) fn merged_stack(&self, w: &Tensor) -> ops::Result<Tensor> {
        let each = (0..w.dims()[0]).map(|expert| {
            let (a, b) = (self.a.get(expert)?, self.b.get(expert)?);
            LowRankAdapter { a: &a, b: &b, scale: self.scale, precision: Precision::F32 }.merged(&w.get(expert)?)
        });
        Ok(Tensor::stack(&each.collect::<ops::Result<Vec<_>>>()?, 0)?)
    }
}

impl MaskedLinear<'_> {
    /// Adds the adapters' products with sorted rows to `y`.
    pub(super) fn add_grouped(&self, x: &Tensor, y: &Tensor, routes: &Routes) -> ops::Result<()> {
        let Some(LinearAdapter { a, b, scale, .. }) = &self.linear.adapter else { return Ok(()) };
        let inner = experts::forward(x, a, routes, self.precision)?;
        ops::add_into(y, &ops::scaled(&experts::forward(&inner, b, routes, self.precision)?, *scale)?)
    }

    /// Returns the gradient of sorted rows, given that of their results.
    pub(super) fn grouped_input_backward(&self, dy: &Tensor, routes: &Routes) -> ops::Result<Tensor> {
        let dx = experts::backward_input(dy, &self.linear.weight, routes, self.precision)?;
        if let Some(LinearAdapter { a, b, scale, .. }) = &self.linear.adapter {
            let d_inner = ops::scaled(&experts::backward_input(dy, b, routes, self.precision)?, *scale)?;
            ops::add_into(&dx, &experts::backward_input(&d_inner, a, routes, self.precision)?)?;
        }
        Ok(dx)
    }

    /// Adds the gradients of the trained matrices to `grad`. `x` returns the sorted rows, which only these gradients need.
    pub(super) fn grouped_weight_backward(
        &self,
        x: impl FnOnce() -> ops::Result<Tensor>,
        dy: &Tensor,
        grad: &Linear<Option<Tensor>>,
        routes: &Routes,
    ) -> ops::Result<()> {
        if let Some(d_weight) = &grad.weight {
            return experts::backward_weight(&x()?, dy, d_weight, routes, self.precision);
        }
        let (Some(adapter), Some(of_adapter)) = (&self.linear.adapter, &grad.adapter) else { return Ok(()) };
        let (Some(d_a), Some(d_b)) = (&of_adapter.a, &of_adapter.b) else { return Ok(()) };
        let x = x()?;
        let inner = ops::scaled(&experts::forward(&x, &adapter.a, routes, self.precision)?, adapter.scale)?;
        experts::backward_weight(&inner, dy, d_b, routes, self.precision)?;
        let d_inner = ops::scaled(&experts::backward_input(dy, &adapter.b, routes, self.precision)?, adapter.scale)?;
        experts::backward_weight(&x, &d_inner, d_a, routes, self.precision)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Device;

    #[test]
    fn matrices_are_laid_out_as_peft_reads_them() {
        // Two experts, three inputs and two outputs, rank two.
        let of = |n: usize, shape: &[usize]| Tensor::arange(0f32, n as f32, &Device::Cpu).unwrap().reshape(shape).unwrap();
        let (a, b) = (of(12, &[2, 2, 3]), of(8, &[2, 2, 2]));
        assert_eq!(flat(&a, false).unwrap().to_vec2::<f32>().unwrap()[3], [9.0, 10.0, 11.0]);
        // torch: B.reshape(out, r, E)[o, r, e].
        let file = flat(&b, true).unwrap();
        assert_eq!(file.to_vec2::<f32>().unwrap(), [[0.0, 4.0, 1.0, 5.0], [2.0, 6.0, 3.0, 7.0]]);
        assert_eq!(stacked(&file, 2).unwrap().to_vec3::<f32>().unwrap(), b.to_vec3::<f32>().unwrap());
    }
}
