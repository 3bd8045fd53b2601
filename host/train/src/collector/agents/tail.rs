//! The end of a stream.

use std::collections::VecDeque;

/// The last bytes of a stream.
pub(super) struct StreamTail {
    most: usize,
    bytes: VecDeque<u8>,
}

impl StreamTail {
    /// Creates one that keeps this many bytes.
    pub(super) fn new(most: usize) -> Self {
        Self { most, bytes: VecDeque::new() }
    }

    /// Adds bytes.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend(&bytes[bytes.len().saturating_sub(self.most)..]);
        let extra = self.bytes.len().saturating_sub(self.most);
        self.bytes.drain(..extra);
    }

    /// Returns them as text. What is no UTF-8 is replaced.
    pub(super) fn text(&self) -> String {
        let (a, b) = self.bytes.as_slices();
        // A character that was cut in the middle is left out.
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
