//! Causal depthwise convolutions over the last few tokens, and LFM2's gated short convolution, which is one between two gates: `u = b * x`,
//! `s[t] = sum of w[i] u[t - i] + bias`, `y = c * s`.
//!
//! In a forest, the tokens before a segment's first are the last ones of its prefix; before a text's first token there are zeros. A
//! sequence's past is a state of fixed size: `u` of its last tokens.
//!
//! Shapes: a kernel is `[D, 1, K]`, with the weight of the token itself last. Rows of a gated convolution consist of `b`, `c` and `x`: `[N,
//! 3 D]`.

use super::capability::Capability;
use super::elementwise::cast;
use super::forest::Forest;
use super::simd::wide;
use super::slices::{ROWS_PER_TASK, SharedPointer, filled, read, tensor, write};
use super::{Error, Result, matrix_dims};
use candle_core::{DType, Tensor};
use rayon::prelude::*;
use std::ops::Range;

/// Number of columns per task of the backward pass.
const COLUMNS: usize = 64;

/// The parameters of a convolution.
#[derive(Clone, Copy, Debug)]
pub struct Convolution<'a> {
    /// Kernel, `[D, 1, K]`.
    pub weight: &'a Tensor,
    /// Bias, `[D]`.
    pub bias: Option<&'a Tensor>,
}

/// Tensors to which the gradients of a convolution's parameters are added, if they are trained.
#[derive(Clone, Copy, Debug, Default)]
pub struct ConvolutionGradient<'a> {
    /// Gradient of the kernel, `[D, 1, K]`.
    pub weight: Option<&'a Tensor>,
    /// Gradient of the bias, `[D]`.
    pub bias: Option<&'a Tensor>,
}

/// A convolution's parameters, by the distance of the token that they weigh.
pub(super) struct Taps {
    pub d: usize,
    /// Weights, `[K, D]`: those of the token itself, then those of the one before it, and so on.
    weights: Vec<f32>,
    bias: Vec<f32>,
}

impl Taps {
    /// Reads the parameters.
    pub(super) fn new(Convolution { weight, bias }: Convolution<'_>) -> Result<Self> {
        Capability::RecurrentLayers.require(weight)?;
        let misfit =
            || Error::shape("convolution", format!("a kernel {:?} with a bias {:?}", weight.shape(), bias.map(Tensor::shape)));
        let [d, 1, count] = *weight.dims() else { return Err(misfit()) };
        if count == 0 || bias.is_some_and(|bias| bias.dims() != [d]) {
            return Err(misfit());
        }
        let values = read(weight)?;
        let weights = (0..count).rev().flat_map(|i| values.iter().skip(i).step_by(count)).copied().collect();
        let bias = bias.map_or_else(|| Ok(vec![0.0; d]), |bias| Ok::<_, Error>(read(bias)?.to_vec()))?;
        Ok(Self { d, weights, bias })
    }

    /// Returns the number of summed tokens.
    pub(super) fn count(&self) -> usize {
        self.weights.len() / self.d
    }

    /// Adds the term of the token at a distance, whose input is `u`, in these columns.
    #[inline(always)]
    fn add(&self, distance: usize, columns: &Range<usize>, u: &[f32], sum: &mut [f32]) {
        let weights = &self.weights[distance * self.d..][columns.clone()];
        for ((sum, w), u) in sum.iter_mut().zip(weights).zip(u) {
            *sum = w.mul_add(*u, *sum);
        }
    }

    /// Computes the sums `[N, D]` for all rows of a forest, or for those of some `segments` in this order, from the inputs `us: [N, D]` of
    /// all rows.
    pub(super) fn sums(&self, us: &[f32], forest: &Forest, segments: Option<&[usize]>) -> Vec<f32> {
        let (d, rows) = (self.d, rows(forest, segments));
        let mut sums = vec![0f32; rows.len() * d];
        sums.par_chunks_mut(ROWS_PER_TASK * d).zip(rows.par_chunks(ROWS_PER_TASK)).for_each(|(sums, rows)| {
            wide!(for (sum, row) in sums.chunks_exact_mut(d).zip(rows) {
                sum.copy_from_slice(&self.bias);
                for distance in 0..self.count() {
                    let Some(place) = forest.before(row.segment, row.offset, distance) else { break };
                    self.add(distance, &(0..d), &us[place * d..][..d], sum);
                }
            });
        });
        sums
    }

    /// Returns the gradient of the inputs `us: [N, D]`, given that of all sums, and adds those of the parameters.
    pub(super) fn backward(
        &self,
        us: &[f32],
        d_sums: &[f32],
        forest: &Forest,
        gradient: ConvolutionGradient<'_>,
    ) -> Result<Vec<f32>> {
        let rows = rows(forest, None);
        let mut of_parameters = Vec::new();
        // A task owns some columns of all tensors. So sums over continuations of a prompt need no locks and have a fixed order.
        // SAFETY: the tasks write all columns of all rows, each its own.
        let d_us = unsafe {
            filled(us.len(), |to| {
                let (to, starts) = (SharedPointer::from_uninit(to), (0..self.d).step_by(COLUMNS).collect::<Vec<usize>>());
                let columns = |start: usize| start..self.d.min(start + COLUMNS);
                let task = |start: usize| self.columns_backward(columns(start), (us, d_sums), (forest, &rows), to);
                starts.into_par_iter().map(task).collect_into_vec(&mut of_parameters);
            })
        };
        let count = self.count();
        if let Some(d_weight) = gradient.weight {
            write(d_weight, |all| {
                for (column, of_column) in all.chunks_exact_mut(count).enumerate() {
                    let (part, at) = (&of_parameters[column / COLUMNS].0, column % COLUMNS);
                    let width = part.len() / count;
                    of_column.iter_mut().rev().enumerate().for_each(|(distance, dw)| *dw += part[distance * width + at]);
                }
            })?;
        }
        if let Some(d_bias) = gradient.bias {
            write(d_bias, |all| {
                all.chunks_mut(COLUMNS).zip(&of_parameters).for_each(|(all, (_, part))| {
                    all.iter_mut().zip(part).for_each(|(d, p)| *d += p);
                });
            })?;
        }
        Ok(d_us)
    }

    /// Writes some columns of the gradient of the inputs, and returns those of the weights, `[K, columns]`, and of the bias.
    fn columns_backward(
        &self,
        columns: Range<usize>,
        (us, d_sums): (&[f32], &[f32]),
        (forest, rows): (&Forest, &[ForestRow]),
        to: SharedPointer,
    ) -> (Vec<f32>, Vec<f32>) {
        let (d, width) = (self.d, columns.len());
        let own = |place: usize| place * d + columns.start..place * d + columns.end;
        // SAFETY: only this task accesses these columns.
        let put = |place: usize| unsafe { std::slice::from_raw_parts_mut(to.at(own(place).start), width) };
        let (mut d_weights, mut d_bias) = (vec![0f32; self.count() * width], vec![0f32; width]);
        // SAFETY: as above; they are set here before they are read.
        rows.iter().for_each(|row| unsafe { to.at(own(row.place).start).write_bytes(0, width) });
        wide!(for row in rows {
            let d_sum = &d_sums[own(row.place)];
            d_bias.iter_mut().zip(d_sum).for_each(|(d, own)| *d += own);
            for distance in 0..self.count() {
                let Some(place) = forest.before(row.segment, row.offset, distance) else { break };
                self.add(distance, &columns, d_sum, put(place));
                let d_weights = &mut d_weights[distance * width..][..width];
                let u = &us[own(place)];
                d_weights.iter_mut().zip(d_sum.iter().zip(u)).for_each(|(dw, (d, u))| *dw = d.mul_add(*u, *dw));
            }
        });
        (d_weights, d_bias)
    }
}

/// A row of a forest: its index, its segment, and the number of the segment's tokens before it.
#[derive(Clone, Copy)]
struct ForestRow {
    place: usize,
    segment: usize,
    offset: usize,
}

/// Returns the rows of a forest, or those of some segments in this order.
fn rows(forest: &Forest, segments: Option<&[usize]>) -> Vec<ForestRow> {
    let of_segment = |segment: usize| {
        forest.segments()[segment].range().enumerate().map(move |(offset, place)| ForestRow { place, segment, offset })
    };
    match segments {
        None => (0..forest.segments().len()).flat_map(of_segment).collect(),
        Some(some) => some.iter().copied().flat_map(of_segment).collect(),
    }
}

/// Checks the rows of a gated convolution and returns its parameters.
fn gated(joined: &Tensor, convolution: Convolution<'_>, forest: Option<&Forest>) -> Result<Taps> {
    let (taps, (n, width)) = (Taps::new(convolution)?, matrix_dims(joined));
    if width != 3 * taps.d || forest.is_some_and(|forest| forest.len() != n) {
        let tokens = forest.map_or(n, Forest::len);
        let detail = format!("{:?} with a kernel {:?} for {tokens} tokens", joined.shape(), convolution.weight.shape());
        return Err(Error::shape("convolution", detail));
    }
    Ok(taps)
}

/// Computes the inputs `u = b * x` of a row of a gated convolution.
#[inline(always)]
fn input(row: &[f32], d: usize, u: &mut [f32]) {
    for (u, (b, x)) in u.iter_mut().zip(row[..d].iter().zip(&row[2 * d..])) {
        *u = b * x;
    }
}

/// Computes the inputs of all rows, `[N, D]`.
fn inputs(joined: &[f32], d: usize) -> Vec<f32> {
    let mut all = vec![0f32; joined.len() / 3];
    all.par_chunks_mut(ROWS_PER_TASK * d).zip(joined.par_chunks(ROWS_PER_TASK * 3 * d)).for_each(|(us, rows)| {
        wide!(for (u, row) in us.chunks_exact_mut(d).zip(rows.chunks_exact(3 * d)) {
            input(row, d, u);
        });
    });
    all
}

/// Computes the results `[N, D]` for all rows of a forest, or those of some `segments` in this order, from `joined: [N, 3 D]` of all
/// rows.
pub fn forward(joined: &Tensor, convolution: Convolution<'_>, forest: &Forest, segments: Option<&[usize]>) -> Result<Tensor> {
    let taps = gated(joined, convolution, Some(forest))?;
    let (d, joined) = (taps.d, cast(joined, DType::F32)?);
    let joined = read(&joined)?;
    let (mut out, rows) = (taps.sums(&inputs(&joined, d), forest, segments), rows(forest, segments));
    let joined = &joined[..];
    out.par_chunks_mut(ROWS_PER_TASK * d).zip(rows.par_chunks(ROWS_PER_TASK)).for_each(|(out, rows)| {
        wide!(for (out, row) in out.chunks_exact_mut(d).zip(rows) {
            out.iter_mut().zip(&joined[row.place * 3 * d + d..]).for_each(|(y, c)| *y *= c);
        });
    });
    tensor(out, (rows.len(), d))
}

/// Returns the gradient of `joined`, given that of the results of all rows, and adds those of the parameters.
pub fn backward(
    joined: &Tensor,
    convolution: Convolution<'_>,
    dy: &Tensor,
    forest: &Forest,
    gradient: ConvolutionGradient<'_>,
) -> Result<Tensor> {
    let taps = gated(joined, convolution, Some(forest))?;
    let (n, d) = (forest.len(), taps.d);
    if matrix_dims(dy) != (n, d) {
        return Err(Error::shape("convolution backward", format!("{:?} with gradient {:?}", joined.shape(), dy.shape())));
    }
    let joined = cast(joined, DType::F32)?;
    let (joined, dy) = (read(&joined)?, read(dy)?);
    let (joined, dy, us) = (&joined[..], &dy[..], inputs(&joined, d));
    let sums = taps.sums(&us, forest, None);
    let mut d_sums = vec![0f32; n * d];
    let task = ROWS_PER_TASK * d;
    d_sums.par_chunks_mut(task).zip(joined.par_chunks(3 * task).zip(dy.par_chunks(task))).for_each(|(d_sums, (rows, dys))| {
        wide!(for ((d_sum, row), dy) in d_sums.chunks_exact_mut(d).zip(rows.chunks_exact(3 * d)).zip(dys.chunks_exact(d)) {
            d_sum.iter_mut().zip(dy.iter().zip(&row[d..])).for_each(|(d, (dy, c))| *d = dy * c);
        });
    });
    let d_us = taps.backward(&us, &d_sums, forest, gradient)?;
    let mut d_joined = vec![0f32; n * 3 * d];
    let given = joined.par_chunks(3 * task).zip(dy.par_chunks(task)).zip(sums.par_chunks(task).zip(d_us.par_chunks(task)));
    d_joined.par_chunks_mut(3 * task).zip(given).for_each(|(to, ((rows, dys), (sums, d_us)))| {
        let given = rows.chunks_exact(3 * d).zip(dys.chunks_exact(d)).zip(sums.chunks_exact(d).zip(d_us.chunks_exact(d)));
        wide!(for (to, ((row, dy), (sum, du))) in to.chunks_exact_mut(3 * d).zip(given) {
            let (db, rest) = to.split_at_mut(d);
            let (dc, dx) = rest.split_at_mut(d);
            db.iter_mut().zip(du.iter().zip(&row[2 * d..])).for_each(|(db, (du, x))| *db = du * x);
            dc.iter_mut().zip(dy.iter().zip(sum)).for_each(|(dc, (dy, sum))| *dc = dy * sum);
            dx.iter_mut().zip(du.iter().zip(&row[..d])).for_each(|(dx, (du, b))| *dx = du * b);
        });
    });
    tensor(d_joined, (n, 3 * d))
}

/// State of a convolution after a text: the inputs of its last tokens, `[K - 1, D]`, oldest first.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ConvolutionState(Vec<f32>);

impl ConvolutionState {
    /// Creates the state before a text, for a convolution over `width` tokens of `d` values.
    pub fn empty(width: usize, d: usize) -> Self {
        Self(vec![0.0; width.saturating_sub(1) * d])
    }

    /// Returns the size of the state in bytes.
    pub fn bytes(&self) -> usize {
        size_of_val(&self.0[..])
    }

    /// Returns the state after a text, given as the rows `rows` of `joined: [N, 3 D]`.
    pub fn from_text(joined: &Tensor, rows: Range<usize>, convolution: Convolution<'_>) -> Result<Self> {
        let taps = gated(joined, convolution, None)?;
        if rows.end > matrix_dims(joined).0 {
            return Err(Error::shape("convolution", format!("rows {rows:?} of {:?}", joined.shape())));
        }
        let (d, joined) = (taps.d, read(joined)?);
        Ok(Self::from_inputs(&taps, rows, |place, u| input(&joined[place * 3 * d..][..3 * d], d, u)))
    }

    /// Returns the state after some rows, whose inputs `input` writes.
    pub(super) fn from_inputs(taps: &Taps, rows: Range<usize>, input: impl Fn(usize, &mut [f32])) -> Self {
        let past = taps.count() - 1;
        let mut state = vec![0f32; past * taps.d];
        for (u, place) in state.chunks_exact_mut(taps.d).rev().zip(rows.rev().take(past)) {
            input(place, u);
        }
        Self(state)
    }

    /// Returns whether the state fits this convolution.
    pub(super) fn fits(&self, taps: &Taps) -> bool {
        self.0.len() == (taps.count() - 1) * taps.d
    }

    /// Computes the sum of a new token with input `u`, and adds the token to the state.
    pub(super) fn step(&mut self, taps: &Taps, u: &[f32], sum: &mut [f32]) {
        let (d, Self(past)) = (taps.d, self);
        wide!({
            sum.copy_from_slice(&taps.bias);
            taps.add(0, &(0..d), u, sum);
            for (u, distance) in past.chunks_exact(d).rev().zip(1..) {
                taps.add(distance, &(0..d), u, sum);
            }
        });
        if !past.is_empty() {
            past.copy_within(d.., 0);
            let last = past.len() - d;
            past[last..].copy_from_slice(u);
        }
    }
}

/// Computes the results `[N, D]` for new tokens of sequences, `joined: [N, 3 D]`, sequence by sequence, and advances the states. Each state
/// comes with the number of its sequence's new tokens.
pub fn step(joined: &Tensor, convolution: Convolution<'_>, states: &mut [(&mut ConvolutionState, usize)]) -> Result<Tensor> {
    let taps = gated(joined, convolution, None)?;
    let ((n, _), d) = (matrix_dims(joined), taps.d);
    let fits = states.iter().all(|(state, _)| state.fits(&taps));
    if !fits || states.iter().map(|(_, count)| count).sum::<usize>() != n {
        return Err(Error::shape("convolution", format!("{:?} for {} states", joined.shape(), states.len())));
    }
    let joined = read(joined)?;
    let (mut out, mut u) = (vec![0f32; n * d], vec![0f32; d]);
    let mut rows = joined.chunks_exact(3 * d).zip(out.chunks_exact_mut(d));
    for (state, count) in states {
        for (row, out) in rows.by_ref().take(*count) {
            wide!(input(row, d, &mut u));
            state.step(&taps, &u, out);
            wide!(out.iter_mut().zip(&row[d..]).for_each(|(y, c)| *y *= c));
        }
    }
    tensor(out, (n, d))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::elementwise::{to_vec, zeros_like};
    use crate::testing::random;
    use candle_core::{Device, Var};

    const D: usize = 70;

    /// A text, two that continue it, one that continues the shorter of those, and a text shorter than the kernel.
    fn forest() -> Forest {
        let mut forest = Forest::new();
        let long = forest.push(&[1; 40], None);
        forest.push(&[2; 9], Some(long));
        let one = forest.push(&[3], Some(long));
        forest.push(&[4; 2], Some(one));
        forest.push(&[5; 2], None);
        forest
    }

    /// Returns the rows of each complete text, and the number of them that no other text contains.
    fn texts() -> Vec<(Vec<usize>, usize)> {
        let prompt = || 0..40;
        vec![(prompt().chain(40..49).collect(), 49), (prompt().chain(49..52).collect(), 3), (vec![52, 53], 2)]
    }

    /// Computes the definition for a complete text `[T, 3 D]`, by candle's operations.
    fn defined(joined: &Tensor, w: &Tensor, bias: Option<&Tensor>) -> candle_core::Result<Tensor> {
        let (t, k) = (joined.dim(0)?, w.dim(2)?);
        let part = |i: usize| joined.narrow(1, i * D, D);
        let padded = Tensor::cat(&[Tensor::zeros((k - 1, D), DType::F32, &Device::Cpu)?, (part(0)? * part(2)?)?], 0)?;
        let mut sum = Tensor::zeros((t, D), DType::F32, &Device::Cpu)?;
        for i in 0..k {
            sum = (sum + padded.narrow(0, i, t)?.broadcast_mul(&w.narrow(2, i, 1)?.reshape((1, D))?)?)?;
        }
        if let Some(bias) = bias {
            sum = sum.broadcast_add(bias)?;
        }
        part(1)? * sum
    }

    fn near(got: &Tensor, want: &Tensor) {
        assert_eq!(got.dims(), want.dims());
        let far = (got - want).unwrap().abs().unwrap().max_all().unwrap().to_scalar::<f32>().unwrap();
        assert!(far < 2e-5, "{far}");
    }

    #[test]
    fn values_and_gradients_are_those_of_the_definition_for_each_whole_text() {
        for (k, biased) in [(3, true), (4, false), (1, true)] {
            let forest = forest();
            let n = forest.len();
            let [joined, w, b] = [&[n, 3 * D][..], &[D, 1, k], &[D]].map(|shape| Var::from_tensor(&random(shape)).unwrap());
            let bias = biased.then_some(b.as_tensor());
            let dy = random(&[n, D]);
            let (mut rows, mut results) = (vec![None; n], Vec::new());
            for (text, own) in texts() {
                let index = Tensor::from_vec(text.iter().map(|row| *row as u32).collect::<Vec<u32>>(), text.len(), &Device::Cpu);
                let result = defined(&joined.index_select(&index.unwrap(), 0).unwrap(), &w, bias).unwrap();
                for (at, row) in text.iter().enumerate().skip(text.len() - own) {
                    rows[*row] = Some(result.narrow(0, at, 1).unwrap());
                }
                results.push(result);
            }
            let want = Tensor::cat(&rows.into_iter().map(Option::unwrap).collect::<Vec<_>>(), 0).unwrap();
            let convolution = Convolution { weight: &w, bias };
            near(&forward(&joined, convolution, &forest, None).unwrap(), &want);
            let some = forward(&joined, convolution, &forest, Some(&[4, 2])).unwrap();
            near(&some, &Tensor::cat(&[want.narrow(0, 52, 2).unwrap(), want.narrow(0, 49, 1).unwrap()], 0).unwrap());

            let autograd = (&want * &dy).unwrap().sum_all().unwrap().backward().unwrap();
            let (dw, db) = (random(&[D, 1, k]), random(&[D]));
            let before = [&dw, &db].map(|t| t.copy().unwrap());
            let gradient = ConvolutionGradient { weight: Some(&dw), bias: biased.then_some(&db) };
            let d_joined = backward(&joined, convolution, &dy, &forest, gradient).unwrap();
            near(&d_joined, autograd.get(&joined).unwrap());
            let added = |t: &Tensor, before: &Tensor| (t - before).unwrap();
            near(&added(&dw, &before[0]), autograd.get(&w).unwrap());
            if biased {
                near(&added(&db, &before[1]), autograd.get(&b).unwrap());
            }
            let none = backward(&joined, convolution, &dy, &forest, ConvolutionGradient::default()).unwrap();
            assert_eq!(to_vec(&none).unwrap(), to_vec(&d_joined).unwrap());
            let rounded = joined.to_dtype(DType::BF16).unwrap();
            let wide = rounded.to_dtype(DType::F32).unwrap();
            let of = |joined: &Tensor| {
                to_vec(&backward(joined, convolution, &dy, &forest, ConvolutionGradient::default()).unwrap()).unwrap()
            };
            assert_eq!(of(&rounded), of(&wide));
        }
    }

    #[test]
    fn tokens_that_come_later_have_the_same_results_and_a_state_forks() {
        for k in [1, 3, 5] {
            let (w, b, joined) = (random(&[D, 1, k]), random(&[D]), random(&[12, 3 * D]));
            let convolution = Convolution { weight: &w, bias: Some(&b) };
            let whole = |rows: &[u32]| {
                let index = Tensor::new(rows, &Device::Cpu).unwrap();
                to_vec(&defined(&joined.index_select(&index, 0).unwrap(), &w, Some(&b)).unwrap()).unwrap()
            };
            for prompt in [1, 2, 6] {
                let state = ConvolutionState::from_text(&joined, 0..prompt, convolution).unwrap();
                let (mut first, mut second) = (state.clone(), state);
                // One sequence reads two tokens and then one, the other one at a time.
                for (new, counts, texts) in
                    [([8u32, 9, 10], [2, 1], [vec![8, 9], vec![10]]), ([10, 7, 11], [1, 2], [vec![8, 9, 10], vec![10, 7, 11]])]
                {
                    let rows = joined.index_select(&Tensor::new(&new[..], &Device::Cpu).unwrap(), 0).unwrap();
                    let mut states = [(&mut first, counts[0]), (&mut second, counts[1])];
                    let got = to_vec(&step(&rows, convolution, &mut states).unwrap()).unwrap();
                    let mut at = 0;
                    for (text, count) in texts.iter().zip(counts) {
                        let want = whole(&(0..prompt as u32).chain(text.iter().copied()).collect::<Vec<u32>>());
                        let want = &want[want.len() - count * D..];
                        let far = got[at..].iter().zip(want).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                        assert!(far < 2e-5, "{k} {prompt}: {far}");
                        at += count * D;
                    }
                }
            }
            assert!(step(&joined, convolution, &mut []).is_err());
        }
        let (joined, w) = (random(&[54, 3 * D]), random(&[D, 1, 3]));
        let dy = zeros_like(&joined).unwrap();
        let convolution = Convolution { weight: &w, bias: None };
        assert!(backward(&joined, convolution, &dy, &forest(), ConvolutionGradient::default()).is_err());
        assert!(forward(&dy.narrow(1, 0, D).unwrap().contiguous().unwrap(), convolution, &forest(), None).is_err());
    }
}
