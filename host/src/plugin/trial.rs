//! Makes an instance of a compiled plugin in a separate process, whose memory the system limits. It stands behind the count in
//! `census.rs`: what an instance takes passes wasmtime's limiter only as far as it is memories and tables.
//!
//! Like the process that compiles, it is this program again, started as `rlhost try-plugin`. It reads the compiled plugin from standard
//! input. That an instance can't be made for another reason than memory is not its business: the process that wants the plugin will see.

use super::cache;
use super::census::Refusal;
use super::code::{Code, LARGEST_FILE};
use super::compiler::ended;
use super::engine::Engine;
use super::limits::Share;
use super::loaded::linked;
use super::sandbox::{Logged, MOST_HANDLES, Sandbox};
use super::{asking, world};
use crate::config::{Limits, files};
use std::ffi::OsString;
use std::io;
use std::process::ExitCode;
use std::time::Duration;
use wasmtime::Store;

/// The subcommand, hidden from help.
const COMMAND: &str = "try-plugin";

/// Memory that the process may take beyond what the plugin may, in bytes.
const SLACK: u64 = 64 << 20;

/// Seconds of processor time for reading the code.
const READING: u64 = 60;

/// Another process's order to make an instance of a plugin in this one.
pub struct TrialOrder {
    /// Memory of the instance, in bytes.
    each: u64,
    seconds: u64,
    table_elements: u32,
}

impl TrialOrder {
    /// Whether this system limits what memory a process writes to, without what it only reserves.
    pub(super) const IS_BOUNDED: bool = cfg!(target_os = "linux");

    /// Returns the arguments that [`TrialOrder::parse`] reads.
    pub(super) fn arguments(each: u64, seconds: u64, table_elements: u32) -> [String; 4] {
        [COMMAND.to_owned(), each.to_string(), seconds.to_string(), table_elements.to_string()]
    }

    /// Parses the program's arguments (its name first). Returns `None` if they don't ask for a trial.
    #[must_use]
    pub fn parse(arguments: &[OsString]) -> Option<Self> {
        let [_, command, each, seconds, table_elements] = arguments else { return None };
        let number = |given: &OsString| given.to_str()?.parse::<u64>().ok();
        let (each, seconds, table_elements) = (number(each)?, number(seconds)?, number(table_elements)?.try_into().ok()?);
        (command == COMMAND).then_some(Self { each, seconds, table_elements })
    }

    /// Returns the processor time that the process may take, in seconds.
    #[must_use]
    pub fn processor_seconds(&self) -> u64 {
        self.seconds.saturating_add(READING)
    }

    /// Makes an instance of the plugin on standard input. Calls `limit_memory` when the code has been read, with the bytes that the process
    /// may take from then on.
    pub fn carry_out(&self, limit_memory: impl FnOnce(u64) -> io::Result<()>) -> ExitCode {
        ended(self.instance(limit_memory))
    }

    fn instance(&self, limit_memory: impl FnOnce(u64) -> io::Result<()>) -> Result<(), Refusal> {
        let damaged = || Refusal::Damaged("the compiled plugin is damaged".to_owned());
        let failed = |e: &dyn std::fmt::Display| Refusal::TooMuch(e.to_string());
        let whole = files::all(io::stdin().lock(), LARGEST_FILE).map_err(|e| failed(&e))?;
        let code = Code::parse(whole).ok_or_else(damaged)?;
        let engine = Engine::new().map_err(|e| failed(&e))?;
        let component = cache::component(&engine.wasmtime, &code).ok_or_else(damaged)?;
        let mebibytes = self.each >> 20;
        let limits =
            Limits { memory_mb: mebibytes, total_memory_mb: mebibytes, table_elements: self.table_elements, ..Limits::default() };
        let requests = world::imports(&component, &engine.wasmtime, asking::INTERFACE);
        // Imports that are not offered are named where the plugin is wanted.
        let Ok(pre) = linked(&engine.linker, &component, requests) else { return Ok(()) };
        let mut sandbox = Sandbox::new("", &limits, Share::new(limits.total_memory()), Logged::default(), 0);
        if !sandbox.ceiling.take(code.fixed()) {
            return Ok(());
        }
        drop(code);
        limit_memory(self.each.saturating_add(SLACK)).map_err(|e| failed(&e))?;
        let mut store = Store::new(&engine.wasmtime, sandbox);
        store.set_max_component_handles(MOST_HANDLES);
        store.limiter(|sandbox| &mut sandbox.ceiling);
        store.set_epoch_deadline(engine.clock.until(engine.clock.after(Duration::from_secs(self.seconds))) + 1);
        match pre.instantiate(&mut store) {
            Err(error) if error.is::<wasmtime::OutOfMemory>() || format!("{error:#}").contains("Cannot allocate memory") => {
                Err(Refusal::TooMuch("out of memory".to_owned()))
            }
            _ => Ok(()),
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
        let order = parse(&TrialOrder::arguments(1 << 29, 60, 100_000)).unwrap();
        assert_eq!((order.each, order.seconds, order.table_elements), (1 << 29, 60, 100_000));
        assert!(parse(&["compile-plugin", "1", "2", "3"].map(str::to_owned)).is_none());
    }
}
