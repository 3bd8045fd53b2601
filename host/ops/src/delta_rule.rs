//! The gated delta rule (Yang et al. 2025, arXiv 2412.06464) over a forest of segments. Each head has a state `S: [K, V]`. A token decays
//! the state, `S <- exp(g) S`, corrects it, `S <- S + k (beta (v - k S))`, and reads it, `o = q S`.
//!
//! Tokens are computed in chunks. In a chunk, with `G` the sum of `g` up to a token, the values `w` that its tokens write solve a
//! triangular system, and everything else is matrix products:
//!
//! - `w_i = beta_i (v_i - exp(G_i) k_i S - sum over j < i of A_ij w_j)`, with `A_ij = exp(G_i - G_j) k_i k_j`
//! - `o_i = exp(G_i) q_i S + sum over j <= i of P_ij w_j`, with `P_ij = exp(G_i - G_j) q_i k_j`
//! - the next state is `exp(G_L) S + sum over j of exp(G_L - G_j) k_j w_j`
//!
//! Without corrections, as in a state space model (Mamba 2), a token writes its value as it is, `S <- S + k v`, so that `w = v` and there is
//! no system, and queries and keys are read as they are.
//!
//! A segment starts from the state at the end of its prefix. The backward pass recomputes the states at the beginnings of chunks and stores
//! nothing else. Sums are f32.

use super::forest::Forest;
use super::gemm::{WriteMode, matmul};
use super::math::{dot, exp};
use super::simd::wide;
use super::slices::SharedPointer;
use super::view::{MatrixView, Precision};
use rayon::prelude::*;
use std::ops::Range;

/// Number of tokens per chunk.
const CHUNK: usize = 64;

/// Epsilon added to the sum of squares when queries and keys are normalised.
pub(super) const EPSILON: f32 = 1e-6;

/// Numbers and sizes of heads. Each key head serves as many value heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeltaHeads {
    /// Number of query heads and of key heads.
    pub keys: usize,
    /// Number of value heads and of states.
    pub values: usize,
    /// Size of a query or key head, `K`.
    pub key_dim: usize,
    /// Size of a value head, `V`.
    pub value_dim: usize,
}

impl DeltaHeads {
    /// Returns the width of all queries, or of all keys.
    pub fn key_width(self) -> usize {
        self.keys * self.key_dim
    }

    /// Returns the width of all values.
    pub fn value_width(self) -> usize {
        self.values * self.value_dim
    }

    /// Returns the width of a row of queries, keys and values.
    pub fn row_width(self) -> usize {
        2 * self.key_width() + self.value_width()
    }

    /// Returns the number of values of a state.
    pub fn state(self) -> usize {
        self.key_dim * self.value_dim
    }

    /// Returns the value heads of a key head.
    pub(super) fn value_heads(self, key_head: usize) -> Range<usize> {
        let each = self.values / self.keys;
        key_head * each..(key_head + 1) * each
    }
}

/// Inputs of the rule for each token.
#[derive(Clone, Copy)]
pub(super) struct DeltaRuleInputs<'a> {
    pub heads: DeltaHeads,
    /// Queries, keys and values, `[N, row_width]`, before queries and keys are normalised.
    pub rows: &'a [f32],
    /// Logarithms of decays, `[N, values]`.
    pub decays: &'a [f32],
    /// Correction rates `beta`, `[N, values]`. `None` for states that are not corrected; then queries and keys are not normalised.
    pub betas: Option<&'a [f32]>,
}

/// A chunk of one head, with the results that depend on its initial state. Rows are tokens.
pub(super) struct DeltaChunk {
    pub len: usize,
    /// Normalised queries, times the scale, and keys: `[L, K]`.
    pub q: Vec<f32>,
    pub k: Vec<f32>,
    /// Sums of decays, `G`.
    pub sums: Vec<f64>,
    /// `P`, `[L, L]`, zero above the diagonal.
    pub scores: Vec<f32>,
    /// `q S`, `[L, V]`.
    pub of_q: Vec<f32>,
    /// Written values `w`, `[L, V]`.
    pub written: Vec<f32>,
    /// What corrections read, if states are corrected.
    pub correction: Option<ChunkCorrection>,
}

/// What the corrections of a chunk's written values read.
pub(super) struct ChunkCorrection {
    pub betas: Vec<f32>,
    /// `A` without its diagonal, `[L, L]`, zero above the diagonal.
    pub system: Vec<f32>,
    /// `k S`, `[L, V]`.
    pub of_k: Vec<f32>,
}

/// Returns the factor that remains after decays with this sum of logarithms. Sums are f64, since those of a chunk are many times larger
/// than a difference of two.
#[inline(always)]
pub(super) fn decay_factor(sum: f64) -> f32 {
    exp(sum as f32)
}

/// Normalises a head to length one, times a scale.
#[inline(always)]
fn normalise(from: &[f32], scale: f32, to: &mut [f32]) {
    let factor = (dot(from, from) + EPSILON).sqrt().recip() * scale;
    to.iter_mut().zip(from).for_each(|(to, x)| *to = x * factor);
}

/// Subtracts `factor` times a row vector from the first.
#[inline(always)]
pub(super) fn subtract(from: &mut [f32], factor: f32, other: &[f32]) {
    from.iter_mut().zip(other).for_each(|(x, y)| *x = (-factor).mul_add(*y, *x));
}

pub(super) fn product(out: &mut [f32], dst: WriteMode, a: MatrixView<'_>, b: MatrixView<'_>) {
    let columns = b.cols;
    matmul(out, columns, dst, a, b, 1.0, Precision::F32.on_one_thread());
}

impl DeltaRuleInputs<'_> {
    /// Returns the factors of normalised queries and keys; `None` if they are not normalised.
    pub(super) fn scales(&self) -> Option<[f32; 2]> {
        self.betas.map(|_| [(self.heads.key_dim as f32).sqrt().recip(), 1.0])
    }

    /// Writes a token's query and key as the rule reads them.
    fn read_pair(&self, row: usize, key_head: usize, q: &mut [f32], k: &mut [f32]) {
        let (query, key) = (self.query(row, key_head), self.key(row, key_head));
        match self.scales() {
            Some([of_q, of_k]) => wide!({
                normalise(query, of_q, q);
                normalise(key, of_k, k);
            }),
            None => {
                q.copy_from_slice(query);
                k.copy_from_slice(key);
            }
        }
    }

    pub(super) fn query(&self, row: usize, key_head: usize) -> &[f32] {
        &self.rows[row * self.heads.row_width() + key_head * self.heads.key_dim..][..self.heads.key_dim]
    }

    pub(super) fn key(&self, row: usize, key_head: usize) -> &[f32] {
        let at = row * self.heads.row_width() + self.heads.key_width() + key_head * self.heads.key_dim;
        &self.rows[at..][..self.heads.key_dim]
    }

    pub(super) fn value(&self, row: usize, head: usize) -> &[f32] {
        let at = row * self.heads.row_width() + 2 * self.heads.key_width() + head * self.heads.value_dim;
        &self.rows[at..][..self.heads.value_dim]
    }

    /// Computes a chunk of a head that starts from `state`.
    pub(super) fn chunk(&self, rows: Range<usize>, head: usize, state: &[f32]) -> DeltaChunk {
        let DeltaHeads { values, key_dim, value_dim, .. } = self.heads;
        let (len, key_head) = (rows.len(), head / (values / self.heads.keys));
        let (mut q, mut k) = (vec![0f32; len * key_dim], vec![0f32; len * key_dim]);
        let (mut sum, mut sums) = (0.0, Vec::with_capacity(len));
        for (i, row) in rows.clone().enumerate() {
            let own = i * key_dim..(i + 1) * key_dim;
            self.read_pair(row, key_head, &mut q[own.clone()], &mut k[own]);
            sum += f64::from(self.decays[row * values + head]);
            sums.push(sum);
        }
        let (mut scores, mut of_q) = (vec![0f32; len * len], vec![0f32; len * value_dim]);
        let (queries, keys) = (MatrixView::new(&q, len, key_dim), MatrixView::new(&k, len, key_dim));
        let state = MatrixView::new(state, key_dim, value_dim);
        product(&mut scores, WriteMode::Replace, queries, keys.t());
        product(&mut of_q, WriteMode::Replace, queries, state);
        for (i, line) in scores.chunks_exact_mut(len).enumerate() {
            for (j, score) in line.iter_mut().enumerate() {
                *score *= if j <= i { decay_factor(sums[i] - sums[j]) } else { 0.0 };
            }
        }
        let mut written: Vec<f32> = rows.clone().flat_map(|row| self.value(row, head)).copied().collect();
        let correction = self.betas.map(|betas| {
            let (mut system, mut of_k) = (vec![0f32; len * len], vec![0f32; len * value_dim]);
            product(&mut system, WriteMode::Replace, keys, keys.t());
            product(&mut of_k, WriteMode::Replace, keys, state);
            let betas = rows.map(|row| betas[row * values + head]).collect();
            let mut correction = ChunkCorrection { betas, system, of_k };
            correction.apply(&sums, &mut written);
            correction
        });
        DeltaChunk { len, q, k, sums, scores, of_q, written, correction }
    }

    /// Computes the output `[V]` of a head for one token and advances its state.
    pub(super) fn token(&self, row: usize, head: usize, state: &mut [f32], out: &mut [f32]) {
        let DeltaHeads { keys, values, key_dim, value_dim } = self.heads;
        let (key_head, kept) = (head / (values / keys), exp(self.decays[row * values + head]));
        let (mut q, mut k, mut write) = (vec![0f32; key_dim], vec![0f32; key_dim], vec![0f32; value_dim]);
        self.read_pair(row, key_head, &mut q, &mut k);
        let beta = self.betas.map(|betas| betas[row * values + head]);
        wide!({
            for (line, k) in state.chunks_exact_mut(value_dim).zip(&k) {
                line.iter_mut().zip(&mut write).for_each(|(s, sum)| {
                    *s *= kept;
                    *sum = k.mul_add(*s, *sum);
                });
            }
            match beta {
                Some(beta) => write.iter_mut().zip(self.value(row, head)).for_each(|(read, v)| *read = beta * (v - *read)),
                None => write.copy_from_slice(self.value(row, head)),
            }
            out.fill(0.0);
            for (line, (k, q)) in state.chunks_exact_mut(value_dim).zip(k.iter().zip(&q)) {
                for ((s, w), out) in line.iter_mut().zip(&write).zip(&mut *out) {
                    *s = k.mul_add(*w, *s);
                    *out = q.mul_add(*s, *out);
                }
            }
        });
    }

    /// Returns the chunks of a segment.
    pub(super) fn chunks(segment: Range<usize>) -> impl DoubleEndedIterator<Item = Range<usize>> {
        let (start, end) = (segment.start, segment.end);
        (0..segment.len().div_ceil(CHUNK)).map(move |i| start + i * CHUNK..end.min(start + (i + 1) * CHUNK))
    }

    /// Computes the outputs `[N, value_width]` of the `wanted` segments, and the states `[values, K, V]` at the end of all segments.
    pub(super) fn forward(&self, forest: &Forest, wanted: &[bool], out: SharedPointer) -> Vec<Vec<f32>> {
        let DeltaHeads { values, value_dim, .. } = self.heads;
        let (size, width) = (self.heads.state(), self.heads.value_width());
        let mut ends: Vec<Vec<f32>> = forest.segments().iter().map(|_| vec![0f32; values * size]).collect();
        let places: Vec<SharedPointer> = ends.iter_mut().map(|end| SharedPointer::new(end)).collect();
        let trees = forest.trees();
        let tasks: Vec<(&[usize], usize)> =
            trees.iter().flat_map(|tree| (0..values).map(move |head| (tree.as_slice(), head))).collect();
        tasks.into_par_iter().for_each(|(tree, head)| {
            for &index in tree {
                let segment = forest.segments()[index];
                // SAFETY: only this task accesses this head's states of the tree's segments; a prefix comes before what continues it.
                let state = unsafe {
                    let own = std::slice::from_raw_parts_mut(places[index].at(head * size), size);
                    if let Some(prefix) = segment.prefix {
                        own.copy_from_slice(std::slice::from_raw_parts(places[prefix].at(head * size), size));
                    }
                    own
                };
                for rows in Self::chunks(segment.range()) {
                    let chunk = self.chunk(rows.clone(), head, state);
                    if wanted[index] {
                        let outputs = chunk.outputs(value_dim);
                        for (row, output) in rows.zip(outputs.chunks_exact(value_dim)) {
                            // SAFETY: only this task writes this head's outputs of these rows.
                            unsafe {
                                let to = out.at(row * width + head * value_dim);
                                std::ptr::copy_nonoverlapping(output.as_ptr(), to, value_dim);
                            }
                        }
                    }
                    chunk.advance(state, value_dim);
                }
            }
        });
        ends
    }
}

impl ChunkCorrection {
    /// Multiplies the products of keys by the decays between their tokens, and replaces values with what their tokens write, which solves
    /// the triangular system.
    fn apply(&mut self, sums: &[f64], written: &mut [f32]) {
        let (len, value_dim) = (sums.len(), written.len() / sums.len());
        for i in 0..len {
            for j in 0..len {
                self.system[i * len + j] *= if j < i { decay_factor(sums[i] - sums[j]) } else { 0.0 };
            }
            let (before, own) = written.split_at_mut(i * value_dim);
            let (own, left, beta) = (&mut own[..value_dim], decay_factor(sums[i]), self.betas[i]);
            wide!({
                for (own, read) in own.iter_mut().zip(&self.of_k[i * value_dim..]) {
                    *own = beta * (*own - left * read);
                }
                for (j, other) in before.chunks_exact(value_dim).enumerate() {
                    subtract(own, beta * self.system[i * len + j], other);
                }
            });
        }
    }
}

impl DeltaChunk {
    pub(super) fn matrix<'a>(&self, rows: &'a [f32]) -> MatrixView<'a> {
        MatrixView::new(rows, self.len, rows.len() / self.len)
    }

    /// Returns the outputs, `[L, V]`.
    fn outputs(&self, value_dim: usize) -> Vec<f32> {
        let mut out = self.of_q.clone();
        for (out, sum) in out.chunks_exact_mut(value_dim).zip(&self.sums) {
            let left = decay_factor(*sum);
            out.iter_mut().for_each(|x| *x *= left);
        }
        product(&mut out, WriteMode::Add, self.matrix(&self.scores), self.matrix(&self.written));
        out
    }

    /// Returns the sum of all decays.
    pub(super) fn last(&self) -> f64 {
        self.sums[self.len - 1]
    }

    /// Returns rows, each times the decay from its token to the end of the chunk.
    pub(super) fn decayed_to_end(&self, rows: &[f32]) -> Vec<f32> {
        let mut left = rows.to_vec();
        for (row, sum) in left.chunks_exact_mut(rows.len() / self.len).zip(&self.sums) {
            let factor = decay_factor(self.last() - sum);
            row.iter_mut().for_each(|x| *x *= factor);
        }
        left
    }

    /// Replaces the state before the chunk with that after it.
    pub(super) fn advance(&self, state: &mut [f32], value_dim: usize) {
        let left = decay_factor(self.last());
        state.iter_mut().for_each(|x| *x *= left);
        let left = self.decayed_to_end(&self.written);
        product(state, WriteMode::Add, self.matrix(&self.k).t(), MatrixView::new(&left, self.len, value_dim));
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::testing::random;
    use candle_core::{D, DType, Device, Result, Tensor, Var};

    pub const HEADS: DeltaHeads = DeltaHeads { keys: 2, values: 4, key_dim: 6, value_dim: 5 };

    /// A text of several chunks, two that continue it, one that continues the shorter of those, and a text of one token.
    pub fn forest() -> Forest {
        let mut forest = Forest::new();
        let long = forest.push(&[1; 150], None);
        forest.push(&[2; 70], Some(long));
        let one = forest.push(&[3], Some(long));
        forest.push(&[4; 9], Some(one));
        forest.push(&[5], None);
        forest
    }

    /// Returns the rows of each complete text, and the number of rows at its end that no earlier text contains.
    pub fn texts() -> Vec<(Vec<u32>, usize)> {
        vec![((0..220).collect(), 220), ((0..150).chain(220..230).collect(), 10), (vec![230], 1)]
    }

    fn normalised(x: &Tensor) -> Result<Tensor> {
        x.broadcast_div(&(x.sqr()?.sum_keepdim(D::Minus1)? + f64::from(EPSILON))?.sqrt()?)
    }

    /// Computes the definition token by token, for a complete text, in f64.
    pub fn defined(rows: &Tensor, decays: &Tensor, betas: &Tensor) -> Result<Tensor> {
        let (t, h) = (rows.dim(0)?, HEADS);
        let [rows, decays, betas] = [rows, decays, betas].map(|x| x.to_dtype(DType::F64).unwrap());
        let each = h.values / h.keys;
        let heads = |first: usize, count: usize, dim: usize| rows.narrow(1, first, count * dim)?.reshape((t, count, dim));
        let shared = |x: Tensor| x.unsqueeze(2)?.broadcast_as((t, h.keys, each, h.key_dim))?.reshape((t, h.values, h.key_dim));
        let q = (shared(normalised(&heads(0, h.keys, h.key_dim)?)?)? / (h.key_dim as f64).sqrt())?;
        let k = shared(normalised(&heads(h.key_width(), h.keys, h.key_dim)?)?)?;
        let v = heads(2 * h.key_width(), h.values, h.value_dim)?;
        let mut state = Tensor::zeros((h.values, h.key_dim, h.value_dim), DType::F64, &Device::Cpu)?;
        let mut outputs = Vec::new();
        for i in 0..t {
            let column = |x: &Tensor| x.get(i)?.unsqueeze(2);
            state = state.broadcast_mul(&decays.get(i)?.exp()?.reshape((h.values, 1, 1))?)?;
            let read = state.broadcast_mul(&column(&k)?)?.sum(1)?;
            let write = (v.get(i)? - read)?.broadcast_mul(&betas.get(i)?.unsqueeze(1)?)?;
            state = (state + column(&k)?.broadcast_mul(&write.unsqueeze(1)?)?)?;
            outputs.push(state.broadcast_mul(&column(&q)?)?.sum(1)?.reshape((1, h.value_width()))?);
        }
        Tensor::cat(&outputs, 0)
    }

    pub fn values(t: &Tensor) -> Vec<f32> {
        t.flatten_all().unwrap().to_dtype(DType::F32).unwrap().to_vec1().unwrap()
    }

    pub fn near(what: &str, got: &[f32], want: &[f32]) {
        assert_eq!(got.len(), want.len(), "{what}");
        let size = want.iter().fold(0f32, |most, x| most.max(x.abs()));
        let far = got.iter().zip(want).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(far <= 1e-5 * size.max(1.0), "{what}: {far} of {size}");
    }

    #[test]
    fn values_and_gradients_are_those_of_the_recurrence_for_each_whole_text() {
        let (forest, h) = (forest(), HEADS);
        let n = forest.len();
        let rows = Var::from_tensor(&random(&[n, h.row_width()])).unwrap();
        // Some decays are negligible, some forget nearly everything.
        let decays = Var::from_tensor(&random(&[n, h.values]).affine(1.5, 0.0).unwrap().exp().unwrap().neg().unwrap()).unwrap();
        let betas = Var::from_tensor(&random(&[n, h.values]).affine(0.2, 0.5).unwrap()).unwrap();
        let d_out = random(&[n, h.value_width()]);
        let mut places = vec![None; n];
        for (text, own) in texts() {
            let index = Tensor::from_vec(text.clone(), text.len(), &Device::Cpu).unwrap();
            let [rows, decays, betas] = [&rows, &decays, &betas].map(|t| t.index_select(&index, 0).unwrap());
            let result = defined(&rows, &decays, &betas).unwrap();
            for (at, row) in text.iter().enumerate().skip(text.len() - own) {
                places[*row as usize] = Some(result.narrow(0, at, 1).unwrap());
            }
        }
        let want = Tensor::cat(&places.into_iter().map(Option::unwrap).collect::<Vec<_>>(), 0).unwrap();
        let autograd = (&want * d_out.to_dtype(DType::F64).unwrap()).unwrap().sum_all().unwrap().backward().unwrap();

        let given = [&rows, &decays, &betas].map(|t| values(t));
        let read = DeltaRuleInputs { heads: h, rows: &given[0], decays: &given[1], betas: Some(&given[2]) };
        let mut out = vec![f32::NAN; n * h.value_width()];
        let ends = read.forward(&forest, &[true; 5], SharedPointer::new(&mut out));
        near("outputs", &out, &values(&want));
        let mut some = vec![f32::NAN; n * h.value_width()];
        let again = read.forward(&forest, &[false, true, false, false, true], SharedPointer::new(&mut some));
        assert_eq!(again, ends);
        let own = |all: &[f32]| all[150 * h.value_width()..220 * h.value_width()].to_vec();
        assert_eq!(own(&some), own(&out));
        assert!(some[..150 * h.value_width()].iter().all(|x| x.is_nan()));

        let got = read.backward(&forest, &values(&d_out));
        for (what, got, var) in [("rows", got.rows, &rows), ("decays", got.decays, &decays), ("betas", got.betas, &betas)] {
            near(what, &got, &values(autograd.get(var).unwrap()));
        }
    }
}
