//! The terminal's screen, which is restored afterwards.

use ratatui_core::terminal::{Frame, Terminal};
use ratatui_crossterm::CrosstermBackend;
use ratatui_crossterm::crossterm::cursor::Show;
use ratatui_crossterm::crossterm::execute;
use ratatui_crossterm::crossterm::terminal::{EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode};
use std::io::{self, Stdout};
use std::panic;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// Whether the screen is taken over.
static OPEN: AtomicBool = AtomicBool::new(false);

/// The screen of the terminal. Dropping it restores the previous contents.
pub(crate) struct Screen(Terminal<CrosstermBackend<Stdout>>);

impl Screen {
    /// Takes over the screen.
    ///
    /// # Errors
    /// If the terminal does not support that.
    pub fn open() -> io::Result<Self> {
        restore_on_panic();
        OPEN.store(true, Ordering::SeqCst);
        let opened = enable_raw_mode()
            .and_then(|()| execute!(io::stdout(), EnterAlternateScreen))
            .and_then(|()| Terminal::new(CrosstermBackend::new(io::stdout())));
        if opened.is_err() {
            restore();
        }
        Ok(Self(opened?))
    }

    /// Draws a frame.
    ///
    /// # Errors
    /// If the terminal can't be written.
    pub fn draw(&mut self, picture: impl FnOnce(&mut Frame<'_>)) -> io::Result<()> {
        self.0.draw(picture).map(drop)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        restore();
    }
}

/// Restores the screen, once.
fn restore() {
    if OPEN.swap(false, Ordering::SeqCst) {
        // If the terminal is gone, there is nothing to restore.
        let _ = disable_raw_mode();
        let _ = execute!(io::stdout(), LeaveAlternateScreen, Show);
    }
}

/// Restores the screen before a panic of this thread is reported, since the report would be invisible otherwise. Another thread's report is
/// suppressed, because it would be drawn over the frame; whoever waits for that thread reports its end.
fn restore_on_panic() {
    static ONCE: Once = Once::new();
    let own = thread::current().id();
    ONCE.call_once(|| {
        let report = panic::take_hook();
        panic::set_hook(Box::new(move |panic| {
            if thread::current().id() == own {
                restore();
            }
            if !OPEN.load(Ordering::SeqCst) {
                report(panic);
            }
        }));
    });
}
