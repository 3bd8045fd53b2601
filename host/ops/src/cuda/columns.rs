//! Parts of a joint projection's columns.

use super::super::{Result, matrix_dims};
use super::array::{DeviceArray, unset};
use super::launch::KernelLaunch;
use candle_core::Tensor;

/// Computes [`crate::columns::split`] on a device. The caller has checked the widths.
pub(crate) fn split(x: &Tensor, widths: &[usize]) -> Result<Vec<Tensor>> {
    let ((n, width), group) = (matrix_dims(x), widths.iter().sum::<usize>());
    let from = DeviceArray::from_tensor(x)?;
    let mut first = 0;
    let mut parts = Vec::with_capacity(widths.len());
    for &own in widths {
        let part = unset(from.device, (n, width / group * own), from.kind)?;
        run("take_columns", DeviceArray::from_tensor(&part)?, from, [group, first, own])?;
        first += own;
        parts.push(part);
    }
    Ok(parts)
}

/// Computes [`crate::columns::join`] on a device. The caller has checked the sizes.
pub(crate) fn join(parts: &[&Tensor], widths: &[usize]) -> Result<Tensor> {
    let ((n, columns), group) = (matrix_dims(parts[0]), widths.iter().sum::<usize>());
    let like = DeviceArray::from_tensor(parts[0])?;
    let out = unset(like.device, (n, columns / widths[0].max(1) * group), like.kind)?;
    let mut first = 0;
    for (part, &own) in parts.iter().zip(widths) {
        run(
            "put_columns",
            DeviceArray::from_tensor_with_kind(part, like.kind)?,
            DeviceArray::from_tensor(&out)?,
            [group, first, own],
        )?;
        first += own;
    }
    Ok(out)
}

/// Copies between a part and its columns of each group of the whole.
fn run(kernel: &str, part: DeviceArray<'_>, whole: DeviceArray<'_>, [group, first, width]: [usize; 3]) -> Result<()> {
    let (to, from) = if kernel == "take_columns" { (part, whole) } else { (whole, part) };
    let launch = KernelLaunch::with_kind(part.device, "rows", kernel, part.kind).over(part.len);
    launch.array(to).array(from).int(group).int(first).int(width).size(part.len).run()
}
