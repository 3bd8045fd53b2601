//! Time limits of calls. A limit covers everything that belongs to a call: creating the instance, its start functions, configuring it,
//! restoring its state, and the call itself. If a limit fails, a watchdog detects the hanging call.
//!
//! Time is counted in ticks of this process's threads, so no time passes while the process is stopped (Ctrl-Z).

use std::collections::BTreeMap;
use std::io::{Error, Result};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Resolution of time limits.
const TICK: Duration = Duration::from_millis(10);

/// Interval between the watchdog's checks.
const LOOK: Duration = Duration::from_secs(1);

/// Number of watchdog checks added to twice a call's limit before the call is overdue.
const GRACE: u64 = 10;

/// Ticks since the engine started.
#[derive(Clone, Default)]
pub(super) struct EngineClock(Arc<AtomicU64>);

impl EngineClock {
    /// Ticks on a separate thread for as long as `tick` returns true.
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

    /// Returns the deadline this far from now.
    pub(super) fn after(&self, time: Duration) -> Deadline {
        self.in_ticks(Self::ticks(time))
    }

    /// Returns the deadline this many ticks from now.
    pub(super) fn in_ticks(&self, ticks: u64) -> Deadline {
        Deadline(self.now().saturating_add(ticks))
    }

    /// Converts a duration to ticks.
    pub(super) fn ticks(time: Duration) -> u64 {
        in_steps(time, TICK)
    }

    /// Returns the number of ticks since the engine started.
    pub(super) fn now(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Returns the ticks until a deadline, 0 once it has passed.
    pub(super) fn until(&self, deadline: Deadline) -> u64 {
        deadline.0.saturating_sub(self.now())
    }
}

/// Tick by which a call must have returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Deadline(u64);

/// Converts a time to steps of a clock, at least one.
fn in_steps(time: Duration, step: Duration) -> u64 {
    (time.as_secs_f64() / step.as_secs_f64()).ceil().clamp(1.0, 1e12) as u64
}

/// A call in progress.
struct OngoingCall {
    what: String,
    /// Number of the watchdog's check at which the call is overdue.
    until: u64,
    /// Whether the run can continue without the call.
    in_background: bool,
}

/// Watches calls from outside, in case a call's own limits fail.
#[derive(Clone, Default)]
pub(super) struct CallWatchdog(Arc<Mutex<OngoingCalls>>);

#[derive(Default)]
struct OngoingCalls {
    looks: u64,
    next: u64,
    under_way: BTreeMap<u64, OngoingCall>,
}

/// Removes a call's entry when dropped.
pub(super) struct CallWatchGuard {
    watchdog: CallWatchdog,
    number: u64,
}

impl Drop for CallWatchGuard {
    fn drop(&mut self) {
        self.watchdog.with(|calls| calls.under_way.remove(&self.number));
    }
}

impl CallWatchdog {
    fn with<R>(&self, f: impl FnOnce(&mut OngoingCalls) -> R) -> R {
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Watches a call until the returned value is dropped. It is overdue after twice its limit plus ten seconds.
    pub(super) fn watch(&self, what: String, limit: Duration, beside: bool) -> CallWatchGuard {
        let number = self.with(|calls| {
            let until = calls.looks.saturating_add(in_steps(limit.saturating_mul(2), LOOK)).saturating_add(GRACE);
            calls.next += 1;
            calls.under_way.insert(calls.next, OngoingCall { what, until, in_background: beside });
            calls.next
        });
        CallWatchGuard { watchdog: self.clone(), number }
    }

    /// Checks once. Returns newly overdue calls and whether the run can continue without them.
    fn look(&self) -> Vec<(String, bool)> {
        self.with(|calls| {
            calls.looks += 1;
            let overdue = calls.under_way.extract_if(.., |_, call| call.until <= calls.looks);
            overdue.map(|(_, call)| (call.what, call.in_background)).collect()
        })
    }

    /// Checks calls from a separate thread. A thread can't be killed: a hanging call in the background is abandoned; a call that the run
    /// waits for ends the process, and the last checkpoint remains valid.
    pub(super) fn begin(&self) -> Result<()> {
        let calls = Arc::downgrade(&self.0);
        let work = move || {
            while let Some(calls) = calls.upgrade() {
                for (what, beside) in Self(calls).look() {
                    if beside {
                        tracing::error!(
                            "{what} exceeds its time limit and can't be stopped; changed plugins are no longer noticed"
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

/// Ends the process with a message, even if the message can't be written.
fn end_process(what: &str) {
    let line = format!("error: {what} exceeds its time limit and can't be stopped; the run's last checkpoint remains valid");
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
        let watchdog = CallWatchdog::default();
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
        let clock = EngineClock::default();
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
