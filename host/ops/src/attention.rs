//! Causal attention over a forest of segments: a token attends to itself, the earlier tokens of its segment, and all tokens of
//! the segments that lead to it, as far back as its window reaches.
//!
//! Queries are processed in blocks. A block's scores against each visible run of keys are one matrix product. The forward pass
//! keeps only the logarithm of each softmax's normaliser; the backward pass recomputes the probabilities (as FlashAttention does,
//! Dao et al. 2022).

use super::cpu::{Read, Shared, read, tensor};
#[cfg(feature = "cuda")]
use super::cuda;
use super::forest::Forest;
use super::gemm::{Dst, Mat, Precision, matmul, matmul_raw};
use super::math::{dot, exp, max, sum_by, tanh};
use super::simd::wide;
use super::{Error, Result, matrix_dims, on_device};
use candle_core::Tensor;
use rayon::prelude::*;
use std::ops::Range;

/// Queries per block.
const BLOCK: usize = 64;

/// Sizes of the heads. Each key/value head serves `heads / kv_heads` consecutive query heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heads {
    /// Query heads, `H`.
    pub heads: usize,
    /// Key/value heads, `K`.
    pub kv_heads: usize,
    /// Size of a head, `C`.
    pub head_dim: usize,
}

impl Heads {
    pub(super) fn scale(self) -> f32 {
        (self.head_dim as f32).sqrt().recip()
    }

    pub(super) fn per_kv(self) -> usize {
        self.heads / self.kv_heads
    }
}

/// How a layer attends. Functions take this type itself, not something convertible to it: a generic function would be compiled in
/// its caller's crate, without optimisation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Attention {
    /// Sizes of its heads.
    pub heads: Heads,
    /// Number of newest positions that a token sees, including itself; all if `None` (sliding windows, Beltagy et al. 2020, arXiv
    /// 2004.05150).
    pub window: Option<usize>,
    /// Factor of the scores, usually the inverse square root of the head size.
    pub scale: f32,
    /// Bound that scores approach, `cap * tanh(score / cap)` (Gemma 2, arXiv 2408.00118); unbounded if `None`.
    pub cap: Option<f32>,
    /// Of the products on the CPU.
    pub precision: Precision,
}

impl From<Heads> for Attention {
    fn from(heads: Heads) -> Self {
        Self { heads, window: None, scale: heads.scale(), cap: None, precision: Precision::F32 }
    }
}

impl Attention {
    /// Returns how many of the first positions a token at this position does not see.
    pub(super) fn hidden(self, position: usize) -> usize {
        self.window.map_or(0, |window| (position + 1).saturating_sub(window))
    }

    /// Bounds scores, if they are bounded.
    #[inline(always)]
    pub(super) fn bound(self, scores: &mut [f32]) {
        if let Some(cap) = self.cap {
            for s in scores {
                *s = cap * tanh(*s / cap);
            }
        }
    }
}

/// Runs of keys that a segment's queries see: the leading segments' keys and its own up to the query, except those before the
/// window.
struct Visible {
    before: Vec<Range<usize>>,
    own: Range<usize>,
    /// The place of its first query among all queries.
    first: usize,
    attention: Attention,
}

/// The keys that a block of queries sees.
struct Keys {
    /// Each run with its first column; none is empty.
    runs: Vec<(Range<usize>, usize)>,
    /// Total number of columns.
    total: usize,
    /// Positions before the first column.
    skipped: usize,
}

impl Visible {
    fn of(forest: &Forest, segment: usize, attention: Attention) -> Self {
        let mut runs: Vec<_> = forest.path(segment).into_iter().map(|s| forest.segments()[s].range()).collect();
        let own = runs.pop().unwrap_or(0..0);
        Self { before: runs, first: own.start, own, attention }
    }

    /// Returns the places of a block's queries among all queries.
    fn queries(&self, block: &Range<usize>) -> Range<usize> {
        let first = self.first + block.start - self.own.start;
        first..first + block.len()
    }

    /// Returns the position of a packed place of the segment: the number of tokens in all runs before it.
    fn position(&self, place: usize) -> usize {
        self.before.iter().map(ExactSizeIterator::len).sum::<usize>() + place - self.own.start
    }

    /// Returns the keys for the queries `block` (packed places).
    fn keys(&self, block: &Range<usize>) -> Keys {
        let skipped = self.attention.hidden(self.position(block.start));
        let (mut column, mut position) = (0, 0);
        let mut runs = Vec::with_capacity(self.before.len() + 1);
        for run in self.before.iter().cloned().chain(std::iter::once(self.own.start..block.end)) {
            let seen = run.start + skipped.saturating_sub(position).min(run.len())..run.end;
            position += run.len();
            if !seen.is_empty() {
                let width = seen.len();
                runs.push((seen, column));
                column += width;
            }
        }
        Keys { runs, total: column, skipped }
    }

    /// Returns the columns of `keys` that query `i` of a block sees.
    fn seen(&self, block: &Range<usize>, i: usize, keys: &Keys) -> Range<usize> {
        let hidden = self.attention.hidden(self.position(block.start + i)) - keys.skipped;
        hidden..keys.total - (block.len() - 1 - i)
    }

    fn blocks(&self) -> impl Iterator<Item = Range<usize>> {
        let end = self.own.end;
        self.own.clone().step_by(BLOCK).map(move |first| first..(first + BLOCK).min(end))
    }
}

/// Checks the shapes of so many queries and of all keys and values.
fn check(q: &Tensor, (k, v): (&Tensor, &Tensor), queries: usize, forest: &Forest, h: Heads) -> Result<()> {
    let n = forest.len();
    let ok = matrix_dims(q) == (queries, h.heads * h.head_dim)
        && matrix_dims(k) == (n, h.kv_heads * h.head_dim)
        && matrix_dims(v) == matrix_dims(k)
        && h.heads.is_multiple_of(h.kv_heads);
    if ok {
        return Ok(());
    }
    let (q, k, v) = (q.shape(), k.shape(), v.shape());
    let detail = format!("q {q:?}, k {k:?}, v {v:?} for {queries} queries among {n} tokens and {h:?}");
    Err(Error::Shape { op: "attention", detail })
}

/// Returns rows `range` of head `head` in packed `[N, heads * C]` values.
fn head<'a>(data: &'a Read<'_>, range: &Range<usize>, head: usize, heads: usize, c: usize) -> Mat<'a> {
    let stride = heads * c;
    Mat::strided(&data[range.start * stride + head * c..], range.len(), c, stride)
}

/// Computes the heads' outputs `[N, H * C]` from `q: [N, H * C]` and `k, v: [N, K * C]`. Also returns the logarithms of the
/// softmax normalisers, `[N, H]` in f32, for the backward pass.
pub fn forward(q: &Tensor, k: &Tensor, v: &Tensor, forest: &Forest, attention: Attention) -> Result<(Tensor, Tensor)> {
    check(q, (k, v), forest.len(), forest, attention.heads)?;
    on_device!(q, cuda::attention::forward(q, k, v, forest, attention));
    of_queries(q, k, v, (0..forest.segments().len()).map(|s| Visible::of(forest, s, attention)).collect(), attention)
}

/// Does the same for the queries of some `segments` only, `q: [M, H * C]`, in this order. On the CPU.
pub fn forward_some(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    forest: &Forest,
    segments: &[usize],
    attention: Attention,
) -> Result<(Tensor, Tensor)> {
    let mut first = 0;
    let place = |segment: &usize| {
        let visible = Visible { first, ..Visible::of(forest, *segment, attention) };
        first += visible.own.len();
        visible
    };
    let visible: Vec<Visible> = segments.iter().map(place).collect();
    check(q, (k, v), first, forest, attention.heads)?;
    of_queries(q, k, v, visible, attention)
}

/// Computes the outputs of the queries that see these keys.
fn of_queries(q: &Tensor, k: &Tensor, v: &Tensor, visible: Vec<Visible>, attention: Attention) -> Result<(Tensor, Tensor)> {
    let (h, n) = (attention.heads, matrix_dims(q).0);
    let (qs, ks, vs) = (read(q)?, read(k)?, read(v)?);
    let (mut out, mut log_sum) = (vec![0f32; n * h.heads * h.head_dim], vec![0f32; n * h.heads]);
    let (out_at, log_sum_at) = (Shared::new(&mut out), Shared::new(&mut log_sum));
    let tasks: Vec<(&Visible, Range<usize>, usize)> =
        visible.iter().flat_map(|v| v.blocks().flat_map(move |b| (0..h.heads).map(move |head| (v, b.clone(), head)))).collect();
    tasks.into_par_iter().for_each_init(Vec::new, |scores, (visible, block, head_index)| {
        let (keys, queries) = (visible.keys(&block), visible.queries(&block));
        let (runs, total) = (&keys.runs, keys.total);
        let (c, kv) = (h.head_dim, head_index / h.per_kv());
        scores.resize(block.len() * total, 0f32);
        let q = head(&qs, &queries, head_index, h.heads, c);
        for (run, column) in runs {
            let k = head(&ks, run, kv, h.kv_heads, c);
            matmul(&mut scores[*column..], total, Dst::Replace, q, k.t(), attention.scale, attention.precision.alone());
        }
        for (i, row) in scores.chunks_mut(total).enumerate() {
            let seen = visible.seen(&block, i, &keys);
            row[..seen.start].fill(0.0);
            row[seen.end..].fill(0.0);
            let row = &mut row[seen];
            let (top, sum) = wide!({
                attention.bound(row);
                softmax(row)
            });
            // SAFETY: only this task writes this token and head.
            unsafe { *log_sum_at.at((queries.start + i) * h.heads + head_index) = top + sum.ln() };
        }
        for (r, (run, column)) in runs.iter().enumerate() {
            let p = Mat::strided(&scores[*column..], block.len(), run.len(), total);
            let v = head(&vs, run, kv, h.kv_heads, c);
            let dst = if r == 0 { Dst::Replace } else { Dst::Add };
            // SAFETY: only this task writes these tokens' columns of this head.
            unsafe {
                let out = out_at.at((queries.start * h.heads + head_index) * c);
                matmul_raw(out, h.heads * c, dst, p, v, 1.0, attention.precision.alone());
            }
        }
    });
    Ok((tensor(out, (n, h.heads * h.head_dim))?, tensor(log_sum, (n, h.heads))?))
}

/// Replaces scores with probabilities. Returns the largest score, and the sum of the exponentials of the scores minus it.
#[inline(always)]
fn softmax(row: &mut [f32]) -> (f32, f32) {
    let top = max(row);
    for s in row.iter_mut() {
        *s = exp(*s - top);
    }
    let sum = sum_by(row, |p| p);
    for s in row.iter_mut() {
        *s *= sum.recip();
    }
    (top, sum)
}

/// Inputs and outputs of [`forward`].
pub struct Kept<'a> {
    /// Queries, `[N, H * C]`.
    pub q: &'a Tensor,
    /// Keys, `[N, K * C]`.
    pub k: &'a Tensor,
    /// Values, `[N, K * C]`.
    pub v: &'a Tensor,
    /// The heads' outputs, `[N, H * C]`.
    pub out: &'a Tensor,
    /// Logarithms of the normalisers, `[N, H]`.
    pub log_sum: &'a Tensor,
}

/// Computes the gradients of `q`, `k` and `v` from the output's.
#[expect(
    clippy::too_many_lines,
    reason = "one loop nest over one task's data; functions for its parts would share a dozen variables"
)]
pub fn backward(kept: &Kept<'_>, d_out: &Tensor, forest: &Forest, attention: Attention) -> Result<(Tensor, Tensor, Tensor)> {
    let (h, n) = (attention.heads, forest.len());
    check(kept.q, (kept.k, kept.v), n, forest, h)?;
    on_device!(d_out, cuda::attention::backward(kept, d_out, forest, attention));
    let log_sums = read(kept.log_sum)?;
    let (qs, ks, vs, outs, d_outs) = (read(kept.q)?, read(kept.k)?, read(kept.v)?, read(kept.out)?, read(d_out)?);
    let (c, width, kv_width) = (h.head_dim, h.heads * h.head_dim, h.kv_heads * h.head_dim);
    let (mut dq, mut dk, mut dv) = (vec![0f32; n * width], vec![0f32; n * kv_width], vec![0f32; n * kv_width]);
    let (dq_at, dk_at, dv_at) = (Shared::new(&mut dq), Shared::new(&mut dk), Shared::new(&mut dv));
    // One task owns all gradients of one key/value head in one tree. So sums over a prompt's completions need no locks and always
    // have the same order.
    let tasks: Vec<(Vec<usize>, usize)> =
        forest.trees().into_iter().flat_map(|tree| (0..h.kv_heads).map(move |kv| (tree.clone(), kv))).collect();
    tasks.into_par_iter().for_each_init(Default::default, |scratch: &mut (Vec<f32>, Vec<f32>), (tree, kv)| {
        let (probs, d_scores) = (&mut scratch.0, &mut scratch.1);
        for (segment, head_index) in tree.iter().flat_map(|&s| (0..h.per_kv()).map(move |i| (s, kv * h.per_kv() + i))) {
            let visible = Visible::of(forest, segment, attention);
            for block in visible.blocks() {
                let keys = visible.keys(&block);
                let (runs, total) = (&keys.runs, keys.total);
                probs.resize(block.len() * total, 0.0);
                d_scores.resize(block.len() * total, 0.0);
                let q = head(&qs, &block, head_index, h.heads, c);
                let d_o = head(&d_outs, &block, head_index, h.heads, c);
                for (run, column) in runs {
                    let k = head(&ks, run, kv, h.kv_heads, c);
                    let v = head(&vs, run, kv, h.kv_heads, c);
                    matmul(&mut probs[*column..], total, Dst::Replace, q, k.t(), attention.scale, attention.precision.alone());
                    matmul(&mut d_scores[*column..], total, Dst::Replace, d_o, v.t(), 1.0, attention.precision.alone());
                }
                for (i, (p, ds)) in probs.chunks_mut(total).zip(d_scores.chunks_mut(total)).enumerate() {
                    let token = block.start + i;
                    let at = token * width + head_index * c;
                    let along = wide!(dot(&outs[at..at + c], &d_outs[at..at + c]));
                    let log_sum = log_sums[token * h.heads + head_index];
                    let seen = visible.seen(&block, i, &keys);
                    wide!({
                        let (p, ds) = (&mut p[seen.clone()], &mut ds[seen.clone()]);
                        attention.bound(p);
                        for (p, ds) in p.iter_mut().zip(ds) {
                            // The slope of the bound, where there is one.
                            let bounded = attention.cap.map_or(0.0, |cap| *p / cap);
                            *p = exp(*p - log_sum);
                            *ds = *p * (*ds - along) * (1.0 - bounded * bounded);
                        }
                    });
                    for row in [p, ds] {
                        row[..seen.start].fill(0.0);
                        row[seen.end..].fill(0.0);
                    }
                }
                for (r, (run, column)) in runs.iter().enumerate() {
                    let p = Mat::strided(&probs[*column..], block.len(), run.len(), total);
                    let ds = Mat::strided(&d_scores[*column..], block.len(), run.len(), total);
                    let k = head(&ks, run, kv, h.kv_heads, c);
                    let dst = if r == 0 { Dst::Replace } else { Dst::Add };
                    let kv_at = run.start * kv_width + kv * c;
                    // SAFETY: only this task writes the tree's rows of this key/value head and of the query heads it serves.
                    unsafe {
                        matmul_raw(
                            dq_at.at(block.start * width + head_index * c),
                            width,
                            dst,
                            ds,
                            k,
                            attention.scale,
                            attention.precision.alone(),
                        );
                        matmul_raw(dk_at.at(kv_at), kv_width, Dst::Add, ds.t(), q, attention.scale, attention.precision.alone());
                        matmul_raw(dv_at.at(kv_at), kv_width, Dst::Add, p.t(), d_o, 1.0, attention.precision.alone());
                    }
                }
            }
        }
    });
    Ok((tensor(dq, (n, width))?, tensor(dk, (n, kv_width))?, tensor(dv, (n, kv_width))?))
}
