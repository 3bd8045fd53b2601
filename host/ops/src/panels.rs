//! Products of a weight with few rows, as for each generated token.
//!
//! There, a general product spends most of its time rearranging its operands. Here the weight is rearranged once. A tile of rows
//! and outputs is summed in vector registers, each output's terms in the order of the inputs, so a row's result does not depend
//! on the other rows.

use super::cpu::{Shared, filled, read, tensor};
#[cfg(target_arch = "x86_64")]
use super::simd;
use super::{Error, Result, matrix_dims, team};
use candle_core::Tensor;
use rayon::prelude::*;

/// Outputs whose weights are stored together: two AVX-512 registers.
const WIDTH: usize = 32;

/// Rows that are summed together.
const ROWS: usize = 8;

/// Below this many multiplications, a second thread brings nothing.
const WORTH_WAKING: usize = 1 << 23;

/// The same if the threads are awake ([`team::together`]).
const WORTH_SHARING: usize = 1 << 16;

/// Parts of a product per thread, so that a thread that starts late leaves some to the others.
const PARTS_A_THREAD: usize = 4;

/// Inputs whose weights are transposed together, within the innermost cache.
const TURNED: usize = 16;

/// A weight `[out, in]` with its bias, laid out for few rows: outputs in groups of [`WIDTH`], each group as `[in, WIDTH]`.
#[derive(Clone, Debug)]
pub struct Panels {
    data: Vec<f32>,
    /// One value per output, padded to complete groups.
    bias: Vec<f32>,
    d_in: usize,
    d_out: usize,
}

impl Panels {
    /// Creates panels from `w: [out, in]` and `b: [out]`.
    pub fn new(w: &Tensor, b: Option<&Tensor>) -> Result<Self> {
        let (d_out, d_in) = matrix_dims(w);
        let groups = d_out.div_ceil(WIDTH);
        let ws = read(w)?;
        let mut data = vec![0f32; groups * WIDTH * d_in];
        data.par_chunks_mut(WIDTH * d_in).zip(ws.par_chunks(WIDTH * d_in)).for_each(|(panel, rows)| {
            for (i, lines) in panel.as_chunks_mut::<WIDTH>().0.chunks_mut(TURNED).enumerate() {
                for (column, row) in rows.chunks_exact(d_in).enumerate() {
                    for (line, x) in lines.iter_mut().zip(&row[i * TURNED..]) {
                        line[column] = *x;
                    }
                }
            }
        });
        let mut bias = match b {
            None => Vec::new(),
            Some(b) if b.elem_count() == d_out => read(b)?.to_vec(),
            Some(b) => {
                let detail = format!("a bias of {:?} for {d_out} outputs", b.shape());
                return Err(Error::Shape { op: "panels", detail });
            }
        };
        bias.resize(groups * WIDTH, 0.0);
        Ok(Self { data, bias, d_in, d_out })
    }

    /// Computes `[N, out]` from `x: [N, in]`.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let (n, d_in) = matrix_dims(x);
        if d_in != self.d_in {
            let detail = format!("{:?} does not fit a weight [{}, {}]", x.shape(), self.d_out, self.d_in);
            return Err(Error::Shape { op: "panels", detail });
        }
        let xs = read(x)?;
        // SAFETY: the panels cover all outputs of all rows.
        let out = unsafe {
            filled(n * self.d_out, |out| {
                let out = Shared::of(out);
                let panel = |i: usize| self.panel(i, &xs, n, out);
                let panels = self.data.len() / (WIDTH * d_in).max(1);
                let worth = if team::is_led() { WORTH_SHARING } else { WORTH_WAKING };
                let most = if n * self.data.len() < worth { 1 } else { PARTS_A_THREAD * rayon::current_num_threads() };
                let parts = panels.min(most);
                team::each(parts, |part| (panels * part / parts..panels * (part + 1) / parts).for_each(panel));
            })
        };
        tensor(out, (n, self.d_out))
    }

    /// Computes one group's outputs for all rows.
    fn panel(&self, i: usize, xs: &[f32], n: usize, out: Shared) {
        let (first, panel) = (i * WIDTH, &self.data[i * WIDTH * self.d_in..][..WIDTH * self.d_in]);
        let bias = &self.bias[first..first + WIDTH];
        let mut tile = [[0f32; WIDTH]; ROWS];
        for row in (0..n).step_by(ROWS) {
            let rows = ROWS.min(n - row);
            sums(&xs[row * self.d_in..(row + rows) * self.d_in], self.d_in, panel, bias, &mut tile);
            for (r, sums) in tile[..rows].iter().enumerate() {
                let count = WIDTH.min(self.d_out - first);
                // SAFETY: only this group writes these outputs.
                unsafe { std::ptr::copy_nonoverlapping(sums.as_ptr(), out.at((row + r) * self.d_out + first), count) };
            }
        }
    }
}

type Tile = [[f32; WIDTH]; ROWS];

/// Computes the sums of at most [`ROWS`] rows of `xs` with a panel.
fn sums(xs: &[f32], d_in: usize, panel: &[f32], bias: &[f32], tile: &mut Tile) {
    #[cfg(target_arch = "x86_64")]
    match simd::level() {
        // SAFETY: the processor has the features that this is compiled for.
        simd::Level::Avx512 => return unsafe { avx512::sums(xs, d_in, panel, bias, tile) },
        simd::Level::Avx2 => return unsafe { avx2::sums(xs, d_in, panel, bias, tile) },
        simd::Level::Baseline => {}
    }
    for (row, sums) in xs.chunks_exact(d_in).zip(tile) {
        *sums = [0.0; WIDTH];
        for (x, line) in row.iter().zip(panel.as_chunks::<WIDTH>().0) {
            sums.iter_mut().zip(line).for_each(|(sum, w)| *sum = x.mul_add(*w, *sum));
        }
        sums.iter_mut().zip(bias).for_each(|(sum, b)| *sum += b);
    }
}

/// Computes the same sums in vector registers. A tile of `$rows` rows and `$parts` registers of outputs takes nearly all of them.
/// It is written out because otherwise the compiler leaves the sums in memory.
#[cfg(target_arch = "x86_64")]
macro_rules! in_registers {
    ($name:ident, $features:literal, $lanes:literal, $rows:literal, $parts:literal,
     $zero:ident, $load:ident, $spread:ident, $fma:ident, $add:ident, $store:ident) => {
        mod $name {
            use super::{ROWS, Tile, WIDTH};
            use std::arch::x86_64::{$add, $fma, $load, $spread, $store, $zero};

            #[target_feature(enable = $features)]
            pub(super) fn sums(xs: &[f32], d_in: usize, panel: &[f32], bias: &[f32], tile: &mut Tile) {
                const { assert!(ROWS % $rows == 0 && WIDTH % ($lanes * $parts) == 0 && $rows <= 8) };
                for (xs, tile) in xs.chunks($rows * d_in).zip(tile.chunks_exact_mut($rows)) {
                    for first in (0..WIDTH).step_by($lanes * $parts) {
                        match xs.len() / d_in {
                            1 => part::<1>(xs, d_in, panel, bias, tile, first),
                            2 => part::<2>(xs, d_in, panel, bias, tile, first),
                            3 => part::<3>(xs, d_in, panel, bias, tile, first),
                            4 => part::<4>(xs, d_in, panel, bias, tile, first),
                            5 => part::<5>(xs, d_in, panel, bias, tile, first),
                            6 => part::<6>(xs, d_in, panel, bias, tile, first),
                            7 => part::<7>(xs, d_in, panel, bias, tile, first),
                            _ => part::<8>(xs, d_in, panel, bias, tile, first),
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
                panel: &[f32],
                bias: &[f32],
                tile: &mut [[f32; WIDTH]],
                first: usize,
            ) {
                assert!(xs.len() >= R * d_in && panel.len() >= WIDTH * d_in && bias.len() >= WIDTH && tile.len() >= R);
                assert!(first + $parts * $lanes <= WIDTH);
                let mut sums = [[$zero(); $parts]; R];
                // SAFETY: all places are within the lengths just checked.
                unsafe {
                    for k in 0..d_in {
                        let line = panel.as_ptr().add(k * WIDTH + first);
                        let line: [_; $parts] = std::array::from_fn(|p| $load(line.add(p * $lanes)));
                        for r in 0..R {
                            let x = $spread(*xs.as_ptr().add(r * d_in + k));
                            for p in 0..$parts {
                                sums[r][p] = $fma(x, line[p], sums[r][p]);
                            }
                        }
                    }
                    for r in 0..R {
                        for p in 0..$parts {
                            let at = first + p * $lanes;
                            $store(tile[r].as_mut_ptr().add(at), $add(sums[r][p], $load(bias.as_ptr().add(at))));
                        }
                    }
                }
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
in_registers!(
    avx512,
    "avx512f",
    16,
    8,
    2,
    _mm512_setzero_ps,
    _mm512_loadu_ps,
    _mm512_set1_ps,
    _mm512_fmadd_ps,
    _mm512_add_ps,
    _mm512_storeu_ps
);
#[cfg(target_arch = "x86_64")]
in_registers!(
    avx2,
    "avx2,fma",
    8,
    4,
    2,
    _mm256_setzero_ps,
    _mm256_loadu_ps,
    _mm256_set1_ps,
    _mm256_fmadd_ps,
    _mm256_add_ps,
    _mm256_storeu_ps
);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linear;
    use candle_core::{Device, Tensor};

    #[test]
    fn any_number_of_rows_and_outputs_gives_the_general_product() {
        let random = |shape: &[usize]| Tensor::randn(0f32, 1.0, shape, &Device::Cpu).unwrap();
        for (d_in, d_out) in [(1, 1), (7, 31), (64, 33), (96, 257), (300, 64)] {
            let (w, b) = (random(&[d_out, d_in]), random(&[d_out]));
            for n in [0, 1, 2, 3, 5, 8, 13, 40] {
                let x = random(&[n, d_in]);
                for bias in [None, Some(&b)] {
                    let got = Panels::new(&w, bias).unwrap().forward(&x).unwrap();
                    let want = linear::forward(&x, &w, bias).unwrap();
                    let far = (got - want).unwrap().abs().unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
                    assert!(far.iter().all(|d| *d < 1e-4), "{n} rows of {d_in} to {d_out}: {far:?}");
                }
            }
        }
    }

    #[test]
    fn a_row_does_not_depend_on_those_beside_it() {
        let random = |shape: &[usize]| Tensor::randn(0f32, 1.0, shape, &Device::Cpu).unwrap();
        let (panels, x) = (Panels::new(&random(&[70, 50]), None).unwrap(), random(&[11, 50]));
        let together = panels.forward(&x).unwrap().to_vec2::<f32>().unwrap();
        for (row, want) in together.iter().enumerate() {
            let alone = panels.forward(&x.narrow(0, row, 1).unwrap().contiguous().unwrap().copy().unwrap()).unwrap();
            assert_eq!(&alone.to_vec2::<f32>().unwrap()[0], want);
        }
    }
}
