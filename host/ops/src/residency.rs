//! Frees a tensor's values but not its shape, and allocates them again. Parameters and gradients that other processes own are in memory
//! only while they are used.

use super::slices::unsupported;
use super::{Error, Result};
use candle_core::{CpuStorage, DType, Device, InplaceOp1, Layout, Tensor};
use std::sync::Mutex;

/// A function that is passed values as bytes.
type ByteVisitor<'a> = Box<dyn FnOnce(&mut [u8]) + 'a>;

/// A change of a tensor's storage.
enum StorageChange<'a> {
    /// Frees the values.
    Free,
    /// Allocates zeros if the values have been freed.
    Allocate,
    /// Passes the values to a function, as bytes.
    Visit(ByteVisitor<'a>),
}

struct StorageOp<'a>(Mutex<Option<StorageChange<'a>>>);

impl StorageChange<'_> {
    /// Applies the change to storage that should have this many values.
    fn apply<T: Copy + Default>(self, values: &mut Vec<T>, count: usize) -> candle_core::Result<()> {
        if !values.is_empty() && values.len() != count {
            candle_core::bail!("the storage is shared with other tensors: {} values, not {count}", values.len());
        }
        match self {
            Self::Free => *values = Vec::new(),
            Self::Allocate => {
                if values.len() != count {
                    *values = vec![T::default(); count];
                }
            }
            Self::Visit(f) => {
                if values.len() != count {
                    candle_core::bail!("the values have been freed");
                }
                let size = size_of_val(values.as_slice());
                // SAFETY: the values are numbers, of which any bytes are valid, and the slice is borrowed for as long as the bytes.
                f(unsafe { std::slice::from_raw_parts_mut(values.as_mut_ptr().cast::<u8>(), size) });
            }
        }
        Ok(())
    }
}

impl InplaceOp1 for StorageOp<'_> {
    fn name(&self) -> &'static str {
        "rlhost-residency"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> candle_core::Result<()> {
        let Some(change) = self.0.lock().ok().and_then(|mut change| change.take()) else { return Ok(()) };
        if !layout.is_contiguous() || layout.start_offset() != 0 {
            candle_core::bail!("the tensor is a view");
        }
        let count = layout.shape().elem_count();
        match storage {
            CpuStorage::U8(values) => change.apply(values, count),
            CpuStorage::U32(values) => change.apply(values, count),
            CpuStorage::BF16(values) => change.apply(values, count),
            CpuStorage::F16(values) => change.apply(values, count),
            CpuStorage::F32(values) => change.apply(values, count),
            _ => candle_core::bail!("there are no weights of this type"),
        }
    }
}

fn change(t: &Tensor, change: StorageChange<'_>) -> Result<()> {
    let known = matches!(t.dtype(), DType::U8 | DType::U32 | DType::BF16 | DType::F16 | DType::F32);
    if !known || !matches!(t.device(), Device::Cpu) {
        return Err(unsupported("residency", t));
    }
    t.inplace_op1(&StorageOp(Mutex::new(Some(change)))).map_err(Error::from)
}

/// Frees the values of a tensor on the CPU, and of all tensors that share its storage. They may not be read until they are allocated again.
///
/// # Errors
/// If the tensor is a view of a part of its storage, or not on the CPU.
pub fn free_values(t: &Tensor) -> Result<()> {
    change(t, StorageChange::Free)
}

/// Allocates the values of a tensor on the CPU, as zeros, if they have been freed.
///
/// # Errors
/// As [`free_values`].
pub fn allocate_values(t: &Tensor) -> Result<()> {
    change(t, StorageChange::Allocate)
}

/// Returns whether the values of a tensor on the CPU have not been freed.
pub fn has_values(t: &Tensor) -> bool {
    change(t, StorageChange::Visit(Box::new(|_| ()))).is_ok()
}

/// Passes a tensor's values to a function that may change them, as bytes in native order.
///
/// # Errors
/// As [`free_values`], or if the values have been freed.
pub fn write_bytes_of(t: &Tensor, f: impl FnOnce(&mut [u8])) -> Result<()> {
    change(t, StorageChange::Visit(Box::new(f)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{add_into, to_vec};

    #[test]
    fn freed_values_return_as_zeros_in_every_tensor_that_shares_them() {
        let t = Tensor::new(&[[1f32, 2.0], [3.0, 4.0]], &Device::Cpu).unwrap();
        let shared = t.clone();
        allocate_values(&t).unwrap();
        assert_eq!(to_vec(&shared).unwrap(), [1.0, 2.0, 3.0, 4.0]);
        free_values(&t).unwrap();
        free_values(&t).unwrap();
        assert!(!has_values(&shared));
        assert_eq!(shared.dims(), [2, 2]);
        // Freed values can be neither read nor written.
        assert!(add_into(&shared, &t).is_err());
        assert!(write_bytes_of(&shared, |_| ()).is_err());
        allocate_values(&shared).unwrap();
        assert_eq!(to_vec(&t).unwrap(), [0.0; 4]);
        write_bytes_of(&t, |bytes| bytes[..4].copy_from_slice(&7f32.to_ne_bytes())).unwrap();
        assert_eq!(to_vec(&shared).unwrap(), [7.0, 0.0, 0.0, 0.0]);
    }

    #[test]
    fn a_part_of_a_larger_tensor_can_not_be_freed() {
        let t = Tensor::new(&[1f32, 2.0, 3.0, 4.0], &Device::Cpu).unwrap();
        for part in [t.narrow(0, 0, 2).unwrap(), t.narrow(0, 2, 2).unwrap()] {
            assert!(free_values(&part).is_err());
        }
        assert_eq!(to_vec(&t).unwrap(), [1.0, 2.0, 3.0, 4.0]);
        let bytes = Tensor::new(&[1u8, 2], &Device::Cpu).unwrap();
        free_values(&bytes).unwrap();
        allocate_values(&bytes).unwrap();
        assert_eq!(bytes.to_vec1::<u8>().unwrap(), [0, 0]);
    }
}
