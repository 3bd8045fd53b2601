//! The `rlhost` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    rlhost::ops::keep_freed_memory();
    rlhost::cli::run(std::env::args_os().collect())
}
