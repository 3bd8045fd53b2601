//! Rotary position embedding.

use super::super::Result;
use super::array::{DeviceArray, DeviceBuffer};
use super::launch::KernelLaunch;
use candle_core::Tensor;
use candle_core::cuda_backend::CudaDevice;

/// Cosines and sines in device memory, `[positions, half]`.
#[derive(Debug)]
pub(crate) struct DeviceRopeTables {
    cosines: DeviceBuffer<f32>,
    sines: DeviceBuffer<f32>,
    positions: usize,
}

impl DeviceRopeTables {
    pub fn new(device: &CudaDevice, cosines: &[f32], sines: &[f32], positions: usize) -> Result<Self> {
        Ok(Self { cosines: DeviceBuffer::new(device, cosines)?, sines: DeviceBuffer::new(device, sines)?, positions })
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

/// Rotates the first `2 * half` dimensions of the heads of `x: [N, heads * dim]` in place. `positions` is the address of the rows'
/// positions.
pub(crate) fn rotate(
    x: &Tensor,
    tables: &DeviceRopeTables,
    positions: u64,
    (half, dim): (usize, usize),
    direction: f32,
) -> Result<()> {
    let width = x.dims().last().copied().unwrap_or(0);
    let x = DeviceArray::from_tensor(x)?;
    let pairs = x.len / dim * half;
    let launch = KernelLaunch::with_kind(x.device, "rope", "rotate", x.kind).over(pairs);
    let launch = launch.array(x).address(tables.cosines()).address(tables.sines()).address(positions);
    launch.int(width / dim).int(half).int(dim).float(direction).size(pairs).run()
}
