//! A mixture of experts (Shazeer et al. 2017, arXiv 1701.06538): routes tokens to experts and computes the products of each expert's tokens
//! with its matrix. Routes are computed on the CPU; the rest runs on the tensors' device.
//!
//! Tokens are sorted by expert, so each expert's rows are adjacent. Nothing is padded, and an expert without a token costs nothing. Shapes:
//! `E` experts, `K` of them for each token, `R = N K` sorted rows.

#[cfg(feature = "cuda")]
use super::cuda;
use super::gemm::{self, GemmMode, WriteMode, matmul};
use super::simd::wide;
use super::slices::{SharedPointer, read, tensor, write};
use super::view::{MatrixView, Precision};
use super::weight_storage::WeightValues;
use super::{Error, Result, matrix_dims, on_device};
use candle_core::{DType, Tensor};
use rayon::prelude::*;
use std::ops::Range;

pub use super::routes::{RouterGradient, RouterScoring, Routes, Routing};

impl Routes {
    /// Adds to each token's row of `into: [N, D]` its sorted rows of `from: [R, D]`, each times its weight if `weighted`.
    pub fn gather_into(&self, into: &Tensor, from: &Tensor, weighted: bool) -> Result<()> {
        let ((n, width), each) = (matrix_dims(into), self.each());
        if n * each != self.places.len() || matrix_dims(from) != (self.places.len(), width) {
            return Err(Error::shape("gather experts", format!("{:?} into {:?}", from.shape(), into.shape())));
        }
        on_device!(into, cuda::experts::add_places(into, from, &self.places, weighted.then_some(&self.weights[..]), each));
        let from = read(from)?;
        write(into, |into| {
            into.par_chunks_mut(width.max(1)).zip(self.places.par_chunks(each)).for_each(|(out, places)| {
                for &place in places {
                    let weight = if weighted { self.weights[place] } else { 1.0 };
                    wide!(for (y, x) in out.iter_mut().zip(&from[place * width..][..width]) {
                        *y += weight * x;
                    });
                }
            });
        })
    }

    /// Returns each token's sum of its sorted rows, each times its weight, `[n, D]`.
    pub fn sums(&self, rows: &Tensor, n: usize) -> Result<Tensor> {
        let sums = Tensor::zeros((n, matrix_dims(rows).1), DType::F32, rows.device())?;
        self.gather_into(&sums, rows, true)?;
        Ok(sums)
    }

    /// Returns sorted rows, each times its weight, `[R, I]`.
    pub fn weighted(&self, rows: &Tensor) -> Result<Tensor> {
        let (n, width) = matrix_dims(rows);
        if n != self.weights.len() {
            return Err(Error::shape("weigh experts", format!("{:?} for {} rows", rows.shape(), self.weights.len())));
        }
        on_device!(rows, cuda::experts::scale_rows(rows, &self.weights));
        let mut out = read(rows)?.to_vec();
        out.par_chunks_mut(width.max(1)).zip(&self.weights).for_each(|(row, weight)| {
            wide!(for x in row.iter_mut() {
                *x *= weight;
            });
        });
        tensor(out, (n, width))
    }
}

/// Computes the dot product of each row of `a` with the same row of `b`, `[R]`.
pub fn dots(a: &Tensor, b: &Tensor) -> Result<Vec<f32>> {
    let (n, width) = matrix_dims(a);
    if matrix_dims(b) != (n, width) {
        return Err(Error::shape("dots", format!("{:?} with {:?}", a.shape(), b.shape())));
    }
    on_device!(a, cuda::experts::dots(a, b));
    let (a, b) = (read(a)?, read(b)?);
    let rows = a.par_chunks(width.max(1)).zip(b.par_chunks(width.max(1)));
    Ok(rows.map(|(a, b)| a.iter().zip(b).map(|(a, b)| a * b).sum()).collect())
}

/// Returns the numbers of experts, outputs and inputs of matrices `[E, out, in]`.
fn dims(op: &'static str, w: &Tensor, routes: &Routes) -> Result<(usize, usize, usize)> {
    match *w.dims() {
        [experts, d_out, d_in] if experts == routes.experts => Ok((experts, d_out, d_in)),
        _ => Err(Error::shape(op, format!("{:?} for {} experts", w.shape(), routes.experts))),
    }
}

/// Runs `product` for each part: on all threads one after the other, or in parallel if there are many.
fn each_part<T: Send>(parts: Vec<T>, precision: Precision, product: impl Fn(T, GemmMode) + Sync) {
    if parts.len() < 2 * rayon::current_num_threads() {
        parts.into_iter().for_each(|part| product(part, precision.on_all_threads()));
    } else {
        parts.into_par_iter().for_each(|part| product(part, precision.on_one_thread()));
    }
}

/// Runs `product` for each expert that has rows, with those rows and their part of `out`, whose rows have this width.
fn each_group(
    out: &mut [f32],
    width: usize,
    (routes, precision): (&Routes, Precision),
    product: impl Fn(usize, Range<usize>, &mut [f32], GemmMode) + Sync,
) {
    let (mut parts, mut rest, mut at) = (Vec::new(), out, 0);
    for (expert, rows) in routes.groups() {
        let end = rows.end * width;
        let (part, after) = rest.split_at_mut(end - at);
        parts.push((expert, rows, part));
        (rest, at) = (after, end);
    }
    each_part(parts, precision, |(expert, rows, part), run| product(expert, rows, part, run));
}

/// Computes `[R, out]` from sorted rows `x: [R, in]`, each times the matrix of its expert, from `w: [E, out, in]`.
pub fn forward(x: &Tensor, w: &Tensor, routes: &Routes, precision: Precision) -> Result<Tensor> {
    let ((n, x_in), (_, d_out, d_in)) = (matrix_dims(x), dims("experts", w, routes)?);
    if n != routes.tokens().len() || x_in != d_in {
        return Err(Error::shape("experts", format!("{:?} through {:?}", x.shape(), w.shape())));
    }
    on_device!(x, cuda::experts::forward(x, w, routes));
    let xs = read(x)?;
    let matrices = (0..routes.experts).map(|expert| w.get(expert)).collect::<candle_core::Result<Vec<_>>>()?;
    let stored = matrices.iter().map(|w| WeightValues::open(w.into())).collect::<Result<Vec<_>>>()?;
    let mut out = vec![0f32; n * d_out];
    each_group(&mut out, d_out, (routes, precision), |expert, rows, out, run| {
        let x = MatrixView::new(&xs[rows.start * d_in..rows.end * d_in], rows.len(), d_in);
        out.copy_from_slice(&gemm::linear(x, &stored[expert], d_out, None, run));
    });
    tensor(out, (n, d_out))
}

/// Returns the gradient of the sorted rows, `[R, in]`, given that of the results, `[R, out]`.
pub fn backward_input(dy: &Tensor, w: &Tensor, routes: &Routes, precision: Precision) -> Result<Tensor> {
    let ((n, dy_out), (_, d_out, d_in)) = (matrix_dims(dy), dims("experts backward", w, routes)?);
    if n != routes.tokens().len() || dy_out != d_out {
        return Err(Error::shape("experts backward", format!("{:?} through {:?}", dy.shape(), w.shape())));
    }
    on_device!(dy, cuda::experts::backward_input(dy, w, routes));
    let (dys, ws) = (read(dy)?, read(w)?);
    let mut out = vec![0f32; n * d_in];
    each_group(&mut out, d_in, (routes, precision), |expert, rows, out, run| {
        let dy = MatrixView::new(&dys[rows.start * d_out..rows.end * d_out], rows.len(), d_out);
        let w = MatrixView::new(&ws[expert * d_out * d_in..][..d_out * d_in], d_out, d_in);
        matmul(out, d_in, WriteMode::Replace, dy, w, 1.0, run);
    });
    tensor(out, (n, d_in))
}

/// Adds the gradients of the matrices to `dw: [E, out, in]`.
pub fn backward_weight(x: &Tensor, dy: &Tensor, dw: &Tensor, routes: &Routes, precision: Precision) -> Result<()> {
    let ((n, d_in), (dy_n, d_out)) = (matrix_dims(x), matrix_dims(dy));
    let (experts, w_out, w_in) = dims("experts backward", dw, routes)?;
    if n != dy_n || n != routes.tokens().len() || (w_out, w_in) != (d_out, d_in) {
        return Err(Error::shape("experts backward", format!("{:?} and {:?} for {:?}", x.shape(), dy.shape(), dw.shape())));
    }
    on_device!(x, cuda::experts::backward_weight(x, dy, dw, routes));
    let (xs, dys) = (read(x)?, read(dy)?);
    let size = d_out * d_in;
    write(dw, |out| {
        let all = SharedPointer::new(out);
        each_part(routes.groups().collect(), precision, |(expert, rows): (usize, Range<usize>), run| {
            let x = MatrixView::new(&xs[rows.start * d_in..rows.end * d_in], rows.len(), d_in);
            let dy = MatrixView::new(&dys[rows.start * d_out..rows.end * d_out], rows.len(), d_out);
            assert!(expert < experts, "an expert out of bounds");
            // SAFETY: each expert's matrix is one part of the gradient, and only its own task writes there.
            unsafe { gemm::matmul_raw(all.at(expert * size), d_in, WriteMode::Add, dy.t(), x, 1.0, run) }
        });
    })
}

#[cfg(test)]
mod tests {
    use super::Precision::F32;
    use super::*;
    use crate::testing::random;
    use candle_core::Device;

    #[test]
    fn products_by_group_are_those_of_each_row_alone() {
        // Few experts that share threads, and many experts with one thread each.
        for (n, experts, chosen) in [(5, 4, 2), (40, 70, 3), (1, 3, 1)] {
            let (d_in, d_out) = (6, 5);
            let (logits, w, x) = (random(&[n, experts]), random(&[experts, d_out, d_in]), random(&[n, d_in]));
            let routes = Routes::new(&logits, Routing::new(chosen, false), None).unwrap();
            let sorted = super::super::gather_rows(&x, routes.tokens()).unwrap();
            let dy = random(&[n * chosen, d_out]);
            let (y, dx) = (forward(&sorted, &w, &routes, F32).unwrap(), backward_input(&dy, &w, &routes, F32).unwrap());
            let dw = random(&[experts, d_out, d_in]);
            let before = dw.copy().unwrap();
            backward_weight(&sorted, &dy, &dw, &routes, F32).unwrap();
            let mut want = before.to_vec3::<f32>().unwrap();
            for (expert, rows) in routes.groups() {
                for row in rows {
                    let of = |t: &Tensor| t.narrow(0, row, 1).unwrap().contiguous().unwrap();
                    let matrix = w.get(expert).unwrap();
                    let near = |a: &Tensor, b: &Tensor| {
                        let far = (a - b).unwrap().abs().unwrap().max_all().unwrap().to_scalar::<f32>().unwrap();
                        assert!(far < 1e-5, "{far}");
                    };
                    near(&of(&y), &of(&sorted).matmul(&matrix.t().unwrap()).unwrap());
                    near(&of(&dx), &of(&dy).matmul(&matrix).unwrap());
                    let outer = of(&dy).t().unwrap().matmul(&of(&sorted)).unwrap().to_vec2::<f32>().unwrap();
                    want[expert].iter_mut().zip(outer).for_each(|(w, o)| w.iter_mut().zip(o).for_each(|(w, o)| *w += o));
                }
            }
            let got = dw.to_vec3::<f32>().unwrap();
            let far = got.iter().flatten().flatten().zip(want.iter().flatten().flatten()).map(|(a, b)| (a - b).abs());
            assert!(far.fold(0.0, f32::max) < 1e-5);
        }
    }

    #[test]
    fn rows_return_to_their_tokens_by_weight() {
        let logits = Tensor::new(&[[0f32, 1.0], [4.0, 0.0]], &Device::Cpu).unwrap();
        let routes = Routes::new(&logits, Routing::new(2, false), None).unwrap();
        // Sorted rows: tokens 0 and 1 of the first expert, then of the second.
        let rows = Tensor::new(&[[1f32, 0.0], [2.0, 0.0], [3.0, 1.0], [4.0, 1.0]], &Device::Cpu).unwrap();
        let into = Tensor::ones((2, 2), candle_core::DType::F32, &Device::Cpu).unwrap();
        routes.gather_into(&into, &rows, false).unwrap();
        assert_eq!(into.to_vec2::<f32>().unwrap(), [[5.0, 2.0], [7.0, 2.0]]);
        let into = Tensor::zeros((2, 2), candle_core::DType::F32, &Device::Cpu).unwrap();
        routes.gather_into(&into, &rows, true).unwrap();
        let sum = routes.weighted(&rows).unwrap().to_vec2::<f32>().unwrap();
        assert_eq!(into.to_vec2::<f32>().unwrap()[0][0], sum[0][0].max(sum[2][0]) + sum[0][0].min(sum[2][0]));
        assert_eq!(dots(&rows, &rows).unwrap(), [1.0, 4.0, 10.0, 17.0]);
    }
}
