//! Splits a product into blocks that fit into the caches, and divides them among threads.

use super::amx::{self, AmxTiles};
use super::avx512;
use super::kernel::Bf16Kernel;
use super::pack::{Bf16Line, INNER, LineLayout, Operand, SIDE};
use super::tile::{Bf16SumTile, WIDTH};
use crate::slices::SharedPointer;
use crate::team::share;
use rayon::prelude::*;
use std::cell::RefCell;
use std::ops::{Deref, DerefMut, Range};

/// Number of blocks along the inner dimension that are summed before the next part; 32 rows of them take 36 KiB of the L1 cache. Fixed, so
/// that zeros at the end of the inner dimension, such as later tokens in attention, change no bit.
const STEPS: usize = 18;

/// Number of blocks of rows that are rearranged together, about 2 MiB, and approximate minimum number of groups that they belong to.
const HELD: usize = 2048;
const TALL: usize = 64;

/// Minimum number of pairs of groups of rows per task.
const LOW: usize = 2;

/// Maximum number of pairs of groups of columns per task, 576 KiB for a complete part.
const BROAD: usize = 16;

/// Maximum number of lines of a buffer that a thread keeps, 8 MiB, and maximum number of buffers.
const MOST_KEPT: (usize, usize) = (1 << 17, 2);

/// Memory for blocks, which a thread keeps for its next products, since new memory would have to be cleared first.
struct BlockScratch {
    lines: Vec<Bf16Line>,
    length: usize,
}

thread_local! {
    /// Buffers of this thread; the last is the one that was needed first.
    static KEPT: RefCell<Vec<Vec<Bf16Line>>> = const { RefCell::new(Vec::new()) };
}

impl BlockScratch {
    /// Returns memory for this many lines, with arbitrary contents.
    fn new(length: usize) -> Self {
        // A buffer that is too large to keep does not take one of the kept ones.
        let kept = if length > MOST_KEPT.0 { None } else { KEPT.with_borrow_mut(Vec::pop) };
        let lines = kept.filter(|lines| lines.len() >= length).unwrap_or_else(|| vec![Bf16Line::ZERO; length]);
        Self { lines, length }
    }
}

impl Deref for BlockScratch {
    type Target = [Bf16Line];
    fn deref(&self) -> &[Bf16Line] {
        &self.lines[..self.length]
    }
}

impl DerefMut for BlockScratch {
    fn deref_mut(&mut self) -> &mut [Bf16Line] {
        &mut self.lines[..self.length]
    }
}

impl Drop for BlockScratch {
    fn drop(&mut self) {
        let lines = std::mem::take(&mut self.lines);
        let keep = |kept: &RefCell<Vec<Vec<Bf16Line>>>| {
            let mut kept = kept.borrow_mut();
            if lines.len() <= MOST_KEPT.0 && kept.len() < MOST_KEPT.1 {
                kept.push(lines);
            }
        };
        // A thread that is ending keeps no buffers.
        let _ = KEPT.try_with(keep);
    }
}

/// Some groups of the first operand: for each part of the inner dimension, all groups' blocks.
struct PackedGroups {
    lines: BlockScratch,
    groups: usize,
    steps: usize,
}

impl PackedGroups {
    fn new(a: &Operand<'_>, groups: Range<usize>, threads: bool) -> Self {
        let all = a.inner.div_ceil(INNER);
        let mut lines = BlockScratch::new(groups.len() * all * SIDE);
        for (steps, part) in ranges(all, STEPS).zip(lines.chunks_mut(groups.len() * STEPS * SIDE)) {
            let pack = |(i, lines): (usize, &mut [Bf16Line])| {
                // SAFETY: the processor has a kernel, and operands were checked when they were made.
                unsafe { a.pack(groups.start + i, steps.start * INNER, LineLayout::Rows, lines) };
            };
            let each = steps.len() * SIDE;
            if threads {
                part.par_chunks_mut(each).enumerate().for_each(pack);
            } else {
                part.chunks_mut(each).enumerate().for_each(pack);
            }
        }
        Self { lines, groups: groups.len(), steps: all }
    }

    /// Returns the blocks of some groups in a part.
    fn part(&self, groups: &Range<usize>, steps: &Range<usize>) -> &[Bf16Line] {
        let of_part = &self.lines[self.groups * steps.start * SIDE..];
        &of_part[groups.start * steps.len() * SIDE..groups.end * steps.len() * SIDE]
    }
}

/// Destination of a product.
#[derive(Clone, Copy)]
pub(crate) struct ProductDestination {
    pub out: SharedPointer,
    pub stride: usize,
    pub add: bool,
    pub scale: f32,
}

/// Computes `out (+)= scale * a b` for each second operand, on all threads of the pool or on this one. The first operand is rearranged once
/// for all. Neither threads nor parts of rows change the order of an element's terms.
///
/// # Safety
/// The processor has the kernel; the operands' strides keep their elements within their values; each destination points to `a.outer`
/// rows of `b.outer` values that nothing else reads or writes during the call.
pub(crate) unsafe fn products(kernel: Bf16Kernel, a: Operand<'_>, all: &[(Operand<'_>, ProductDestination)], threads: bool) {
    let count = if threads { rayon::current_num_threads() } else { 1 };
    let groups = a.groups();
    for pairs in shares(groups.div_ceil(2), parts(groups, a.inner.div_ceil(INNER))) {
        let tall = 2 * pairs.start..groups.min(2 * pairs.end);
        let packed = PackedGroups::new(&a, tall.clone(), threads);
        let of_each = all.iter().map(|(b, to)| ProductPart { kernel, a: &a, b, packed: &packed, first: tall.start, to: *to });
        // SAFETY: the caller's promise, and that no two tasks have a row and a column of a destination in common.
        let run = |(part, columns, rows): (ProductPart<'_>, _, _)| unsafe { part.run(&columns, &rows) };
        if count == 1 {
            of_each.flat_map(|part| part.divided(tall.len(), count)).for_each(run);
            continue;
        }
        let tasks: Vec<Vec<_>> = of_each.map(|part| part.divided(tall.len(), count).collect()).collect();
        // Threads start at different indices of the list, so each index has a share of every product.
        let of_thread = |i| tasks.iter().flat_map(move |tasks| &tasks[share(tasks.len(), i, count)]);
        let tasks: Vec<_> = (0..count).flat_map(of_thread).cloned().collect();
        tasks.into_par_iter().with_max_len(1).for_each(run);
    }
}

/// Returns the number of parts in which the first operand's groups are rearranged, each with this many `steps` along the inner dimension.
/// The second operand is rearranged again for each part, so no part is much smaller than the others.
fn parts(groups: usize, steps: usize) -> usize {
    let usual = TALL.max(HELD / steps.max(1));
    let nearest = ((groups + usual / 2) / usual).max(1);
    let kept = groups.div_ceil(nearest) * steps * SIDE <= MOST_KEPT.0;
    if kept { nearest } else { groups.div_ceil(usual).max(1) }
}

/// Returns the nonempty [`share`]s.
fn shares(total: usize, count: usize) -> impl Iterator<Item = Range<usize>> + Clone {
    (0..count).map(move |i| share(total, i, count)).filter(|share| !share.is_empty())
}

fn ranges(total: usize, size: usize) -> impl Iterator<Item = Range<usize>> + Clone {
    (0..total).step_by(size.max(1)).map(move |first| first..total.min(first + size))
}

/// A product with the rows that are rearranged together.
#[derive(Clone, Copy)]
struct ProductPart<'a> {
    kernel: Bf16Kernel,
    a: &'a Operand<'a>,
    b: &'a Operand<'a>,
    packed: &'a PackedGroups,
    /// Index of the first operand's group that is packed first.
    first: usize,
    to: ProductDestination,
}

impl ProductPart<'_> {
    /// Divides the part among threads: returns groups of columns with some of the `rows` groups of rows.
    fn divided(self, rows: usize, count: usize) -> impl Iterator<Item = (Self, Range<usize>, Range<usize>)> {
        // Kernels take two groups of either. Each thread gets two tasks, if there are enough columns, so that a thread that starts late
        // leaves some to the others.
        let (all, pairs, high) = (self.b.groups(), self.b.groups().div_ceil(2), rows.div_ceil(2));
        let broad = pairs.div_ceil(BROAD);
        let columns = if count == 1 { broad } else { broad.max(2 * count).next_multiple_of(count) }.min(pairs);
        // If threads can't divide the columns evenly, they also divide the rows, in few parts, since each task rearranges its columns.
        let even = |parts: usize| (columns * parts).is_multiple_of(count) || columns * parts >= 4 * count;
        let parts = (1..=count).find(|&parts| even(parts)).unwrap_or(count).min(high.div_ceil(LOW)).max(1);
        let groups = |pairs: Range<usize>, all: usize| 2 * pairs.start..all.min(2 * pairs.end);
        shares(pairs, columns).flat_map(move |columns| {
            shares(high, parts).map(move |part| (self, groups(columns.clone(), all), groups(part, rows)))
        })
    }

    /// Computes some groups of columns for some packed groups of rows.
    unsafe fn run(&self, columns: &Range<usize>, rows: &Range<usize>) {
        // SAFETY: there is a kernel.
        let tiles = (self.kernel == Bf16Kernel::Amx).then(|| unsafe { AmxTiles::new() });
        let mut lines = BlockScratch::new(columns.len() * STEPS.min(self.packed.steps) * SIDE);
        let mut tile = Bf16SumTile::ZERO;
        for steps in ranges(self.packed.steps, STEPS) {
            let lines = &mut lines[..columns.len() * steps.len() * SIDE];
            for (group, lines) in columns.clone().zip(lines.chunks_exact_mut(steps.len() * SIDE)) {
                // SAFETY: there is a kernel, and operands were checked when they were made.
                unsafe { self.b.pack(group, steps.start * INNER, LineLayout::Pairs, lines) };
            }
            for row in rows.clone().step_by(2) {
                let pair = self.packed.part(&(row..rows.end.min(row + 2)), &steps);
                for (column, lines) in columns.clone().step_by(2).zip(lines.chunks(2 * steps.len() * SIDE)) {
                    // SAFETY: the caller's promise.
                    unsafe { self.sums(pair, lines, &steps, (self.first + row, column), tiles.is_some(), &mut tile) };
                }
            }
        }
    }

    /// Computes the sums of a part for one or two groups of rows with one or two of columns, and writes or adds them.
    unsafe fn sums(
        &self,
        a: &[Bf16Line],
        b: &[Bf16Line],
        steps: &Range<usize>,
        at: (usize, usize),
        tiles: bool,
        tile: &mut Bf16SumTile,
    ) {
        let (row, column) = (at.0 * SIDE, at.1 * SIDE);
        let ProductDestination { out, stride, add, scale } = self.to;
        let add = add || steps.start > 0;
        let group = steps.len() * SIDE;
        let (all_rows, all_columns) = (a.len() / group * SIDE, b.len() / group * SIDE);
        let (rows, columns) = (all_rows.min(self.a.outer - row), all_columns.min(self.b.outer - column));
        let whole = (rows, columns) == (all_rows, all_columns);
        // SAFETY: the caller's promise; only what the operands have is written.
        unsafe {
            let at = out.at(row * stride + column);
            if tiles && whole && scale == 1.0 {
                amx::sums(a, b, steps.len(), amx::SumDestination { at, stride, add });
                return;
            }
            let room = tile.rows.as_mut_ptr().cast();
            let of_tile = |add| amx::SumDestination { at: room, stride: WIDTH, add };
            if tiles && add && scale == 1.0 {
                // Terms are added in the same order as in complete blocks.
                tile.load(at, stride, rows, columns);
                amx::sums(a, b, steps.len(), of_tile(true));
                tile.store(at, stride, rows, columns, 1.0, false);
                return;
            }
            if !tiles && whole {
                avx512::sums(a, b, steps.len(), amx::SumDestination { at, stride, add }, scale);
                return;
            }
            if tiles {
                amx::sums(a, b, steps.len(), of_tile(false));
            } else {
                avx512::sums(a, b, steps.len(), of_tile(false), 1.0);
            }
            tile.store(at, stride, rows, columns, scale, add);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::OperandValues;

    #[test]
    fn tasks_cover_each_row_and_column_once_and_rearrange_columns_seldom() {
        let zeros = vec![0f32; 1 << 15];
        let operand = |groups: usize| {
            let (outer, inner) = ((groups * SIDE).saturating_sub(3), 1);
            Operand { values: OperandValues::F32(&zeros[..outer]), outer, inner, outer_stride: 1, inner_stride: 1 }
        };
        for (count, rows, columns) in [1, 2, 3, 12, 64]
            .into_iter()
            .flat_map(|count| [0, 1, 2, 5, 64, 97].map(|rows| (count, rows)))
            .flat_map(|(count, rows)| [0, 1, 3, 12, 36, 96, 192, 1000].map(|columns| (count, rows, columns)))
        {
            let (a, b) = (operand(rows), operand(columns));
            let packed = PackedGroups { lines: BlockScratch::new(0), groups: rows, steps: 1 };
            let to = ProductDestination { out: SharedPointer::new(&mut []), stride: 0, add: false, scale: 1.0 };
            let part = ProductPart { kernel: Bf16Kernel::Avx512, a: &a, b: &b, packed: &packed, first: 0, to };
            let mut seen = vec![0; rows * columns];
            let mut rearranged = 0;
            for (_, columns_of, rows_of) in part.divided(rows, count) {
                assert!(columns_of.start.is_multiple_of(2) && rows_of.start.is_multiple_of(2) && columns_of.len() <= 2 * BROAD);
                rearranged += columns_of.len();
                rows_of.flat_map(|row| columns_of.clone().map(move |column| row * columns + column)).for_each(|at| seen[at] += 1);
            }
            assert!(seen.iter().all(|times| *times == 1), "{count} threads, {rows} by {columns}");
            let most = (4 * count).div_ceil(columns.div_ceil(2).max(1));
            assert!(rearranged <= columns * most, "{count} threads, {rows} by {columns}: {rearranged}");
        }
    }

    #[test]
    fn parts_of_rows_are_about_as_large_as_each_other_and_kept() {
        for (groups, steps) in (0..400).flat_map(|groups| [1, 8, 18, 32, 48, 96, 128, 300].map(|steps| (groups, steps))) {
            let all: Vec<usize> = shares(groups, parts(groups, steps)).map(|part| part.len()).collect();
            assert_eq!(all.iter().sum::<usize>(), groups);
            let (least, most) = (all.iter().min(), all.iter().max());
            assert!(least.zip(most).is_none_or(|(least, most)| most - least <= 1), "{groups} by {steps}: {all:?}");
            assert!(all.iter().all(|part| part * steps * SIDE <= MOST_KEPT.0 || *part <= TALL), "{groups} by {steps}: {all:?}");
        }
    }
}
