//! Limits how much a plugin logs in a run.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Number of lines that each plugin of a run has logged. Clones share the counts.
#[derive(Clone, Default)]
pub(super) struct LogLineCounts(pub(super) Arc<Mutex<BTreeMap<String, u64>>>);

impl LogLineCounts {
    /// Counts a line of this many bytes.
    pub(super) fn count(&self, plugin: &str, bytes: usize) -> Allowance {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let lines = all.entry(plugin.to_owned()).or_default();
        if *lines >= LINES_OF_A_RUN {
            return Allowance::Over;
        }
        *lines += 1 + (bytes / LINE) as u64;
        if *lines >= LINES_OF_A_RUN { Allowance::Last } else { Allowance::Within }
    }
}

/// Maximum number of lines that a plugin may log in a run, over all its versions and instances.
pub(super) const LINES_OF_A_RUN: u64 = 10_000;

/// Bytes of a log line that count as one line; longer lines count as several.
const LINE: usize = 256;

/// The position of a line relative to a plugin's limit for the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Allowance {
    Within,
    Last,
    Over,
}
