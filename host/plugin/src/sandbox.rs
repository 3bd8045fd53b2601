//! The environment of an instance: a WASI without access to anything, a memory limit, bounded output, and the run's log.

use super::capture::OutputCapture;
use super::contract::cells::{self, Failure};
use super::contract::host;
use super::deadline::Deadline;
use super::error::LONGEST_TEXT;
use super::limits::{MemoryLimiter, MemoryShare};
use super::log_line_counts::LogLineCounts;
use super::log_line_counts::{Allowance, LINES_OF_A_RUN};
use super::requests::RequestChannel;
use super::wasi::Wasi;
use crate::config::{PluginLimits, printable};

/// Lines that a plugin may log in one call.
const LINES_OF_A_CALL: usize = 100;

/// The cells that an instance has open. They have sandboxes of their own; through this trait, the instance's sandbox knows only what the
/// instance can do with them.
pub(super) trait OpenCells: Send + Sync {
    /// Sets the deadline of the call that begins. The cells must answer somewhat earlier.
    fn until(&mut self, deadline: Deadline);

    /// Opens a cell, a keeper if `keeps` is set, and returns its number.
    fn open(&mut self, memory_mb: u32, keeps: bool) -> Result<u32, Failure>;

    /// Sends a message to a cell and returns the answer.
    fn ask(&mut self, number: u32, message: &str, timeout_ms: u32) -> Result<String, Failure>;

    /// Closes a cell.
    fn close(&mut self, number: u32);
}

/// Everything an instance can access: a WASI without access to anything, the run's log, cells if the plugin opens them, and granted
/// servers.
pub(super) struct Sandbox {
    wasi: Wasi,
    pub(super) ceiling: MemoryLimiter,
    /// Cells that the instance has open; `None` in a cell that is not a keeper.
    pub(super) cells: Option<Box<dyn OpenCells>>,
    /// Lines logged in this call. They are written after the call, since the log's reader may be slow.
    lines: Vec<(host::Level, String)>,
    left_out: bool,
    /// Whether lines are dropped, because the same call was made before.
    pub(super) muted: bool,
    logged: LogLineCounts,
    name: String,
    /// Channel to granted servers.
    pub(super) request_channel: Option<RequestChannel>,
}

impl Sandbox {
    pub(super) fn new(name: &str, limits: &PluginLimits, share: MemoryShare, logged: LogLineCounts, seed: u64) -> Self {
        let output = OutputCapture::new(limits.output_kb as usize * 1024);
        let ceiling = MemoryLimiter::new(limits, share);
        let wasi = Wasi::new(seed, output);
        Self {
            wasi,
            ceiling,
            cells: None,
            lines: Vec::new(),
            left_out: false,
            muted: false,
            logged,
            name: name.to_owned(),
            request_channel: None,
        }
    }

    pub(super) fn wasi(&mut self) -> &mut Wasi {
        &mut self.wasi
    }

    /// Takes the output printed since the last call.
    pub(super) fn printed(&mut self) -> String {
        self.wasi.printed()
    }

    /// Writes the lines logged in the call that has ended.
    pub(super) fn write_log(&mut self) {
        if self.muted {
            (self.lines, self.left_out) = (Vec::new(), false);
        }
        for (level, message) in self.lines.drain(..) {
            let plugin = &self.name;
            match (self.logged.count(plugin, message.len()), level) {
                (Allowance::Last, _) => {
                    tracing::warn!(%plugin, "has logged {LINES_OF_A_RUN} lines; its further lines in this run are dropped");
                }
                (Allowance::Over, _) => {}
                (_, host::Level::Debug) => tracing::debug!(%plugin, "{message}"),
                (_, host::Level::Info) => tracing::info!(%plugin, "{message}"),
                (_, host::Level::Warn) => tracing::warn!(%plugin, "{message}"),
                (_, host::Level::Error) => tracing::error!(%plugin, "{message}"),
            }
        }
        if std::mem::take(&mut self.left_out) && self.logged.count(&self.name, 0) == Allowance::Within {
            let plugin = &self.name;
            tracing::warn!(%plugin, "logged more than {LINES_OF_A_CALL} lines in a call; the rest are dropped");
        }
    }
}

impl host::Host for Sandbox {
    fn log(&mut self, level: host::Level, message: String) {
        if self.lines.len() < LINES_OF_A_CALL {
            self.lines.push((level, printable(&message, LONGEST_TEXT)));
        } else {
            self.left_out = true;
        }
    }
}

impl cells::Host for Sandbox {
    fn open(&mut self, memory_mb: u32) -> Result<u32, Failure> {
        self.cells.as_mut().ok_or(Failure::Refused)?.open(memory_mb, false)
    }

    fn open_keeper(&mut self, memory_mb: u32) -> Result<u32, Failure> {
        self.cells.as_mut().ok_or(Failure::Refused)?.open(memory_mb, true)
    }

    fn ask(&mut self, cell: u32, message: String, timeout_ms: u32) -> Result<String, Failure> {
        self.cells.as_mut().ok_or(Failure::Refused)?.ask(cell, &message, timeout_ms)
    }

    fn close(&mut self, cell: u32) {
        if let Some(cells) = &mut self.cells {
            cells.close(cell);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_counted_by_plugin_and_bounded_by_call() {
        let (limits, logged) = (PluginLimits::default(), LogLineCounts::default());
        let mut sandbox = Sandbox::new("a", &limits, MemoryShare::new(1 << 30), logged.clone(), 0);
        for _ in 0..3 {
            (0..1000).for_each(|i| host::Host::log(&mut sandbox, host::Level::Debug, i.to_string()));
            assert!(sandbox.lines.len() == LINES_OF_A_CALL && sandbox.left_out);
            sandbox.write_log();
            assert!(sandbox.lines.is_empty() && !sandbox.left_out);
        }
        let lines = |plugin: &str| logged.0.lock().unwrap().get(plugin).copied();
        assert_eq!((lines("a"), lines("b")), (Some(3 * (LINES_OF_A_CALL as u64 + 1)), None));
        // A long line counts as several.
        let long = || logged.count("b", 2048);
        assert!((0..1111).all(|_| long() == Allowance::Within));
        assert_eq!((long(), long(), logged.count("b", 0)), (Allowance::Last, Allowance::Over, Allowance::Over));
    }
}
