//! Signals that ask a run to stop.

use super::failure::CommandFailure;
use super::{output, resume_advice};
use anyhow::anyhow;
use signal_hook::consts::{SIGINT, SIGTERM};
#[cfg(unix)]
use signal_hook::consts::{SIGUSR1, SIGUSR2, SIGXCPU};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Polling interval for signals.
const SIGNAL_POLL_INTERVAL: Duration = Duration::from_millis(50);

/// A running run: its folder, and the number of completed steps.
type RunInProgress = (PathBuf, Arc<AtomicU64>);

/// Whether a run was asked to stop, which run has begun, and whether the signal was confirmed.
#[derive(Clone, Default)]
pub(super) struct StopSignals {
    requested: Arc<AtomicBool>,
    active_run: Arc<OnceLock<RunInProgress>>,
    confirmed: Arc<AtomicBool>,
}

impl StopSignals {
    /// Listens for signals. The first one asks the run to stop and is confirmed in a line; the second says what is lost and ends the
    /// process; a third ends it at once, if the second takes long. Before the run begins, the first one ends it too, since there is nothing
    /// to save.
    pub(super) fn listen() -> Result<Self, CommandFailure> {
        let this = Self::default();
        let is_ending = Arc::<AtomicBool>::default();
        let mut seen = Vec::new();
        for signal in [SIGINT, SIGTERM] {
            let new = Arc::<AtomicBool>::default();
            signal_hook::flag::register_conditional_shutdown(signal, 128 + signal, is_ending.clone())
                .map_err(CommandFailure::failed)?;
            for flag in [&this.requested, &new] {
                signal_hook::flag::register(signal, flag.clone()).map_err(CommandFailure::failed)?;
            }
            seen.push((signal, new));
        }
        // When a terminal closes, both the terminal and the shell send SIGHUP to jobs. The second signal must not end the run while it
        // stops.
        #[cfg(unix)]
        if hangups_end_it() {
            signal_hook::flag::register(signal_hook::consts::SIGHUP, this.requested.clone()).map_err(CommandFailure::failed)?;
        }
        // mpirun forwards SIGUSR1 and SIGUSR2 to its processes, while on SIGINT it kills them after some time. A limit on processor time
        // (`ulimit -S -t`) sends SIGXCPU every second, which must not end the run while it stops.
        #[cfg(unix)]
        for signal in [SIGUSR1, SIGUSR2, SIGXCPU] {
            signal_hook::flag::register(signal, this.requested.clone()).map_err(CommandFailure::failed)?;
        }
        let watched = this.clone();
        let watch = std::thread::Builder::new().name("signals".into()).stack_size(256 << 10);
        watch.spawn(move || watched.watch(&seen, &is_ending)).map_err(CommandFailure::failed)?;
        Ok(this)
    }

    /// Marks the start of the first step of the run in this folder. Returns the flag that asks the run to stop.
    pub(super) fn begin(&self, folder: &Path, steps: Arc<AtomicU64>) -> &AtomicBool {
        self.active_run.get_or_init(|| (folder.to_owned(), steps));
        &self.requested
    }

    /// Confirms the signal that stopped the run, unless `watch` already did: a short step may end between two polls.
    pub(super) fn confirm_once(&self) {
        if self.requested.load(Ordering::SeqCst) && !self.confirmed.swap(true, Ordering::SeqCst) {
            tracing::info!("stopping after this step to save; Ctrl-C again stops at once");
        }
    }

    /// Waits for the first signal, and then for a second SIGINT or SIGTERM.
    fn watch(&self, seen: &[(i32, Arc<AtomicBool>)], is_ending: &AtomicBool) {
        while !self.requested.load(Ordering::SeqCst) {
            std::thread::sleep(SIGNAL_POLL_INTERVAL);
        }
        self.confirm();
        // The first signal may have been one that is not in `seen`.
        let mut had = seen.iter().any(|(_, new)| new.swap(false, Ordering::SeqCst));
        loop {
            for (signal, new) in seen {
                if new.swap(false, Ordering::SeqCst) && std::mem::replace(&mut had, true) {
                    is_ending.store(true, Ordering::SeqCst);
                    self.end_at_once(*signal);
                }
            }
            std::thread::sleep(SIGNAL_POLL_INTERVAL);
        }
    }

    /// Says what is lost, and ends the process.
    fn end_at_once(&self, signal: i32) {
        if let Some((folder, steps)) = self.active_run.get().filter(|_| crate::dist::World::prints_output()) {
            tracing::warn!("stopped at once: {}", resume_advice::lost(folder, steps.load(Ordering::Relaxed)));
        }
        signal_hook::low_level::exit(128 + signal);
    }

    /// Confirms the first signal, or ends a process whose run has not begun.
    fn confirm(&self) {
        if self.active_run.get().is_some() {
            return self.confirm_once();
        }
        // Launchers stop the other processes of a run when one has failed.
        if output::has_complained() {
            return;
        }
        super::display::end();
        if crate::dist::World::prints_output() {
            output::complain(&anyhow!("stopped before the first step; nothing was trained or saved"));
        }
        std::process::exit(3);
    }
}

/// Returns whether a hangup would end this process (nohup makes it ignore hangups). Only Linux provides this; elsewhere the result is
/// false.
#[cfg(unix)]
fn hangups_end_it() -> bool {
    // The lowest bit says whether SIGHUP is ignored. Without this file, SIGHUP keeps its default action.
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & 1 == 0)
}

/// Prevents a limit on file sizes (`ulimit -f`) from ending the process before the failed write is reported.
pub(super) fn report_large_files() {
    // If this fails, the process ends as it would have.
    #[cfg(unix)]
    drop(signal_hook::flag::register(signal_hook::consts::SIGXFSZ, Arc::default()));
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn what_schedulers_and_limits_send_asks_to_stop_however_often() {
        let stopping = StopSignals::listen().ok().unwrap();
        // Without a run, there is nothing to save, and the process would end.
        let asked = stopping.begin(Path::new("run"), Arc::default());
        for signal in [SIGUSR1, SIGUSR2, SIGXCPU] {
            asked.store(false, Ordering::SeqCst);
            for _ in 0..2 {
                signal_hook::low_level::raise(signal).unwrap();
                assert!(asked.load(Ordering::SeqCst), "{signal}");
            }
        }
    }
}
