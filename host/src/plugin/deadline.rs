//! The time of a call, which everything that belongs to it shares: making the instance, its start functions, configuring it,
//! giving it its state, and the call itself. And a look from outside, for the case that this fails.
//!
//! Time is counted in ticks of threads of this process, so that none passes while the process is stopped (Ctrl-Z).

use std::collections::BTreeMap;
use std::io::{Error, Result};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Resolution of time limits.
const TICK: Duration = Duration::from_millis(10);

/// How often the watchdog looks at calls.
const LOOK: Duration = Duration::from_secs(1);

/// Looks after which a call is overdue, beyond those in twice its limit.
const GRACE: u64 = 10;

/// Ticks since the engine began.
#[derive(Clone, Default)]
pub(super) struct Clock(Arc<AtomicU64>);

impl Clock {
    /// Ticks from now on, on a thread of its own, for as long as `tick` says so.
    pub(super) fn begin(&self, tick: impl Fn() -> bool + Send + 'static) -> Result<()> {
        let ticks = self.0.clone();
        let work = move || {
            while tick() {
                ticks.fetch_add(1, Ordering::Relaxed);
                std::thread::sleep(TICK);
            }
        };
        std::thread::Builder::new().name("plugin-clock".into()).spawn(work).map(drop)
    }

    /// The end of a time that begins now.
    pub(super) fn after(&self, time: Duration) -> Deadline {
        Deadline(self.0.load(Ordering::Relaxed).saturating_add(in_steps(time, TICK)))
    }

    /// Ticks until then; 0 when it is over.
    pub(super) fn until(&self, deadline: Deadline) -> u64 {
        deadline.0.saturating_sub(self.0.load(Ordering::Relaxed))
    }
}

/// When a call must be over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Deadline(u64);

/// A time in steps of a clock, at least one.
fn in_steps(time: Duration, step: Duration) -> u64 {
    (time.as_secs_f64() / step.as_secs_f64()).ceil().clamp(1.0, 1e12) as u64
}

/// A call that is under way.
struct UnderWay {
    what: String,
    /// The look that finds it overdue.
    until: u64,
    /// Whether the run can do without it.
    beside: bool,
}

/// The calls under way. What bounds a call works from inside it; this is the look from outside, for the case that it fails.
#[derive(Clone, Default)]
pub(super) struct Watchdog(Arc<Mutex<Calls>>);

#[derive(Default)]
struct Calls {
    looks: u64,
    next: u64,
    under_way: BTreeMap<u64, UnderWay>,
}

/// A call's entry, for as long as it takes.
pub(super) struct Watched {
    watchdog: Watchdog,
    number: u64,
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.watchdog.with(|calls| calls.under_way.remove(&self.number));
    }
}

impl Watchdog {
    fn with<R>(&self, f: impl FnOnce(&mut Calls) -> R) -> R {
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Watches a call until what this gives is dropped. It is overdue after twice its limit and ten seconds.
    pub(super) fn watch(&self, what: String, limit: Duration, beside: bool) -> Watched {
        let number = self.with(|calls| {
            let until = calls.looks.saturating_add(in_steps(limit.saturating_mul(2), LOOK)).saturating_add(GRACE);
            calls.next += 1;
            calls.under_way.insert(calls.next, UnderWay { what, until, beside });
            calls.next
        });
        Watched { watchdog: self.clone(), number }
    }

    /// Looks once, and gives what is overdue since, and whether the run can do without it.
    fn look(&self) -> Vec<(String, bool)> {
        self.with(|calls| {
            calls.looks += 1;
            let overdue = calls.under_way.extract_if(.., |_, call| call.until <= calls.looks);
            overdue.map(|(_, call)| (call.what, call.beside)).collect()
        })
    }

    /// Looks at the calls from a thread of its own. A thread can't be ended from outside: a call that hangs beside the run
    /// is left to itself, and one that the run waits for ends the process, whose last checkpoint holds.
    pub(super) fn begin(&self) -> Result<()> {
        let calls = Arc::downgrade(&self.0);
        let work = move || {
            while let Some(calls) = calls.upgrade() {
                for (what, beside) in Self(calls).look() {
                    if beside {
                        tracing::error!(
                            "{what} goes on beyond its limit and can't be ended; changed plugins are not seen any more"
                        );
                    } else {
                        end_process(&what);
                    }
                }
                std::thread::sleep(LOOK);
            }
        };
        std::thread::Builder::new().name("plugin-watchdog".into()).spawn(work).map(drop).map_err(Error::other)
    }
}

/// Ends the process with a line, even if nobody can write that.
fn end_process(what: &str) {
    let line = format!("error: {what} goes on beyond its limit and can't be ended; the run's last checkpoint holds");
    let (sender, written) = channel();
    std::thread::spawn(move || {
        eprintln!("{line}");
        let _ = sender.send(());
    });
    let _ = written.recv_timeout(LOOK);
    std::process::exit(1);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_told_of_once_when_it_is_overdue_and_never_when_it_ended() {
        let watchdog = Watchdog::default();
        let limit = Duration::from_secs(5);
        let hung = watchdog.watch("a".into(), limit, true);
        drop(watchdog.watch("b".into(), limit, false));
        let after = |looks: u64| (0..looks).flat_map(|_| watchdog.look()).collect::<Vec<_>>();
        assert_eq!(after(19), []);
        assert_eq!(after(1), [("a".to_owned(), true)]);
        assert_eq!(after(99), []);
        drop(hung);
        assert!(watchdog.with(|calls| calls.under_way.is_empty()));
    }

    #[test]
    fn time_passes_by_ticks() {
        let clock = Clock::default();
        let deadline = clock.after(Duration::from_millis(25));
        assert_eq!(clock.until(deadline), 3);
        clock.0.fetch_add(2, Ordering::Relaxed);
        assert_eq!(clock.until(deadline), 1);
        clock.0.fetch_add(2, Ordering::Relaxed);
        assert_eq!(clock.until(deadline), 0);
        assert_eq!(clock.until(clock.after(Duration::ZERO)), 1);
        assert!(clock.after(Duration::MAX) > deadline);
    }
}
