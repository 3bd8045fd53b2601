//! Key/value caches of a generation: of prompts, and of the sequences that continue them.

use super::lines::{LineValue, OutputTile, ROWS, WeightLines, has_pairs, sums};
#[cfg(target_arch = "x86_64")]
use super::lines::{PairLines, sums_of_pairs};
use super::rounding::{round_into, rounded};
use super::simd::wide;
use super::slices::read;
use super::tiles::transpose_padded;
use super::unpack::WIDTH;
use super::view::Precision;
use super::{Error, Result, matrix_dims};
use candle_core::Tensor;
use half::bf16;
use rayon::prelude::*;
use std::ops::Range;

/// Keys and values of a prompt in one layer. Keys are stored as `[K, C, P]`, with `P` padded to a multiple of a block, so that scores are
/// sums in vector registers without rearranging. Values are stored as `[K, P, C]`; in rows of all heads, those of one head would be a page
/// apart and map to the same cache sets. In bf16, if the processor multiplies pairs and heads are a multiple of a block, pairs of
/// neighbours along the summed dimension are interleaved: keys as `[K, P / BLOCK, C / 2, BLOCK, 2]`, values as `[K, P / 2, C, 2]`.
#[derive(Clone, Debug, Default)]
pub struct PromptCache {
    len: usize,
    k: CacheValues,
    v: CacheValues,
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "only x86-64 multiplies pairs"))]
    in_pairs: bool,
}

/// Keys or values of a cache.
#[derive(Clone, Debug)]
enum CacheValues {
    F32(Vec<f32>),
    Bf16(Vec<bf16>),
}

/// Evaluates an expression with the values of either type.
macro_rules! with {
    ($values:expr, |$of_type:ident| $do:expr) => {
        match $values {
            CacheValues::F32($of_type) => $do,
            CacheValues::Bf16($of_type) => $do,
        }
    };
}

impl Default for CacheValues {
    fn default() -> Self {
        Self::F32(Vec::new())
    }
}

impl CacheValues {
    /// Creates a list for products of this precision, with capacity for some values.
    fn with_capacity(precision: Precision, room: usize) -> Self {
        match precision {
            Precision::F32 => Self::F32(Vec::with_capacity(room)),
            Precision::Bf16 => Self::Bf16(Vec::with_capacity(room)),
        }
    }

    /// Creates a list of these values.
    fn new(precision: Precision, values: Vec<f32>) -> Self {
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

    /// Copies the first values, with capacity for more.
    fn prefix(&self, length: usize, room: usize) -> Self {
        fn copied<T: Copy>(all: &[T], length: usize, room: usize) -> Vec<T> {
            let mut copy = Vec::with_capacity(room.max(length));
            copy.extend_from_slice(&all[..length]);
            copy
        }
        match self {
            Self::F32(all) => Self::F32(copied(all, length, room)),
            Self::Bf16(all) => Self::Bf16(copied(all, length, room)),
        }
    }

    /// Removes all but the first values.
    fn truncate(&mut self, length: usize) {
        with!(self, |all| all.truncate(length));
    }

    /// Returns the number of values.
    fn len(&self) -> usize {
        with!(self, |all| all.len())
    }

    /// Returns the bytes of the values.
    fn bytes(&self) -> usize {
        with!(self, |all| size_of_val(&all[..]))
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

    /// Replaces column `at` of the lines of [`BLOCK`] values from `first` on.
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

/// Minimum number of pairs of lines that a task interleaves.
const LINES_PER_TASK: usize = 64;

/// Number of positions whose keys are stored together.
const BLOCK: usize = WIDTH;

/// Maximum number of positions for which a sequence's cache reserves memory in advance.
const MOST_ROOM: usize = 1 << 14;

/// Keys and values of a growing sequence in one layer. Keys are stored in blocks of positions, each `[K * C, BLOCK]`, so that a block's
/// scores are sums in vector registers; values are rows of `K * C`.
#[derive(Clone, Debug, Default)]
pub struct SequenceCache {
    len: usize,
    k: CacheValues,
    v: CacheValues,
}

fn check_rows(k: &Tensor, v: &Tensor, rows: &Range<usize>) -> Result<usize> {
    let (n, width) = matrix_dims(k);
    if rows.end > n || matrix_dims(v) != (n, width) {
        return Err(Error::Shape { op: "key/value cache", detail: format!("rows {rows:?} of {:?}", k.shape()) });
    }
    Ok(width)
}

impl PromptCache {
    /// Creates a cache from the rows `rows` of packed `k, v: [N, K * C]`, with heads of `c` values, for products of this precision.
    pub fn new(k: &Tensor, v: &Tensor, rows: Range<usize>, c: usize, precision: Precision) -> Result<Self> {
        let width = check_rows(k, v, &rows)?;
        if c == 0 || !width.is_multiple_of(c) {
            return Err(Error::Shape { op: "key/value cache", detail: format!("heads of {c} values in rows of {width}") });
        }
        let (len, range) = (rows.len(), rows.start * width..rows.end * width);
        let turned = transpose_padded(&read(k)?[range.clone()], width, len.next_multiple_of(BLOCK));
        let in_pairs = precision == Precision::Bf16 && c.is_multiple_of(BLOCK) && has_pairs();
        // With an odd number of rows, the last is paired with zeros.
        let lines = if in_pairs { len.next_multiple_of(2) } else { len };
        let (values, mut by_head) = (read(v)?, vec![0f32; lines * width]);
        by_head.par_chunks_mut((lines * c).max(1)).enumerate().for_each(|(head, rows)| {
            for (to, from) in rows.chunks_exact_mut(c).zip(values[range.clone()].chunks_exact(width)) {
                to.copy_from_slice(&from[head * c..(head + 1) * c]);
            }
        });
        let (k, v) = if in_pairs {
            let by_block = in_blocks(&turned, len.next_multiple_of(BLOCK), c);
            (CacheValues::Bf16(paired(&by_block, BLOCK)), CacheValues::Bf16(paired(&by_head, c)))
        } else {
            (CacheValues::new(precision, turned), CacheValues::new(precision, by_head))
        };
        Ok(Self { len, k, v, in_pairs })
    }

    /// Returns the number of positions.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns whether queries and weights are rounded and multiplied in pairs of values.
    #[cfg(test)]
    pub(crate) fn in_pairs(&self) -> bool {
        self.in_pairs
    }

    /// Returns the padded number of positions.
    pub(crate) fn padded(&self) -> usize {
        self.len.next_multiple_of(BLOCK)
    }

    /// Computes the scores `[heads, P]`, padded, of head `kv`'s queries `q: [heads, C]`, times `scale`.
    pub(crate) fn scores(&self, q: &[f32], c: usize, kv: usize, scale: f32, into: &mut [f32]) {
        let padded = self.padded();
        #[cfg(target_arch = "x86_64")]
        if let (CacheValues::Bf16(k), true) = (&self.k, self.in_pairs) {
            let (q, tile_rows) = (rounded_rows(q, c, c), tile_rows(q.len() / c));
            for first in (0..padded).step_by(BLOCK) {
                let keys = PairLines { values: &k[kv * c * padded + first * c..], stride: 2 * BLOCK, count: c / 2 };
                for (q, into) in q.chunks(tile_rows * c).zip(into.chunks_mut(tile_rows * padded)) {
                    let mut tile: OutputTile = [[0.0; BLOCK]; ROWS];
                    sums_of_pairs(q, c, keys, &mut tile);
                    put(&tile, into, padded, first, scale);
                }
            }
            return;
        }
        // A block of keys stays in the L1 cache for all queries.
        for first in (0..padded).step_by(BLOCK) {
            for (q, into) in q.chunks(ROWS * c).zip(into.chunks_mut(ROWS * padded)) {
                let mut tile: OutputTile = [[0.0; BLOCK]; ROWS];
                with!(&self.k, |k| {
                    let keys = WeightLines { values: &k[kv * c * padded + first..], stride: padded, count: c };
                    sums(q, c, 0, keys, &mut tile);
                });
                put(&tile, into, padded, first, scale);
            }
        }
    }

    /// Computes the sums `[heads, C]` of head `kv`'s values, weighted by `p: [heads, P]`, padded.
    pub(crate) fn weighted(&self, p: &[f32], c: usize, kv: usize, into: &mut [f32]) {
        let padded = self.padded();
        if self.len == 0 {
            return into.fill(0.0);
        }
        #[cfg(target_arch = "x86_64")]
        if let (CacheValues::Bf16(v), true) = (&self.v, self.in_pairs) {
            let tile_rows = tile_rows(p.len() / padded);
            let (p, even) = (rounded_rows(p, padded, self.len), self.len.next_multiple_of(2));
            for first in (0..c).step_by(BLOCK) {
                let values = PairLines { values: &v[kv * even * c + 2 * first..], stride: 2 * c, count: even / 2 };
                for (p, into) in p.chunks(tile_rows * even).zip(into.chunks_mut(tile_rows * c)) {
                    let mut tile: OutputTile = [[0.0; BLOCK]; ROWS];
                    sums_of_pairs(p, even, values, &mut tile);
                    put(&tile, into, c, first, 1.0);
                }
            }
            return;
        }
        let (whole, own) = (c / BLOCK * BLOCK, kv * self.len * c..(kv + 1) * self.len * c);
        for first in (0..whole).step_by(BLOCK) {
            for (p, into) in p.chunks(ROWS * padded).zip(into.chunks_mut(ROWS * c)) {
                let mut tile: OutputTile = [[0.0; BLOCK]; ROWS];
                with!(&self.v, |v| {
                    let values = WeightLines { values: &v[own.clone()][first..], stride: c, count: self.len };
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

/// Writes each row's sums, times `scale`, at the index `first` of its line and after.
fn put(tile: &OutputTile, into: &mut [f32], line: usize, first: usize, scale: f32) {
    for (into, sums) in into.chunks_exact_mut(line).zip(tile) {
        into[first..first + BLOCK].iter_mut().zip(sums).for_each(|(x, sum)| *x = sum * scale);
    }
}

/// Returns how many of `rows` rows are summed together at a time: the same number in each tile, since few rows take nearly as long as many.
#[cfg(target_arch = "x86_64")]
fn tile_rows(rows: usize) -> usize {
    rows.div_ceil(rows.div_ceil(ROWS).max(1)).max(1)
}

/// Rearranges lines `[K, C]` of `line` values into blocks: `[K, line / BLOCK, C, BLOCK]`.
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

/// Rounds lines of `line` values, an even number, and interleaves pairs of neighbouring lines.
fn paired(lines: &[f32], line: usize) -> Vec<bf16> {
    let (values, mut all) = (rounded(lines), vec![bf16::ZERO; lines.len()]);
    all.par_chunks_mut(2 * line).zip(values.par_chunks(2 * line)).with_min_len(LINES_PER_TASK).for_each(|(all, lines)| {
        let (first, second) = lines.split_at(line);
        for (pair, (a, b)) in all.as_chunks_mut::<2>().0.iter_mut().zip(first.iter().zip(second)) {
            *pair = [*a, *b];
        }
    });
    all
}

/// Rounds the first `count` values of each row of `stride` values. An odd number is padded with a zero.
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
    /// Creates an empty cache for this many positions of `width` = `K * C` and products of this precision. Memory for up to [`MOST_ROOM`]
    /// positions is reserved now, the rest as needed.
    pub fn with_capacity(positions: usize, width: usize, precision: Precision) -> Self {
        let room = positions.min(MOST_ROOM).next_multiple_of(BLOCK) * width;
        Self { len: 0, k: CacheValues::with_capacity(precision, room), v: CacheValues::with_capacity(precision, room) }
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

    /// Copies the first positions, with capacity for `room` positions in all.
    pub fn prefix(&self, positions: usize, room: usize) -> Self {
        let (len, width) = (positions.min(self.len), self.v.len() / self.len.max(1));
        let room = room.min(MOST_ROOM).next_multiple_of(BLOCK) * width;
        Self { len, k: self.k.prefix(len.next_multiple_of(BLOCK) * width, room), v: self.v.prefix(len * width, room) }
    }

    /// Removes all but the first positions.
    pub fn truncate(&mut self, positions: usize) {
        let (len, width) = (positions.min(self.len), self.v.len() / self.len.max(1));
        self.k.truncate(len.next_multiple_of(BLOCK) * width);
        self.v.truncate(len * width);
        self.len = len;
    }

    /// Returns the bytes of the keys and values.
    pub fn bytes(&self) -> usize {
        self.k.bytes() + self.v.bytes()
    }

    /// Returns the number of positions.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the cache is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Appends the scores of the first `seen` positions for each of head `kv`'s queries `q: [heads, C]`: products with keys, times
    /// `scale`.
    pub(crate) fn scores(
        &self,
        seen: usize,
        (q, c): (&[f32], usize),
        kv: usize,
        kv_width: usize,
        scale: f32,
        into: &mut Vec<f32>,
    ) {
        for q in q.chunks(ROWS * c) {
            let first = into.len();
            into.resize(first + q.len() / c * seen, 0.0);
            for i in 0..seen.div_ceil(BLOCK) {
                let mut tile: OutputTile = [[0.0; BLOCK]; ROWS];
                let block = (i * kv_width + kv * c) * BLOCK;
                with!(&self.k, |k| {
                    let keys = WeightLines { values: &k[block..block + c * BLOCK], stride: BLOCK, count: c };
                    sums(q, c, 0, keys, &mut tile);
                });
                for (into, sums) in into[first..].chunks_exact_mut(seen).zip(&tile) {
                    into[i * BLOCK..].iter_mut().zip(sums).for_each(|(score, sum)| *score = sum * scale);
                }
            }
        }
    }

    /// Adds the values of the first `seen` positions, weighted by `p: [heads, seen]`, to `out: [heads, C]`. A row's terms are added in the
    /// order of the positions, however many rows there are.
    pub(crate) fn add_weighted(&self, out: &mut [f32], (p, seen): (&[f32], usize), c: usize, kv: usize, kv_width: usize) {
        let heads = out.len() / c;
        // A tile does not help with a single row.
        let whole = if heads > 1 && seen > 0 { c / BLOCK * BLOCK } else { 0 };
        for first in (0..whole).step_by(BLOCK) {
            for (p, out) in p.chunks(ROWS * seen).zip(out.chunks_mut(ROWS * c)) {
                let mut tile: OutputTile = [[0.0; BLOCK]; ROWS];
                let rows = out.chunks_exact(c).zip(&mut tile);
                rows.for_each(|(out, sums)| sums.copy_from_slice(&out[first..first + BLOCK]));
                with!(&self.v, |v| {
                    let values = WeightLines { values: &v[kv * c + first..], stride: kv_width, count: seen };
                    sums(p, seen, 0, values, &mut tile);
                });
                put(&tile, out, c, first, 1.0);
            }
        }
        for (out, p) in out.chunks_exact_mut(c).zip(p.chunks_exact(seen.max(1))).filter(|_| whole < c) {
            with!(&self.v, |v| wide!(add_weighted(&mut out[whole..], p, v, kv_width, kv * c + whole)));
        }
    }
}

/// Adds row `i` times `weights[i]`, for all `i`, to `out: [C]`. Rows are `width` wide, and the added values start at `first`.
#[inline(always)]
fn add_weighted<T: LineValue>(out: &mut [f32], weights: &[f32], rows: &[T], width: usize, first: usize) {
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
