//! Creates an instance of a plugin in a separate process, where it can do no harm.

use super::cache;
use super::census::CompileRefusal;
use super::code::{CompiledCode, LARGEST_FILE};
use super::compiler::{NOT_INSTANTIATED, UNLINKED, exit_code, memory_of_one};
use super::engine::PluginEngine;
use super::limits::MOST_HANDLES;
use super::limits::MemoryShare;
use super::loaded_plugin::{cause, linked, with_output};
use super::log_line_counts::LogLineCounts;
use super::sandbox::Sandbox;
use super::trial::TrialOrder;
use super::{requests, world};
use crate::config::files;
use std::io::{self, Write};
use std::process::ExitCode;
use wasmtime::Store;

/// Memory that the process may take beyond the plugin's limit, in bytes.
const SLACK: u64 = 64 << 20;

/// The outcome of creating an instance.
enum InstantiationOutcome {
    Made,
    /// The plugin imports something that is not offered, or was counted as too large; both are detected before creating an instance.
    Unlinked,
    /// Reason why the instance could not be created.
    Unmade(String),
}

impl TrialOrder {
    /// Creates an instance of the plugin on standard input. Calls `limit_memory` once the code has been read, with the bytes that the
    /// process may take from then on.
    pub fn carry_out(&self, limit_memory: impl FnOnce(u64) -> io::Result<()>) -> ExitCode {
        match self.instance(limit_memory) {
            Ok(InstantiationOutcome::Made) => ExitCode::SUCCESS,
            Ok(InstantiationOutcome::Unlinked) => ExitCode::from(UNLINKED),
            Ok(InstantiationOutcome::Unmade(why)) => {
                // The exit code carries the result even if the text is lost.
                let _ = io::stderr().write_all(why.as_bytes());
                ExitCode::from(NOT_INSTANTIATED)
            }
            Err(refusal) => exit_code(Err(refusal)),
        }
    }

    fn instance(&self, limit_memory: impl FnOnce(u64) -> io::Result<()>) -> Result<InstantiationOutcome, CompileRefusal> {
        let damaged = || CompileRefusal::Damaged("the compiled plugin is damaged".to_owned());
        let failed = |e: &dyn std::fmt::Display| CompileRefusal::TooMuch(e.to_string());
        let whole = files::read_limited(io::stdin().lock(), LARGEST_FILE).map_err(|e| failed(&e))?;
        let code = CompiledCode::parse(whole).ok_or_else(damaged)?;
        let engine = PluginEngine::new().map_err(|e| failed(&e))?;
        let component = cache::component(&engine.wasmtime, &code).ok_or_else(damaged)?;
        let limits = &self.limits;
        let requests = world::imported(&component, &engine.wasmtime, &requests::INTERFACES).is_some();
        let Ok(pre) = linked(&engine.linker, &component, requests) else { return Ok(InstantiationOutcome::Unlinked) };
        let mut sandbox = Sandbox::new("", limits, MemoryShare::new(limits.total_memory()), LogLineCounts::default(), 0);
        if !sandbox.ceiling.take(code.fixed()) {
            return Ok(InstantiationOutcome::Unlinked);
        }
        drop(code);
        limit_memory(memory_of_one(limits).saturating_add(SLACK)).map_err(|e| failed(&e))?;
        let mut store = Store::new(&engine.wasmtime, sandbox);
        store.set_max_component_handles(MOST_HANDLES);
        store.limiter(|sandbox| &mut sandbox.ceiling);
        store.set_epoch_deadline(engine.clock.until(engine.clock.after(limits.call_timeout())) + 1);
        match pre.instantiate(&mut store) {
            Err(error) if error.is::<wasmtime::OutOfMemory>() || format!("{error:#}").contains("Cannot allocate memory") => {
                Err(CompileRefusal::TooMuch("out of memory".to_owned()))
            }
            Err(error) => {
                let cause = cause(limits, store.data(), &error);
                Ok(InstantiationOutcome::Unmade(with_output(cause, store.data_mut())))
            }
            Ok(_) => Ok(InstantiationOutcome::Made),
        }
    }
}
