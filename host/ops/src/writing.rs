//! Writes tensors' values as bytes without copying them.

use candle_core::{CpuStorage, Storage, Tensor};
use std::io::{self, ErrorKind, Write};
use std::ops::Range;

/// Writes the values of a CPU tensor in order, as bytes in native order.
///
/// # Errors
/// If the values can't be written or have been freed.
pub fn write_tensor(to: &mut dyn Write, t: &Tensor) -> io::Result<()> {
    let t = t.contiguous().map_err(io::Error::other)?;
    let (storage, layout) = t.storage_and_layout();
    let Storage::Cpu(storage) = &*storage else { return Err(ErrorKind::Unsupported.into()) };
    let range = layout.start_offset()..layout.start_offset() + layout.shape().elem_count();
    match storage {
        CpuStorage::U8(values) => write_values(to, values, range),
        CpuStorage::U32(values) => write_values(to, values, range),
        CpuStorage::I16(values) => write_values(to, values, range),
        CpuStorage::I32(values) => write_values(to, values, range),
        CpuStorage::I64(values) => write_values(to, values, range),
        CpuStorage::BF16(values) => write_values(to, values, range),
        CpuStorage::F16(values) => write_values(to, values, range),
        CpuStorage::F32(values) => write_values(to, values, range),
        CpuStorage::F64(values) => write_values(to, values, range),
        _ => Err(ErrorKind::Unsupported.into()),
    }
}

/// Writes values that are plain numbers.
fn write_values<T: Copy>(to: &mut dyn Write, values: &[T], range: Range<usize>) -> io::Result<()> {
    let Some(values) = values.get(range) else { return Err(io::Error::other("the tensor's values have been freed")) };
    // SAFETY: the values are numbers without padding, and the slice is borrowed for as long as the bytes.
    to.write_all(unsafe { std::slice::from_raw_parts(values.as_ptr().cast::<u8>(), size_of_val(values)) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::free_values;
    use candle_core::{DType, Device};

    #[test]
    fn the_bytes_are_those_of_the_values_in_order_whatever_the_layout() {
        let written = |t: &Tensor| {
            let mut bytes = Vec::new();
            write_tensor(&mut bytes, t).map(|()| bytes)
        };
        let t = Tensor::new(&[[1f32, 2.0, 3.0], [4.0, 5.0, 6.0]], &Device::Cpu).unwrap();
        let bytes = |values: &[f32]| values.iter().flat_map(|x| x.to_ne_bytes()).collect::<Vec<_>>();
        assert_eq!(written(&t).unwrap(), bytes(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]));
        assert_eq!(written(&t.t().unwrap()).unwrap(), bytes(&[1.0, 4.0, 2.0, 5.0, 3.0, 6.0]));
        assert_eq!(written(&t.narrow(0, 1, 1).unwrap()).unwrap(), bytes(&[4.0, 5.0, 6.0]));
        assert_eq!(written(&t.to_dtype(DType::U8).unwrap()).unwrap(), [1, 2, 3, 4, 5, 6]);
        assert_eq!(written(&t.to_dtype(DType::BF16).unwrap()).unwrap().len(), 12);
        assert_eq!(written(&Tensor::zeros((0, 3), DType::F32, &Device::Cpu).unwrap()).unwrap(), b"");
        free_values(&t).unwrap();
        assert!(written(&t).is_err());
    }
}
