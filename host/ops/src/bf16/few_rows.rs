//! Products of few rows with a weight in bf16 or in codes. The weight is read once, so memory bandwidth limits the speed.

use super::amx::{self, AmxTiles};
use super::avx512::{self, WeightRows};
use super::kernel::Bf16Kernel;
use super::pack::{Bf16Line, INNER, LineLayout, Operand, SIDE};
use super::tile::{WIDTH, write_pairs};
use crate::codes::{BLOCK, CODE_STEP, QuantizationScheme};
use crate::rounding::round_into;
use crate::view::OperandValues;
use crate::weight_storage::WeightValues;
use half::bf16;
use std::ops::Range;

/// Rows `[N, in]`, rounded and rearranged.
pub(crate) struct FewRows {
    kernel: Bf16Kernel,
    lines: Vec<Bf16Line>,
    n: usize,
    d_in: usize,
}

impl FewRows {
    /// Returns whether rows of this length consist of complete blocks.
    pub(crate) fn supports(d_in: usize) -> bool {
        d_in > 0 && d_in.is_multiple_of(INNER)
    }

    /// Rearranges rows `[N, in]`. Their length must be a multiple of 32.
    ///
    /// # Safety
    /// The processor has the kernel.
    pub(crate) unsafe fn new(kernel: Bf16Kernel, xs: &[f32], n: usize, d_in: usize) -> Self {
        assert!(xs.len() == n * d_in && d_in.is_multiple_of(INNER), "incomplete rows");
        let rows = Operand { values: OperandValues::F32(xs), outer: n, inner: d_in, outer_stride: d_in, inner_stride: 1 };
        let order = if kernel == Bf16Kernel::Amx { LineLayout::Pairs } else { LineLayout::Rows };
        let of_group = d_in / INNER * SIDE;
        let mut lines = vec![Bf16Line::ZERO; rows.groups() * of_group];
        for (group, lines) in lines.chunks_exact_mut(of_group.max(1)).enumerate() {
            // SAFETY: the processor has the kernel, and the rows are as long as just checked.
            unsafe { rows.pack(group, 0, order, lines) };
        }
        if kernel == Bf16Kernel::Avx512 {
            lines = in_halves(&lines, of_group, n);
        }
        Self { kernel, lines, n, d_in }
    }

    /// Calls `each` for all rows and these `outputs` of `w: [out, in]`, with the first of some outputs, the row's number, their products
    /// with the bias added, and the number of valid products. The bias is padded to complete groups. Weights in bf16 are read in place.
    /// Codes are converted to bf16 in registers, or in memory with tiles and for a last incomplete group: those of 8 bits exactly, with
    /// scaled sums, those of 4 bits rounded. Other weights are rounded, some outputs at a time.
    pub(crate) fn products(
        &self,
        w: &WeightValues<'_>,
        bias: &[f32],
        outputs: Range<usize>,
        mut each: impl FnMut(usize, usize, &[f32; WIDTH], usize),
    ) {
        let side = if self.kernel == Bf16Kernel::Amx { SIDE } else { avx512::ROWS };
        let of_group = self.d_in / INNER * side;
        // SAFETY: the processor has the kernel.
        let tiles = (self.kernel == Bf16Kernel::Amx).then(|| unsafe { AmxTiles::new() });
        let mut tile = [[0.0; WIDTH]; SIDE];
        let mut room = Vec::new();
        for first in outputs.clone().step_by(WIDTH) {
            let count = WIDTH.min(outputs.end - first);
            let bias = &bias.as_chunks::<WIDTH>().0[first / WIDTH];
            let mut scales = [1.0; WIDTH];
            if let WeightValues::Quantized { scales: all, scheme: QuantizationScheme::Int8, .. } = w {
                scales.iter_mut().zip(&all[first..first + count]).for_each(|(scale, most)| *scale = most * CODE_STEP);
            }
            let own = match self.in_place(w, first..first + count) {
                Some(own) if count == WIDTH && (tiles.is_none() || matches!(own, InPlaceWeightRows::Bf16(_))) => own,
                found => {
                    room.resize(WIDTH * self.d_in, bf16::ZERO);
                    match found {
                        // SAFETY: the processor has the kernel.
                        Some(found) => unsafe { found.widen(&mut room) },
                        None => self.round(w, first..first + count, &mut room),
                    }
                    InPlaceWeightRows::Bf16(WeightRows::from_bf16(&room))
                }
            };
            for (row, lines) in (0..self.n).step_by(side).zip(self.lines.chunks(of_group)) {
                // SAFETY: the processor has the kernel, and tiles are in use if that needs them.
                unsafe { own.products(tiles.is_some(), lines, (&scales, bias), &mut tile) };
                (0..side.min(self.n - row)).for_each(|i| each(first, row + i, &tile[i], count));
            }
        }
    }

    /// Returns the stored weights of some outputs, if kernels read them in place.
    fn in_place<'a>(&self, w: &'a WeightValues<'_>, outputs: Range<usize>) -> Option<InPlaceWeightRows<'a>> {
        let values = outputs.start * self.d_in..outputs.end * self.d_in;
        match w {
            WeightValues::Bf16(w) => Some(InPlaceWeightRows::Bf16(WeightRows::from_bf16(&w[values]))),
            WeightValues::Quantized { codes, scheme: QuantizationScheme::Int8, .. } => {
                Some(InPlaceWeightRows::Int8(WeightRows { bytes: &codes[values], scales: &[] }))
            }
            WeightValues::Quantized { codes, scales, scheme: QuantizationScheme::Nf4, .. } if self.d_in.is_multiple_of(BLOCK) => {
                let blocks = values.start / BLOCK..values.end / BLOCK;
                Some(InPlaceWeightRows::Nf4(WeightRows {
                    bytes: &codes[values.start / 2..values.end / 2],
                    scales: &scales[blocks],
                }))
            }
            _ => None,
        }
    }

    /// Rounds the weights of some outputs to the first rows of `room`, which has [`WIDTH`] rows.
    fn round(&self, w: &WeightValues<'_>, outputs: Range<usize>, room: &mut [bf16]) {
        for (output, row) in outputs.zip(room.chunks_exact_mut(self.d_in)) {
            round_into(&w.values(output * self.d_in..(output + 1) * self.d_in), row);
        }
    }
}

/// Rows of a weight that kernels read in place.
#[derive(Clone, Copy)]
enum InPlaceWeightRows<'a> {
    Bf16(WeightRows<'a>),
    Int8(WeightRows<'a>),
    Nf4(WeightRows<'a>),
}

impl InPlaceWeightRows<'_> {
    /// Writes the rows as bf16 to the beginning of `room`.
    ///
    /// # Safety
    /// The processor has AVX-512 with BF16.
    unsafe fn widen(self, room: &mut [bf16]) {
        // SAFETY: the caller's promise.
        unsafe {
            match self {
                Self::Bf16(w) => avx512::widen::<16>(w, room),
                Self::Int8(w) => avx512::widen::<8>(w, room),
                Self::Nf4(w) => avx512::widen::<4>(w, room),
            }
        }
    }

    /// Computes the products of 32 rows of the weight with a group of others, row by row, times the scales and with the bias; with tiles if
    /// they are in bf16.
    ///
    /// # Safety
    /// The processor has AVX-512 with BF16, and tiles are in use if `tiles` is set.
    unsafe fn products(
        self,
        tiles: bool,
        lines: &[Bf16Line],
        (scales, bias): (&[f32; WIDTH], &[f32; WIDTH]),
        tile: &mut [[f32; WIDTH]; SIDE],
    ) {
        // SAFETY: the caller's promise.
        let sums = unsafe {
            match self {
                Self::Bf16(w) if tiles => {
                    let mut sums = [[0.0; SIDE]; WIDTH];
                    amx::sums_of_rows(w.bytes, lines, &mut sums);
                    for (i, row) in tile.iter_mut().enumerate() {
                        *row = std::array::from_fn(|o| sums[o][i] * scales[o] + bias[o]);
                    }
                    return;
                }
                Self::Bf16(w) => avx512::sums_of_rows::<16>(w, lines),
                Self::Int8(w) => avx512::sums_of_rows::<8>(w, lines),
                Self::Nf4(w) => avx512::sums_of_rows::<4>(w, lines),
            }
        };
        // SAFETY: the caller's promise.
        unsafe { write_pairs(sums, (scales, bias), tile) };
    }
}

/// Returns the first and the last eight rows of each group one after the other, omitting a half without any of the `n` rows: otherwise the
/// rows that are read would share half of the L1 cache's sets.
fn in_halves(lines: &[Bf16Line], of_group: usize, n: usize) -> Vec<Bf16Line> {
    let mut halves = Vec::with_capacity(lines.len());
    for (g, group) in lines.chunks_exact(of_group.max(1)).enumerate() {
        for first in (0..SIDE).step_by(avx512::ROWS).filter(|first| g * SIDE + first < n) {
            halves.extend(group.as_chunks::<SIDE>().0.iter().flat_map(|block| &block[first..first + avx512::ROWS]));
        }
    }
    halves
}
