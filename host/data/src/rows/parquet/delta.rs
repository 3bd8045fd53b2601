//! DELTA_BINARY_PACKED numbers, which encode the lengths of a page's strings. They are decoded to determine the size of strings with shared
//! prefixes before the decoder creates them.

use super::super::bounds::ROW;
use super::compact::{CompactProtocolError, CompactProtocolReader};

type Result<T> = std::result::Result<T, CompactProtocolError>;

/// Maximum number of miniblocks per block; writers use 4.
const MOST_PARTS: u64 = 1 << 12;

/// Returns how many numbers there are, according to their header; fails if more than `most`.
pub(super) fn count(numbers: &mut CompactProtocolReader<'_>, most: u64) -> Result<u64> {
    // The sizes of blocks and miniblocks come first.
    numbers.varint()?;
    numbers.varint()?;
    let count = numbers.varint()?;
    if count > most { Err(CompactProtocolError::Wrong("claims to have more strings than values")) } else { Ok(count) }
}

/// Returns the total size of the strings in a page of `most` values, each of which shares a prefix with the previous one. The lengths of
/// the prefixes come first, then those of the suffixes.
pub(super) fn expanded(page: &mut CompactProtocolReader<'_>, most: u64) -> Result<u64> {
    let shared = numbers(page, most)?;
    let own = numbers(page, most)?;
    if shared.len() != own.len() {
        return Err(CompactProtocolError::Wrong("has other strings than beginnings of strings"));
    }
    let (mut before, mut all) = (0, 0_u64);
    for (shared, own) in shared.into_iter().zip(own) {
        if shared > before {
            return Err(CompactProtocolError::Wrong("has a string that shares more with the previous one than that has"));
        }
        before = shared.saturating_add(own);
        if before > ROW {
            return Err(CompactProtocolError::Wrong("has a string that is longer than a row may be"));
        }
        all = all.saturating_add(before);
    }
    Ok(all)
}

/// Decodes numbers; none may be negative.
fn numbers(from: &mut CompactProtocolReader<'_>, most: u64) -> Result<Vec<u64>> {
    let (block, parts) = (from.varint()?, from.varint()?);
    let count = from.varint()?;
    if count > most {
        return Err(CompactProtocolError::Wrong("claims to have more strings than values"));
    }
    if parts == 0 || parts > MOST_PARTS || block % parts != 0 || (block / parts) % 8 != 0 || block == 0 || block > 1 << 24 {
        return Err(CompactProtocolError::Wrong("has numbers in blocks of an impossible size"));
    }
    let mut last = from.integer()?;
    let mut numbers = Vec::new();
    let add = |numbers: &mut Vec<u64>, number: i64| {
        numbers.push(u64::try_from(number).map_err(|_| CompactProtocolError::Wrong("has a string of a negative length"))?);
        Ok(())
    };
    if count > 0 {
        add(&mut numbers, last)?;
    }
    while (numbers.len() as u64) < count {
        let least = from.integer()?;
        for width in from.bytes(parts)? {
            let left = count - numbers.len() as u64;
            if left == 0 {
                break;
            }
            if *width > 64 {
                return Err(CompactProtocolError::Wrong("has numbers of more than 64 bits"));
            }
            let packed = from.bytes(block / parts / 8 * u64::from(*width))?;
            for i in 0..(block / parts).min(left) {
                last = last.wrapping_add(least).wrapping_add(unpacked(packed, i, *width));
                add(&mut numbers, last)?;
            }
        }
    }
    Ok(numbers)
}

/// Returns a number of `width` bits.
fn unpacked(packed: &[u8], at: u64, width: u8) -> i64 {
    let begin = at * u64::from(width);
    let bit = |n: u64| packed.get((n / 8) as usize).map_or(0, |byte| u64::from(byte >> (n % 8) & 1));
    (0..u64::from(width)).fold(0_u64, |number, i| number | bit(begin + i) << i) as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_unpacked_and_nonsense_is_refused() {
        // Example from the format's specification: 7, 5, 3, 1, 2, 3, 4, 5 in blocks of 128, with differences of -2 or 1.
        let packed = [0x80, 1, 4, 8, 14, 3, 2, 0, 0, 0, 0b1100_0000, 0b0011_1111, 0, 0, 0, 0, 0, 0];
        assert_eq!(numbers(&mut CompactProtocolReader::new(&packed), 8).unwrap(), [7, 5, 3, 1, 2, 3, 4, 5]);
        assert!(matches!(numbers(&mut CompactProtocolReader::new(&packed), 7), Err(CompactProtocolError::Wrong(_))));
        assert_eq!(numbers(&mut CompactProtocolReader::new(&packed[..12]), 8), Err(CompactProtocolError::Short));
        // One number; and none, as in a page of nulls.
        assert_eq!(numbers(&mut CompactProtocolReader::new(&[0x80, 1, 4, 1, 6]), 1).unwrap(), [3]);
        assert!(numbers(&mut CompactProtocolReader::new(&[0x80, 1, 4, 0, 0]), 1).unwrap().is_empty());
        for odd in [&[0x80, 1, 0, 1, 6][..], &[0, 4, 1, 6], &[0x80, 1, 4, 1, 5], &[0x80, 1, 4, 2, 6, 0, 65, 0, 0, 0]] {
            assert!(matches!(numbers(&mut CompactProtocolReader::new(odd), 9), Err(CompactProtocolError::Wrong(_))), "{odd:?}");
        }
    }
}
