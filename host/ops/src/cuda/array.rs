//! Tensors in device memory as kernels see them: an address and a type.

use super::super::{Error, Result};
use candle_core::cuda_backend::cudarc::driver::{CudaSlice, DevicePtr, DeviceRepr};
use candle_core::cuda_backend::{CudaDType, CudaDevice};
use candle_core::op::BackpropOp;
use candle_core::{CudaStorage, DType, Device, Shape, Storage, Tensor};
use half::bf16;

/// The type of an array's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ElementKind {
    F32,
    Bf16,
}

impl ElementKind {
    pub fn from_tensor(t: &Tensor) -> Result<Self> {
        match t.dtype() {
            DType::F32 => Ok(Self::F32),
            DType::BF16 => Ok(Self::Bf16),
            _ => Err(unsupported("a kernel", t)),
        }
    }

    /// Returns the suffix of kernel names for this kind.
    pub fn suffix(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
        }
    }

    /// Returns the size of a value, in bytes.
    pub fn size(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 => 2,
        }
    }
}

/// A contiguous tensor in device memory, borrowed from a candle tensor.
#[derive(Clone, Copy)]
pub(crate) struct DeviceArray<'a> {
    pub device: &'a CudaDevice,
    /// Address of the first value.
    pub at: u64,
    /// Number of values.
    pub len: usize,
    pub kind: ElementKind,
}

pub(super) fn unsupported(op: &'static str, t: &Tensor) -> Error {
    Error::Unsupported { op, dtype: t.dtype(), device: format!("{:?}", t.device().location()) }
}

fn address<T: DeviceRepr>(slice: &CudaSlice<T>) -> u64 {
    // Events are not tracked, because all work is on one stream (`device::open`).
    slice.device_ptr(slice.stream()).0
}

impl<'a> DeviceArray<'a> {
    /// Borrows a tensor's values, which are f32 or bf16.
    ///
    /// # Errors
    /// If the tensor is not contiguous, not on a device, or not f32 or bf16.
    pub fn from_tensor(t: &'a Tensor) -> Result<Self> {
        let kind = ElementKind::from_tensor(t)?;
        let Device::Cuda(device) = t.device() else { return Err(unsupported("a kernel", t)) };
        let (storage, layout) = t.storage_and_layout();
        let (Storage::Cuda(storage), Some((start, end))) = (&*storage, layout.contiguous_offsets()) else {
            return Err(unsupported("a kernel", t));
        };
        let base = match kind {
            ElementKind::F32 => address(storage.as_cuda_slice::<f32>()?),
            ElementKind::Bf16 => address(storage.as_cuda_slice::<bf16>()?),
        };
        let at = base + (start * kind.size()) as u64;
        // Kernels read sixteen bytes at a time.
        if !at.is_multiple_of(16) {
            return Err(unsupported("a kernel that needs an aligned tensor", t));
        }
        Ok(Self { device, at, len: end - start, kind })
    }

    /// Returns the first `len` values.
    pub fn first(self, len: usize) -> Self {
        debug_assert!(len <= self.len);
        Self { len, ..self }
    }

    /// Borrows a tensor's values like [`DeviceArray::from_tensor`], for an operation that needs values of this kind.
    pub fn from_tensor_with_kind(t: &'a Tensor, kind: ElementKind) -> Result<Self> {
        let array = Self::from_tensor(t)?;
        if array.kind == kind { Ok(array) } else { Err(unsupported("a kernel of another type", t)) }
    }
}

/// Creates a tensor with unset values.
///
/// The caller launches a kernel that sets all of them; until then they are arbitrary.
pub(crate) fn unset(device: &CudaDevice, shape: impl Into<Shape>, kind: ElementKind) -> Result<Tensor> {
    let shape = shape.into();
    match kind {
        ElementKind::F32 => wrap(device, buffer::<f32>(device, shape.elem_count())?, shape),
        ElementKind::Bf16 => wrap(device, buffer::<bf16>(device, shape.elem_count())?, shape),
    }
}

/// Allocates uninitialised device memory for `n` values.
pub(crate) fn buffer<T: DeviceRepr>(device: &CudaDevice, n: usize) -> Result<CudaSlice<T>> {
    // SAFETY: any bits are valid values of the types that kernels use. The driver can't allocate empty memory.
    Ok(unsafe { device.alloc::<T>(n.max(1)) }?)
}

/// Creates a tensor from values in device memory.
pub(super) fn wrap<T: CudaDType>(device: &CudaDevice, slice: CudaSlice<T>, shape: impl Into<Shape>) -> Result<Tensor> {
    let storage = CudaStorage::wrap_cuda_slice(slice, device.clone());
    Ok(Tensor::from_storage(Storage::Cuda(storage), shape, BackpropOp::none(), false))
}

/// A copy of host values, such as row numbers, in device memory.
#[derive(Debug)]
pub(crate) struct DeviceBuffer<T>(CudaSlice<T>);

impl<T: DeviceRepr + Clone + Default + 'static> DeviceBuffer<T> {
    pub fn new(device: &CudaDevice, values: &[T]) -> Result<Self> {
        if values.is_empty() {
            return Ok(Self(buffer(device, 1)?));
        }
        Ok(Self(device.clone_htod(values)?))
    }

    /// Returns the address of the first value.
    pub fn at(&self) -> u64 {
        address(&self.0)
    }
}

/// Returns the address of a buffer from [`buffer`].
pub(crate) fn at<T: DeviceRepr>(buffer: &CudaSlice<T>) -> u64 {
    address(buffer)
}
