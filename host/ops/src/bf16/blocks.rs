//! Splits a product into blocks that fit into the caches, and shares them among threads.

use super::Kernel;
use super::amx::{self, Tiles};
use super::avx512;
use super::pack::{INNER, Line, Operand, Order, SIDE};
use super::tile::{Tile, WIDTH};
use crate::cpu::Shared;
use rayon::prelude::*;
use std::cell::RefCell;
use std::ops::{Deref, DerefMut, Range};

/// Blocks along the inner dimension that are summed before the next part: 32 rows of them take 36 KiB of the L1 cache. Fixed, so that
/// zeros at the end of the inner dimension, such as later tokens in attention, change no bit.
const STEPS: usize = 18;

/// Blocks of rows that are rearranged together, 2 MiB, and the least number of groups that they belong to.
const HELD: usize = 2048;
const TALL: usize = 64;

/// Pairs of groups of columns of a task at most, 576 KiB for a whole part.
const BROAD: usize = 16;

/// Lines of a piece of memory that a thread keeps at most, 8 MiB, and the most pieces.
const MOST_KEPT: (usize, usize) = (1 << 17, 2);

/// Memory for blocks, which a thread keeps for its next products: new memory would have to be cleared first.
struct Scratch {
    lines: Vec<Line>,
    length: usize,
}

thread_local! {
    /// The last is the one that was needed first.
    static KEPT: RefCell<Vec<Vec<Line>>> = const { RefCell::new(Vec::new()) };
}

impl Scratch {
    /// Returns memory for this many lines, which holds whatever was there before.
    fn new(length: usize) -> Self {
        // More than is kept takes nothing from what is.
        let kept = if length > MOST_KEPT.0 { None } else { KEPT.with_borrow_mut(Vec::pop) };
        let lines = kept.filter(|lines| lines.len() >= length).unwrap_or_else(|| vec![Line::ZERO; length]);
        Self { lines, length }
    }
}

impl Deref for Scratch {
    type Target = [Line];
    fn deref(&self) -> &[Line] {
        &self.lines[..self.length]
    }
}

impl DerefMut for Scratch {
    fn deref_mut(&mut self) -> &mut [Line] {
        &mut self.lines[..self.length]
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let lines = std::mem::take(&mut self.lines);
        let keep = |kept: &RefCell<Vec<Vec<Line>>>| {
            let mut kept = kept.borrow_mut();
            if lines.len() <= MOST_KEPT.0 && kept.len() < MOST_KEPT.1 {
                kept.push(lines);
            }
        };
        // A thread that ends keeps none.
        let _ = KEPT.try_with(keep);
    }
}

/// Some groups of the first operand, for each part of the inner dimension all groups' blocks.
struct Packed {
    lines: Scratch,
    groups: usize,
    steps: usize,
}

impl Packed {
    fn new(a: &Operand<'_>, groups: Range<usize>, threads: bool) -> Self {
        let all = a.inner.div_ceil(INNER);
        let mut lines = Scratch::new(groups.len() * all * SIDE);
        for (steps, part) in ranges(all, STEPS).zip(lines.chunks_mut(groups.len() * STEPS * SIDE)) {
            let pack = |(i, lines): (usize, &mut [Line])| {
                // SAFETY: the processor has a kernel, and operands were checked when they were made.
                unsafe { a.pack(groups.start + i, steps.start * INNER, Order::Rows, lines) };
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

    /// Returns some groups' blocks of a part.
    fn part(&self, groups: &Range<usize>, steps: &Range<usize>) -> &[Line] {
        let of_part = &self.lines[self.groups * steps.start * SIDE..];
        &of_part[groups.start * steps.len() * SIDE..groups.end * steps.len() * SIDE]
    }
}

/// The destination of a product.
#[derive(Clone, Copy)]
pub(crate) struct Destination {
    pub out: Shared,
    pub stride: usize,
    pub add: bool,
    pub scale: f32,
}

/// Computes `out (+)= scale * a b` for each second operand, on all threads of the pool or on this one. The first operand is rearranged
/// once for all.
///
/// # Safety
/// The processor has the kernel; the operands' strides keep their elements within their values; each destination points to `a.outer`
/// rows of `b.outer` values that nothing else reads or writes during the call.
pub(crate) unsafe fn products(kernel: Kernel, a: Operand<'_>, all: &[(Operand<'_>, Destination)], threads: bool) {
    let count = if threads { rayon::current_num_threads() } else { 1 };
    // A second operand is rearranged anew for each of these parts, so they are of about the same size.
    let tallest = TALL.max(HELD / a.inner.div_ceil(INNER).max(1));
    for tall in shares(a.groups(), ((a.groups() + tallest / 2) / tallest).max(1)) {
        let packed = Packed::new(&a, tall.clone(), threads);
        let of_each = all.iter().map(|(b, to)| Task { kernel, a: &a, b, packed: &packed, first: tall.start, to: *to });
        let tasks: Vec<Vec<_>> = of_each.map(|task| task.divided(tall.len(), count).collect()).collect();
        // SAFETY: the caller's promise, and that no two tasks have a row and a column of a destination in common.
        let run = |(task, columns, rows): (Task<'_>, _, _)| unsafe { task.run(&columns, &rows) };
        if count == 1 {
            tasks.into_iter().flatten().for_each(run);
        } else {
            // Threads begin in different places, so a share of every product is in each.
            let share = |i| tasks.iter().flat_map(move |tasks| &tasks[tasks.len() * i / count..tasks.len() * (i + 1) / count]);
            let tasks: Vec<_> = (0..count).flat_map(share).cloned().collect();
            tasks.into_par_iter().with_max_len(1).for_each(run);
        }
    }
}

/// Divides things into shares of nearly the same size, where neighbours together have nearly the same size again.
fn shares(total: usize, count: usize) -> impl Iterator<Item = Range<usize>> + Clone {
    (0..count).map(move |i| total * i / count..total * (i + 1) / count).filter(|share| !share.is_empty())
}

fn ranges(total: usize, size: usize) -> impl Iterator<Item = Range<usize>> + Clone {
    (0..total).step_by(size.max(1)).map(move |first| first..total.min(first + size))
}

/// A product, or a part of its rows.
#[derive(Clone, Copy)]
struct Task<'a> {
    kernel: Kernel,
    a: &'a Operand<'a>,
    b: &'a Operand<'a>,
    packed: &'a Packed,
    /// The first operand's group that is packed first.
    first: usize,
    to: Destination,
}

impl Task<'_> {
    /// Divides it among threads: returns groups of columns with some of `rows` groups of rows.
    fn divided(self, rows: usize, count: usize) -> impl Iterator<Item = (Self, Range<usize>, Range<usize>)> {
        // Kernels take two groups of either. Two tasks a thread, if the columns suffice, so that a thread that starts late leaves some to
        // the others.
        let (all, pairs) = (self.b.groups(), self.b.groups().div_ceil(2));
        let broad = pairs.div_ceil(BROAD);
        let columns = if count == 1 { broad } else { broad.max(2 * count).next_multiple_of(count) }.min(pairs);
        // Rows are shared too where columns can't be shared evenly.
        let parts = if columns.is_multiple_of(count) { 1 } else { count };
        let groups = |pairs: Range<usize>, all: usize| 2 * pairs.start..all.min(2 * pairs.end);
        shares(pairs, columns).flat_map(move |columns| {
            shares(rows.div_ceil(2), parts).map(move |part| (self, groups(columns.clone(), all), groups(part, rows)))
        })
    }

    /// Computes some groups of columns of some packed groups of rows.
    unsafe fn run(&self, columns: &Range<usize>, rows: &Range<usize>) {
        // SAFETY: there is a kernel.
        let tiles = (self.kernel == Kernel::Amx).then(|| unsafe { Tiles::new() });
        let mut lines = Scratch::new(columns.len() * STEPS.min(self.packed.steps) * SIDE);
        let mut tile = Tile::ZERO;
        for steps in ranges(self.packed.steps, STEPS) {
            let lines = &mut lines[..columns.len() * steps.len() * SIDE];
            for (group, lines) in columns.clone().zip(lines.chunks_exact_mut(steps.len() * SIDE)) {
                // SAFETY: there is a kernel, and operands were checked when they were made.
                unsafe { self.b.pack(group, steps.start * INNER, Order::Pairs, lines) };
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
    unsafe fn sums(&self, a: &[Line], b: &[Line], steps: &Range<usize>, at: (usize, usize), tiles: bool, tile: &mut Tile) {
        let (row, column) = (at.0 * SIDE, at.1 * SIDE);
        let Destination { out, stride, add, scale } = self.to;
        let add = add || steps.start > 0;
        let group = steps.len() * SIDE;
        let (all_rows, all_columns) = (a.len() / group * SIDE, b.len() / group * SIDE);
        let (rows, columns) = (all_rows.min(self.a.outer - row), all_columns.min(self.b.outer - column));
        let whole = (rows, columns) == (all_rows, all_columns);
        // SAFETY: the caller's promise; only what the operands have is written.
        unsafe {
            let at = out.at(row * stride + column);
            if tiles && whole && scale == 1.0 {
                amx::sums(a, b, steps.len(), amx::Out { at, stride, add });
                return;
            }
            let room = tile.rows.as_mut_ptr().cast();
            let of_tile = |add| amx::Out { at: room, stride: WIDTH, add };
            if tiles && add && scale == 1.0 {
                // Added in the order of whole blocks.
                tile.load(at, stride, rows, columns);
                amx::sums(a, b, steps.len(), of_tile(true));
                tile.store(at, stride, rows, columns, 1.0, false);
                return;
            }
            if !tiles && whole {
                avx512::sums(a, b, steps.len(), amx::Out { at, stride, add }, scale);
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
