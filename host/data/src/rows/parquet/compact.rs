//! Subset of Thrift's compact protocol that is needed to check a table's metadata before it is parsed: the `parquet` crate allocates as
//! much, and recurses as deep, as a file claims.

/// Maximum number of elements in a list: columns, row groups, columns of a row group.
const LONGEST_LIST: u64 = 1 << 20;

/// Maximum nesting of structures.
const DEEPEST: usize = 32;

/// Reason why bytes can't be parsed: they are truncated or invalid.
#[derive(Debug, PartialEq)]
pub(super) enum CompactProtocolError {
    /// More bytes may be needed.
    Short,
    /// The bytes are invalid.
    Wrong(&'static str),
}

type Result<T> = std::result::Result<T, CompactProtocolError>;

/// Types of the fields that are checked.
pub(super) const I32: u8 = 5;
pub(super) const LIST: u8 = 9;
pub(super) const STRUCT: u8 = 12;

/// Reader of values in the compact protocol.
pub(super) struct CompactProtocolReader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> CompactProtocolReader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// Returns the position of the next byte.
    pub(super) fn at(&self) -> usize {
        self.at
    }

    fn byte(&mut self) -> Result<u8> {
        let byte = *self.bytes.get(self.at).ok_or(CompactProtocolError::Short)?;
        self.at += 1;
        Ok(byte)
    }

    /// Reads this many bytes.
    pub(super) fn bytes(&mut self, count: u64) -> Result<&'a [u8]> {
        let begin = self.at;
        self.pass(count)?;
        Ok(&self.bytes[begin..self.at])
    }

    fn pass(&mut self, count: u64) -> Result<()> {
        let at = usize::try_from(count).ok().and_then(|count| self.at.checked_add(count)).ok_or(CompactProtocolError::Short)?;
        if at > self.bytes.len() {
            return Err(CompactProtocolError::Short);
        }
        self.at = at;
        Ok(())
    }

    pub(super) fn varint(&mut self) -> Result<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(CompactProtocolError::Wrong("a number without an end"))
    }

    pub(super) fn integer(&mut self) -> Result<i64> {
        let folded = self.varint()?;
        Ok((folded >> 1) as i64 ^ -((folded & 1) as i64))
    }

    /// Returns the number and type of a structure's next field; `None` at its end. `last` is the number of the previous field.
    pub(super) fn field(&mut self, last: &mut i64) -> Result<Option<(i64, u8)>> {
        let head = self.byte()?;
        if head == 0 {
            return Ok(None);
        }
        *last = match head >> 4 {
            0 => self.integer()?,
            more => last.saturating_add(i64::from(more)),
        };
        Ok(Some((*last, head & 15)))
    }

    /// Returns the number and type of a list's elements.
    pub(super) fn list(&mut self) -> Result<(u64, u8)> {
        let head = self.byte()?;
        let count = if head >> 4 == 15 { self.varint()? } else { u64::from(head >> 4) };
        if count > LONGEST_LIST {
            return Err(CompactProtocolError::Wrong("a list of more than a million"));
        }
        Ok((count, head & 15))
    }

    /// Skips a value.
    pub(super) fn skip(&mut self, kind: u8) -> Result<()> {
        self.skip_within(kind, DEEPEST)
    }

    fn skip_within(&mut self, kind: u8, depth: usize) -> Result<()> {
        let depth = depth.checked_sub(1).ok_or(CompactProtocolError::Wrong("structures nested too deeply"))?;
        match kind {
            1 | 2 => Ok(()),
            3 => self.pass(1),
            4..=6 => self.varint().map(drop),
            7 => self.pass(8),
            8 => {
                let length = self.varint()?;
                self.pass(length)
            }
            LIST | 10 => {
                let (count, kind) = self.list()?;
                (0..count).try_for_each(|_| if kind <= 2 { self.pass(1) } else { self.skip_within(kind, depth) })
            }
            STRUCT => {
                let mut last = 0;
                while let Some((_, kind)) = self.field(&mut last)? {
                    self.skip_within(kind, depth)?;
                }
                Ok(())
            }
            13 => self.pass(16),
            _ => Err(CompactProtocolError::Wrong("a value of unknown type")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_passed_over_and_what_lies_is_refused() {
        // A structure of an integer, a string and a list of two strings.
        let bytes = [0x15, 0x04, 0x18, 2, b'a', b'b', 0x19, 0x28, 1, b'x', 0, 0, 7];
        let mut compact = CompactProtocolReader::new(&bytes);
        assert_eq!((compact.skip(STRUCT), compact.at()), (Ok(()), bytes.len() - 1));
        for (bytes, kind) in [(&[0x88, 0xff, 0xff, 0xff, 0x7f][..], 8), (&[0x15], STRUCT), (&[0x25, 2], LIST)] {
            assert_eq!(CompactProtocolReader::new(bytes).skip(kind), Err(CompactProtocolError::Short), "{bytes:?}");
        }
        let nested = [0x1c; 1000];
        let long = [0xfc, 0xff, 0xff, 0xff, 0x7f];
        for (bytes, kind) in [(&nested[..], STRUCT), (&long, LIST), (&[0xff; 11], 6), (&[0], 14)] {
            assert!(matches!(CompactProtocolReader::new(bytes).skip(kind), Err(CompactProtocolError::Wrong(_))), "{bytes:?}");
        }
    }
}
