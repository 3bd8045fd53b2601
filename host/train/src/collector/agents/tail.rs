//! The end of a stream.

use std::collections::VecDeque;

/// A ring buffer of a stream's last bytes.
pub(super) struct StreamTail {
    most: usize,
    bytes: VecDeque<u8>,
}

impl StreamTail {
    /// Creates a buffer of `most` bytes.
    pub(super) fn new(most: usize) -> Self {
        Self { most, bytes: VecDeque::new() }
    }

    /// Appends bytes.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend(&bytes[bytes.len().saturating_sub(self.most)..]);
        let extra = self.bytes.len().saturating_sub(self.most);
        self.bytes.drain(..extra);
    }

    /// Returns the bytes as text, with invalid UTF-8 replaced.
    pub(super) fn text(&self) -> String {
        let (a, b) = self.bytes.as_slices();
        // Drop a character that was cut.
        let bytes = [a, b].concat();
        let cut =
            if bytes.len() == self.most { bytes.iter().take(3).take_while(|byte| **byte & 0xc0 == 0x80).count() } else { 0 };
        String::from_utf8_lossy(&bytes[cut..]).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_bytes_are_kept_without_half_a_character() {
        let mut tail = StreamTail::new(5);
        tail.push(b"ab");
        assert_eq!(tail.text(), "ab");
        tail.push("cde\u{e9}\u{e9}".as_bytes());
        assert_eq!(tail.text(), "e\u{e9}\u{e9}");
        tail.push("\u{20ac}a".as_bytes());
        assert_eq!(tail.text(), "\u{20ac}a");
    }
}
