//! Attention sinks (Xiao et al. 2023, arXiv 2309.17453, as learned in gpt-oss): each head has an additional logit, whose probability is
//! assigned to no value. A softmax with it is the softmax without, times a factor of each query, so attention itself does not change.
//!
//! Shapes: `N` queries, `H` heads of size `C`.

use super::math::exp;
use super::slices::{ROWS_PER_TASK, read, write};
use super::{Capability, Error, Result, matrix_dims};
use candle_core::Tensor;
use rayon::prelude::*;

/// Checks the shapes of outputs, normalisers and sinks. Returns the number of heads and their size.
fn sizes(out: &Tensor, log_sum: &Tensor, sinks: &Tensor) -> Result<(usize, usize)> {
    Capability::AttentionSinks.require(out)?;
    let ((n, width), heads) = (matrix_dims(out), sinks.elem_count());
    if matrix_dims(log_sum) != (n, heads) || heads == 0 || !width.is_multiple_of(heads) {
        let detail = format!("{:?} and {:?} with {:?}", out.shape(), log_sum.shape(), sinks.shape());
        return Err(Error::Shape { op: "attention sinks", detail });
    }
    Ok((heads, width / heads))
}

/// Applies sinks `[H]` to the outputs of attention, `out: [N, H * C]`, and to the logarithms of its normalisers, `log_sum: [N, H]`, in
/// place.
pub fn absorb(out: &Tensor, log_sum: &Tensor, sinks: &Tensor) -> Result<()> {
    let ((heads, size), sinks, before) = (sizes(out, log_sum, sinks)?, read(sinks)?, read(log_sum)?.to_vec());
    let with = |sum: f32, sink: f32| sum.max(sink) + exp(-(sum - sink).abs()).ln_1p();
    write(out, |out| {
        let rows = out.par_chunks_mut(heads * size).zip(before.par_chunks(heads));
        rows.for_each(|(row, sums)| {
            for ((head, &sum), &sink) in row.chunks_mut(size).zip(sums).zip(sinks.iter()) {
                let factor = exp(sum - with(sum, sink));
                head.iter_mut().for_each(|x| *x *= factor);
            }
        });
    })?;
    write(log_sum, |log_sum| {
        for row in log_sum.chunks_mut(heads) {
            row.iter_mut().zip(sinks.iter()).for_each(|(sum, &sink)| *sum = with(*sum, sink));
        }
    })
}

/// Adds the gradient of the sinks to `d_sinks: [H]`, given that of the outputs. Outputs and normalisers are those with sinks, and with them
/// attention's own backward pass needs nothing else.
pub fn backward(out: &Tensor, log_sum: &Tensor, d_out: &Tensor, sinks: &Tensor, d_sinks: &Tensor) -> Result<()> {
    let (heads, size) = sizes(out, log_sum, sinks)?;
    if matrix_dims(d_out) != matrix_dims(out) || d_sinks.elem_count() != heads {
        return Err(Error::Shape { op: "attention sinks backward", detail: format!("{:?}", d_out.shape()) });
    }
    let (out, d_out, sums, sinks) = (read(out)?, read(d_out)?, read(log_sum)?, read(sinks)?);
    let task = ROWS_PER_TASK * heads * size;
    let parts = out.par_chunks(task).zip(d_out.par_chunks(task)).zip(sums.par_chunks(ROWS_PER_TASK * heads));
    let partial = |((out, d_out), sums): ((&[f32], &[f32]), &[f32])| {
        let mut part = vec![0f32; heads];
        let each = out.chunks(size).zip(d_out.chunks(size)).zip(sums);
        for (i, ((out, d_out), sum)) in each.enumerate() {
            let along: f32 = out.iter().zip(d_out).map(|(x, d)| x * d).sum();
            part[i % heads] -= exp(sinks[i % heads] - sum) * along;
        }
        part
    };
    let partial: Vec<Vec<f32>> = parts.map(partial).collect();
    write(d_sinks, |d| partial.iter().for_each(|part| d.iter_mut().zip(part).for_each(|(d, p)| *d += p)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Device;

    /// Returns the output and normaliser of one query of one head over two keys.
    fn attended(scores: [f64; 2], values: [f64; 2], sink: Option<f64>) -> (f64, f64) {
        let sum: f64 = scores.iter().chain(&sink).map(|s| s.exp()).sum();
        (scores.iter().zip(values).map(|(s, v)| s.exp() / sum * v).sum(), sum.ln())
    }

    #[test]
    fn a_sink_takes_its_part_of_each_softmax_and_has_the_slope_of_that() {
        let (scores, values, sink) = ([0.3, -1.2], [2.0, -0.7], 0.8);
        let of = |x: f64, shape: (usize, usize)| Tensor::full(x as f32, shape, &Device::Cpu).unwrap();
        let (plain, sum) = attended(scores, values, None);
        let (out, log_sum) = (of(plain, (1, 1)), of(sum, (1, 1)));
        let sinks = Tensor::new(&[sink as f32], &Device::Cpu).unwrap();
        absorb(&out, &log_sum, &sinks).unwrap();
        let (want, want_sum) = attended(scores, values, Some(sink));
        let value = |t: &Tensor| f64::from(t.flatten_all().unwrap().to_vec1::<f32>().unwrap()[0]);
        assert!((value(&out) - want).abs() < 1e-6 && (value(&log_sum) - want_sum).abs() < 1e-6);
        let d = Tensor::zeros(1, candle_core::DType::F32, &Device::Cpu).unwrap();
        backward(&out, &log_sum, &of(1.5, (1, 1)), &sinks, &d).unwrap();
        let at = |sink: f64| attended(scores, values, Some(sink)).0;
        assert!((value(&d) - 1.5 * (at(sink + 1e-4) - at(sink - 1e-4)) / 2e-4).abs() < 1e-5);
        assert!(absorb(&of(1.0, (1, 3)), &log_sum, &Tensor::new(&[0f32, 0.0], &Device::Cpu).unwrap()).is_err());
    }
}
