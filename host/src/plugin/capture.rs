//! Standard output of a plugin: the last few kilobytes, for error messages.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

/// Shared end of an output; keeps at most `limit` bytes, the newest.
#[derive(Clone)]
pub(super) struct Capture {
    limit: usize,
    bytes: Arc<Mutex<VecDeque<u8>>>,
}

impl Capture {
    pub(super) fn new(limit: usize) -> Self {
        Self { limit, bytes: Arc::default() }
    }

    /// Takes what was written since the last time.
    pub(super) fn take(&self) -> String {
        let bytes: Vec<u8> = self.bytes.lock().unwrap_or_else(PoisonError::into_inner).drain(..).collect();
        String::from_utf8_lossy(&bytes).trim().to_owned()
    }

    /// Adds what was printed.
    pub(super) fn push(&self, new: &[u8]) {
        let mut bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        let new = &new[new.len().saturating_sub(self.limit)..];
        let excess = (bytes.len() + new.len()).saturating_sub(self.limit);
        bytes.drain(..excess);
        bytes.extend(new);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_the_newest_bytes_within_the_limit() {
        let capture = Capture::new(8);
        capture.push(b"0123456789");
        capture.push(b"ab");
        assert_eq!(capture.take(), "456789ab");
        assert_eq!(capture.take(), "");
    }
}
