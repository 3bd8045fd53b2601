//! Makes an instance of a plugin in a process of its own, where that can do no harm.

use super::cache;
use super::census::Refusal;
use super::code::{Code, LARGEST_FILE};
use super::compiler::{UNLINKED, UNMADE, ended, memory_of_one};
use super::engine::Engine;
use super::limits::MOST_HANDLES;
use super::limits::Share;
use super::loaded::{cause, linked, with_output};
use super::logged::Logged;
use super::sandbox::Sandbox;
use super::trial::TrialOrder;
use super::{asking, world};
use crate::config::files;
use std::io::{self, Write};
use std::process::ExitCode;
use wasmtime::Store;

/// Memory that the process may take beyond what the plugin may, in bytes.
const SLACK: u64 = 64 << 20;

/// What came of it.
enum Outcome {
    Made,
    /// What it imports is not offered, or it is counted as too large: both are found out before anything is made.
    Unlinked,
    /// Why it could not be made.
    Unmade(String),
}

impl TrialOrder {
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
