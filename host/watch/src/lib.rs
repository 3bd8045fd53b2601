//! `rlhost watch`: shows one run in the terminal, while it trains or afterwards, and swaps its plugins.
//!
//! [`watch`] is a loop: it reads new lines of the run's files (`watched_run`), draws if anything changed (`draw/`), and handles keys
//! (`keys`), which change the view (`view`). A [`WatchBackend`] swaps plugins; the command line implements it with the code of `rlhost
//! swap`. All text from the run is untrusted; `text` makes it printable before it is drawn.

mod backend;
mod browser;
mod draw;
mod keys;
mod pager;
mod screen;
mod swap_dialog;
#[cfg(test)]
mod tests;
mod text;
mod theme;
mod view;
mod watched_run;

pub use backend::{SwapReply, WatchBackend};
pub use theme::TerminalTheme;

use ratatui_crossterm::crossterm::event::{self, Event, KeyEventKind};
use rlhost_config as config;
use rlhost_records::run;
use screen::Screen;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use view::{KeyEffect, View};

/// Interval between two reads of the files while no key is pressed.
const LOOK: Duration = Duration::from_millis(250);

/// Maximum time of one read before keys are handled and the new data is drawn.
const PATIENCE: Duration = Duration::from_millis(60);

/// Shows the run in this folder until the user quits or `stopped` is set. Restores the terminal before returning, also on a panic.
///
/// # Errors
/// If the terminal can't be read or written.
pub fn watch(run: &Path, look: TerminalTheme, backend: impl WatchBackend, stopped: &AtomicBool) -> io::Result<()> {
    let mut view = View::new(run, look, backend);
    // Shows something at once; a large run is read in several rounds.
    view.refresh(PATIENCE);
    let mut screen = Screen::open()?;
    screen.draw(|frame| draw::draw(frame, &mut view))?;
    while !stopped.load(Ordering::SeqCst) {
        let wait = if view.watched.is_read { LOOK } else { Duration::ZERO };
        let mut is_changed = false;
        if event::poll(wait)? {
            // All pending keys, so that a pasted text is drawn once.
            loop {
                match event::read()? {
                    Event::Key(key) if key.kind != KeyEventKind::Release => {
                        if view.press(key) == KeyEffect::Quit {
                            return Ok(());
                        }
                        is_changed = true;
                    }
                    Event::Resize(..) => is_changed = true,
                    _ => {}
                }
                if !event::poll(Duration::ZERO)? {
                    break;
                }
            }
        }
        is_changed |= view.refresh(PATIENCE);
        if is_changed {
            screen.draw(|frame| draw::draw(frame, &mut view))?;
        }
    }
    Ok(())
}
