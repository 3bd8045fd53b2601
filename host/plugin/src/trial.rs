//! Creates an instance of a compiled plugin in a separate process, whose memory the system limits. This backs up the count in `census.rs`,
//! since wasmtime's limiter sees only an instance's memories and tables.
//!
//! Like the process that compiles, this process is the same program, started as `rlhost try-plugin`. It reads the compiled plugin from
//! standard input. Other failures are reported when the plugin is loaded.

use crate::config::PluginLimits;
use std::ffi::OsString;

/// The subcommand, hidden from help.
const COMMAND: &str = "try-plugin";

/// Seconds of processor time for reading the code.
const READING: u64 = 60;

/// A request from another process to create an instance of a plugin in this one.
pub struct TrialOrder {
    /// Limits of the plugin.
    pub(super) limits: PluginLimits,
}

impl TrialOrder {
    /// Whether this system limits the memory that a process writes to, rather than what it reserves.
    pub(super) const IS_BOUNDED: bool = cfg!(target_os = "linux");

    /// Returns the arguments that [`TrialOrder::parse`] reads.
    pub(super) fn arguments(limits: &PluginLimits) -> [String; 2] {
        // Limits always serialize. Without limits, the trial is refused.
        [COMMAND.to_owned(), toml::to_string(limits).unwrap_or_default()]
    }

    /// Parses the program's arguments (its name first). Returns `None` if they don't request a trial.
    #[must_use]
    pub fn parse(arguments: &[OsString]) -> Option<Self> {
        let [_, command, limits] = arguments else { return None };
        let limits = limits.to_str().filter(|text| command == COMMAND && !text.is_empty())?;
        Some(Self { limits: toml::from_str(limits).ok()? })
    }

    /// Returns the processor time that the process may take, in seconds.
    #[must_use]
    pub fn processor_seconds(&self) -> u64 {
        self.limits.call_timeout().as_secs().saturating_add(1 + READING)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_is_read_as_it_was_written() {
        let parse = |arguments: &[String]| {
            let arguments = std::iter::once("rlhost").chain(arguments.iter().map(String::as_str));
            TrialOrder::parse(&arguments.map(OsString::from).collect::<Vec<_>>())
        };
        let limits = PluginLimits { memory_mb: 7, call_timeout_s: f64::INFINITY, ..PluginLimits::default() };
        assert_eq!(parse(&TrialOrder::arguments(&limits)).unwrap().limits, limits);
        for other in [["compile-plugin", "memory_mb = 7"], [COMMAND, ""], [COMMAND, "memory_mb = \"x\""]] {
            assert!(parse(&other.map(str::to_owned)).is_none(), "{other:?}");
        }
    }
}
