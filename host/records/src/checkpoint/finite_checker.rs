//! Checks that a weights file contains only finite numbers, while it is read for its checksum.

use crate::config::files;
use safetensors::Dtype;
use safetensors::tensor::Metadata;
use std::collections::VecDeque;
use std::io;
use std::path::Path;

/// Size of a number in bytes, and a test that all numbers in some bytes are finite.
type FiniteTest = (usize, fn(&[u8]) -> bool);

/// A tensor that has not been read to its end.
struct PendingTensor {
    name: String,
    bytes: usize,
    check: Option<FiniteTest>,
}

/// A safetensors file that is read from beginning to end.
pub(super) struct FiniteChecker {
    /// Number of bytes of the header, before the first tensor's values, that have not been skipped yet.
    before: u64,
    /// The remaining tensors in file order, without gaps.
    tensors: VecDeque<PendingTensor>,
    /// The first bytes of a number that was split between reads.
    cut: Vec<u8>,
    non_finite_tensor: Option<String>,
}

fn check(dtype: Dtype) -> Option<FiniteTest> {
    Some(match dtype {
        Dtype::F32 => (4, |x| x.as_chunks::<4>().0.iter().all(|x| f32::from_le_bytes(*x).is_finite())),
        Dtype::F64 => (8, |x| x.as_chunks::<8>().0.iter().all(|x| f64::from_le_bytes(*x).is_finite())),
        Dtype::F16 => (2, |x| x.as_chunks::<2>().0.iter().all(|x| half::f16::from_le_bytes(*x).is_finite())),
        Dtype::BF16 => (2, |x| x.as_chunks::<2>().0.iter().all(|x| half::bf16::from_le_bytes(*x).is_finite())),
        _ => return None,
    })
}

impl FiniteChecker {
    /// Reads the file's header.
    ///
    /// # Errors
    /// If it can't be read or has another format.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let (begin, header) = files::safetensors_header(&mut files::open(path)?)?;
        let header: Metadata = serde_json::from_slice(&header).map_err(io::Error::other)?;
        let unseen = |name: String| {
            let tensor = header.info(&name)?;
            let (from, to) = tensor.data_offsets;
            Some(PendingTensor { bytes: to.saturating_sub(from), check: check(tensor.dtype), name })
        };
        let tensors = header.offset_keys().into_iter().filter_map(unseen).collect();
        Ok(Self { before: begin, tensors, cut: Vec::new(), non_finite_tensor: None })
    }

    /// Takes the next bytes of the file.
    pub(super) fn update(&mut self, mut bytes: &[u8]) {
        let skipped = self.before.min(bytes.len() as u64);
        self.before -= skipped;
        bytes = &bytes[skipped as usize..];
        while let (false, None, Some(tensor)) = (bytes.is_empty(), &self.non_finite_tensor, self.tensors.front_mut()) {
            let (now, rest) = bytes.split_at(bytes.len().min(tensor.bytes));
            tensor.bytes -= now.len();
            bytes = rest;
            if let Some((size, finite)) = tensor.check {
                self.cut.extend_from_slice(now);
                let whole = self.cut.len() / size * size;
                if !finite(&self.cut[..whole]) {
                    self.non_finite_tensor = Some(tensor.name.clone());
                }
                self.cut.drain(..whole);
            }
            if tensor.bytes == 0 {
                self.tensors.pop_front();
                self.cut.clear();
            }
        }
    }

    /// Returns the first tensor seen so far that contains an infinity or NaN.
    pub(super) fn non_finite_tensor(self) -> Option<String> {
        self.non_finite_tensor
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::{DType, Device, Tensor};
    use std::collections::HashMap;

    /// Returns the non-finite tensor found in a file that is read in parts of this size.
    fn not_finite(path: &Path, part: usize) -> io::Result<Option<String>> {
        let mut look = FiniteChecker::open(path)?;
        std::fs::read(path)?.chunks(part).for_each(|bytes| look.update(bytes));
        Ok(look.non_finite_tensor())
    }

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
                for part in [7, 1 << 16, 1 << 30] {
                    assert_eq!(not_finite(&file, part).unwrap(), bad.map(|_| "b".to_owned()), "{dtype:?} {bad:?} {part}");
                }
            }
        }
        // Tensors of integers, and an empty one, before one that is not finite.
        let tensors = [
            ("a".to_owned(), Tensor::new(&[u32::MAX; 3], &Device::Cpu).unwrap()),
            ("b".to_owned(), Tensor::zeros(0, DType::F32, &Device::Cpu).unwrap()),
            ("c".to_owned(), Tensor::new(&[0.0, f64::NAN], &Device::Cpu).unwrap()),
        ];
        candle_core::safetensors::save(&HashMap::from(tensors), &file).unwrap();
        assert_eq!(not_finite(&file, 5).unwrap(), Some("c".to_owned()));
        for broken in [&b"\xff\xff\xff\xff\xff\xff\xff\xff{}"[..], b"\x02\0\0\0\0\0\0\0[]", b"abc"] {
            std::fs::write(&file, broken).unwrap();
            assert!(FiniteChecker::open(&file).is_err());
        }
    }
}
