//! The processes of a sweep's runs, to which signals are forwarded.

use std::io;
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Polling interval for processes and signals.
const PROCESS_POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Signals that stop a sweep, with their names for `kill`. Each one is forwarded as often as it comes, so that a second one ends the runs
/// at once, as it would a single run.
#[cfg(unix)]
const SIGNALS: [(i32, &str); 3] =
    [(signal_hook::consts::SIGINT, "INT"), (signal_hook::consts::SIGTERM, "TERM"), (signal_hook::consts::SIGHUP, "HUP")];
#[cfg(not(unix))]
const SIGNALS: [(i32, &str); 2] = [(signal_hook::consts::SIGINT, "INT"), (signal_hook::consts::SIGTERM, "TERM")];

/// The running processes, each with the number of its run.
pub(super) struct SweepProcesses {
    running: Vec<(usize, Child)>,
    signals: [Arc<AtomicBool>; SIGNALS.len()],
    /// Whether a signal was received.
    is_stopping: bool,
}

impl SweepProcesses {
    /// Starts to listen for signals, which no longer end this process.
    pub(super) fn listen() -> io::Result<Self> {
        let signals: [Arc<AtomicBool>; SIGNALS.len()] = Default::default();
        for ((signal, _), flag) in SIGNALS.iter().zip(&signals) {
            signal_hook::flag::register(*signal, flag.clone())?;
        }
        Ok(Self { running: Vec::new(), signals, is_stopping: false })
    }

    /// Starts a process for a run.
    pub(super) fn start(&mut self, run: usize, command: &mut Command) -> io::Result<()> {
        // In the same group, the terminal would send Ctrl-C to it too, and two signals end a run at once.
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(command, 0);
        self.running.push((run, command.spawn()?));
        Ok(())
    }

    pub(super) fn running(&self) -> usize {
        self.running.len()
    }

    /// Forwards signals. Returns whether one was received.
    pub(super) fn is_stopping(&mut self) -> bool {
        for ((_, name), flag) in SIGNALS.iter().zip(&self.signals) {
            if flag.swap(false, Ordering::SeqCst) {
                self.is_stopping = true;
                // The children have not been waited for, so their process ids are still valid.
                self.running.iter().for_each(|(_, child)| send(name, child.id()));
            }
        }
        self.is_stopping
    }

    /// Waits for one of the processes to end, forwarding signals meanwhile. Returns its run and its exit status.
    pub(super) fn wait(&mut self) -> io::Result<(usize, ExitStatus)> {
        loop {
            self.is_stopping();
            for at in 0..self.running.len() {
                if let Some(status) = self.running[at].1.try_wait()? {
                    return Ok((self.running.swap_remove(at).0, status));
                }
            }
            std::thread::sleep(PROCESS_POLL_INTERVAL);
        }
    }
}

/// Sends a signal to a process with the shell's `kill`. If that fails, the process continues.
fn send(signal: &str, process: u32) {
    if cfg!(unix) {
        let sent = Command::new("sh").args(["-c", "kill -s \"$0\" \"$1\"", signal, &process.to_string()]).status();
        if !sent.as_ref().is_ok_and(ExitStatus::success) {
            tracing::warn!("can't pass the signal on to process {process}, which goes on");
        }
    }
}
