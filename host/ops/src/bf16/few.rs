//! Products of few rows with a bf16 weight, which is read once and in place: memory bandwidth limits them.

use super::amx::{self, Tiles};
use super::avx512;
use super::pack::{INNER, Line, Operand, Order, SIDE};
use super::tile::WIDTH;
use super::{Kernel, Values};
use crate::quantized::{A_CODE, Scheme};
use crate::rounding::round_into;
use crate::stored::Stored;
use half::bf16;
use std::ops::Range;

/// Some rows `[N, in]`, rounded and rearranged.
pub(crate) struct Few {
    kernel: Kernel,
    lines: Vec<Line>,
    n: usize,
    d_in: usize,
}

impl Few {
    /// Returns whether rows of this length are complete blocks.
    pub(crate) fn takes(d_in: usize) -> bool {
        d_in > 0 && d_in.is_multiple_of(INNER)
    }

    /// Rearranges rows `[N, in]`. Their length must be a multiple of 32.
    ///
    /// # Safety
    /// The processor has the kernel.
    pub(crate) unsafe fn new(kernel: Kernel, xs: &[f32], n: usize, d_in: usize) -> Self {
        assert!(xs.len() == n * d_in && d_in.is_multiple_of(INNER), "incomplete rows");
        let rows = Operand { values: Values::F32(xs), outer: n, inner: d_in, outer_stride: d_in, inner_stride: 1 };
        let order = if kernel == Kernel::Amx { Order::Pairs } else { Order::Rows };
        let of_group = d_in / INNER * SIDE;
        let mut lines = vec![Line::ZERO; rows.groups() * of_group];
        for (group, lines) in lines.chunks_exact_mut(of_group.max(1)).enumerate() {
            // SAFETY: the processor has the kernel, and the rows are as long as just checked.
            unsafe { rows.pack(group, 0, order, lines) };
        }
        if kernel == Kernel::Avx512 {
            lines = in_halves(&lines, of_group, n);
        }
        Self { kernel, lines, n, d_in }
    }

    /// Calls `each` with the first of some outputs, the number of a row, their products and the number of these that count, for all
    /// rows and these `outputs` of `w: [out, in]`. A bf16 weight is read in place. The codes of an 8-bit weight become bf16 exactly, and
    /// their sums are scaled. Others are rounded, some outputs at a time.
    pub(crate) fn products(
        &self,
        w: &Stored<'_>,
        outputs: Range<usize>,
        mut each: impl FnMut(usize, usize, &[f32; WIDTH], usize),
    ) {
        let side = if self.kernel == Kernel::Amx { SIDE } else { avx512::ROWS };
        let of_group = self.d_in / INNER * side;
        // SAFETY: the processor has the kernel.
        let tiles = (self.kernel == Kernel::Amx).then(|| unsafe { Tiles::new() });
        let mut sums = [[0.0; SIDE]; WIDTH];
        let mut room = Vec::new();
        for first in outputs.clone().step_by(WIDTH) {
            let count = WIDTH.min(outputs.end - first);
            let values = first * self.d_in..(first + count) * self.d_in;
            let mut scales = [1.0; WIDTH];
            let own = match w {
                Stored::Bf16(w) if count == WIDTH => &w[values],
                Stored::Quantized { codes, scales: all, scheme: Scheme::Int8, .. } => {
                    room.resize(WIDTH * self.d_in, bf16::ZERO);
                    // SAFETY: the processor has the kernel.
                    unsafe { avx512::widen(&codes[values], &mut room) };
                    scales.iter_mut().zip(&all[first..first + count]).for_each(|(scale, most)| *scale = most * A_CODE);
                    &room
                }
                _ => {
                    self.round(w, first..first + count, &mut room);
                    &room
                }
            };
            for (row, lines) in (0..self.n).step_by(side).zip(self.lines.chunks(of_group)) {
                // SAFETY: the processor has the kernel, and tiles are in use if that needs them.
                unsafe {
                    match tiles {
                        Some(_) => amx::sums_of_rows(own, lines, &mut sums),
                        None => avx512::sums_of_rows(own, lines, &mut sums),
                    }
                }
                let of_row = |i: usize| -> [f32; WIDTH] { std::array::from_fn(|o| sums[o][i] * scales[o]) };
                (0..side.min(self.n - row)).for_each(|i| each(first, row + i, &of_row(i), count));
            }
        }
    }

    /// Rounds the weights of some outputs into the first rows of `room`, which has [`WIDTH`].
    fn round(&self, w: &Stored<'_>, outputs: Range<usize>, room: &mut Vec<bf16>) {
        room.resize(WIDTH * self.d_in, bf16::ZERO);
        for (output, row) in outputs.zip(room.chunks_exact_mut(self.d_in)) {
            round_into(&w.values(output * self.d_in..(output + 1) * self.d_in), row);
        }
    }
}

/// Returns the first and the last eight rows of each group one after the other, without a half that has none of the `n` rows: what
/// is not read would take half of the L1 cache's places.
fn in_halves(lines: &[Line], of_group: usize, n: usize) -> Vec<Line> {
    let mut halves = Vec::with_capacity(lines.len());
    for (g, group) in lines.chunks_exact(of_group.max(1)).enumerate() {
        for first in (0..SIDE).step_by(avx512::ROWS).filter(|first| g * SIDE + first < n) {
            halves.extend(group.as_chunks::<SIDE>().0.iter().flat_map(|block| &block[first..first + avx512::ROWS]));
        }
    }
    halves
}
