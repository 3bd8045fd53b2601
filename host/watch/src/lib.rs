//! `rlhost watch`: one run in the terminal, while it trains or afterwards, and swaps of its plugins.
//!
//! [`watch`] takes turns: it reads what is new of the run's files (`watched_run`), draws if anything changed (`draw/`), and takes keys
//! (`keys`), which change what is shown (`view`). What swaps plugins is a [`WatchBackend`], which the command line implements with what
//! `rlhost swap` does. Everything from the run is outside text, made printable in `text` before it becomes part of a picture.

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

/// Time between two looks at the files, while nobody presses a key.
const LOOK: Duration = Duration::from_millis(250);

/// How long one look may read before keys are taken and what was read is drawn.
const PATIENCE: Duration = Duration::from_millis(60);

/// Shows the run in this folder until the user quits or `stopped` is set. The terminal is as it was before when this returns, also if it
/// panics.
///
/// # Errors
/// If the terminal can't be read or written.
pub fn watch(run: &Path, look: TerminalTheme, backend: impl WatchBackend, stopped: &AtomicBool) -> io::Result<()> {
    let mut view = View::new(run, look, backend);
    // There is something to see at once; a large run fills in.
    view.refresh(PATIENCE);
    let mut screen = Screen::open()?;
    screen.draw(|frame| draw::draw(frame, &mut view))?;
    while !stopped.load(Ordering::SeqCst) {
        let wait = if view.watched.is_read { LOOK } else { Duration::ZERO };
        let mut is_changed = false;
        if event::poll(wait)? {
            // All that are there, so that a pasted text is drawn once.
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
