//! Rotary position embedding (Su et al. 2021) in the half-split form of Hugging Face models:
//! dimension `i` turns with dimension `i + C/2`.

use super::cpu::{ROWS_PER_TASK, write};
#[cfg(feature = "cuda")]
use super::cuda;
use super::forest::Forest;
use super::simd::wide;
use super::{Error, Result, matrix_dims, on_device};
use candle_core::Tensor;
use rayon::prelude::*;
#[cfg(feature = "cuda")]
use std::sync::{Arc, OnceLock};

/// Cosines and sines of every position, `[positions, C/2]`.
#[derive(Clone, Debug)]
pub struct Rotation {
    half: usize,
    cos: Vec<f32>,
    sin: Vec<f32>,
    #[cfg(feature = "cuda")]
    tables: OnceLock<Arc<cuda::rope::Tables>>,
}

/// The positions of rows.
#[derive(Clone, Copy)]
pub enum Positions<'a> {
    /// One a row.
    Each(&'a [u32]),
    /// Those of a forest's tokens, which a device keeps from one operation to the next.
    Of(&'a Forest),
}

impl<'a> From<&'a [u32]> for Positions<'a> {
    fn from(each: &'a [u32]) -> Self {
        Self::Each(each)
    }
}

impl<'a> From<&'a Vec<u32>> for Positions<'a> {
    fn from(each: &'a Vec<u32>) -> Self {
        Self::Each(each)
    }
}

impl<'a> From<&'a Forest> for Positions<'a> {
    fn from(forest: &'a Forest) -> Self {
        Self::Of(forest)
    }
}

impl<'a> Positions<'a> {
    fn each(self) -> &'a [u32] {
        match self {
            Self::Each(each) => each,
            Self::Of(forest) => forest.positions(),
        }
    }
}

impl Rotation {
    /// Tables for positions `0..positions` from one frequency a pair of dimensions, `[C/2]`,
    /// all scaled by `attention_factor` (1 except for a few scaling methods).
    pub fn new(frequencies: &[f32], positions: usize, attention_factor: f32) -> Self {
        let half = frequencies.len();
        let table = |function: fn(f32) -> f32| -> Vec<f32> {
            // In f32 as the upstream models compute it, so that long positions agree.
            let entry = |i: usize| function((i / half) as f32 * frequencies[i % half]) * attention_factor;
            (0..positions * half).into_par_iter().map(entry).collect()
        };
        Self {
            half,
            cos: table(f32::cos),
            sin: table(f32::sin),
            #[cfg(feature = "cuda")]
            tables: OnceLock::new(),
        }
    }

    /// The tables in a device's memory.
    #[cfg(feature = "cuda")]
    pub(super) fn tables(&self, device: &candle_core::CudaDevice) -> Result<Arc<cuda::rope::Tables>> {
        if self.tables.get().is_none() {
            let _ = self.tables.set(Arc::new(cuda::rope::Tables::new(device, &self.cos, &self.sin)?));
        }
        self.tables.get().cloned().ok_or_else(|| Error::Shape { op: "rope", detail: "no tables".into() })
    }

    /// Number of positions in the tables.
    pub fn positions(&self) -> usize {
        self.cos.len() / self.half.max(1)
    }
}

fn rotate(x: &Tensor, rotation: &Rotation, at: Positions<'_>, direction: f32) -> Result<()> {
    let (half, positions) = (rotation.half, at.each());
    let (n, width) = matrix_dims(x);
    let fits = n == positions.len() && width % (2 * half) == 0;
    let known = positions.iter().all(|&p| (p as usize) < rotation.positions());
    if !fits || !known {
        let detail = format!(
            "{:?} at {} positions, tables of {} positions and head size {}",
            x.shape(),
            positions.len(),
            rotation.positions(),
            2 * half
        );
        return Err(Error::Shape { op: "rope", detail });
    }
    on_device!(x, rotate_on_device(x, rotation, at, direction));
    write(x, |xs| {
        xs.par_chunks_mut(width * ROWS_PER_TASK).zip(positions.par_chunks(ROWS_PER_TASK)).for_each(|(rows, positions)| {
            wide!(for (row, &p) in rows.chunks_mut(width).zip(positions) {
                let at = p as usize * half;
                let (cos, sin) = (&rotation.cos[at..at + half], &rotation.sin[at..at + half]);
                for head in row.chunks_mut(2 * half) {
                    let (low, high) = head.split_at_mut(half);
                    for i in 0..half {
                        let (a, b, s) = (low[i], high[i], sin[i] * direction);
                        low[i] = a * cos[i] - b * s;
                        high[i] = b * cos[i] + a * s;
                    }
                }
            });
        });
    })
}

#[cfg(feature = "cuda")]
fn rotate_on_device(x: &Tensor, rotation: &Rotation, at: Positions<'_>, direction: f32) -> Result<()> {
    let device = x.device().as_cuda_device()?;
    let tables = rotation.tables(device)?;
    match at {
        Positions::Of(forest) => cuda::rope::rotate(x, &tables, forest.plan(device)?.positions(), rotation.half, direction),
        Positions::Each(each) => {
            let each = cuda::Uploaded::new(device, each)?;
            cuda::rope::rotate(x, &tables, each.at(), rotation.half, direction)
        }
    }
}

/// Turns the heads of `x: [N, heads * C]` in place by their rows' positions.
pub fn forward<'a>(x: &Tensor, rotation: &Rotation, positions: impl Into<Positions<'a>>) -> Result<()> {
    rotate(x, rotation, positions.into(), 1.0)
}

/// Turns a gradient back, in place: the transpose of [`forward`].
pub fn backward<'a>(dx: &Tensor, rotation: &Rotation, positions: impl Into<Positions<'a>>) -> Result<()> {
    rotate(dx, rotation, positions.into(), -1.0)
}
