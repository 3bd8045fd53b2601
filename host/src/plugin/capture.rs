//! Standard output of a plugin: the last few kilobytes, for error messages.

use bytes::Bytes;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use wasmtime_wasi::cli::{IsTerminal, StdoutStream};
use wasmtime_wasi::p2::{OutputStream, Pollable, StreamResult};

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

    fn push(&self, new: &[u8]) {
        let mut bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        let new = &new[new.len().saturating_sub(self.limit)..];
        let excess = (bytes.len() + new.len()).saturating_sub(self.limit);
        bytes.drain(..excess);
        bytes.extend(new);
    }
}

impl IsTerminal for Capture {
    fn is_terminal(&self) -> bool {
        false
    }
}

impl StdoutStream for Capture {
    fn async_stream(&self) -> Box<dyn tokio::io::AsyncWrite + Send + Sync> {
        Box::new(tokio::io::sink())
    }

    fn p2_stream(&self) -> Box<dyn OutputStream> {
        Box::new(self.clone())
    }
}

#[async_trait::async_trait]
impl Pollable for Capture {
    async fn ready(&mut self) {}
}

#[async_trait::async_trait]
impl OutputStream for Capture {
    fn write(&mut self, bytes: Bytes) -> StreamResult<()> {
        self.push(&bytes);
        Ok(())
    }

    fn flush(&mut self) -> StreamResult<()> {
        Ok(())
    }

    fn check_write(&mut self) -> StreamResult<usize> {
        Ok(1 << 16)
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
