//! The environment of an instance: a WASI without access to anything, a memory limit, bounded output, and the run's log.

use super::LONGEST_TEXT;
use super::asking::Line;
use super::capture::Capture;
use super::cells::Cells;
use super::contract::host;
use super::limits::{Ceiling, Share};
use super::wasi::Wasi;
use crate::config::{Limits, printable};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Lines that a plugin may log in one call.
const LINES_OF_A_CALL: usize = 100;

/// Lines that a plugin may log in a run, over all its versions and instances.
const LINES_OF_A_RUN: u64 = 10_000;

/// Bytes of a log line that count as one line; longer lines count as several.
const LINE: usize = 256;

/// Handles to resources that an instance may hold: streams, pollables and its own.
pub(super) const MOST_HANDLES: usize = 100_000;

/// Where a line falls relative to a plugin's limit for the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Allowance {
    Within,
    Last,
    Over,
}

/// How many lines each plugin of a run has logged. Clones share the count.
#[derive(Clone, Default)]
pub(super) struct Logged(Arc<Mutex<BTreeMap<String, u64>>>);

impl Logged {
    /// Counts a line of this many bytes.
    fn count(&self, plugin: &str, bytes: usize) -> Allowance {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let lines = all.entry(plugin.to_owned()).or_default();
        if *lines >= LINES_OF_A_RUN {
            return Allowance::Over;
        }
        *lines += 1 + (bytes / LINE) as u64;
        if *lines >= LINES_OF_A_RUN { Allowance::Last } else { Allowance::Within }
    }
}

/// What an instance can reach: a WASI without access to anything, the run's log, cells if the plugin opens them, and servers if it
/// was granted some.
pub(super) struct Sandbox {
    wasi: Wasi,
    pub(super) ceiling: Ceiling,
    /// The cells that it has open; none in a cell that is no keeper.
    pub(super) cells: Option<Cells>,
    /// Lines logged in this call. They are written after the call, since the log's reader may be slow.
    lines: Vec<(host::Level, String)>,
    left_out: bool,
    /// Whether lines are dropped, because the same call was made before.
    pub(super) muted: bool,
    logged: Logged,
    name: String,
    /// The way to granted servers.
    pub(super) line: Option<Line>,
}

impl Sandbox {
    pub(super) fn new(name: &str, limits: &Limits, share: Share, logged: Logged, seed: u64) -> Self {
        let output = Capture::new(limits.output_kb as usize * 1024);
        let ceiling = Ceiling::new(limits, share);
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
            line: None,
        }
    }

    pub(super) fn wasi(&mut self) -> &mut Wasi {
        &mut self.wasi
    }

    /// Takes what it printed since the last call.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_counted_by_plugin_and_bounded_by_call() {
        let (limits, logged) = (Limits::default(), Logged::default());
        let mut sandbox = Sandbox::new("a", &limits, Share::new(1 << 30), logged.clone(), 0);
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
