//! Rotary position embedding.

use super::super::Result;
use super::array::{Array, Uploaded};
use super::launch::Launch;
use candle_core::Tensor;
use candle_core::cuda_backend::CudaDevice;

/// Cosines and sines in device memory, `[positions, half]`.
#[derive(Debug)]
pub(crate) struct Tables {
    cosines: Uploaded<f32>,
    sines: Uploaded<f32>,
    positions: usize,
}

impl Tables {
    pub fn new(device: &CudaDevice, cosines: &[f32], sines: &[f32], positions: usize) -> Result<Self> {
        Ok(Self { cosines: Uploaded::new(device, cosines)?, sines: Uploaded::new(device, sines)?, positions })
    }

    /// Returns the number of positions.
    pub fn positions(&self) -> usize {
        self.positions
    }

    /// Returns the address of the cosines.
    pub fn cosines(&self) -> u64 {
        self.cosines.at()
    }

    /// Returns the address of the sines.
    pub fn sines(&self) -> u64 {
        self.sines.at()
    }
}

/// Rotates the first `2 * half` dimensions of the heads of `x: [N, heads * dim]` in place; `positions` is the address of the rows'
/// positions.
pub(crate) fn rotate(x: &Tensor, tables: &Tables, positions: u64, (half, dim): (usize, usize), direction: f32) -> Result<()> {
    let width = x.dims().last().copied().unwrap_or(0);
    let x = Array::of(x)?;
    let pairs = x.len / dim * half;
    let launch = Launch::of_kind(x.device, "rope", "rotate", x.kind).over(pairs);
    let launch = launch.array(x).address(tables.cosines()).address(tables.sines()).address(positions);
    launch.int(width / dim).int(half).int(dim).float(direction).size(pairs).run()
}
