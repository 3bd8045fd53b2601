//! The threads for arithmetic.

use super::failure::CommandFailure;
use crate::config::{BootstrapConfig, STACK};
use anyhow::Context;
use std::sync::OnceLock;

/// Sets the number of threads for all arithmetic, before its first use. A second call must give the same number.
pub(super) fn set_threads(threads: usize) -> anyhow::Result<()> {
    static SET: OnceLock<usize> = OnceLock::new();
    if SET.get() != Some(&threads) {
        let processors = std::thread::available_parallelism().map_or(threads, usize::from);
        if threads > MANY * processors {
            tracing::warn!(
                "num_threads is {threads}, but {processors} processors are available to this process; threads that wait for each other \
                 make it slower, not faster"
            );
        }
        rayon::ThreadPoolBuilder::new().num_threads(threads).stack_size(STACK).build_global()?;
        SET.get_or_init(|| threads);
    }
    Ok(())
}

/// Starts the arithmetic threads for a command without a setting for their number. If they started at their first use, they would panic
/// when the system has no room for them.
pub(super) fn start_threads() -> anyhow::Result<()> {
    let started = rayon::ThreadPoolBuilder::new().stack_size(STACK).build_global();
    started.context("can't start threads; limits on memory or threads (`ulimit -v`, `ulimit -u`) leave no room for them")
}

/// Threads per processor above which a warning is logged.
pub(super) const MANY: usize = 4;

/// Maximum number of threads that are set before the configuration is read; a higher number is refused together with the configuration.
pub(super) const MOST_THREADS: usize = 1024;

/// Sets the number of threads if a usable one is given. Compiling a plugin uses them.
pub(super) fn set_configured_threads(asked: &BootstrapConfig) -> Result<(), CommandFailure> {
    let threads = asked.num_threads.filter(|threads| (1..=MOST_THREADS).contains(threads));
    threads.map_or(Ok(()), set_threads).map_err(CommandFailure::from_error)
}
