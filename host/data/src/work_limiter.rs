//! Limits the time and memory for rendering and tokenizing texts with a model's own template and tokenizer.

use crate::ops::bounded::{BoundsError, WorkBounds, within};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Time that all texts together may take beyond what their sizes allow.
const TIME: Duration = Duration::from_secs(60);

/// Minimum speed in bytes of text per second; the slowest known is fifty times as fast.
const BYTES_A_SECOND: u64 = 20_000;

/// Overhead in bytes per text, so that short ones have time to start a thread.
const EACH: u64 = 1024;

/// Memory that any text may use, in bytes.
const MEMORY: usize = 64 << 20;

/// Memory per byte of text.
const MEMORY_A_BYTE: usize = 512;

/// Maximum memory for one text, in bytes.
const MOST_MEMORY: usize = 2 << 30;

/// Tracks the time spent on texts.
#[derive(Debug, Default)]
pub(super) struct TextWorkLimiter(Mutex<TextWorkTotals>);

#[derive(Debug, Default)]
struct TextWorkTotals {
    bytes: u64,
    used: Duration,
}

impl TextWorkLimiter {
    /// Runs work on a text of this many bytes within its limits.
    ///
    /// # Errors
    /// If the work exceeds the limits, or panics.
    pub(super) fn run<T: Send + 'static>(
        &self,
        bytes: usize,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, BoundsError> {
        let memory = MEMORY.saturating_add(bytes.saturating_mul(MEMORY_A_BYTE)).min(MOST_MEMORY);
        let account = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (all, time) = {
            let mut account = account();
            account.bytes += bytes as u64 + EACH;
            let all = TIME + Duration::from_secs(account.bytes / BYTES_A_SECOND);
            (all, all.saturating_sub(account.used))
        };
        match within(WorkBounds { memory, time }, work) {
            Ok((done, took)) => {
                account().used += took;
                Ok(done)
            }
            Err(BoundsError::Time(_)) => {
                account().used += time;
                Err(BoundsError::Time(all))
            }
            Err(other) => Err(other),
        }
    }
}
