//! Sums over many values, in parts whose number depends only on the sizes.

use super::super::{Error, Result, matrix_dims};
use super::array::{DeviceArray, ElementKind, at, buffer};
use super::launch::{KernelLaunch, driver_error};
use candle_core::cuda_backend::CudaDevice;
use candle_core::cuda_backend::cudarc::driver::DeviceRepr;
use candle_core::{DType, Tensor};

/// Number of columns per block.
const COLUMNS: usize = 32;

/// Maximum number of parts of a sum over rows.
const MOST_PARTS: usize = 256;

/// Number of rows per part.
const ROWS_PER_PART: usize = 64;

/// Maximum number of parts of a sum over all values of a tensor.
const MOST_BLOCKS: usize = 512;

/// Adds `scale` times a sum over rows to `out: [columns]`. The kernel's arguments are the address of its parts, followed by those that
/// `arguments` adds.
fn add_rows_summed<'a>(
    out: &Tensor,
    kernel: KernelLaunch<'a>,
    device: &'a CudaDevice,
    rows: usize,
    columns: usize,
    scale: f32,
    arguments: impl FnOnce(KernelLaunch<'a>) -> KernelLaunch<'a>,
) -> Result<()> {
    let out = DeviceArray::from_tensor_with_kind(out, ElementKind::F32)?;
    if out.len != columns {
        return Err(Error::Shape { op: "sum of rows", detail: format!("{} values for {columns} columns", out.len) });
    }
    if rows == 0 {
        return Ok(());
    }
    let parts = rows.div_ceil(ROWS_PER_PART).min(MOST_PARTS);
    let sums = buffer::<f32>(device, parts * columns)?;
    let kernel = kernel.grid(columns.div_ceil(COLUMNS), parts, 1).address(at(&sums));
    arguments(kernel).int(rows).int(columns).run()?;
    let add = KernelLaunch::new(device, "reduce", "add_parts").blocks(columns.div_ceil(COLUMNS)).threads(1024);
    add.array(out).address(at(&sums)).int(parts).int(columns).float(scale).run()
}

/// Adds `scale` times the sum of the rows of `x: [N, D]` to `out: [D]`.
pub(super) fn add_column_sums(out: &Tensor, x: &Tensor, scale: f32) -> Result<()> {
    let (rows, columns) = matrix_dims(x);
    let x = DeviceArray::from_tensor(x)?;
    let kernel = KernelLaunch::with_kind(x.device, "reduce", "column_sums", x.kind);
    add_rows_summed(out, kernel, x.device, rows, columns, scale, |launch| launch.array(x))
}

/// Adds the gradient of a norm's weight to `dw: [D]`, given `x` and its gradient, and the addresses of each row's factors and of the means
/// subtracted before; 0 if none were.
pub(super) fn add_norm_weight_gradient(dw: &Tensor, x: &Tensor, dy: &Tensor, scales: u64, means: u64) -> Result<()> {
    let (rows, columns) = matrix_dims(x);
    let (x, dy) = (DeviceArray::from_tensor(x)?, DeviceArray::from_tensor(dy)?);
    let kernel = KernelLaunch::with_kind(x.device, "reduce", "norm_weight_gradient", x.kind);
    add_rows_summed(dw, kernel, x.device, rows, columns, 1.0, |launch| launch.array(x).array(dy).address(scales).address(means))
}

/// Runs a kernel that reduces each tensor to partial results, and reads them all back at once.
fn shares<T: DeviceRepr>(kernel: &str, of: &[&Tensor]) -> Result<Vec<Vec<T>>> {
    let Some(first) = of.first() else { return Ok(Vec::new()) };
    let device = DeviceArray::from_tensor(first)?.device;
    let counts: Vec<usize> = of.iter().map(|t| t.elem_count().div_ceil(1024).min(MOST_BLOCKS)).collect();
    let sums = buffer::<T>(device, counts.iter().sum())?;
    let mut place = at(&sums);
    for (t, count) in of.iter().zip(&counts) {
        let t = DeviceArray::from_tensor_with_kind(t, ElementKind::F32)?;
        KernelLaunch::new(device, "reduce", kernel).blocks(*count).address(place).array(t).size(t.len).run()?;
        place += (count * size_of::<T>()) as u64;
    }
    let mut all = device.clone_dtoh(&sums)?.into_iter();
    device.cuda_stream().synchronize().map_err(driver_error)?;
    Ok(counts.iter().map(|count| all.by_ref().take(*count).collect()).collect())
}

/// Computes [`crate::sum_of_squares`] on a device, for tensors on the same device, one after the other.
pub(crate) fn sum_of_squares(of: &[&Tensor]) -> Result<f64> {
    Ok(shares::<f64>("sum_of_squares", of)?.iter().map(|parts| parts.iter().sum::<f64>()).sum())
}

/// Computes [`crate::checksum`] on a device. The result differs from the CPU's for the same values.
pub(crate) fn checksum(t: &Tensor) -> Result<u64> {
    let t = super::cast(t, DType::F32)?;
    Ok(shares::<u64>("checksum", &[&t])?.iter().flatten().fold(0, |sum: u64, part| sum.wrapping_add(*part)))
}
