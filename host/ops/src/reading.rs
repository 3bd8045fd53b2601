//! Reads values from files into tensors without a second copy in memory.

use candle_core::{DType, Device, Tensor, WithDType};
use half::{bf16, f16};
use std::io::{self, ErrorKind, Read};

/// Number of bytes that are read at a time.
const PIECE: usize = 1 << 20;

/// Reads a CPU tensor of this shape, stored as little-endian f32, bf16 or f16, in the precision `into`, one of the three.
///
/// # Errors
/// If there are too few bytes or too little memory.
pub fn read_tensor(from: &mut dyn Read, stored: DType, shape: &[usize], into: DType) -> io::Result<Tensor> {
    match (stored, into) {
        // Values are not converted through f32, since rounding a value takes longer than reading it.
        (DType::BF16, DType::BF16) => values(from, shape, bf16::from_le_bytes),
        (DType::F16, DType::F16) => values(from, shape, f16::from_le_bytes),
        (DType::BF16, _) => rounded(from, shape, into, |bytes: [u8; 2]| bf16::from_le_bytes(bytes).to_f32()),
        (DType::F16, _) => rounded(from, shape, into, |bytes: [u8; 2]| f16::from_le_bytes(bytes).to_f32()),
        (DType::F32, _) => rounded(from, shape, into, f32::from_le_bytes),
        _ => Err(ErrorKind::Unsupported.into()),
    }
}

/// Reads values that `number` converts to f32, in the precision `into`.
fn rounded<const N: usize>(
    from: &mut dyn Read,
    shape: &[usize],
    into: DType,
    number: impl Fn([u8; N]) -> f32,
) -> io::Result<Tensor> {
    match into {
        DType::BF16 => values(from, shape, |bytes: [u8; N]| bf16::from_f32(number(bytes))),
        DType::F16 => values(from, shape, |bytes: [u8; N]| f16::from_f32(number(bytes))),
        _ => values(from, shape, number),
    }
}

/// Reads values of `N` bytes each.
fn values<const N: usize, T: WithDType>(
    from: &mut dyn Read,
    shape: &[usize],
    value: impl Fn([u8; N]) -> T,
) -> io::Result<Tensor> {
    let count: usize = shape.iter().product();
    let mut all: Vec<T> = Vec::new();
    all.try_reserve_exact(count).map_err(|_| io::Error::from(ErrorKind::OutOfMemory))?;
    let mut piece = vec![0u8; PIECE.min(count * N)];
    while all.len() < count {
        let bytes = ((count - all.len()) * N).min(PIECE);
        let piece = &mut piece[..bytes];
        from.read_exact(piece)?;
        all.extend(piece.as_chunks::<N>().0.iter().map(|bytes| value(*bytes)));
    }
    Tensor::from_vec(all, shape, &Device::Cpu).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_as_they_are_or_rounded_and_too_few_are_an_error() {
        // More than one piece, with an incomplete last one.
        let count = PIECE / 2 + 3;
        let values: Vec<f32> = (0..count).map(|i| (i % 4096) as f32 / 256.0 - 8.0 + (i % 3) as f32 * 1e-4).collect();
        let all = Tensor::from_vec(values.clone(), count, &Device::Cpu).unwrap();
        let bits = |t: &Tensor| t.to_dtype(DType::F32).unwrap().to_vec1::<f32>().unwrap();
        for stored in [DType::F32, DType::BF16, DType::F16] {
            let rounded = all.to_dtype(stored).unwrap();
            let bytes: Vec<u8> = match stored {
                DType::BF16 => values.iter().flat_map(|x| bf16::from_f32(*x).to_le_bytes()).collect(),
                DType::F16 => values.iter().flat_map(|x| f16::from_f32(*x).to_le_bytes()).collect(),
                _ => values.iter().flat_map(|x| x.to_le_bytes()).collect(),
            };
            for into in [DType::F32, DType::BF16, DType::F16] {
                let read = read_tensor(&mut &bytes[..], stored, &[count], into).unwrap();
                assert_eq!(read.dtype(), into);
                assert!(bits(&read) == bits(&rounded.to_dtype(into).unwrap()), "{stored:?} into {into:?}");
            }
            let few = read_tensor(&mut &bytes[1..], stored, &[count], stored).unwrap_err();
            assert_eq!(few.kind(), ErrorKind::UnexpectedEof);
        }
    }
}
