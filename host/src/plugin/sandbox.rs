//! What surrounds an instance: a WASI that opens onto nothing, a ceiling on memory, bounded output, and the run's log.

use super::LONGEST_TEXT;
use super::capture::Capture;
use super::limits::{Ceiling, Together};
use super::wasi::Wasi;
use super::world::{host, types};
use crate::config::{Limits, printable};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Lines that a plugin may log in one call.
const LINES_OF_A_CALL: usize = 100;

/// Lines that a plugin may log in a run, all its versions and instances together.
const LINES_OF_A_RUN: u64 = 10_000;

/// Bytes for which a line counts as another.
const LINE: usize = 256;

/// Handles of resources that an instance may hold: streams, pollables and what it makes itself.
pub(super) const MOST_HANDLES: usize = 100_000;

/// Where a line stands in what a plugin may log in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Share {
    Within,
    Last,
    Over,
}

/// How many lines each plugin of a run has logged. Clones know the same.
#[derive(Clone, Default)]
pub(super) struct Logged(Arc<Mutex<BTreeMap<String, u64>>>);

impl Logged {
    /// Counts one more line, of so many bytes.
    fn count(&self, plugin: &str, bytes: usize) -> Share {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let lines = all.entry(plugin.to_owned()).or_default();
        if *lines >= LINES_OF_A_RUN {
            return Share::Over;
        }
        *lines += 1 + (bytes / LINE) as u64;
        if *lines >= LINES_OF_A_RUN { Share::Last } else { Share::Within }
    }
}

/// What an instance can reach: a WASI that opens onto nothing, and the run's log.
pub(super) struct Sandbox {
    wasi: Wasi,
    pub(super) ceiling: Ceiling,
    /// What it has logged in this call. Written when the call is over: whoever reads the log may be slow.
    lines: Vec<(host::Level, String)>,
    left_out: bool,
    logged: Logged,
    name: String,
}

impl Sandbox {
    pub(super) fn new(name: &str, limits: &Limits, together: Together, logged: Logged, seed: u64) -> Self {
        let output = Capture::new(limits.output_kb as usize * 1024);
        let ceiling = Ceiling::new(limits, together);
        let wasi = Wasi::new(seed, output);
        Self { wasi, ceiling, lines: Vec::new(), left_out: false, logged, name: name.to_owned() }
    }

    pub(super) fn wasi(&mut self) -> &mut Wasi {
        &mut self.wasi
    }

    /// Takes what it printed since the last time.
    pub(super) fn printed(&mut self) -> String {
        self.wasi.printed()
    }

    /// Writes what it has logged in a call that is over.
    pub(super) fn write_log(&mut self) {
        for (level, message) in self.lines.drain(..) {
            let plugin = &self.name;
            match (self.logged.count(plugin, message.len()), level) {
                (Share::Last, _) => {
                    tracing::warn!(%plugin, "has logged as much as {LINES_OF_A_RUN} lines; the rest of this run's are left out");
                }
                (Share::Over, _) => {}
                (_, host::Level::Debug) => tracing::debug!(%plugin, "{message}"),
                (_, host::Level::Info) => tracing::info!(%plugin, "{message}"),
                (_, host::Level::Warn) => tracing::warn!(%plugin, "{message}"),
                (_, host::Level::Error) => tracing::error!(%plugin, "{message}"),
            }
        }
        if std::mem::take(&mut self.left_out) && self.logged.count(&self.name, 0) == Share::Within {
            let plugin = &self.name;
            tracing::warn!(%plugin, "logs more than {LINES_OF_A_CALL} lines in a call; the rest of this one's are left out");
        }
    }
}

impl types::Host for Sandbox {}

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
        let mut sandbox = Sandbox::new("a", &limits, Together::new(&limits), logged.clone(), 0);
        for _ in 0..3 {
            (0..1000).for_each(|i| host::Host::log(&mut sandbox, host::Level::Debug, i.to_string()));
            assert!(sandbox.lines.len() == LINES_OF_A_CALL && sandbox.left_out);
            sandbox.write_log();
            assert!(sandbox.lines.is_empty() && !sandbox.left_out);
        }
        let lines = |plugin: &str| logged.0.lock().unwrap().get(plugin).copied();
        assert_eq!((lines("a"), lines("b")), (Some(3 * (LINES_OF_A_CALL as u64 + 1)), None));
        // A long line counts for several.
        let long = || logged.count("b", 2048);
        assert!((0..1111).all(|_| long() == Share::Within));
        assert_eq!((long(), long(), logged.count("b", 0)), (Share::Last, Share::Over, Share::Over));
    }
}
