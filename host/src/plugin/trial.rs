//! Makes an instance of a compiled plugin in a separate process, whose memory the system limits. It stands behind the count in
//! `census.rs`: what an instance takes passes wasmtime's limiter only as far as it is memories and tables.
//!
//! Like the process that compiles, it is this program again, started as `rlhost try-plugin`. It reads the compiled plugin from standard
//! input. Other failures are reported when the plugin is loaded.

use super::cache;
use super::census::Refusal;
use super::code::{Code, LARGEST_FILE};
use super::compiler::{UNLINKED, UNMADE, ended, memory_of_one};
use super::engine::Engine;
use super::limits::Share;
use super::loaded::{cause, linked, with_output};
use super::sandbox::{Logged, MOST_HANDLES, Sandbox};
use super::{asking, world};
use crate::config::{Limits, files};
use std::ffi::OsString;
use std::io::{self, Write};
use std::process::ExitCode;
use wasmtime::Store;

/// The subcommand, hidden from help.
const COMMAND: &str = "try-plugin";

/// Memory that the process may take beyond what the plugin may, in bytes.
const SLACK: u64 = 64 << 20;

/// Seconds of processor time for reading the code.
const READING: u64 = 60;

/// Another process's order to make an instance of a plugin in this one.
pub struct TrialOrder {
    /// The plugin's limits.
    limits: Limits,
}

/// What came of it.
enum Outcome {
    Made,
    /// What it imports is not offered, or it is counted as too large: both are found out before anything is made.
    Unlinked,
    /// Why it could not be made.
    Unmade(String),
}

impl TrialOrder {
    /// Whether this system limits what memory a process writes to, without what it only reserves.
    pub(super) const IS_BOUNDED: bool = cfg!(target_os = "linux");

    /// Returns the arguments that [`TrialOrder::parse`] reads.
    pub(super) fn arguments(limits: &Limits) -> [String; 2] {
        // Nothing in it can't be written. Without its limits, an order is refused.
        [COMMAND.to_owned(), toml::to_string(limits).unwrap_or_default()]
    }

    /// Parses the program's arguments (its name first). Returns `None` if they don't ask for a trial.
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

    /// Makes an instance of the plugin on standard input. Calls `limit_memory` when the code has been read, with the bytes that the process
    /// may take from then on.
    pub fn carry_out(&self, limit_memory: impl FnOnce(u64) -> io::Result<()>) -> ExitCode {
        match self.instance(limit_memory) {
            Ok(Outcome::Made) => ExitCode::SUCCESS,
            Ok(Outcome::Unlinked) => ExitCode::from(UNLINKED),
            Ok(Outcome::Unmade(why)) => {
                // The exit code says so even if the text is lost.
                let _ = io::stderr().write_all(why.as_bytes());
                ExitCode::from(UNMADE)
            }
            Err(refusal) => ended(Err(refusal)),
        }
    }

    fn instance(&self, limit_memory: impl FnOnce(u64) -> io::Result<()>) -> Result<Outcome, Refusal> {
        let damaged = || Refusal::Damaged("the compiled plugin is damaged".to_owned());
        let failed = |e: &dyn std::fmt::Display| Refusal::TooMuch(e.to_string());
        let whole = files::all(io::stdin().lock(), LARGEST_FILE).map_err(|e| failed(&e))?;
        let code = Code::parse(whole).ok_or_else(damaged)?;
        let engine = Engine::new().map_err(|e| failed(&e))?;
        let component = cache::component(&engine.wasmtime, &code).ok_or_else(damaged)?;
        let limits = &self.limits;
        let requests = world::imported(&component, &engine.wasmtime, &asking::INTERFACES).is_some();
        let Ok(pre) = linked(&engine.linker, &component, requests) else { return Ok(Outcome::Unlinked) };
        let mut sandbox = Sandbox::new("", limits, Share::new(limits.total_memory()), Logged::default(), 0);
        if !sandbox.ceiling.take(code.fixed()) {
            return Ok(Outcome::Unlinked);
        }
        drop(code);
        limit_memory(memory_of_one(limits).saturating_add(SLACK)).map_err(|e| failed(&e))?;
        let mut store = Store::new(&engine.wasmtime, sandbox);
        store.set_max_component_handles(MOST_HANDLES);
        store.limiter(|sandbox| &mut sandbox.ceiling);
        store.set_epoch_deadline(engine.clock.until(engine.clock.after(limits.call_timeout())) + 1);
        match pre.instantiate(&mut store) {
            Err(error) if error.is::<wasmtime::OutOfMemory>() || format!("{error:#}").contains("Cannot allocate memory") => {
                Err(Refusal::TooMuch("out of memory".to_owned()))
            }
            Err(error) => {
                let cause = cause(limits, store.data(), &error);
                Ok(Outcome::Unmade(with_output(cause, store.data_mut())))
            }
            Ok(_) => Ok(Outcome::Made),
        }
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
        let limits = Limits { memory_mb: 7, call_timeout_s: f64::INFINITY, ..Limits::default() };
        assert_eq!(parse(&TrialOrder::arguments(&limits)).unwrap().limits, limits);
        for other in [["compile-plugin", "memory_mb = 7"], [COMMAND, ""], [COMMAND, "memory_mb = \"x\""]] {
            assert!(parse(&other.map(str::to_owned)).is_none(), "{other:?}");
        }
    }
}
