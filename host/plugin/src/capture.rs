//! Captures the last few kilobytes of a plugin's standard output, for error messages.

use std::collections::VecDeque;

/// The newest output, at most `limit` bytes.
pub(super) struct OutputCapture {
    limit: usize,
    bytes: VecDeque<u8>,
}

impl OutputCapture {
    pub(super) fn new(limit: usize) -> Self {
        Self { limit, bytes: VecDeque::new() }
    }

    /// Takes what was printed since the last call.
    pub(super) fn take(&mut self) -> String {
        let bytes: Vec<u8> = self.bytes.drain(..).collect();
        String::from_utf8_lossy(&bytes).trim().to_owned()
    }

    /// Appends output.
    pub(super) fn push(&mut self, new: &[u8]) {
        let new = &new[new.len().saturating_sub(self.limit)..];
        let excess = (self.bytes.len() + new.len()).saturating_sub(self.limit);
        self.bytes.drain(..excess);
        self.bytes.extend(new);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_the_newest_bytes_within_the_limit() {
        let mut capture = OutputCapture::new(8);
        capture.push(b"0123456789");
        capture.push(b"ab");
        assert_eq!(capture.take(), "456789ab");
        assert_eq!(capture.take(), "");
    }
}
