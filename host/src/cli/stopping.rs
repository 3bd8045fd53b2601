//! Signals that ask a run to stop.

use super::{Failure, output};
use anyhow::anyhow;
#[cfg(unix)]
use signal_hook::consts::SIGUSR1;
use signal_hook::consts::{SIGINT, SIGTERM};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Polling interval for signals.
const NOTICED: Duration = Duration::from_millis(50);

/// Whether a run was asked to stop, whether it has begun, and whether the signal was confirmed.
#[derive(Clone, Default)]
pub(super) struct Stopping {
    asked: Arc<AtomicBool>,
    begun: Arc<AtomicBool>,
    confirmed: Arc<AtomicBool>,
}

impl Stopping {
    /// Listens for signals. The first one asks the run to stop and is confirmed in a line; the second ends the process at once.
    /// Before the run begins, the first one does that too, since there is nothing to save.
    pub(super) fn listen() -> Result<Self, Failure> {
        let this = Self::default();
        for signal in [SIGINT, SIGTERM] {
            signal_hook::flag::register_conditional_shutdown(signal, 128 + signal, this.asked.clone())
                .map_err(Failure::failed)?;
            signal_hook::flag::register(signal, this.asked.clone()).map_err(Failure::failed)?;
        }
        // mpirun forwards this one to its processes, while SIGINT makes it kill them after some time.
        #[cfg(unix)]
        signal_hook::flag::register(SIGUSR1, this.asked.clone()).map_err(Failure::failed)?;
        let watched = this.clone();
        let watch = std::thread::Builder::new().name("signals".into()).stack_size(256 << 10);
        watch.spawn(move || watched.confirm()).map_err(Failure::failed)?;
        Ok(this)
    }

    /// Marks the start of the first step. Returns the flag that asks the run to stop.
    pub(super) fn begin(&self) -> &AtomicBool {
        self.begun.store(true, Ordering::SeqCst);
        &self.asked
    }

    /// Confirms a signal that stopped the run, unless that is already done: a short step ends before anybody looks.
    pub(super) fn confirm_once(&self) {
        if self.asked.load(Ordering::SeqCst) && !self.confirmed.swap(true, Ordering::SeqCst) {
            tracing::info!("stopping after this step to save; Ctrl-C again stops at once");
        }
    }

    /// Waits for the first signal.
    fn confirm(&self) {
        while !self.asked.load(Ordering::SeqCst) {
            std::thread::sleep(NOTICED);
        }
        if self.begun.load(Ordering::SeqCst) {
            return self.confirm_once();
        }
        if crate::dist::World::speaks() {
            output::complain(&anyhow!("stopped before the first step; nothing was trained or saved"));
        }
        std::process::exit(3);
    }
}
