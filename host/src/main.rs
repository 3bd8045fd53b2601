//! The `rlhost` command.

use std::process::ExitCode;

/// Large tensors come and go with every operation; the system's allocator maps and clears each
/// anew.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    rlhost::ops::keep_freed_memory();
    rlhost::cli::run(std::env::args_os().collect())
}
