//! What reading texts by a model's own template and tokenizer may take.

use crate::ops::bounded::{Bounds, Unbounded, within};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Time that all texts together may take beside what their size is worth.
const TIME: Duration = Duration::from_secs(60);

/// Bytes of text a second, below which it takes too long; the slowest known is fifty times as fast.
const BYTES_A_SECOND: u64 = 20_000;

/// Bytes for which a text counts beside its own, so that short ones have time for a thread each.
const EACH: u64 = 1024;

/// Bytes of memory that one text may take, however small it is.
const MEMORY: usize = 64 << 20;

/// Bytes of memory for each byte of a text.
const MEMORY_A_BYTE: usize = 512;

/// Bytes of memory that no text may take.
const MOST_MEMORY: usize = 2 << 30;

/// Account of the time that texts took.
#[derive(Debug, Default)]
pub(super) struct Pace(Mutex<Account>);

#[derive(Debug, Default)]
struct Account {
    bytes: u64,
    used: Duration,
}

impl Pace {
    /// Does some work on a text of so many bytes, within what it may take.
    ///
    /// # Errors
    /// If it takes more, or panics.
    pub(super) fn run<T: Send + 'static>(&self, bytes: usize, work: impl FnOnce() -> T + Send + 'static) -> Result<T, Unbounded> {
        let memory = MEMORY.saturating_add(bytes.saturating_mul(MEMORY_A_BYTE)).min(MOST_MEMORY);
        let account = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (all, time) = {
            let mut account = account();
            account.bytes += bytes as u64 + EACH;
            let all = TIME + Duration::from_secs(account.bytes / BYTES_A_SECOND);
            (all, all.saturating_sub(account.used))
        };
        match within(Bounds { memory, time }, work) {
            Ok((done, took)) => {
                account().used += took;
                Ok(done)
            }
            Err(Unbounded::Time(_)) => {
                account().used += time;
                Err(Unbounded::Time(all))
            }
            Err(other) => Err(other),
        }
    }
}
