//! Long output: on a terminal through the user's pager, otherwise to standard output. Output stops when the reader quits.

use super::output;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Destination of long output.
pub(super) struct Pager {
    to: BufWriter<Box<dyn Write>>,
    child: Option<Child>,
    /// Whether the reader quit.
    is_done: bool,
    interrupted: Arc<AtomicBool>,
}

impl Pager {
    /// Starts `PAGER`, or `less`, if it is `wanted` and standard output is a terminal; an empty `PAGER` means none.
    pub(super) fn start(wanted: bool) -> Self {
        let interrupted = Arc::<AtomicBool>::default();
        let child = if wanted && io::stdout().is_terminal() { pager() } else { None };
        let (to, child): (Box<dyn Write>, _) = match child {
            Some((child, to)) => {
                // Ctrl-C is for the pager, and this process must outlive it.
                let _ = signal_hook::flag::register(signal_hook::consts::SIGINT, interrupted.clone());
                (to, Some(child))
            }
            None => (Box::new(io::stdout()), None),
        };
        Self { to: BufWriter::with_capacity(1 << 16, to), child, is_done: false, interrupted }
    }

    /// Writes a line unchanged. Returns whether the reader is still there.
    pub(super) fn line(&mut self, line: &[u8]) -> bool {
        self.is_done |= self.interrupted.load(Ordering::SeqCst);
        if !self.is_done {
            let written = self.to.write_all(line).and_then(|()| self.to.write_all(b"\n"));
            self.check(written);
        }
        !self.is_done
    }

    fn check(&mut self, written: io::Result<()>) {
        if let Err(error) = written {
            self.is_done = true;
            if self.child.is_none() {
                output::note(Err(error));
            }
        }
    }

    /// Writes buffered text, and waits for the pager.
    pub(super) fn finish(mut self) {
        if !self.is_done {
            let written = self.to.flush();
            self.check(written);
        }
        let Self { to, child, .. } = self;
        // Closes the pager's input. The buffer is empty, or writing it failed.
        drop(to.into_parts());
        if let Some(mut child) = child {
            let _ = child.wait();
        }
    }
}

/// Starts the pager. Returns it with its input; `None` if it can't be started.
fn pager() -> Option<(Child, Box<dyn Write>)> {
    let set = std::env::var_os("PAGER");
    let mut command = match &set {
        Some(command) if command.is_empty() => return None,
        Some(command) if cfg!(unix) => {
            let mut shell = Command::new("sh");
            shell.arg("-c").arg(command);
            shell
        }
        Some(command) => Command::new(command),
        None => Command::new("less"),
    };
    // Git's settings: exit at once if everything fits on the screen, show colours, and don't clear the screen at the end.
    for (name, value) in [("LESS", "FRX"), ("LESSCHARSET", "utf-8")] {
        if std::env::var_os(name).is_none() {
            command.env(name, value);
        }
    }
    let mut child = command.stdin(Stdio::piped()).spawn().ok()?;
    let input = child.stdin.take()?;
    Some((child, Box::new(input)))
}
