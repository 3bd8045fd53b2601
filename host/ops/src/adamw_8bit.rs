//! Updates a parameter by AdamW with moments in 8 bits, as in bitsandbytes (Dettmers et al. 2022, arXiv 2110.02861). CPU only.
//!
//! 256 values share a scale, their largest magnitude, and each is one of 256 multiples of it. The multiples are the paper's dynamic map,
//! whose steps shrink from decade to decade towards zero. The first moment's map has a sign; the second's uses that bit for finer steps. An
//! update computes in f32 from the decoded values, then takes the nearest codes. This matches the paper and bitsandbytes' CPU code; its
//! CUDA kernel also keeps a small negative first moment from becoming zero, though not a positive one.

use super::adamw;
use super::simd::wide;
use super::slices::{read, read_as, tensor, write, write_bytes};
use super::update::{AdamWScalars, AdamWStep};
use super::{Error, Result};
use candle_core::Tensor;
use rayon::prelude::*;
use std::sync::OnceLock;

/// Number of values that share a scale.
pub const BLOCK: usize = 256;

/// Number of blocks per task.
const BLOCKS: usize = 64;

/// Number of decades of the map.
const DECADES: i32 = 7;

/// Number of low bits of an f32 that [`MomentCodebook::cells`] ignores. Cells are then at most 0.4% wide, narrower than any step of a map.
const IGNORED: u32 = 15;

/// Magnitude below which the nearest value is zero.
const LEAST: f32 = f32::EPSILON;

/// A moment in 8 bits.
#[derive(Clone, Copy, Debug)]
pub struct Moment8Bit<'a> {
    /// Code of each value of the parameter, u8, in the parameter's shape.
    pub codes: &'a Tensor,
    /// Scale of each [`BLOCK`] values, f32.
    pub scales: &'a Tensor,
}

/// A map from codes to values.
struct MomentCodebook {
    /// Value of each code.
    values: [f32; 256],
    /// The code of zero. Lower codes represent negative values.
    zero: u8,
    /// Magnitude above which the next level is nearer, by level; infinite for the last.
    midpoints: Vec<f32>,
    /// Level of the smallest magnitude with these high bits, from [`LEAST`] to 1. No cell has two midpoints.
    cells: Vec<u8>,
}

impl MomentCodebook {
    /// Computes bitsandbytes' `create_dynamic_map`.
    fn new(signed: bool) -> Self {
        let decade = |decade: i32| {
            let steps = if signed { 1 << decade } else { 2 << decade };
            (0..steps).map(move |i| {
                let mean = 0.1 + 0.9 * (f64::from(i) + 0.5) / f64::from(steps);
                (10f64.powi(decade - DECADES + 1) * mean) as f32
            })
        };
        let levels: Vec<f32> = std::iter::once(0.0).chain((0..DECADES).flat_map(decade)).chain([1.0]).collect();
        let zero = if signed { 127 } else { 0 };
        let mut values = [0.0; 256];
        for (code, value) in (0u8..).zip(&mut values) {
            let level = levels[usize::from(code.abs_diff(zero))];
            *value = if code < zero { -level } else { level };
        }
        let between = levels.windows(2).map(|pair| (pair[0] + pair[1]) * 0.5);
        let midpoints: Vec<f32> = between.chain([f32::INFINITY]).collect();
        let level = |cell: u32| {
            let least = f32::from_bits(cell << IGNORED);
            midpoints.partition_point(|midpoint| *midpoint < least) as u8
        };
        let cells = (LEAST.to_bits() >> IGNORED..=1f32.to_bits() >> IGNORED).map(level).collect();
        Self { values, zero, midpoints, cells }
    }

    /// Returns the code of the value nearest to `x`, from -1 to 1. Of two equally near values, chooses the smaller magnitude.
    #[inline]
    fn code(&self, x: f32) -> u8 {
        let magnitude = x.abs();
        if magnitude < LEAST {
            return self.zero;
        }
        let cell = ((magnitude.to_bits() - LEAST.to_bits()) >> IGNORED) as usize;
        let first = self.cells[cell.min(self.cells.len() - 1)];
        let level = first + u8::from(magnitude > self.midpoints[usize::from(first)]);
        // There is no code for -1.
        if x < 0.0 { self.zero.saturating_sub(level) } else { self.zero + level }
    }

    /// Encodes values and returns their scale.
    #[inline]
    fn encode(&self, values: &[f32], codes: &mut [u8]) -> f32 {
        let scale = values.iter().fold(0f32, |scale, x| scale.max(x.abs()));
        if scale > 0.0 {
            codes.iter_mut().zip(values).for_each(|(code, x)| *code = self.code(x / scale));
        } else {
            codes.fill(self.zero);
        }
        scale
    }
}

/// Returns the maps of the first and the second moment.
fn maps() -> &'static (MomentCodebook, MomentCodebook) {
    static MAPS: OnceLock<(MomentCodebook, MomentCodebook)> = OnceLock::new();
    MAPS.get_or_init(|| (MomentCodebook::new(true), MomentCodebook::new(false)))
}

impl Moment8Bit<'_> {
    /// Returns an error if the moment does not fit a parameter of `n` values.
    fn check(&self, n: usize) -> Result<()> {
        let (codes, scales) = (self.codes.elem_count(), self.scales.elem_count());
        if (codes, scales) != (n, n.div_ceil(BLOCK)) {
            let detail = format!("{codes} codes and {scales} scales for {n} values");
            return Err(Error::Shape { op: "adamw_8bit", detail });
        }
        Ok(())
    }

    /// Changes codes and scales in place.
    fn write(&self, change: impl FnOnce(&mut [u8], &mut [f32])) -> Result<()> {
        let mut outcome = Ok(());
        write_bytes(self.codes, |codes| outcome = write(self.scales, |scales| change(codes, scales)))?;
        outcome
    }

    /// Returns the decoded values, f32, in the shape of the codes.
    fn values(&self, map: &MomentCodebook) -> Result<Tensor> {
        self.check(self.codes.elem_count())?;
        let (codes, scales) = (read_as::<u8>(self.codes)?, read(self.scales)?);
        let value = |(i, code): (usize, &u8)| map.values[usize::from(*code)] * scales[i / BLOCK];
        tensor(codes.par_iter().enumerate().map(value).collect(), self.codes.shape())
    }
}

/// Returns whether [`update`] would produce a value or moment that is not finite.
///
/// # Errors
/// If sizes differ, or the tensors are not on the CPU.
pub fn overflows(param: &Tensor, grad: &Tensor, m: Moment8Bit<'_>, v: Moment8Bit<'_>, s: AdamWStep) -> Result<bool> {
    let (of_m, of_v) = maps();
    adamw::overflows(param, grad, &m.values(of_m)?, &v.values(of_v)?, s)
}

/// Updates `param` and the moments in place from `grad`.
///
/// # Errors
/// As [`overflows`].
pub fn update(param: &Tensor, grad: &Tensor, m: Moment8Bit<'_>, v: Moment8Bit<'_>, s: AdamWStep) -> Result<()> {
    let n = param.elem_count();
    if grad.elem_count() != n {
        let detail = format!("parameter {:?}, gradient {:?}", param.shape(), grad.shape());
        return Err(Error::Shape { op: "adamw_8bit", detail });
    }
    m.check(n)?;
    v.check(n)?;
    let (s, grads) = (s.scalars(), read(grad)?);
    let mut outcome = Ok(());
    write(param, |ps| {
        outcome = m.write(|m_codes, m_scales| {
            let inner = v.write(|v_codes, v_scales| {
                let m = m_codes.par_chunks_mut(BLOCK).zip(m_scales);
                let v = v_codes.par_chunks_mut(BLOCK).zip(v_scales);
                let blocks = ps.par_chunks_mut(BLOCK).zip(grads.par_chunks(BLOCK)).zip(m).zip(v);
                blocks.with_min_len(BLOCKS).for_each(|(((ps, gs), m), v)| update_block(ps, gs, m, v, s));
            });
            debug_assert!(inner.is_ok());
        });
    })?;
    outcome
}

/// Updates a block of the parameter, whose moments are codes and a scale.
fn update_block(ps: &mut [f32], gs: &[f32], m: (&mut [u8], &mut f32), v: (&mut [u8], &mut f32), s: AdamWScalars) {
    let (of_m, of_v) = maps();
    let (mut ms, mut vs) = ([0f32; BLOCK], [0f32; BLOCK]);
    let (ms, vs) = (&mut ms[..ps.len()], &mut vs[..ps.len()]);
    for ((x, y), (a, b)) in ms.iter_mut().zip(&mut *vs).zip(m.0.iter().zip(&*v.0)) {
        (*x, *y) = (of_m.values[usize::from(*a)] * *m.1, of_v.values[usize::from(*b)] * *v.1);
    }
    let (b1, b2) = (s.beta1, s.beta2);
    wide!(for (((p, &g), m), v) in ps.iter_mut().zip(gs).zip(&mut *ms).zip(&mut *vs) {
        let g = g * s.grad_scale;
        *m += (1.0 - b1) * (g - *m);
        *v = b2 * *v + (1.0 - b2) * g * g;
        *p = *p * s.decay - s.step_size * *m / (v.sqrt() / s.root_bias2 + s.eps);
    });
    *m.1 = of_m.encode(ms, m.0);
    *v.1 = of_v.encode(vs, v.0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_gets_the_code_of_the_nearest() {
        for map in [MomentCodebook::new(true), MomentCodebook::new(false)] {
            let (levels, last) = (map.midpoints.len(), map.midpoints.len() - 2);
            assert_eq!((levels, map.values[255]), (256 - usize::from(map.zero), 1.0));
            assert!(map.values.is_sorted() && map.midpoints[last] < 1.0);
            let mut seen = 0u32;
            for i in 0..200_000u32 {
                // Logarithmic steps from 1 down to 1e-8.
                let x = 10f64.powf(-8.0 * f64::from(i) / 200_000.0) as f32;
                for x in if map.zero > 0 { vec![x, -x] } else { vec![x] } {
                    let got = map.values[usize::from(map.code(x))];
                    let nearest = map.values.iter().map(|value| (value - x).abs()).fold(f32::INFINITY, f32::min);
                    assert!((got - x).abs() <= nearest, "{x}: {got}");
                    seen += 1;
                }
            }
            assert!(seen >= 200_000);
            for (code, value) in (0u8..=255).zip(map.values) {
                assert_eq!(map.code(value), code, "{value}");
            }
            assert_eq!((map.code(0.0), map.code(-1.0)), (map.zero, 0));
        }
    }

    #[test]
    fn a_block_of_zeros_stays_zero() {
        let (of_m, of_v) = maps();
        let mut codes = [9u8; 3];
        assert_eq!((of_m.encode(&[0.0; 3], &mut codes), codes), (0.0, [127; 3]));
        assert_eq!((of_v.encode(&[0.0; 3], &mut codes), codes), (0.0, [0; 3]));
        // The smallest subnormal f32 values are scaled like others.
        assert_eq!((of_v.encode(&[0.0, 1e-45, 0.5e-44], &mut codes), codes[2]), (0.5e-44, 255));
    }
}
