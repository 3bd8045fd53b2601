//! Attention of the new tokens of sequences, mostly one each, over cached keys and values. Sequences that continue the same prompt
//! share its cache and matrix products.

use super::attention::{Attention, Heads};
use super::cpu::{Shared, read, tensor};
use super::math::{exp, max, sum_by};
use super::panels::{Lines, ROWS, Tile, sums};
use super::simd::wide;
use super::unpack::WIDTH;
use super::{Error, Result, matrix_dims, team};
use candle_core::Tensor;
use std::ops::Range;

/// Keys and values of a prompt in one layer. Keys are stored as `[K, C, P]`, with `P` padded to whole blocks, so that scores are sums
/// in vector registers without rearranging; values as `[K, P, C]`: rows of all heads would be a page apart, and in the same places of
/// the caches.
#[derive(Clone, Debug, Default)]
pub struct PromptCache {
    len: usize,
    k: Vec<f32>,
    v: Vec<f32>,
}

/// Positions whose keys are stored together.
const BLOCK: usize = WIDTH;

/// Positions for which a sequence's cache reserves memory in advance.
const MOST_ROOM: usize = 1 << 14;

/// Keys and values of a growing sequence in one layer. Keys are stored in blocks of positions, each `[K * C, BLOCK]`, so that a
/// block's scores are sums in vector registers; values as rows of `K * C`.
#[derive(Clone, Debug, Default)]
pub struct SequenceCache {
    len: usize,
    k: Vec<f32>,
    v: Vec<f32>,
}

fn check_rows(k: &Tensor, v: &Tensor, rows: &Range<usize>) -> Result<usize> {
    let (n, width) = matrix_dims(k);
    if rows.end > n || matrix_dims(v) != (n, width) {
        return Err(Error::Shape { op: "key/value cache", detail: format!("rows {rows:?} of {:?}", k.shape()) });
    }
    Ok(width)
}

impl PromptCache {
    /// Creates a cache from rows `rows` of packed `k, v: [N, K * C]`, of heads of `c` values.
    pub fn new(k: &Tensor, v: &Tensor, rows: Range<usize>, c: usize) -> Result<Self> {
        let width = check_rows(k, v, &rows)?;
        if c == 0 || !width.is_multiple_of(c) {
            return Err(Error::Shape { op: "key/value cache", detail: format!("heads of {c} values in rows of {width}") });
        }
        let (len, range) = (rows.len(), rows.start * width..rows.end * width);
        let keys = read(k)?;
        let keys = &keys[range.clone()];
        let padded = len.next_multiple_of(BLOCK);
        let mut turned = vec![0f32; width * padded];
        for (position, row) in keys.chunks(width).enumerate() {
            for (dimension, &x) in row.iter().enumerate() {
                turned[dimension * padded + position] = x;
            }
        }
        let values = read(v)?;
        let of_head = |head: usize| values[range.clone()].chunks(width).flat_map(move |row| &row[head * c..(head + 1) * c]);
        let mut by_head = Vec::with_capacity(len * width);
        (0..width / c).for_each(|head| by_head.extend(of_head(head)));
        Ok(Self { len, k: turned, v: by_head })
    }

    /// Returns the number of its positions, padded.
    fn padded(&self) -> usize {
        self.len.next_multiple_of(BLOCK)
    }

    /// Computes the scores `[heads, P]`, padded, of head `kv`'s queries `q: [heads, C]`, times `scale`.
    fn scores(&self, q: &[f32], c: usize, kv: usize, scale: f32, into: &mut [f32]) {
        let padded = self.padded();
        // A block of keys stays in the L1 cache for all queries.
        for first in (0..padded).step_by(BLOCK) {
            let keys = Lines { values: &self.k[kv * c * padded + first..], stride: padded, count: c };
            for (q, into) in q.chunks(ROWS * c).zip(into.chunks_mut(ROWS * padded)) {
                let mut tile: Tile = [[0.0; BLOCK]; ROWS];
                sums(q, c, 0, keys, &mut tile);
                for (into, sums) in into.chunks_exact_mut(padded).zip(&tile) {
                    into[first..first + BLOCK].iter_mut().zip(sums).for_each(|(score, sum)| *score = sum * scale);
                }
            }
        }
    }

    /// Computes the sums `[heads, C]` of head `kv`'s values, weighted by `p: [heads, P]`, padded.
    fn weighted(&self, p: &[f32], c: usize, kv: usize, into: &mut [f32]) {
        let padded = self.padded();
        if self.len == 0 {
            return into.fill(0.0);
        }
        let (whole, own) = (c / BLOCK * BLOCK, &self.v[kv * self.len * c..(kv + 1) * self.len * c]);
        for first in (0..whole).step_by(BLOCK) {
            let values = Lines { values: &own[first..], stride: c, count: self.len };
            for (p, into) in p.chunks(ROWS * padded).zip(into.chunks_mut(ROWS * c)) {
                let mut tile: Tile = [[0.0; BLOCK]; ROWS];
                sums(p, padded, 0, values, &mut tile);
                for (into, sums) in into.chunks_exact_mut(c).zip(&tile) {
                    into[first..first + BLOCK].copy_from_slice(sums);
                }
            }
        }
        for (into, p) in into.chunks_exact_mut(c).zip(p.chunks_exact(padded)) {
            into[whole..].fill(0.0);
            wide!(add_weighted(&mut into[whole..], &p[..self.len], own, c, whole));
        }
    }
}

impl SequenceCache {
    /// Creates an empty cache for this many positions of `width` = `K * C`. Memory for up to [`MOST_ROOM`] positions is reserved
    /// now, the rest as they come.
    pub fn with_room(positions: usize, width: usize) -> Self {
        let room = positions.min(MOST_ROOM).next_multiple_of(BLOCK) * width;
        Self { len: 0, k: Vec::with_capacity(room), v: Vec::with_capacity(room) }
    }

    /// Appends row `row` of packed `k, v: [N, K * C]`.
    pub fn push(&mut self, k: &Tensor, v: &Tensor, row: usize) -> Result<()> {
        let width = check_rows(k, v, &(row..row + 1))?;
        let (block, at) = (self.len / BLOCK, self.len % BLOCK);
        if at == 0 {
            self.k.resize((block + 1) * width * BLOCK, 0.0);
        }
        let keys = &read(k)?[row * width..(row + 1) * width];
        for (places, &x) in self.k[block * width * BLOCK..].as_chunks_mut::<BLOCK>().0.iter_mut().zip(keys) {
            places[at] = x;
        }
        self.v.extend_from_slice(&read(v)?[row * width..(row + 1) * width]);
        self.len += 1;
        Ok(())
    }

    /// Returns the number of its positions.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Appends the scores of the first `seen` positions for each of head `kv`'s queries `q: [heads, C]`: products with keys, times
    /// `scale`.
    fn scores(&self, seen: usize, (q, c): (&[f32], usize), kv: usize, kv_width: usize, scale: f32, into: &mut Vec<f32>) {
        for q in q.chunks(ROWS * c) {
            let first = into.len();
            into.resize(first + q.len() / c * seen, 0.0);
            for (i, block) in self.k.chunks_exact(kv_width * BLOCK).take(seen.div_ceil(BLOCK)).enumerate() {
                let mut tile: Tile = [[0.0; BLOCK]; ROWS];
                let keys = Lines { values: &block[kv * c * BLOCK..(kv + 1) * c * BLOCK], stride: BLOCK, count: c };
                sums(q, c, 0, keys, &mut tile);
                for (into, sums) in into[first..].chunks_exact_mut(seen).zip(&tile) {
                    into[i * BLOCK..].iter_mut().zip(sums).for_each(|(score, sum)| *score = sum * scale);
                }
            }
        }
    }
}

/// Rows of sequences that continue the same prompt.
pub struct Group<'a> {
    /// The prompt's cache.
    pub prompt: &'a PromptCache,
    /// For each row of the batch: its index, the cache of its sequence, which includes all new tokens, and how many positions of
    /// that it sees, itself included.
    pub sequences: Vec<(usize, &'a SequenceCache, usize)>,
}

/// Computes the heads' outputs `[B, H * C]` from `q: [B, H * C]`. Every row of the batch is in exactly one group.
pub fn forward(q: &Tensor, groups: &[Group<'_>], attention: Attention) -> Result<Tensor> {
    let h = attention.heads;
    let (b, width) = matrix_dims(q);
    let rows: usize = groups.iter().map(|g| g.sequences.len()).sum();
    if width != h.heads * h.head_dim || rows != b {
        return Err(Error::Shape { op: "cached attention", detail: format!("{:?} for {rows} sequences and {h:?}", q.shape()) });
    }
    let qs = read(q)?;
    let mut out = vec![0f32; b * width];
    let out_at = Shared::new(&mut out);
    let tasks: Vec<(&Group<'_>, usize)> = groups.iter().flat_map(|g| (0..h.kv_heads).map(move |kv| (g, kv))).collect();
    team::each(tasks.len(), |task| {
        let ((group, kv), mut scratch) = (tasks[task], Scratch::default());
        scratch.attend(&qs, group, kv, attention);
        let (c, per_kv) = (h.head_dim, h.per_kv());
        for (i, (row, ..)) in group.sequences.iter().enumerate() {
            let from = &scratch.out[i * per_kv * c..(i + 1) * per_kv * c];
            // SAFETY: only this task writes this sequence's heads of this key/value head.
            unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), out_at.at(row * width + kv * per_kv * c), from.len()) };
        }
    });
    tensor(out, (b, width))
}

#[derive(Default)]
struct Scratch {
    q: Vec<f32>,
    /// Probabilities of the prompt's positions, `[heads, P]`, padded.
    shared: Vec<f32>,
    /// Probabilities of the sequence's own positions, head by head.
    own: Vec<f32>,
    out: Vec<f32>,
}

impl Scratch {
    /// Fills `self.out` with the outputs of key/value head `kv`'s query heads, sequence by sequence.
    fn attend(&mut self, qs: &[f32], group: &Group<'_>, kv: usize, attention: Attention) {
        let h: Heads = attention.heads;
        let (c, per_kv, width, kv_width) = (h.head_dim, h.per_kv(), h.heads * h.head_dim, h.kv_heads * h.head_dim);
        let (heads, prompt_len) = (group.sequences.len() * per_kv, group.prompt.len);
        self.q.clear();
        for (row, ..) in &group.sequences {
            let at = row * width + kv * per_kv * c;
            self.q.extend_from_slice(&qs[at..at + per_kv * c]);
        }
        let padded = group.prompt.padded();
        self.shared.resize(heads * padded, 0.0);
        self.out.resize(heads * c, 0.0);
        group.prompt.scores(&self.q, c, kv, attention.scale, &mut self.shared);

        self.own.clear();
        for (q, (_, cache, seen)) in self.q.chunks(per_kv * c).zip(&group.sequences) {
            cache.scores(*seen, (q, c), kv, kv_width, attention.scale, &mut self.own);
        }
        let mut first = 0;
        wide!(for (i, (_, _, seen)) in group.sequences.iter().enumerate() {
            for index in i * per_kv..(i + 1) * per_kv {
                let (shared, own) = (&mut self.shared[index * padded..][..prompt_len], &mut self.own[first..first + seen]);
                first += seen;
                let hidden = attention.hidden(prompt_len + seen - 1);
                let (far, shared) = shared.split_at_mut(hidden.min(prompt_len));
                let (far_own, own) = own.split_at_mut(hidden.saturating_sub(prompt_len));
                far.fill(0.0);
                far_own.fill(0.0);
                attention.bound(shared);
                attention.bound(own);
                normalise(shared, own);
            }
        });

        group.prompt.weighted(&self.shared, c, kv, &mut self.out);
        let mut at = 0;
        wide!(for (index, out) in self.out.chunks_mut(c).enumerate() {
            let (_, cache, seen) = group.sequences[index / per_kv];
            add_weighted(out, &self.own[at..at + seen], &cache.v, kv_width, kv * c);
            at += seen;
        });
    }
}

/// Adds row `i` times `weights[i]`, for all `i`, to `out: [C]`. Rows are `width` wide, and the added values start at `first`.
#[inline(always)]
fn add_weighted(out: &mut [f32], weights: &[f32], rows: &[f32], width: usize, first: usize) {
    const LANES: usize = 32;
    let (whole, rest) = out.as_chunks_mut::<LANES>();
    for (i, out) in whole.iter_mut().enumerate() {
        let mut sums = *out;
        for (&p, row) in weights.iter().zip(rows.chunks_exact(width)) {
            for (sum, &x) in sums.iter_mut().zip(&row[first + i * LANES..][..LANES]) {
                *sum = p.mul_add(x, *sum);
            }
        }
        *out = sums;
    }
    let first = first + whole.len() * LANES;
    for (&p, row) in weights.iter().zip(rows.chunks_exact(width)) {
        for (out, &x) in rest.iter_mut().zip(&row[first..]) {
            *out = p.mul_add(x, *out);
        }
    }
}

/// Replaces two runs of scores by the softmax over both together.
#[inline(always)]
fn normalise(a: &mut [f32], b: &mut [f32]) {
    let top = max(a).max(max(b));
    let mut sum = 0.0;
    for run in [&mut *a, &mut *b] {
        for s in run.iter_mut() {
            *s = exp(*s - top);
        }
        sum += sum_by(run, |p| p);
    }
    let inverse = sum.recip();
    for run in [a, b] {
        for s in run {
            *s *= inverse;
        }
    }
}
