//! Attention of the new tokens of sequences, mostly one each, over cached keys and values. Sequences that continue the same prompt
//! share its cache and matrix products.

use super::attention::{Attention, Heads};
use super::cpu::{Shared, read, share, tensor};
use super::gemm::Precision;
use super::lines::{Lines, ROWS, Tile, Value, has_pairs, sums};
#[cfg(target_arch = "x86_64")]
use super::lines::{Pairs, sums_of_pairs};
use super::math::{exp, max, sum_by};
use super::rounding::{round_into, rounded};
use super::simd::wide;
use super::tiles::turn_padded;
use super::unpack::WIDTH;
use super::{Error, Result, matrix_dims, team};
use candle_core::Tensor;
use half::bf16;
use rayon::prelude::*;
use std::ops::Range;

/// Keys and values of a prompt in one layer. Keys are stored as `[K, C, P]`, with `P` padded to whole blocks, so that scores are sums
/// in vector registers without rearranging; values as `[K, P, C]`: rows of all heads would be a page apart, and in the same places of
/// the caches. In bf16, if the processor multiplies pairs and heads are whole blocks, two neighbours along the summed dimension are
/// together: keys as `[K, P / BLOCK, C / 2, BLOCK, 2]`, values as `[K, P / 2, C, 2]`.
#[derive(Clone, Debug, Default)]
pub struct PromptCache {
    len: usize,
    k: Values,
    v: Values,
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "only x86-64 multiplies pairs"))]
    in_pairs: bool,
}

/// Keys or values of a cache.
#[derive(Clone, Debug)]
enum Values {
    F32(Vec<f32>),
    Bf16(Vec<bf16>),
}

/// Evaluates an expression with the values of either type.
macro_rules! with {
    ($values:expr, |$of_type:ident| $do:expr) => {
        match $values {
            Values::F32($of_type) => $do,
            Values::Bf16($of_type) => $do,
        }
    };
}

impl Default for Values {
    fn default() -> Self {
        Self::F32(Vec::new())
    }
}

impl Values {
    /// Creates a list for products of this precision, with room for some values.
    fn with_room(precision: Precision, room: usize) -> Self {
        match precision {
            Precision::F32 => Self::F32(Vec::with_capacity(room)),
            Precision::Bf16 => Self::Bf16(Vec::with_capacity(room)),
        }
    }

    /// Creates a list of these values.
    fn of(precision: Precision, values: Vec<f32>) -> Self {
        match precision {
            Precision::F32 => Self::F32(values),
            Precision::Bf16 => Self::Bf16(rounded(&values)),
        }
    }

    /// Appends zeros up to this length.
    fn lengthen(&mut self, length: usize) {
        match self {
            Self::F32(all) => all.resize(length, 0.0),
            Self::Bf16(all) => all.resize(length, bf16::ZERO),
        }
    }

    fn extend(&mut self, values: &[f32]) {
        match self {
            Self::F32(all) => all.extend_from_slice(values),
            Self::Bf16(all) => {
                let before = all.len();
                all.resize(before + values.len(), bf16::ZERO);
                round_into(values, &mut all[before..]);
            }
        }
    }

    /// Replaces column `at` of the lines of [`BLOCK`] from `first` on.
    fn set_column(&mut self, first: usize, at: usize, values: &[f32]) {
        match self {
            Self::F32(all) => {
                let lines = all[first..].as_chunks_mut::<BLOCK>().0;
                lines.iter_mut().zip(values).for_each(|(line, &x)| line[at] = x);
            }
            Self::Bf16(all) => {
                let lines = all[first..].as_chunks_mut::<BLOCK>().0;
                lines.iter_mut().zip(values).for_each(|(line, &x)| line[at] = bf16::from_f32(x));
            }
        }
    }
}

/// Pairs of lines that a task puts together at least.
const LINES_A_TASK: usize = 64;

/// Query rows of a task at least, if rows that continue a prompt are divided.
const FEWEST_ROWS: usize = 6;

/// Parts that they are divided into at most.
const MOST_PARTS: usize = 8;

/// A number that all these numbers of parts divide.
const UNITS: usize = 840;

/// Positions whose keys are stored together.
const BLOCK: usize = WIDTH;

/// Positions for which a sequence's cache reserves memory in advance.
const MOST_ROOM: usize = 1 << 14;

/// Keys and values of a growing sequence in one layer. Keys are stored in blocks of positions, each `[K * C, BLOCK]`, so that a
/// block's scores are sums in vector registers; values as rows of `K * C`.
#[derive(Clone, Debug, Default)]
pub struct SequenceCache {
    len: usize,
    k: Values,
    v: Values,
}

fn check_rows(k: &Tensor, v: &Tensor, rows: &Range<usize>) -> Result<usize> {
    let (n, width) = matrix_dims(k);
    if rows.end > n || matrix_dims(v) != (n, width) {
        return Err(Error::Shape { op: "key/value cache", detail: format!("rows {rows:?} of {:?}", k.shape()) });
    }
    Ok(width)
}

impl PromptCache {
    /// Creates a cache from rows `rows` of packed `k, v: [N, K * C]`, of heads of `c` values, for products of this
    /// precision.
    pub fn new(k: &Tensor, v: &Tensor, rows: Range<usize>, c: usize, precision: Precision) -> Result<Self> {
        let width = check_rows(k, v, &rows)?;
        if c == 0 || !width.is_multiple_of(c) {
            return Err(Error::Shape { op: "key/value cache", detail: format!("heads of {c} values in rows of {width}") });
        }
        let (len, range) = (rows.len(), rows.start * width..rows.end * width);
        let turned = turn_padded(&read(k)?[range.clone()], width, len.next_multiple_of(BLOCK));
        let in_pairs = precision == Precision::Bf16 && c.is_multiple_of(BLOCK) && has_pairs();
        // The last of an odd number of rows is paired with zeros.
        let lines = if in_pairs { len.next_multiple_of(2) } else { len };
        let (values, mut by_head) = (read(v)?, vec![0f32; lines * width]);
        by_head.par_chunks_mut((lines * c).max(1)).enumerate().for_each(|(head, rows)| {
            for (to, from) in rows.chunks_exact_mut(c).zip(values[range.clone()].chunks_exact(width)) {
                to.copy_from_slice(&from[head * c..(head + 1) * c]);
            }
        });
        let (k, v) = if in_pairs {
            let by_block = in_blocks(&turned, len.next_multiple_of(BLOCK), c);
            (Values::Bf16(paired(&by_block, BLOCK)), Values::Bf16(paired(&by_head, c)))
        } else {
            (Values::of(precision, turned), Values::of(precision, by_head))
        };
        Ok(Self { len, k, v, in_pairs })
    }

    /// Returns the number of its positions, padded.
    fn padded(&self) -> usize {
        self.len.next_multiple_of(BLOCK)
    }

    /// Computes the scores `[heads, P]`, padded, of head `kv`'s queries `q: [heads, C]`, times `scale`.
    fn scores(&self, q: &[f32], c: usize, kv: usize, scale: f32, into: &mut [f32]) {
        let padded = self.padded();
        #[cfg(target_arch = "x86_64")]
        if let (Values::Bf16(k), true) = (&self.k, self.in_pairs) {
            let (q, tile_rows) = (rounded_rows(q, c, c), tile_rows(q.len() / c));
            for first in (0..padded).step_by(BLOCK) {
                let keys = Pairs { values: &k[kv * c * padded + first * c..], stride: 2 * BLOCK, count: c / 2 };
                for (q, into) in q.chunks(tile_rows * c).zip(into.chunks_mut(tile_rows * padded)) {
                    let mut tile: Tile = [[0.0; BLOCK]; ROWS];
                    sums_of_pairs(q, c, keys, &mut tile);
                    put(&tile, into, padded, first, scale);
                }
            }
            return;
        }
        // A block of keys stays in the L1 cache for all queries.
        for first in (0..padded).step_by(BLOCK) {
            for (q, into) in q.chunks(ROWS * c).zip(into.chunks_mut(ROWS * padded)) {
                let mut tile: Tile = [[0.0; BLOCK]; ROWS];
                with!(&self.k, |k| {
                    let keys = Lines { values: &k[kv * c * padded + first..], stride: padded, count: c };
                    sums(q, c, 0, keys, &mut tile);
                });
                put(&tile, into, padded, first, scale);
            }
        }
    }

    /// Computes the sums `[heads, C]` of head `kv`'s values, weighted by `p: [heads, P]`, padded.
    fn weighted(&self, p: &[f32], c: usize, kv: usize, into: &mut [f32]) {
        let padded = self.padded();
        if self.len == 0 {
            return into.fill(0.0);
        }
        #[cfg(target_arch = "x86_64")]
        if let (Values::Bf16(v), true) = (&self.v, self.in_pairs) {
            let tile_rows = tile_rows(p.len() / padded);
            let (p, even) = (rounded_rows(p, padded, self.len), self.len.next_multiple_of(2));
            for first in (0..c).step_by(BLOCK) {
                let values = Pairs { values: &v[kv * even * c + 2 * first..], stride: 2 * c, count: even / 2 };
                for (p, into) in p.chunks(tile_rows * even).zip(into.chunks_mut(tile_rows * c)) {
                    let mut tile: Tile = [[0.0; BLOCK]; ROWS];
                    sums_of_pairs(p, even, values, &mut tile);
                    put(&tile, into, c, first, 1.0);
                }
            }
            return;
        }
        let (whole, own) = (c / BLOCK * BLOCK, kv * self.len * c..(kv + 1) * self.len * c);
        for first in (0..whole).step_by(BLOCK) {
            for (p, into) in p.chunks(ROWS * padded).zip(into.chunks_mut(ROWS * c)) {
                let mut tile: Tile = [[0.0; BLOCK]; ROWS];
                with!(&self.v, |v| {
                    let values = Lines { values: &v[own.clone()][first..], stride: c, count: self.len };
                    sums(p, padded, 0, values, &mut tile);
                });
                put(&tile, into, c, first, 1.0);
            }
        }
        for (into, p) in into.chunks_exact_mut(c).zip(p.chunks_exact(padded)).filter(|_| whole < c) {
            into[whole..].fill(0.0);
            with!(&self.v, |v| wide!(add_weighted(&mut into[whole..], &p[..self.len], &v[own.clone()], c, whole)));
        }
    }
}

/// Writes each row's sums, times `scale`, from the place `first` of its line on.
fn put(tile: &Tile, into: &mut [f32], line: usize, first: usize, scale: f32) {
    for (into, sums) in into.chunks_exact_mut(line).zip(tile) {
        into[first..first + BLOCK].iter_mut().zip(sums).for_each(|(x, sum)| *x = sum * scale);
    }
}

/// Returns how many of so many rows are summed together at a time: as many in each tile, since few take nearly as long as many.
#[cfg(target_arch = "x86_64")]
fn tile_rows(rows: usize) -> usize {
    rows.div_ceil(rows.div_ceil(ROWS).max(1)).max(1)
}

/// Cuts lines `[K, C]` of `line` values into blocks: `[K, line / BLOCK, C, BLOCK]`.
fn in_blocks(lines: &[f32], line: usize, c: usize) -> Vec<f32> {
    let mut all = vec![0f32; lines.len()];
    let head = (line * c).max(1);
    all.par_chunks_mut(head).zip(lines.par_chunks(head)).for_each(|(blocks, lines)| {
        for (b, block) in blocks.chunks_exact_mut(BLOCK * c).enumerate() {
            for (to, from) in block.chunks_exact_mut(BLOCK).zip(lines.chunks_exact(line)) {
                to.copy_from_slice(&from[b * BLOCK..(b + 1) * BLOCK]);
            }
        }
    });
    all
}

/// Rounds lines of `line` values, an even number, and puts two neighbouring lines together, value by value.
fn paired(lines: &[f32], line: usize) -> Vec<bf16> {
    let (values, mut all) = (rounded(lines), vec![bf16::ZERO; lines.len()]);
    all.par_chunks_mut(2 * line).zip(values.par_chunks(2 * line)).with_min_len(LINES_A_TASK).for_each(|(all, lines)| {
        let (first, second) = lines.split_at(line);
        for (pair, (a, b)) in all.as_chunks_mut::<2>().0.iter_mut().zip(first.iter().zip(second)) {
            *pair = [*a, *b];
        }
    });
    all
}

/// Rounds the first `count` values of each row of `stride`; an odd number is followed by a zero.
#[cfg(target_arch = "x86_64")]
fn rounded_rows(rows: &[f32], stride: usize, count: usize) -> Vec<bf16> {
    let even = count.next_multiple_of(2);
    let mut all = vec![bf16::ZERO; rows.len() / stride * even];
    for (all, row) in all.chunks_exact_mut(even).zip(rows.chunks_exact(stride)) {
        round_into(&row[..count], &mut all[..count]);
    }
    all
}

impl SequenceCache {
    /// Creates an empty cache for this many positions of `width` = `K * C` and products of this precision. Memory for up to
    /// [`MOST_ROOM`] positions is reserved now, the rest as they come.
    pub fn with_room(positions: usize, width: usize, precision: Precision) -> Self {
        let room = positions.min(MOST_ROOM).next_multiple_of(BLOCK) * width;
        Self { len: 0, k: Values::with_room(precision, room), v: Values::with_room(precision, room) }
    }

    /// Appends row `row` of packed `k, v: [N, K * C]`.
    pub fn push(&mut self, k: &Tensor, v: &Tensor, row: usize) -> Result<()> {
        let width = check_rows(k, v, &(row..row + 1))?;
        let (block, at) = (self.len / BLOCK, self.len % BLOCK);
        if at == 0 {
            self.k.lengthen((block + 1) * width * BLOCK);
        }
        let row = row * width..(row + 1) * width;
        self.k.set_column(block * width * BLOCK, at, &read(k)?[row.clone()]);
        self.v.extend(&read(v)?[row]);
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
            for i in 0..seen.div_ceil(BLOCK) {
                let mut tile: Tile = [[0.0; BLOCK]; ROWS];
                let block = (i * kv_width + kv * c) * BLOCK;
                with!(&self.k, |k| {
                    let keys = Lines { values: &k[block..block + c * BLOCK], stride: BLOCK, count: c };
                    sums(q, c, 0, keys, &mut tile);
                });
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
    pub sequences: Vec<Row<'a>>,
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
    let tasks = tasks(groups, h);
    team::each(tasks.len(), |task| {
        let ((prompt, sequences, kv), mut scratch) = (tasks[task], Scratch::default());
        scratch.attend(&qs, (prompt, sequences), kv, attention);
        let (c, per_kv) = (h.head_dim, h.per_kv());
        for (i, (row, ..)) in sequences.iter().enumerate() {
            let from = &scratch.out[i * per_kv * c..(i + 1) * per_kv * c];
            // SAFETY: only this task writes this sequence's heads of this key/value head.
            unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), out_at.at(row * width + kv * per_kv * c), from.len()) };
        }
    });
    tensor(out, (b, width))
}

/// A row of the batch, the cache of its sequence and the number of positions that it sees.
pub type Row<'a> = (usize, &'a SequenceCache, usize);

/// Divides the work into tasks: rows that continue a prompt, and a key/value head. If the threads would have unequal numbers of these,
/// the rows are divided too.
fn tasks<'a>(groups: &'a [Group<'a>], h: Heads) -> Vec<(&'a PromptCache, &'a [Row<'a>], usize)> {
    let (whole, threads) = (groups.len() * h.kv_heads, team::threads());
    let rows = groups.iter().map(|g| g.sequences.len()).max().unwrap_or(0);
    let most = |rows: usize| (rows * h.per_kv() / FEWEST_ROWS).min(rows).clamp(1, MOST_PARTS);
    let longest = |parts: &usize| (whole * parts).div_ceil(threads) * (UNITS / parts);
    let parts = (1..=most(rows)).min_by_key(longest).unwrap_or(1);
    let of_group = |g: &'a Group<'a>| {
        let parts = parts.min(most(g.sequences.len()));
        (0..parts).flat_map(move |part| {
            (0..h.kv_heads).map(move |kv| (g.prompt, &g.sequences[share(g.sequences.len(), part, parts)], kv))
        })
    };
    groups.iter().flat_map(of_group).collect()
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
    fn attend(&mut self, qs: &[f32], (prompt, sequences): (&PromptCache, &[Row<'_>]), kv: usize, attention: Attention) {
        let h: Heads = attention.heads;
        let (c, per_kv, width, kv_width) = (h.head_dim, h.per_kv(), h.heads * h.head_dim, h.kv_heads * h.head_dim);
        let (heads, prompt_len) = (sequences.len() * per_kv, prompt.len);
        self.q.clear();
        for (row, ..) in sequences {
            let at = row * width + kv * per_kv * c;
            self.q.extend_from_slice(&qs[at..at + per_kv * c]);
        }
        let padded = prompt.padded();
        self.shared.resize(heads * padded, 0.0);
        self.out.resize(heads * c, 0.0);
        prompt.scores(&self.q, c, kv, attention.scale, &mut self.shared);

        self.own.clear();
        for (q, (_, cache, seen)) in self.q.chunks(per_kv * c).zip(sequences) {
            cache.scores(*seen, (q, c), kv, kv_width, attention.scale, &mut self.own);
        }
        let mut first = 0;
        wide!(for (i, (_, _, seen)) in sequences.iter().enumerate() {
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

        prompt.weighted(&self.shared, c, kv, &mut self.out);
        let mut at = 0;
        wide!(for (index, out) in self.out.chunks_mut(c).enumerate() {
            let (_, cache, seen) = sequences[index / per_kv];
            with!(&cache.v, |v| add_weighted(out, &self.own[at..at + seen], v, kv_width, kv * c));
            at += seen;
        });
    }
}

/// Adds row `i` times `weights[i]`, for all `i`, to `out: [C]`. Rows are `width` wide, and the added values start at `first`.
#[inline(always)]
fn add_weighted<T: Value>(out: &mut [f32], weights: &[f32], rows: &[T], width: usize, first: usize) {
    const LANES: usize = 32;
    let (whole, rest) = out.as_chunks_mut::<LANES>();
    for (i, out) in whole.iter_mut().enumerate() {
        let mut sums = *out;
        for (&p, row) in weights.iter().zip(rows.chunks_exact(width)) {
            for (sum, &x) in sums.iter_mut().zip(&row[first + i * LANES..][..LANES]) {
                *sum = p.mul_add(x.in_f32(), *sum);
            }
        }
        *out = sums;
    }
    let first = first + whole.len() * LANES;
    for (&p, row) in weights.iter().zip(rows.chunks_exact(width)) {
        for (out, &x) in rest.iter_mut().zip(&row[first..]) {
            *out = p.mul_add(x.in_f32(), *out);
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

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Device;
    use rand_chacha::ChaCha8Rng;
    use rand_chacha::rand_core::{Rng, SeedableRng};
    use std::sync::atomic::{AtomicU64, Ordering};

    /// Values like normal ones, the same in every run: a weight halfway between two numbers may be rounded either way.
    fn random(rows: usize, width: usize) -> Tensor {
        static SEED: AtomicU64 = AtomicU64::new(0);
        let mut rng = ChaCha8Rng::seed_from_u64(SEED.fetch_add(1, Ordering::Relaxed));
        let mut value = || (0..12).map(|_| f64::from(rng.next_u32()) / f64::from(u32::MAX)).sum::<f64>() as f32 - 6.0;
        Tensor::from_vec((0..rows * width).map(|_| value()).collect::<Vec<_>>(), (rows, width), &Device::Cpu).unwrap()
    }

    /// Values as a cache holds them.
    fn held(t: &Tensor, precision: Precision) -> Vec<f32> {
        let round = |x: f32| if precision == Precision::Bf16 { bf16::from_f32(x).to_f32() } else { x };
        crate::to_vec(t).unwrap().into_iter().map(round).collect()
    }

    /// Attention of one query over rows of keys and values, in f64. For the first rows, so many, queries and weights are rounded to bf16.
    fn attended(q: &[f32], keys: &[&[f32]], values: &[&[f32]], scale: f32, rounded: usize) -> Vec<f64> {
        let round = |x: f32| bf16::from_f32(x).to_f32();
        let query = |i: usize| q.iter().map(move |x| f64::from(if i < rounded { round(*x) } else { *x }));
        let dot = |(i, k): (usize, &&[f32])| query(i).zip(*k).map(|(a, b)| a * f64::from(*b)).sum::<f64>();
        let weights: Vec<f64> = keys.iter().enumerate().map(|key| (dot(key) * f64::from(scale)).exp()).collect();
        let total: f64 = weights.iter().sum();
        let weight = |(i, w): (usize, &f64)| if i < rounded { f64::from(round((w / total) as f32)) } else { w / total };
        let of_place = |i: usize| weights.iter().enumerate().zip(values).map(|(w, v)| weight(w) * f64::from(v[i])).sum::<f64>();
        (0..q.len()).map(of_place).collect()
    }

    /// A prompt of some tokens and two sequences that continue it, with their own keys and values.
    type Cached = (Tensor, Tensor, PromptCache, Vec<(Tensor, Tensor, SequenceCache)>);

    fn cached(h: Heads, prompt: usize, own: [usize; 2], precision: Precision) -> Cached {
        let width = h.kv_heads * h.head_dim;
        let (pk, pv) = (random(prompt, width), random(prompt, width));
        let of_prompt = PromptCache::new(&pk, &pv, 0..prompt, h.head_dim, precision).unwrap();
        let sequence = |&n: &usize| {
            let (k, v) = (random(n, width), random(n, width));
            let mut cache = SequenceCache::with_room(4, width, precision);
            (0..n).for_each(|row| cache.push(&k, &v, row).unwrap());
            (k, v, cache)
        };
        (pk, pv, of_prompt, own.iter().map(sequence).collect())
    }

    #[test]
    fn new_tokens_attend_to_the_prompt_and_to_their_own_positions_as_cached() {
        // Heads that are whole blocks and not, more queries for a key head than a tile has rows, prompts of no and of many blocks.
        for (heads, kv_heads, c, prompt, own) in [
            (4, 2, 64, 70, [1, 33]),
            (20, 2, 80, 5, [40, 2]),
            (3, 3, 16, 0, [3, 64]),
            (14, 2, 32, 64, [65, 1]),
            (6, 2, 32, 71, [1, 40]),
            (4, 4, 64, 1, [2, 3]),
            (2, 1, 32, 0, [1, 2]),
        ] {
            for precision in [Precision::F32, Precision::Bf16] {
                let shape = Heads { heads, kv_heads, head_dim: c };
                let attention = Attention { scale: 0.3, ..shape.into() };
                let (width, kv_width) = (heads * c, kv_heads * c);
                let (pk, pv, of_prompt, sequences) = cached(shape, prompt, own, precision);
                let q = random(2, width);
                let rows = sequences.iter().enumerate().map(|(row, (.., cache))| (row, cache, cache.len())).collect();
                let group = Group { prompt: &of_prompt, sequences: rows };
                let groups = [group];
                let outputs = || crate::to_vec(&forward(&q, &groups, attention).unwrap()).unwrap();
                let got = outputs();
                for threads in [2, 3, 8] {
                    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
                    assert_eq!(pool.install(|| team::together(outputs)), got, "{heads} {c} {prompt}: {threads} threads");
                }
                let qs = crate::to_vec(&q).unwrap();
                let [pk, pv] = [&pk, &pv].map(|t| held(t, precision));
                for (row, (k, v, _)) in sequences.iter().enumerate() {
                    let (k, v) = (held(k, precision), held(v, precision));
                    for head in 0..heads {
                        let kv = head / (heads / kv_heads) * c..(head / (heads / kv_heads) + 1) * c;
                        let of = |a: &'_ [f32], b: &'_ [f32]| -> Vec<Vec<f32>> {
                            a.chunks(kv_width).chain(b.chunks(kv_width)).map(|row| row[kv.clone()].to_vec()).collect()
                        };
                        let (keys, values) = (of(&pk, &k), of(&pv, &v));
                        let (keys, values): (Vec<&[f32]>, Vec<&[f32]>) =
                            (keys.iter().map(Vec::as_slice).collect(), values.iter().map(Vec::as_slice).collect());
                        let at = row * width + head * c;
                        let want = attended(
                            &qs[at..at + c],
                            &keys,
                            &values,
                            attention.scale,
                            if of_prompt.in_pairs { prompt } else { 0 },
                        );
                        let tolerance = if of_prompt.in_pairs { 1e-3 } else { 2e-5 };
                        for (got, want) in got[at..at + c].iter().zip(want) {
                            assert!(
                                (f64::from(*got) - want).abs() < tolerance,
                                "{heads} {c} {prompt}, {precision:?}: {got}, not {want}"
                            );
                        }
                    }
                }
            }
        }
    }
}
