//! The file of a compiled plugin: a checksum, facts about the plugin, and its code.

use sha2::{Digest, Sha256};
use std::ops::Range;

/// Maximum size of compiled code, in bytes.
pub(super) const LARGEST_CODE: u64 = 512 << 20;

/// Maximum size of a file, in bytes.
pub(super) const LARGEST_FILE: u64 = LARGEST_CODE + START as u64;

/// Size of the checksum of everything that follows it, in bytes.
pub(super) const CHECKSUM: usize = 32;

/// Byte ranges of the numbers, and the offset at which the code starts.
const FIXED: Range<usize> = CHECKSUM..CHECKSUM + 8;
const TRIED: Range<usize> = FIXED.end..FIXED.end + 8;
const START: usize = TRIED.end;

/// The bytes of a complete file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CompiledCode(Vec<u8>);

impl CompiledCode {
    /// Creates the file of a plugin whose instances each take `fixed` bytes besides their memories and tables.
    pub(super) fn new(fixed: u64, code: &[u8]) -> Self {
        let mut whole = vec![0; START];
        whole[FIXED].copy_from_slice(&fixed.to_le_bytes());
        whole.extend_from_slice(code);
        let mut this = Self(whole);
        this.seal();
        this
    }

    /// Parses a file. Returns `None` if it is damaged.
    pub(super) fn parse(whole: Vec<u8>) -> Option<Self> {
        let this = (whole.len() >= START).then_some(Self(whole))?;
        (this.0[..CHECKSUM] == this.checksum()).then_some(this)
    }

    /// Returns the memory of each instance besides its memories and tables, in bytes.
    pub(super) fn fixed(&self) -> usize {
        usize::try_from(self.number(FIXED)).unwrap_or(usize::MAX)
    }

    /// Returns whether a trial instance was created within at most this memory, in bytes, and with exactly this limit on table elements.
    pub(super) fn was_tried(&self, memory: u64, table_elements: u32) -> bool {
        let tried = self.number(TRIED);
        let (mebibytes, elements) = (tried >> 32, tried & u64::from(u32::MAX));
        (1..=memory >> 20).contains(&mebibytes) && elements == u64::from(table_elements)
    }

    /// Records that a trial instance was created.
    pub(super) fn set_tried(&mut self, memory: u64, table_elements: u32) {
        let mebibytes = (memory >> 20).min(u64::from(u32::MAX));
        self.0[TRIED].copy_from_slice(&(mebibytes << 32 | u64::from(table_elements)).to_le_bytes());
        self.seal();
    }

    /// Returns the compiled code.
    pub(super) fn code(&self) -> &[u8] {
        &self.0[START..]
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    fn number(&self, at: Range<usize>) -> u64 {
        self.0[at].iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
    }

    fn checksum(&self) -> [u8; CHECKSUM] {
        Sha256::digest(&self.0[CHECKSUM..]).into()
    }

    fn seal(&mut self) {
        let checksum = self.checksum();
        self.0[..CHECKSUM].copy_from_slice(&checksum);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_counts_if_it_is_whole() {
        let mut code = CompiledCode::new(7 << 40, &[1, 2, 3]);
        assert!(!code.was_tried(u64::MAX, 0));
        code.set_tried(9 << 20, 5);
        let whole = code.as_bytes().to_vec();
        let read = CompiledCode::parse(whole.clone()).unwrap();
        assert_eq!((read.fixed(), read.code()), (7 << 40, &[1, 2, 3][..]));
        assert!(read.was_tried(9 << 20, 5) && read.was_tried(10 << 20, 5));
        assert!(!read.was_tried(8 << 20, 5) && !read.was_tried(9 << 20, 6));
        for place in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[place] ^= 1;
            assert_eq!((CompiledCode::parse(damaged), CompiledCode::parse(whole[..place].to_vec())), (None, None), "{place}");
        }
    }
}
