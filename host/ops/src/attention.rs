//! Causal attention over a forest of segments. A token attends to itself, the earlier tokens of its segment, and all tokens of its prefix
//! segments, as far back as its window reaches.
//!
//! Queries are processed in blocks. A block's scores against each visible run of keys are one matrix product. The forward pass stores only
//! the logarithm of each softmax's normaliser; the backward pass recomputes the probabilities (as FlashAttention does, Dao et al. 2022).

#[cfg(feature = "cuda")]
use super::cuda;
use super::forest::Forest;
use super::gemm::{WriteMode, matmul, matmul_raw};
use super::math::{dot, exp, max, sum_by};
use super::simd::wide;
use super::slices::{ROWS_PER_TASK, SharedPointer, filled_each, read, tensor};
use super::view::MatrixView;
use super::weight_storage::WeightValues;
use super::{Capability, Error, Result, matrix_dims, on_device};
use candle_core::Tensor;
use rayon::prelude::*;
use std::ops::Range;

pub use super::heads::{AttentionConfig, AttentionTensors, Heads};

/// Number of queries per block.
const BLOCK: usize = 64;

/// Runs of keys that a segment's queries see: its prefix segments' keys and its own up to the query, except those before the window.
struct VisibleRuns {
    before: Vec<Range<usize>>,
    own: Range<usize>,
    /// Index of the segment's first query among all queries.
    first: usize,
    attention: AttentionConfig,
}

/// Keys that a block of queries sees.
struct BlockKeys {
    /// Runs of keys, each with its first column. No run is empty.
    runs: Vec<(Range<usize>, usize)>,
    /// Total number of columns.
    total: usize,
    /// Number of positions before the first column.
    skipped: usize,
}

impl VisibleRuns {
    fn new(forest: &Forest, segment: usize, attention: AttentionConfig) -> Self {
        let mut runs: Vec<_> = forest.path(segment).into_iter().map(|s| forest.segments()[s].range()).collect();
        let own = runs.pop().unwrap_or(0..0);
        Self { before: runs, first: own.start, own, attention }
    }

    /// Returns the visible runs of all segments.
    fn all(forest: &Forest, attention: AttentionConfig) -> Vec<Self> {
        (0..forest.segments().len()).map(|segment| Self::new(forest, segment, attention)).collect()
    }

    /// Returns the indices of a block's queries among all queries.
    fn queries(&self, block: &Range<usize>) -> Range<usize> {
        let first = self.first + block.start - self.own.start;
        first..first + block.len()
    }

    /// Returns the position of a packed index of the segment, that is, the number of tokens in all runs before it.
    fn position(&self, place: usize) -> usize {
        self.before.iter().map(ExactSizeIterator::len).sum::<usize>() + place - self.own.start
    }

    /// Returns the keys for the queries `block` (packed indices).
    fn keys(&self, block: &Range<usize>) -> BlockKeys {
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
        BlockKeys { runs, total: column, skipped }
    }

    /// Returns the columns of `keys` that query `i` of a block sees.
    fn visible_columns(&self, block: &Range<usize>, i: usize, keys: &BlockKeys) -> Range<usize> {
        let hidden = self.attention.hidden(self.position(block.start + i)) - keys.skipped;
        hidden..keys.total - (block.len() - 1 - i)
    }

    fn blocks(&self) -> impl Iterator<Item = Range<usize>> {
        let end = self.own.end;
        self.own.clone().step_by(BLOCK).map(move |first| first..(first + BLOCK).min(end))
    }
}

/// Returns an error if the shapes of this many queries and of all keys and values don't fit.
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

/// Returns an error if the device of a tensor lacks the kernels.
fn require(t: &Tensor, attention: AttentionConfig) -> Result<()> {
    if attention.chunked { Capability::ChunkedAttention.require(t) } else { Ok(()) }
}

/// Returns rows `range` of head `head` in packed `[N, heads * C]` values.
fn head<'a>(packed: MatrixView<'a>, range: &Range<usize>, head: usize, c: usize) -> MatrixView<'a> {
    packed.some_rows(range).some_columns(&(head * c..(head + 1) * c))
}

/// Packed queries, keys and values, as products read them.
#[derive(Clone, Copy)]
struct PackedQkv<'a> {
    q: MatrixView<'a>,
    k: MatrixView<'a>,
    v: MatrixView<'a>,
}

impl<'a> PackedQkv<'a> {
    fn new([q, k, v]: &'a [WeightValues<'_>; 3], tensors: [&Tensor; 3], attention: AttentionConfig) -> Result<Self> {
        let [of_q, of_k, of_v] = tensors;
        let precision = attention.precision;
        Ok(Self { q: q.rows(of_q, precision)?, k: k.rows(of_k, precision)?, v: v.rows(of_v, precision)? })
    }
}

/// Computes the heads' outputs `[N, H * C]` from `q: [N, H * C]` and `k, v: [N, K * C]`. Also returns the logarithms of the
/// softmax normalisers, `[N, H]` in f32, for the backward pass.
pub fn forward(q: &Tensor, k: &Tensor, v: &Tensor, forest: &Forest, attention: AttentionConfig) -> Result<(Tensor, Tensor)> {
    check(q, (k, v), forest.len(), forest, attention.heads)?;
    require(q, attention)?;
    on_device!(q, cuda::attention::forward(q, k, v, forest, attention));
    forward_queries(q, k, v, VisibleRuns::all(forest, attention), |_| true, attention)
}

/// Computes the heads' outputs and normalisers of [`forward`] for some `rows`. On the CPU, other rows may be zeros.
pub fn forward_rows(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    forest: &Forest,
    rows: &[usize],
    attention: AttentionConfig,
) -> Result<(Tensor, Tensor)> {
    let n = forest.len();
    check(q, (k, v), n, forest, attention.heads)?;
    if let Some(row) = rows.iter().find(|row| **row >= n) {
        return Err(Error::Shape { op: "attention", detail: format!("row {row} of {n}") });
    }
    require(q, attention)?;
    on_device!(q, cuda::attention::forward(q, k, v, forest, attention));
    let mut wanted = vec![false; n];
    rows.iter().for_each(|row| wanted[*row] = true);
    forward_queries(q, k, v, VisibleRuns::all(forest, attention), |queries| wanted[queries].contains(&true), attention)
}

/// Computes the heads' outputs and normalisers of [`forward`] for the queries of some `segments` only, `q: [M, H * C]`, in this order. CPU
/// only.
pub fn forward_segments(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    forest: &Forest,
    segments: &[usize],
    attention: AttentionConfig,
) -> Result<(Tensor, Tensor)> {
    let mut first = 0;
    let place = |segment: &usize| {
        let visible = VisibleRuns { first, ..VisibleRuns::new(forest, *segment, attention) };
        first += visible.own.len();
        visible
    };
    let visible: Vec<VisibleRuns> = segments.iter().map(place).collect();
    check(q, (k, v), first, forest, attention.heads)?;
    forward_queries(q, k, v, visible, |_| true, attention)
}

/// Computes the outputs of the queries that see these keys. Blocks of queries that are not `wanted` get zeros.
fn forward_queries(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    visible: Vec<VisibleRuns>,
    wanted: impl Fn(Range<usize>) -> bool,
    attention: AttentionConfig,
) -> Result<(Tensor, Tensor)> {
    let (h, n) = (attention.heads, matrix_dims(q).0);
    let stored = [WeightValues::open(q.into())?, WeightValues::open(k.into())?, WeightValues::open(v.into())?];
    let packed = PackedQkv::new(&stored, [q, k, v], attention)?;
    let width = h.heads * h.head_dim;
    let blocks: Vec<(&VisibleRuns, Range<usize>)> = visible.iter().flat_map(|v| v.blocks().map(move |b| (v, b))).collect();
    let (wanted, others): (Vec<_>, Vec<_>) = blocks.into_iter().partition(|(v, block)| wanted(v.queries(block)));
    let of_head = |visible, block, head_index| QueryBlock { visible, block, head_index };
    let tasks: Vec<_> = wanted.iter().flat_map(|(v, b)| (0..h.heads).map(move |head| of_head(*v, b, head))).collect();
    // SAFETY: the blocks are all queries.
    let [out, log_sum] = unsafe {
        filled_each::<2, f32>([n * width, n * h.heads], |all| {
            let [out, log_sum] = all.map(SharedPointer::from_uninit);
            for (v, block) in others {
                let queries = v.queries(&block);
                out.at(queries.start * width).write_bytes(0, queries.len() * width);
                log_sum.at(queries.start * h.heads).write_bytes(0, queries.len() * h.heads);
            }
            tasks.into_par_iter().for_each_init(Vec::new, |scores, task| {
                block_forward(packed, task, attention, scores, (out, log_sum));
            });
        })
    };
    Ok((tensor(out, (n, width))?, tensor(log_sum, (n, h.heads))?))
}

/// A block of queries of one head.
#[derive(Clone, Copy)]
struct QueryBlock<'a> {
    visible: &'a VisibleRuns,
    block: &'a Range<usize>,
    head_index: usize,
}

/// Writes the outputs of a block of queries of a head and the logarithms of their normalisers. `scores` is scratch memory.
fn block_forward(
    packed: PackedQkv<'_>,
    QueryBlock { visible, block, head_index }: QueryBlock<'_>,
    attention: AttentionConfig,
    scores: &mut Vec<f32>,
    (out_at, log_sum_at): (SharedPointer, SharedPointer),
) {
    let h = attention.heads;
    let (keys, queries) = (visible.keys(block), visible.queries(block));
    let (runs, total) = (&keys.runs, keys.total);
    let (c, kv) = (h.head_dim, head_index / h.per_kv());
    scores.resize(block.len() * total, 0f32);
    let q = head(packed.q, &queries, head_index, c);
    for (run, column) in runs {
        let k = head(packed.k, run, kv, c);
        matmul(&mut scores[*column..], total, WriteMode::Replace, q, k.t(), attention.scale, attention.precision.on_one_thread());
    }
    for (i, row) in scores.chunks_mut(total).enumerate() {
        let seen = visible.visible_columns(block, i, &keys);
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
        let p = MatrixView::with_row_stride(&scores[*column..], block.len(), run.len(), total);
        let v = head(packed.v, run, kv, c);
        let dst = if r == 0 { WriteMode::Replace } else { WriteMode::Add };
        // SAFETY: only this task writes these tokens' columns of this head.
        unsafe {
            let out = out_at.at((queries.start * h.heads + head_index) * c);
            matmul_raw(out, h.heads * c, dst, p, v, 1.0, attention.precision.on_one_thread());
        }
    }
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

/// Computes the gradients of `q`, `k` and `v` from the output's.
pub fn backward(
    kept: &AttentionTensors<'_>,
    d_out: &Tensor,
    forest: &Forest,
    attention: AttentionConfig,
) -> Result<(Tensor, Tensor, Tensor)> {
    let (h, n) = (attention.heads, forest.len());
    check(kept.q, (kept.k, kept.v), n, forest, h)?;
    require(d_out, attention)?;
    on_device!(d_out, cuda::attention::backward(kept, d_out, forest, attention));
    let (width, kv_width) = (h.heads * h.head_dim, h.kv_heads * h.head_dim);
    if matrix_dims(kept.out) != (n, width) || matrix_dims(d_out) != (n, width) || matrix_dims(kept.log_sum) != (n, h.heads) {
        let detail = format!("an output {:?} with gradient {:?} of {n} tokens and {h:?}", kept.out.shape(), d_out.shape());
        return Err(Error::Shape { op: "attention backward", detail });
    }
    let stored = [WeightValues::open(kept.q.into())?, WeightValues::open(kept.k.into())?, WeightValues::open(kept.v.into())?];
    let packed = PackedQkv::new(&stored, [kept.q, kept.k, kept.v], attention)?;
    let out = WeightValues::open(kept.out.into())?;
    let given = AttentionBackward { packed, out: &out, log_sum: &read(kept.log_sum)?, d_out: &read(d_out)?, attention };
    let trees = forest.trees();
    // One task owns the gradients of one head in one tree. So sums over a prompt's completions need no locks and have a fixed order, like
    // the sums over heads that share keys and values.
    let tasks: Vec<(&[usize], usize)> =
        trees.iter().flat_map(|tree| (0..h.heads).map(move |head| (tree.as_slice(), head))).collect();
    // SAFETY: the trees have all tokens, and each task writes all places of its head.
    let [dq, dk, dv] = unsafe {
        filled_each::<3, f32>([n * width; 3], |all| {
            let all = all.map(SharedPointer::from_uninit);
            tasks.into_par_iter().for_each_init(Default::default, |scratch, (tree, head)| {
                given.tree_backward(forest, tree, head, scratch, all);
            });
        })
    };
    let of_head = |values: Vec<f32>| tensor(over_heads(values, h), (n, kv_width));
    Ok((tensor(dq, (n, width))?, of_head(dk)?, of_head(dv)?))
}

/// Sums values `[N, H * C]` over the heads that share keys and values: `[N, K * C]`.
fn over_heads(values: Vec<f32>, h: Heads) -> Vec<f32> {
    if h.per_kv() == 1 {
        return values;
    }
    let (c, each) = (h.head_dim, h.per_kv() * h.head_dim);
    let mut sums = vec![0f32; values.len() / h.per_kv()];
    sums.par_chunks_mut(ROWS_PER_TASK * c).zip(values.par_chunks(ROWS_PER_TASK * each)).for_each(|(sums, values)| {
        for (sum, heads) in sums.chunks_mut(c).zip(values.chunks(each)) {
            sum.copy_from_slice(&heads[..c]);
            wide!(for head in heads[c..].chunks(c) {
                sum.iter_mut().zip(head).for_each(|(sum, x)| *sum += x);
            });
        }
    });
    sums
}

/// Inputs from which gradients are computed.
struct AttentionBackward<'a> {
    packed: PackedQkv<'a>,
    out: &'a WeightValues<'a>,
    log_sum: &'a [f32],
    d_out: &'a [f32],
    attention: AttentionConfig,
}

/// Scratch memory for a block's probabilities and for the gradients of its scores.
type AttentionScratch = (Vec<f32>, Vec<f32>);

impl AttentionBackward<'_> {
    /// Writes the gradients of one head in the segments of a tree: of queries, and the head's part of those of keys and values, all
    /// `[N, H * C]`.
    fn tree_backward(
        &self,
        forest: &Forest,
        tree: &[usize],
        head: usize,
        scratch: &mut AttentionScratch,
        to: [SharedPointer; 3],
    ) {
        let (c, width) = (self.attention.heads.head_dim, self.attention.heads.heads * self.attention.heads.head_dim);
        for token in tree.iter().flat_map(|segment| forest.segments()[*segment].range()) {
            for to in to {
                // SAFETY: only this task accesses this head's places in the tree's rows.
                unsafe { to.at(token * width + head * c).write_bytes(0, c) };
            }
        }
        for segment in tree {
            let visible = VisibleRuns::new(forest, *segment, self.attention);
            for block in visible.blocks().filter(|block| self.has_gradient(block, head)) {
                self.block_backward(QueryBlock { visible: &visible, block: &block, head_index: head }, scratch, to);
            }
        }
    }

    /// Returns whether a head's outputs in a block have a nonzero gradient. In the last layer, most prompts have none.
    fn has_gradient(&self, block: &Range<usize>, head_index: usize) -> bool {
        let (h, c) = (self.attention.heads.heads, self.attention.heads.head_dim);
        block.clone().any(|token| self.d_out[(token * h + head_index) * c..][..c].iter().any(|d| *d != 0.0))
    }

    /// Adds the contribution of a block of queries.
    fn block_backward(
        &self,
        QueryBlock { visible, block, head_index }: QueryBlock<'_>,
        (probs, d_scores): &mut AttentionScratch,
        [dq, dk, dv]: [SharedPointer; 3],
    ) {
        let (h, scale, alone) = (self.attention.heads, self.attention.scale, self.attention.precision.on_one_thread());
        let (c, width, kv) = (h.head_dim, h.heads * h.head_dim, head_index / h.per_kv());
        let keys = visible.keys(block);
        let (runs, total) = (&keys.runs, keys.total);
        probs.resize(block.len() * total, 0.0);
        d_scores.resize(block.len() * total, 0.0);
        let PackedQkv { q, k, v } = self.packed;
        let q = head(q, block, head_index, c);
        let d_o = head(MatrixView::new(self.d_out, self.d_out.len() / width.max(1), width), block, head_index, c);
        for (run, column) in runs {
            let (k, v) = (head(k, run, kv, c), head(v, run, kv, c));
            matmul(&mut probs[*column..], total, WriteMode::Replace, q, k.t(), scale, alone);
            matmul(&mut d_scores[*column..], total, WriteMode::Replace, d_o, v.t(), 1.0, alone);
        }
        for (i, (p, ds)) in probs.chunks_mut(total).zip(d_scores.chunks_mut(total)).enumerate() {
            self.scores_backward((block.start + i, head_index), visible.visible_columns(block, i, &keys), p, ds);
        }
        for (run, column) in runs {
            let p = MatrixView::with_row_stride(&probs[*column..], block.len(), run.len(), total);
            let ds = MatrixView::with_row_stride(&d_scores[*column..], block.len(), run.len(), total);
            let k = head(k, run, kv, c);
            let at = |token: usize| token * width + head_index * c;
            // SAFETY: only this task writes the tree's rows of this head.
            unsafe {
                matmul_raw(dq.at(at(block.start)), width, WriteMode::Add, ds, k, scale, alone);
                matmul_raw(dk.at(at(run.start)), width, WriteMode::Add, ds.t(), q, scale, alone);
                matmul_raw(dv.at(at(run.start)), width, WriteMode::Add, p.t(), d_o, 1.0, alone);
            }
        }
    }

    /// In the columns that a token's head sees, replaces its scores with probabilities, and the gradients of probabilities with those of
    /// scores. Sets other columns to zero.
    fn scores_backward(&self, (token, head): (usize, usize), seen: Range<usize>, p: &mut [f32], ds: &mut [f32]) {
        let (attention, h) = (self.attention, self.attention.heads);
        let own = (token * h.heads + head) * h.head_dim..(token * h.heads + head + 1) * h.head_dim;
        let out = self.out.values(own.clone());
        let along = wide!(dot(&out, &self.d_out[own]));
        let log_sum = self.log_sum[token * h.heads + head];
        wide!({
            let (p, ds) = (&mut p[seen.clone()], &mut ds[seen.clone()]);
            attention.bound(p);
            for (p, ds) in p.iter_mut().zip(ds) {
                // The slope of the soft cap, if there is one.
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::elementwise::{to_vec, zeros_like};
    use crate::view::Precision;
    use candle_core::Device;

    /// Irregular values.
    fn values(rows: usize, width: usize, seed: usize) -> Tensor {
        let value = |i: usize| (((i + seed) * 7919 % 1013) as f32 / 506.5 - 1.0) * 0.7;
        Tensor::from_vec((0..rows * width).map(value).collect::<Vec<f32>>(), (rows, width), &Device::Cpu).unwrap()
    }

    /// Two prompts, of many blocks and of a few tokens, and segments that continue them.
    fn forest() -> Forest {
        let mut forest = Forest::new();
        let long = forest.push(&[1; 150], None);
        forest.push(&[2; 9], Some(long));
        let short = forest.push(&[3; 3], None);
        forest.push(&[4; 70], Some(short));
        forest.push(&[5; 20], Some(long));
        forest
    }

    #[test]
    fn wanted_rows_have_the_same_bits_alone_and_others_the_same_gradient_as_if_they_were_computed() {
        let (forest, heads) = (forest(), Heads { heads: 6, kv_heads: 2, head_dim: 16 });
        let n = forest.len();
        let (q, k, v) = (values(n, 96, 1), values(n, 32, 2), values(n, 32, 3));
        let rows: Vec<usize> = [149].into_iter().chain(150..157).chain(160..231).collect();
        for precision in [Precision::F32, Precision::Bf16] {
            let attention = AttentionConfig { precision, ..heads.into() };
            let (out, log_sum) = forward(&q, &k, &v, &forest, attention).unwrap();
            let (some, some_sum) = forward_rows(&q, &k, &v, &forest, &rows, attention).unwrap();
            let all = |t: &Tensor| to_vec(t).unwrap();
            for row in &rows {
                assert_eq!(all(&out)[row * 96..][..96], all(&some)[row * 96..][..96], "row {row}");
                assert_eq!(all(&log_sum)[row * 6..][..6], all(&some_sum)[row * 6..][..6], "row {row}");
            }
            // The first two blocks of the long prompt.
            assert!(all(&some)[..128 * 96].iter().all(|x| *x == 0.0));
            let d_out = zeros_like(&out).unwrap();
            crate::write(&d_out, |d| {
                rows.iter().for_each(|row| d[row * 96..][..96].iter_mut().enumerate().for_each(|(i, d)| *d = i as f32 / 50.0));
            })
            .unwrap();
            let gradients = |out: &Tensor, log_sum: &Tensor| {
                let kept = AttentionTensors { q: &q, k: &k, v: &v, out, log_sum };
                let (dq, dk, dv) = backward(&kept, &d_out, &forest, attention).unwrap();
                [all(&dq), all(&dk), all(&dv)]
            };
            assert_eq!(gradients(&out, &log_sum), gradients(&some, &some_sum));
            assert!(gradients(&out, &log_sum)[1][..32].iter().all(|d| *d != 0.0), "keys of a prompt have a gradient");
        }
        assert!(forward_rows(&q, &k, &v, &forest, &[n], heads.into()).is_err());
        let kept = AttentionTensors { q: &q, k: &k, v: &v, out: &k, log_sum: &values(n, 6, 0) };
        assert!(backward(&kept, &q, &forest, heads.into()).is_err(), "an output of another width");
    }

    #[test]
    fn gradients_of_heads_that_share_keys_are_the_sum_of_those_of_heads_that_do_not() {
        let (forest, shared) = (forest(), Heads { heads: 4, kv_heads: 2, head_dim: 8 });
        let n = forest.len();
        let (q, k, v, d_out) = (values(n, 32, 4), values(n, 16, 5), values(n, 16, 6), values(n, 32, 7));
        // Each key head once for each of its query heads.
        let apart = |t: &Tensor| {
            let heads = to_vec(t).unwrap().chunks(8).flat_map(|head| [head, head].concat()).collect::<Vec<f32>>();
            Tensor::from_vec(heads, (n, 32), &Device::Cpu).unwrap()
        };
        let gradients = |k: &Tensor, v: &Tensor, heads: Heads| {
            let (out, log_sum) = forward(&q, k, v, &forest, heads.into()).unwrap();
            let kept = AttentionTensors { q: &q, k, v, out: &out, log_sum: &log_sum };
            let (dq, dk, dv) = backward(&kept, &d_out, &forest, heads.into()).unwrap();
            [dq, dk, dv].map(|t| to_vec(&t).unwrap())
        };
        let got = gradients(&k, &v, shared);
        let want = gradients(&apart(&k), &apart(&v), Heads { kv_heads: 4, ..shared });
        let summed = |heads: &[f32]| -> Vec<f32> {
            heads.chunks(16).flat_map(|two| (0..8).map(|i| two[i] + two[8 + i]).collect::<Vec<f32>>()).collect()
        };
        assert_eq!(got, [want[0].clone(), summed(&want[1]), summed(&want[2])]);
    }
}
