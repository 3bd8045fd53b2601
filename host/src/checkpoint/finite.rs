//! Whether a file of weights holds finite numbers alone.

use crate::config::files;
use safetensors::Dtype;
use safetensors::tensor::Metadata;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

/// Most bytes of a header, which is the limit of the format's own library.
const LARGEST_HEADER: u64 = 100_000_000;

/// Bytes that are looked at together; a multiple of every number's size.
const PART: usize = 1 << 16;

/// The first tensor of a safetensors file that holds an infinity or what is not a number.
///
/// # Errors
/// If the file can't be read, or is not of that format.
pub(super) fn not_finite(path: &Path) -> io::Result<Option<String>> {
    let mut file = files::open(path)?;
    let mut length = [0; 8];
    file.read_exact(&mut length)?;
    let length = u64::from_le_bytes(length);
    if length > LARGEST_HEADER || length > file.metadata()?.len() {
        return Err(io::Error::other("its header is too long"));
    }
    let mut header = vec![0; length as usize];
    file.read_exact(&mut header)?;
    let header: Metadata = serde_json::from_slice(&header).map_err(io::Error::other)?;
    for name in header.offset_keys() {
        let Some(tensor) = header.info(&name) else { continue };
        let is_finite: fn(&[u8]) -> bool = match tensor.dtype {
            Dtype::F32 => |x| x.as_chunks::<4>().0.iter().all(|x| f32::from_le_bytes(*x).is_finite()),
            Dtype::F64 => |x| x.as_chunks::<8>().0.iter().all(|x| f64::from_le_bytes(*x).is_finite()),
            Dtype::F16 => |x| x.as_chunks::<2>().0.iter().all(|x| half::f16::from_le_bytes(*x).is_finite()),
            Dtype::BF16 => |x| x.as_chunks::<2>().0.iter().all(|x| half::bf16::from_le_bytes(*x).is_finite()),
            _ => continue,
        };
        let (begin, end) = tensor.data_offsets;
        let at = (8 + length).checked_add(begin as u64).ok_or_else(|| io::Error::other("an offset is too large"))?;
        file.seek(SeekFrom::Start(at))?;
        if !all(&mut file, end.saturating_sub(begin), is_finite)? {
            return Ok(Some(name));
        }
    }
    Ok(None)
}

/// Whether all of the next bytes pass.
fn all(file: &mut File, mut left: usize, pass: fn(&[u8]) -> bool) -> io::Result<bool> {
    let mut part = vec![0; PART.min(left)];
    while left > 0 {
        let now = left.min(PART);
        file.read_exact(&mut part[..now])?;
        if !pass(&part[..now]) {
            return Ok(false);
        }
        left -= now;
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::{DType, Device, Tensor};
    use std::collections::HashMap;

    #[test]
    fn one_value_that_is_not_finite_is_found_in_any_precision() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("x.safetensors");
        for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
            for bad in [None, Some(f32::NAN), Some(f32::INFINITY), Some(f32::NEG_INFINITY)] {
                let mut values = vec![1.5f32; 70_000];
                values[69_999] = bad.unwrap_or(0.0);
                let tensor = |v: &[f32]| Tensor::new(v, &Device::Cpu).unwrap().to_dtype(dtype).unwrap();
                let tensors = HashMap::from([("a".to_owned(), tensor(&[1.0])), ("b".to_owned(), tensor(&values))]);
                candle_core::safetensors::save(&tensors, &file).unwrap();
                assert_eq!(not_finite(&file).unwrap(), bad.map(|_| "b".to_owned()), "{dtype:?} {bad:?}");
            }
        }
        for broken in [&b"\xff\xff\xff\xff\xff\xff\xff\xff{}"[..], b"\x02\0\0\0\0\0\0\0[]", b"abc"] {
            std::fs::write(&file, broken).unwrap();
            assert!(not_finite(&file).is_err());
        }
    }
}
