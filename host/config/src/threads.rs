//! Stacks of the threads that call plugins.
//!
//! A plugin may use [`PLUGIN_STACK`] bytes of the calling thread's stack, and traps beyond that. So these threads have a stack of a fixed
//! size, which does not depend on `ulimit -s` or `RUST_MIN_STACK`.

use std::panic::resume_unwind;
use std::thread::{Builder, scope};

/// Stack that a plugin's functions may use, in bytes.
pub const PLUGIN_STACK: usize = 512 << 10;

/// Stack of a thread that calls plugins, in bytes; the rest is for the host's own functions.
pub const STACK: usize = 4 * PLUGIN_STACK;

/// Stack of the program's main work, in bytes.
const MAIN_STACK: usize = 8 << 20;

/// Runs the program on a thread with a stack of fixed size, and returns its result. Runs it on the current thread if the system has no room
/// for another.
///
/// # Panics
/// If `work` does.
pub fn on_own_stack<R: Send>(work: impl FnOnce() -> R + Send) -> R {
    let mut work = Some(work);
    let waiting = &mut work;
    let done = scope(|scope| {
        let thread = Builder::new().name("main".into()).stack_size(MAIN_STACK);
        let started = thread.spawn_scoped(scope, move || waiting.take().map(|work| work()));
        started.ok().and_then(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic)))
    });
    match (done, work) {
        (Some(result), _) => result,
        (None, Some(work)) => work(),
        (None, None) => unreachable!("work that was taken has a result"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_runs_once_on_a_thread_of_its_own() {
        let here = std::thread::current().id();
        let mut count = 0;
        assert_ne!(
            on_own_stack(|| {
                count += 1;
                std::thread::current().id()
            }),
            here
        );
        assert_eq!(count, 1);
    }
}
