//! Sums of few rows with lines of weights, keys or values, in vector registers. Used for products in f32 and attention of a generation.

#[cfg(target_arch = "x86_64")]
use super::processor::{CpuFeatures, features};
use super::rounding::FloatElement;
use super::unpack::WIDTH;
use half::bf16;

/// Number of rows that are summed together.
pub(super) const ROWS: usize = 8;

/// Sums of rows and outputs.
pub(super) type OutputTile = [[f32; WIDTH]; ROWS];

/// Weights of some outputs, with a line of [`WIDTH`] outputs for each input.
#[derive(Clone, Copy)]
pub(super) struct WeightLines<'a, T = f32> {
    pub values: &'a [T],
    /// Distance from one line to the next, in values.
    pub stride: usize,
    pub count: usize,
}

impl<'a> WeightLines<'a> {
    /// Creates a view of contiguous lines.
    pub(super) fn from_contiguous(values: &'a [f32]) -> Self {
        Self { values, stride: WIDTH, count: values.len() / WIDTH }
    }
}

impl<T> WeightLines<'_, T> {
    fn check(&self) {
        assert!(self.count == 0 || self.values.len() >= (self.count - 1) * self.stride + WIDTH, "lines out of bounds");
    }
}

/// Lines of pairs of neighbouring inputs in bf16, of [`WIDTH`] outputs each: both inputs of the first output, and so on.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
pub(super) struct PairLines<'a> {
    pub values: &'a [bf16],
    /// Distance from one line to the next, in values.
    pub stride: usize,
    pub count: usize,
}

/// Adds the products of at most [`ROWS`] rows of `xs`, of `d_in` values each, with lines to the tile. Uses the processor's pair instruction
/// (`vdpbf16ps`), which is twice as fast as [`sums`] and needs no widening.
///
/// # Panics
/// If the processor does not have the instruction ([`has_pairs`]).
#[cfg(target_arch = "x86_64")]
pub(super) fn sums_of_pairs(xs: &[bf16], d_in: usize, lines: PairLines<'_>, tile: &mut OutputTile) {
    assert!(has_pairs(), "a processor without products of pairs");
    // SAFETY: the processor has the instruction.
    unsafe {
        match xs.len() / d_in {
            0 => {}
            1 => pairs::sums::<1>(xs, d_in, lines, tile),
            2 => pairs::sums::<2>(xs, d_in, lines, tile),
            3 => pairs::sums::<3>(xs, d_in, lines, tile),
            4 => pairs::sums::<4>(xs, d_in, lines, tile),
            5 => pairs::sums::<5>(xs, d_in, lines, tile),
            6 => pairs::sums::<6>(xs, d_in, lines, tile),
            7 => pairs::sums::<7>(xs, d_in, lines, tile),
            _ => pairs::sums::<ROWS>(xs, d_in, lines, tile),
        }
    }
}

/// Returns whether the processor supports [`sums_of_pairs`].
pub(super) fn has_pairs() -> bool {
    crate::bf16::supported()
}

#[cfg(target_arch = "x86_64")]
mod pairs {
    //! Loops use indices, since closures over registers can't be inlined into functions with target features.
    #![allow(clippy::needless_range_loop)]

    use super::{OutputTile, PairLines, ROWS, WIDTH};
    use half::bf16;
    use std::arch::x86_64::*;

    /// Number of outputs in a register.
    const LANES: usize = 16;

    /// # Safety
    /// The processor has AVX-512 with BF16.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
    pub(super) unsafe fn sums<const R: usize>(xs: &[bf16], d_in: usize, lines: PairLines<'_>, tile: &mut OutputTile) {
        const { assert!(R <= ROWS && WIDTH == 2 * LANES) };
        assert!(xs.len() >= R * d_in && 2 * lines.count <= d_in, "incomplete rows");
        assert!(lines.count == 0 || lines.values.len() >= (lines.count - 1) * lines.stride + 2 * WIDTH, "lines out of bounds");
        let mut sums = [[_mm512_setzero_ps(); 2]; R];
        // SAFETY: all places are within the lengths just checked; registers of integers and bf16 hold any bits.
        unsafe {
            for r in 0..R {
                for p in 0..2 {
                    sums[r][p] = _mm512_loadu_ps(tile[r].as_ptr().add(p * LANES));
                }
            }
            for k in 0..lines.count {
                let line = lines.values.as_ptr().add(k * lines.stride);
                let weights = [
                    std::mem::transmute::<__m512i, __m512bh>(_mm512_loadu_si512(line.cast())),
                    std::mem::transmute::<__m512i, __m512bh>(_mm512_loadu_si512(line.add(2 * LANES).cast())),
                ];
                for r in 0..R {
                    let pair = xs.as_ptr().add(r * d_in + 2 * k).cast::<i32>().read_unaligned();
                    let x: __m512bh = std::mem::transmute(_mm512_set1_epi32(pair));
                    for p in 0..2 {
                        sums[r][p] = _mm512_dpbf16_ps(sums[r][p], x, weights[p]);
                    }
                }
            }
            for r in 0..R {
                for p in 0..2 {
                    _mm512_storeu_ps(tile[r].as_mut_ptr().add(p * LANES), sums[r][p]);
                }
            }
        }
    }
}

/// A value of [`WeightLines`].
pub(super) trait LineValue: FloatElement {
    /// Calls the function that is compiled for the processor's registers. Returns whether there is one.
    fn in_registers(xs: &[f32], d_in: usize, first: usize, lines: WeightLines<'_, Self>, tile: &mut OutputTile) -> bool;
}

/// Implements [`LineValue`] with the functions of these modules.
macro_rules! value {
    ($type:ty, $avx512:ident, $avx2:ident) => {
        impl LineValue for $type {
            #[cfg_attr(not(target_arch = "x86_64"), allow(unused_variables))]
            fn in_registers(xs: &[f32], d_in: usize, first: usize, lines: WeightLines<'_, Self>, tile: &mut OutputTile) -> bool {
                #[cfg(target_arch = "x86_64")]
                match features() {
                    CpuFeatures::Baseline => return false,
                    // SAFETY: the processor has the features that this is compiled for.
                    CpuFeatures::Avx2 => unsafe { $avx2::sums(xs, d_in, first, lines, tile) },
                    // SAFETY: as above.
                    _ => unsafe { $avx512::sums(xs, d_in, first, lines, tile) },
                }
                cfg!(target_arch = "x86_64")
            }
        }
    };
}

value!(f32, avx512, avx2);
value!(bf16, avx512_of_bf16, avx2_of_bf16);

/// Adds the products of at most [`ROWS`] rows of `xs`, of `d_in` values each, with lines to the tile. The first line is that of the `first`
/// input.
pub(super) fn sums<T: LineValue>(xs: &[f32], d_in: usize, first: usize, lines: WeightLines<'_, T>, tile: &mut OutputTile) {
    lines.check();
    if !T::in_registers(xs, d_in, first, lines, tile) {
        plainly(xs, d_in, first, lines, tile);
    }
}

/// Computes [`sums`] on any processor.
fn plainly<T: LineValue>(xs: &[f32], d_in: usize, first: usize, lines: WeightLines<'_, T>, tile: &mut OutputTile) {
    for (row, sums) in xs.chunks_exact(d_in).zip(tile) {
        for (x, line) in row[first..].iter().zip(lines.values.chunks(lines.stride)).take(lines.count) {
            sums.iter_mut().zip(line).for_each(|(sum, w)| *sum = x.mul_add(w.in_f32(), *sum));
        }
    }
}

/// Computes [`sums`] in vector registers. A tile of `$rows` rows and `$parts` registers of outputs takes nearly all of them. It is written
/// with intrinsics for each number of rows, because otherwise the compiler leaves the sums in memory.
#[cfg(target_arch = "x86_64")]
macro_rules! in_registers {
    ($name:ident, $features:literal, $value:ty, $of_line:path, $lanes:literal, $rows:literal, $parts:literal,
     $zero:ident, $load:ident, $spread:ident, $fma:ident, $store:ident) => {
        mod $name {
            use super::{OutputTile, ROWS, WIDTH, WeightLines};
            use std::arch::x86_64::{$fma, $load, $spread, $store, $zero};

            #[target_feature(enable = $features)]
            pub(super) fn sums(xs: &[f32], d_in: usize, from: usize, lines: WeightLines<'_, $value>, tile: &mut OutputTile) {
                const { assert!(ROWS % $rows == 0 && WIDTH % ($lanes * $parts) == 0 && $rows <= 8) };
                for (xs, tile) in xs.chunks($rows * d_in).zip(tile.chunks_exact_mut($rows)) {
                    for first in (0..WIDTH).step_by($lanes * $parts) {
                        match xs.len() / d_in {
                            1 => part::<1>(xs, d_in, from, lines, tile, first),
                            2 => part::<2>(xs, d_in, from, lines, tile, first),
                            3 => part::<3>(xs, d_in, from, lines, tile, first),
                            4 => part::<4>(xs, d_in, from, lines, tile, first),
                            5 => part::<5>(xs, d_in, from, lines, tile, first),
                            6 => part::<6>(xs, d_in, from, lines, tile, first),
                            7 => part::<7>(xs, d_in, from, lines, tile, first),
                            _ => part::<8>(xs, d_in, from, lines, tile, first),
                        }
                    }
                }
            }

            /// Sums `R` rows, and `$parts` registers of outputs from `first` on.
            #[target_feature(enable = $features)]
            #[inline]
            fn part<const R: usize>(
                xs: &[f32],
                d_in: usize,
                from: usize,
                lines: WeightLines<'_, $value>,
                tile: &mut [[f32; WIDTH]],
                first: usize,
            ) {
                assert!(xs.len() >= R * d_in && from + lines.count <= d_in && tile.len() >= R);
                assert!(first + $parts * $lanes <= WIDTH);
                let mut sums = [[$zero(); $parts]; R];
                // SAFETY: all places are within the lengths just checked.
                unsafe {
                    for r in 0..R {
                        for p in 0..$parts {
                            sums[r][p] = $load(tile[r].as_ptr().add(first + p * $lanes));
                        }
                    }
                    for k in 0..lines.count {
                        let line = lines.values.as_ptr().add(k * lines.stride + first);
                        // A closure can't be inlined here.
                        let mut weights = [$zero(); $parts];
                        for p in 0..$parts {
                            weights[p] = $of_line(line.add(p * $lanes));
                        }
                        for r in 0..R {
                            let x = $spread(*xs.as_ptr().add(r * d_in + from + k));
                            for p in 0..$parts {
                                sums[r][p] = $fma(x, weights[p], sums[r][p]);
                            }
                        }
                    }
                    for r in 0..R {
                        for p in 0..$parts {
                            $store(tile[r].as_mut_ptr().add(first + p * $lanes), sums[r][p]);
                        }
                    }
                }
            }
        }
    };
}

/// Loads values in bf16.
#[cfg(target_arch = "x86_64")]
mod widening {
    use half::bf16;
    use std::arch::x86_64::*;

    /// # Safety
    /// As many values as a register of f32 holds lie there.
    #[target_feature(enable = "avx512f")]
    #[inline]
    pub(super) unsafe fn avx512(at: *const bf16) -> __m512 {
        // SAFETY: the caller's promise.
        let bits = unsafe { _mm256_loadu_si256(at.cast()) };
        _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(bits)))
    }

    /// # Safety
    /// As above.
    #[target_feature(enable = "avx2")]
    #[inline]
    pub(super) unsafe fn avx2(at: *const bf16) -> __m256 {
        // SAFETY: the caller's promise.
        let bits = unsafe { _mm_loadu_si128(at.cast()) };
        _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(bits)))
    }
}

/// Calls the macro above with the arguments that all value types share.
#[cfg(target_arch = "x86_64")]
macro_rules! of_values {
    ($avx512:ident, $avx2:ident, $value:ty, $of_512:path, $of_256:path) => {
        in_registers!(
            $avx512,
            "avx512f",
            $value,
            $of_512,
            16,
            8,
            2,
            _mm512_setzero_ps,
            _mm512_loadu_ps,
            _mm512_set1_ps,
            _mm512_fmadd_ps,
            _mm512_storeu_ps
        );
        in_registers!(
            $avx2,
            "avx2,fma",
            $value,
            $of_256,
            8,
            4,
            2,
            _mm256_setzero_ps,
            _mm256_loadu_ps,
            _mm256_set1_ps,
            _mm256_fmadd_ps,
            _mm256_storeu_ps
        );
    };
}

#[cfg(target_arch = "x86_64")]
of_values!(avx512, avx2, f32, std::arch::x86_64::_mm512_loadu_ps, std::arch::x86_64::_mm256_loadu_ps);
#[cfg(target_arch = "x86_64")]
of_values!(avx512_of_bf16, avx2_of_bf16, half::bf16, super::widening::avx512, super::widening::avx2);

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    type SumsFunction<T> = unsafe fn(&[f32], usize, usize, WeightLines<'_, T>, &mut OutputTile);

    /// Asserts that the functions whose registers the processor has return the bits of plain sums.
    fn assert_same<T: LineValue>(values: &[T], by: [(bool, SumsFunction<T>); 2]) {
        let d_in = 37;
        let all: Vec<f32> = (0..ROWS * d_in).map(|i| ((i * 29) % 83) as f32 / 41.0 - 1.0).collect();
        let cases =
            (1..=ROWS).flat_map(|rows| [(32, 0), (32, 1), (32, 32), (40, 30)].map(|(stride, count)| (rows, stride, count)));
        for ((rows, stride, count), first) in cases.flat_map(|case| [0, 5].map(|first| (case, first))) {
            let (xs, lines) = (&all[..rows * d_in], WeightLines { values, stride, count });
            let begun: OutputTile = std::array::from_fn(|r| std::array::from_fn(|o| (r * WIDTH + o) as f32 / 100.0));
            let mut want = begun;
            plainly(xs, d_in, first, lines, &mut want);
            for (there, sums) in by {
                if !there {
                    eprintln!("skipped: this processor lacks these registers");
                    continue;
                }
                let mut got = begun;
                // SAFETY: the processor has the registers.
                unsafe { sums(xs, d_in, first, lines, &mut got) };
                assert_eq!(got[..rows], want[..rows], "{rows} rows, {count} lines {stride} apart, from {first}");
            }
        }
    }

    #[test]
    fn pairs_give_the_sums_of_their_products() {
        if !has_pairs() {
            eprintln!("skipped: this processor has no AVX-512 with BF16");
            return;
        }
        let value = |i: usize| bf16::from_f32(((i * 31) % 97) as f32 / 48.0 - 1.0);
        let d_in = 38;
        let xs: Vec<bf16> = (0..ROWS * d_in).map(|i| value(i * 7)).collect();
        for (rows, stride, count) in (0..=ROWS).flat_map(|rows| [(64, 0), (64, 1), (64, 19), (70, 18)].map(|(s, n)| (rows, s, n)))
        {
            let values: Vec<bf16> = (0..count * stride + 64).map(value).collect();
            let mut tile: OutputTile = std::array::from_fn(|r| std::array::from_fn(|o| (r * WIDTH + o) as f32 / 100.0));
            let before = tile;
            sums_of_pairs(&xs[..rows * d_in], d_in, PairLines { values: &values, stride, count }, &mut tile);
            for (r, o) in (0..ROWS).flat_map(|r| (0..WIDTH).map(move |o| (r, o))) {
                let product =
                    |k: usize| f64::from(xs[r * d_in + k].to_f32()) * f64::from(values[k / 2 * stride + 2 * o + k % 2].to_f32());
                let sum: f64 = if r < rows { (0..2 * count).map(product).sum() } else { 0.0 };
                let want = f64::from(before[r][o]) + sum;
                assert!((f64::from(tile[r][o]) - want).abs() < 1e-5, "{rows} rows, {count} lines: {r} {o}");
            }
        }
    }

    #[test]
    fn every_processor_gives_the_same_bits() {
        let values: Vec<f32> = (0..40 * 32).map(|i| ((i * 31) % 97) as f32 / 48.0 - 1.0).collect();
        let rounded: Vec<bf16> = values.iter().map(|x| bf16::from_f32(*x)).collect();
        let (has_512, has_2) = (features() >= CpuFeatures::Avx512, features() >= CpuFeatures::Avx2);
        assert_same(&values, [(has_512, avx512::sums), (has_2, avx2::sums)]);
        assert_same(&rounded, [(has_512, avx512_of_bf16::sums), (has_2, avx2_of_bf16::sums)]);
    }
}
