//! Reads, writes and creates slices of CPU tensors.

#[cfg(feature = "cuda")]
use super::cuda;
use super::{Error, Result, on_device};
use candle_core::{CpuStorage, DType, Device, InplaceOp1, Layout, Shape, Storage, StorageRef, Tensor, WithDType};
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ops::Deref;
use std::sync::Mutex;

/// Number of rows per task in row-parallel operations. It is constant, so that sums over rows have the same order with any number of
/// threads.
pub(super) const ROWS_PER_TASK: usize = 32;

/// Number of values per task in elementwise operations.
pub(super) const PART: usize = 1 << 15;

/// Read access to a contiguous CPU tensor.
pub(super) struct TensorSlice<'a, T = f32> {
    guard: StorageRef<'a>,
    start: usize,
    end: usize,
    kind: PhantomData<T>,
}

impl<T: WithDType> Deref for TensorSlice<'_, T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        match &*self.guard {
            Storage::Cpu(data) => T::cpu_storage_as_slice(data).map_or(&[], |data| &data[self.start..self.end]),
            _ => &[],
        }
    }
}

pub(super) fn unsupported(op: &'static str, t: &Tensor) -> Error {
    Error::Unsupported { op, dtype: t.dtype(), device: format!("{:?}", t.device().location()) }
}

/// Returns the values of an f32 tensor without a copy.
pub(super) fn read(t: &Tensor) -> Result<TensorSlice<'_>> {
    read_as(t)
}

/// Returns the values of a tensor of this type without a copy.
pub(super) fn read_as<T: WithDType>(t: &Tensor) -> Result<TensorSlice<'_, T>> {
    let (guard, layout) = t.storage_and_layout();
    // Freed values have length zero.
    let length = match &*guard {
        Storage::Cpu(data) => T::cpu_storage_as_slice(data).map_or(0, <[T]>::len),
        _ => 0,
    };
    match layout.contiguous_offsets() {
        Some((start, end)) if end <= length => Ok(TensorSlice { guard, start, end, kind: PhantomData }),
        _ => Err(unsupported("read", t)),
    }
}

struct WriteOp<F>(Mutex<Option<F>>);

impl<F: FnOnce(&mut [f32])> InplaceOp1 for WriteOp<F> {
    fn name(&self) -> &'static str {
        "rlhost-write"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> candle_core::Result<()> {
        let (CpuStorage::F32(data), Some((start, end))) = (storage, layout.contiguous_offsets()) else {
            candle_core::bail!("in-place operation on a tensor that is not contiguous f32")
        };
        let Some(values) = data.get_mut(start..end) else { candle_core::bail!("the values have been freed") };
        let task = self.0.lock().ok().and_then(|mut f| f.take());
        if let Some(f) = task {
            f(values);
        }
        Ok(())
    }
}

/// Changes a tensor's values in place, visibly to every view of its storage. A device's values are copied to the host and back.
pub fn write(t: &Tensor, f: impl FnOnce(&mut [f32])) -> Result<()> {
    on_device!(t, cuda::write(t, f));
    if t.dtype() != DType::F32 || !matches!(t.device(), Device::Cpu) || !t.is_contiguous() {
        return Err(unsupported("write", t));
    }
    t.inplace_op1(&WriteOp(Mutex::new(Some(f))))?;
    Ok(())
}

struct WriteBytesOp<F>(Mutex<Option<F>>);

impl<F: FnOnce(&mut [u8])> InplaceOp1 for WriteBytesOp<F> {
    fn name(&self) -> &'static str {
        "rlhost-write-bytes"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> candle_core::Result<()> {
        let (CpuStorage::U8(data), Some((start, end))) = (storage, layout.contiguous_offsets()) else {
            candle_core::bail!("in-place operation on a tensor that is not contiguous bytes")
        };
        let task = self.0.lock().ok().and_then(|mut f| f.take());
        if let Some(f) = task {
            f(&mut data[start..end]);
        }
        Ok(())
    }
}

/// Changes a CPU tensor of bytes in place, as [`write()`] changes f32.
pub(super) fn write_bytes(t: &Tensor, f: impl FnOnce(&mut [u8])) -> Result<()> {
    if t.dtype() != DType::U8 || !matches!(t.device(), Device::Cpu) || !t.is_contiguous() {
        return Err(unsupported("write", t));
    }
    t.inplace_op1(&WriteBytesOp(Mutex::new(Some(f))))?;
    Ok(())
}

/// Creates a CPU tensor from its values.
pub(super) fn tensor(data: Vec<f32>, shape: impl Into<Shape>) -> Result<Tensor> {
    tensor_of(data, shape)
}

/// Creates a CPU tensor from values of any type.
pub(super) fn tensor_of<T: WithDType>(data: Vec<T>, shape: impl Into<Shape>) -> Result<Tensor> {
    Ok(Tensor::from_vec(data, shape.into(), &Device::Cpu)?)
}

/// Returns `n` values set by `fill`, without clearing the memory first.
///
/// # Safety
/// `fill` must set all of them.
pub(super) unsafe fn filled<T>(n: usize, fill: impl FnOnce(&mut [MaybeUninit<T>])) -> Vec<T> {
    let mut data = Vec::with_capacity(n);
    fill(&mut data.spare_capacity_mut()[..n]);
    // SAFETY: the capacity suffices, and `fill` has set all values.
    unsafe { data.set_len(n) };
    data
}

/// Returns vectors of these lengths set by `fill`, without clearing the memory first.
///
/// # Safety
/// `fill` must set all values of all of them.
pub(super) unsafe fn filled_each<const N: usize, T>(
    lengths: [usize; N],
    fill: impl FnOnce([&mut [MaybeUninit<T>]; N]),
) -> [Vec<T>; N] {
    let mut all = lengths.map(Vec::with_capacity);
    let mut rest = lengths.iter();
    fill(all.each_mut().map(|data| &mut data.spare_capacity_mut()[..rest.next().copied().unwrap_or(0)]));
    // SAFETY: the capacities suffice, and `fill` has set all values.
    all.iter_mut().zip(lengths).for_each(|(data, n)| unsafe { data.set_len(n) });
    all
}

/// Returns vectors of these lengths, any number of them, whose parts tasks write in any order, without clearing the memory first.
///
/// # Safety
/// `fill` must set all values of all of them.
pub(super) unsafe fn filled_all(lengths: impl Iterator<Item = usize>, fill: impl FnOnce(&[SharedPointer])) -> Vec<Vec<f32>> {
    let lengths: Vec<usize> = lengths.collect();
    let mut all: Vec<Vec<f32>> = lengths.iter().map(|n| Vec::with_capacity(*n)).collect();
    let places: Vec<SharedPointer> = all.iter_mut().map(|data| SharedPointer::from_uninit(data.spare_capacity_mut())).collect();
    fill(&places);
    // SAFETY: the capacities suffice, and `fill` has set all values.
    all.iter_mut().zip(lengths).for_each(|(data, n)| unsafe { data.set_len(n) });
    all
}

/// A raw pointer that tasks share to write disjoint parts of a buffer.
pub(super) struct SharedPointer<T = f32>(*mut T);
// SAFETY: every user gives its tasks disjoint ranges and outlives them.
unsafe impl<T: Send> Send for SharedPointer<T> {}
unsafe impl<T: Send> Sync for SharedPointer<T> {}

impl<T> Clone for SharedPointer<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for SharedPointer<T> {}

impl<T> SharedPointer<T> {
    pub(super) fn new(data: &mut [T]) -> Self {
        Self(data.as_mut_ptr())
    }

    /// Creates a shared pointer to a buffer.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn from_pointer(data: *mut T) -> Self {
        Self(data)
    }

    /// Creates a shared pointer to uninitialised values.
    pub(super) fn from_uninit(data: &mut [MaybeUninit<T>]) -> Self {
        Self(data.as_mut_ptr().cast())
    }

    /// # Safety
    /// `offset` is within the buffer, and no other task accesses what the caller writes there.
    pub(super) unsafe fn at(self, offset: usize) -> *mut T {
        // SAFETY: the caller keeps `offset` in bounds.
        unsafe { self.0.add(offset) }
    }
}
