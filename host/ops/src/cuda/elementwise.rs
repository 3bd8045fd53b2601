//! Elementwise operations, and copies to and from the device.

use super::super::{Error, Result};
use super::array::{DeviceArray, ElementKind, unset, unsupported, wrap};
use super::launch::{KernelLaunch, driver_error};
use candle_core::cuda_backend::cudarc::driver::result;
use candle_core::{DType, Device, Shape, Storage, Tensor};
use half::bf16;

fn same_len(op: &'static str, of: &[DeviceArray<'_>]) -> Result<usize> {
    let lengths: Vec<usize> = of.iter().map(|array| array.len).collect();
    match lengths.iter().all(|len| *len == lengths[0]) {
        true => Ok(lengths[0]),
        false => Err(Error::Shape { op, detail: format!("arrays of {lengths:?} values") }),
    }
}

/// Copies host values to an f32 tensor on the device.
pub(crate) fn from_vec(values: &[f32], shape: impl Into<Shape>, device: &Device) -> Result<Tensor> {
    let shape = shape.into();
    match device {
        Device::Cuda(cuda) if values.is_empty() => unset(cuda, shape, ElementKind::F32),
        Device::Cuda(cuda) => wrap(cuda, cuda.clone_htod(values)?, shape),
        _ => Ok(Tensor::from_slice(values, shape, device)?),
    }
}

/// Copies a tensor's values to the host, after all work on the device's stream.
pub(crate) fn to_vec(t: &Tensor) -> Result<Vec<f32>> {
    let (storage, layout) = t.storage_and_layout();
    let (Storage::Cuda(storage), Some((start, end))) = (&*storage, layout.contiguous_offsets()) else {
        return Err(unsupported("to_vec", t));
    };
    if start == end {
        return Ok(Vec::new());
    }
    let device = &storage.device;
    let values = match ElementKind::from_tensor(t)? {
        ElementKind::F32 => device.clone_dtoh(&storage.as_cuda_slice::<f32>()?.slice(start..end))?,
        ElementKind::Bf16 => {
            let values: Vec<bf16> = device.clone_dtoh(&storage.as_cuda_slice::<bf16>()?.slice(start..end))?;
            device.cuda_stream().synchronize().map_err(driver_error)?;
            return Ok(values.into_iter().map(f32::from).collect());
        }
    };
    device.cuda_stream().synchronize().map_err(driver_error)?;
    Ok(values)
}

/// Changes an f32 tensor's values on the host and copies them back.
pub(crate) fn write(t: &Tensor, f: impl FnOnce(&mut [f32])) -> Result<()> {
    let array = DeviceArray::from_tensor_with_kind(t, ElementKind::F32)?;
    let mut values = to_vec(t)?;
    f(&mut values);
    let stream = array.device.cuda_stream();
    stream.context().bind_to_thread().map_err(driver_error)?;
    // SAFETY: the array has as many values, and both live until the stream has been synchronised.
    unsafe { result::memcpy_htod_async(array.at, &values, stream.cu_stream()) }.map_err(driver_error)?;
    stream.synchronize().map_err(driver_error)
}

/// Sets every value to zero.
pub(crate) fn fill_zero(t: &Tensor) -> Result<()> {
    let array = DeviceArray::from_tensor(t)?;
    if array.len == 0 {
        return Ok(());
    }
    let stream = array.device.cuda_stream();
    stream.context().bind_to_thread().map_err(driver_error)?;
    // SAFETY: the array has that many bytes, and zero bytes are zeros of both kinds.
    unsafe { result::memset_d8_async(array.at, 0, array.len * array.kind.size(), stream.cu_stream()) }.map_err(driver_error)
}

/// Computes [`crate::zeros_like`] on a device.
pub(crate) fn zeros_like(t: &Tensor) -> Result<Tensor> {
    let like = DeviceArray::from_tensor(t)?;
    let out = unset(like.device, t.shape(), like.kind)?;
    fill_zero(&out)?;
    Ok(out)
}

/// Copies the values into new storage.
pub(crate) fn copy(t: &Tensor) -> Result<Tensor> {
    let from = DeviceArray::from_tensor(t)?;
    let out = unset(from.device, t.shape(), from.kind)?;
    copy_to(from, DeviceArray::from_tensor(&out)?.at)?;
    Ok(out)
}

/// Copies the values to an address at which the caller has enough memory.
pub(super) fn copy_to(from: DeviceArray<'_>, at: u64) -> Result<()> {
    if from.len == 0 {
        return Ok(());
    }
    let stream = from.device.cuda_stream();
    stream.context().bind_to_thread().map_err(driver_error)?;
    // SAFETY: both have that many bytes.
    unsafe { result::memcpy_dtod_async(at, from.at, from.len * from.kind.size(), stream.cu_stream()) }.map_err(driver_error)
}

/// Converts the values to another type. Returns the same tensor if it has that type.
pub(crate) fn cast(t: &Tensor, dtype: DType) -> Result<Tensor> {
    let from = DeviceArray::from_tensor(t)?;
    let (kind, kernel) = match (from.kind, dtype) {
        (ElementKind::F32, DType::F32) | (ElementKind::Bf16, DType::BF16) => return Ok(t.clone()),
        (ElementKind::F32, DType::BF16) => (ElementKind::Bf16, "to_bf16"),
        (ElementKind::Bf16, DType::F32) => (ElementKind::F32, "to_f32"),
        _ => return Err(unsupported("cast", t)),
    };
    let out = unset(from.device, t.shape(), kind)?;
    let launch = KernelLaunch::new(from.device, "elementwise", kernel).over(from.len);
    launch.array(DeviceArray::from_tensor(&out)?).array(from).size(from.len).run()?;
    Ok(out)
}

/// Computes [`crate::add_into`] on a device.
pub(crate) fn add_into(into: &Tensor, t: &Tensor) -> Result<()> {
    let (into, t) = (DeviceArray::from_tensor(into)?, DeviceArray::from_tensor(t)?);
    let n = same_len("add_into", &[into, t])?;
    if into.kind != t.kind {
        return Err(Error::Shape { op: "add_into", detail: format!("{:?} += {:?}", into.kind, t.kind) });
    }
    KernelLaunch::with_kind(into.device, "elementwise", "add_into", into.kind).over(n).array(into).array(t).size(n).run()
}

/// Computes [`crate::interpolate`] on a device.
pub(crate) fn interpolate(own: &Tensor, other: &Tensor, alpha: f64) -> Result<Tensor> {
    let other = cast(other, DType::F32)?;
    let (a, b) = (DeviceArray::from_tensor(own)?, DeviceArray::from_tensor_with_kind(&other, ElementKind::F32)?);
    let n = same_len("mixed", &[a, b])?;
    let out = unset(a.device, own.shape(), a.kind)?;
    let launch = KernelLaunch::with_kind(a.device, "elementwise", "mix", a.kind).over(n);
    launch
        .array(DeviceArray::from_tensor(&out)?)
        .array(a)
        .array(b)
        .float((1.0 - alpha) as f32)
        .float(alpha as f32)
        .size(n)
        .run()?;
    Ok(out)
}

/// Returns `factor * t + more`.
pub(crate) fn scaled_and_added(t: &Tensor, factor: f32, more: f32) -> Result<Tensor> {
    let x = DeviceArray::from_tensor(t)?;
    let out = unset(x.device, t.shape(), x.kind)?;
    let launch = KernelLaunch::with_kind(x.device, "elementwise", "scale_and_add", x.kind).over(x.len);
    launch.array(DeviceArray::from_tensor(&out)?).array(x).float(factor).float(more).size(x.len).run()?;
    Ok(out)
}

/// Computes [`crate::bounded_by`] on a device.
pub(crate) fn bounded_by(t: &Tensor, cap: f32) -> Result<Tensor> {
    let out = unset(DeviceArray::from_tensor(t)?.device, t.shape(), ElementKind::from_tensor(t)?)?;
    bound(DeviceArray::from_tensor(&out)?, DeviceArray::from_tensor(t)?, cap)?;
    Ok(out)
}

/// Writes `cap * tanh(x / cap)` to `out`, which may be `x`.
pub(super) fn bound(out: DeviceArray<'_>, x: DeviceArray<'_>, cap: f32) -> Result<()> {
    let n = same_len("bound", &[out, x])?;
    KernelLaunch::with_kind(x.device, "elementwise", "bound", x.kind).over(n).array(out).array(x).float(cap).size(n).run()
}

/// Writes the slopes of [`bound`] at its results `x` to `out`, both f32.
pub(super) fn bound_slopes(out: DeviceArray<'_>, x: DeviceArray<'_>, cap: f32) -> Result<()> {
    let n = same_len("bound", &[out, x])?;
    KernelLaunch::new(x.device, "elementwise", "bound_slopes").over(n).array(out).array(x).float(cap).size(n).run()
}

/// Multiplies `x` by f32 values.
pub(super) fn multiply_into(x: DeviceArray<'_>, by: DeviceArray<'_>) -> Result<()> {
    let n = same_len("multiply", &[x, by])?;
    KernelLaunch::with_kind(x.device, "elementwise", "multiply_into", x.kind).over(n).array(x).array(by).size(n).run()
}
