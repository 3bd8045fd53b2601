//! What surrounds an instance: a WASI that opens onto nothing, a ceiling on memory, bounded output, and the run's log.

use super::LONGEST_TEXT;
use super::capture::Capture;
use super::limits::Ceiling;
use super::wasi::Wasi;
use super::world::{host, types};
use crate::config::{Limits, printable};

/// Lines that a plugin may log in one call.
const LOG_LINES: u32 = 100;

/// What an instance can reach: a WASI that opens onto nothing, and the run's log.
pub(super) struct Sandbox {
    wasi: Wasi,
    pub(super) ceiling: Ceiling,
    /// Lines that it may still log in this call.
    log_lines: u32,
    name: String,
}

impl Sandbox {
    pub(super) fn new(name: &str, limits: &Limits, seed: u64) -> Self {
        let output = Capture::new(limits.output_kb as usize * 1024);
        let ceiling = Ceiling::new(limits);
        Self { wasi: Wasi::new(seed, output), ceiling, log_lines: LOG_LINES, name: name.to_owned() }
    }

    pub(super) fn wasi(&mut self) -> &mut Wasi {
        &mut self.wasi
    }

    /// Takes what it printed since the last time.
    pub(super) fn printed(&mut self) -> String {
        self.wasi.printed()
    }

    /// A call begins.
    pub(super) fn begin_call(&mut self) {
        self.log_lines = LOG_LINES;
    }
}

impl types::Host for Sandbox {}

impl host::Host for Sandbox {
    fn log(&mut self, level: host::Level, message: String) {
        if self.log_lines == 0 {
            return;
        }
        self.log_lines -= 1;
        if self.log_lines == 0 {
            tracing::warn!(plugin = %self.name, "logs more than {LOG_LINES} lines in a call; the rest of this one's are left out");
            return;
        }
        let message = printable(&message, LONGEST_TEXT);
        match level {
            host::Level::Debug => tracing::debug!(plugin = %self.name, "{message}"),
            host::Level::Info => tracing::info!(plugin = %self.name, "{message}"),
            host::Level::Warn => tracing::warn!(plugin = %self.name, "{message}"),
            host::Level::Error => tracing::error!(plugin = %self.name, "{message}"),
        }
    }
}
