//! The `rlhost` command.

use rlhost::config::on_own_stack;
use rlhost::plugin::{CompileOrder, TrialOrder};
use std::ffi::OsString;
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    // Another rlhost process runs this one to compile a plugin, isolated from its own memory.
    if let Some(order) = CompileOrder::parse(&arguments) {
        return match rlhost::ops::limit_process(order.memory, order.seconds) {
            Err(error) if cfg!(target_os = "linux") => {
                eprintln!("a process that compiles a plugin can't be limited: {error}");
                ExitCode::FAILURE
            }
            _ => on_own_stack(|| order.carry_out()),
        };
    }
    if let Some(order) = TrialOrder::parse(&arguments) {
        // Wasm instances reserve more address space than they use, so memory can't be limited here.
        return match rlhost::ops::limit_process(u64::MAX, order.processor_seconds()) {
            Err(error) if cfg!(target_os = "linux") => {
                eprintln!("a process that tries a plugin can't be limited: {error}");
                ExitCode::FAILURE
            }
            _ => on_own_stack(|| order.carry_out(rlhost::ops::limit_memory)),
        };
    }
    if let Err(error) = rlhost::ops::processor::CpuFeatures::cap() {
        eprintln!("error: {error}");
        return ExitCode::from(2);
    }
    rlhost::plugin::compile_in_subprocesses();
    rlhost::ops::keep_freed_memory();
    on_own_stack(|| rlhost::cli::run(arguments))
}
