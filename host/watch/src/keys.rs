//! Handles keys.

use crate::swap_dialog::SwapDialog;
use crate::view::{Dialog, KeyEffect, Panel, View};
use ratatui_crossterm::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

/// Number of completions and events by which the page keys move.
const PAGE: i64 = 10;

/// Keys with their effects, as shown in the help.
pub(crate) const KEYS: [(&str, &str); 10] = [
    ("left right, Tab", "other metrics"),
    ("up down, PgUp PgDn", "older and newer completions"),
    ("Home End", "newest, oldest"),
    ("Enter", "the whole completion"),
    ("1 2 3 4", "one panel alone: curves, completions, plugins, events"),
    ("0, Esc", "all panels; leaves what is open"),
    ("s", "swap a plugin"),
    ("?", "this help"),
    ("q, Ctrl-C", "quit; the run goes on"),
    ("S, R on curves", "a plugin was swapped, rolled back"),
];

impl View {
    /// Handles a key.
    pub fn press(&mut self, key: KeyEvent) -> KeyEffect {
        // Both modifiers together are AltGr on some keyboards.
        let with_control = key.modifiers.contains(KeyModifiers::CONTROL) && !key.modifiers.contains(KeyModifiers::ALT);
        if with_control && key.code == KeyCode::Char('c') {
            return KeyEffect::Quit;
        }
        let is_typing = matches!(self.dialog, Dialog::Swap(SwapDialog::Typing { .. }));
        if key.code == KeyCode::Char('q') && !is_typing {
            return KeyEffect::Quit;
        }
        match self.dialog {
            Dialog::None => self.press_in_panels(key.code),
            Dialog::Help => self.dialog = Dialog::None,
            Dialog::Completion(_) => self.press_in_opened(key.code),
            Dialog::Swap(_) => self.press_in_swap(key.code, with_control),
        }
        KeyEffect::Stay
    }

    fn press_in_panels(&mut self, key: KeyCode) {
        let only = |panel: Panel| if self.only == Some(panel) { None } else { Some(panel) };
        match key {
            KeyCode::Char('?' | 'h') | KeyCode::F(1) => self.dialog = Dialog::Help,
            KeyCode::Char('s') => self.begin_swap(),
            KeyCode::Char('1') => self.only = only(Panel::Curves),
            KeyCode::Char('2') => self.only = only(Panel::Completions),
            KeyCode::Char('3') => self.only = only(Panel::Plugins),
            KeyCode::Char('4') => self.only = only(Panel::Events),
            KeyCode::Char('0') | KeyCode::Esc => self.only = None,
            KeyCode::Right | KeyCode::Tab => self.turn(1),
            KeyCode::Left | KeyCode::BackTab => self.turn(-1),
            KeyCode::Enter if self.only != Some(Panel::Events) => self.open(),
            // Events have the newest at the bottom.
            _ if self.only == Some(Panel::Events) => self.scroll_events(-distance(key).unwrap_or(0)),
            _ => {
                let all = self.completions();
                self.browsing.go(distance(key).unwrap_or(0), all);
            }
        }
    }

    fn press_in_opened(&mut self, key: KeyCode) {
        let all = self.completions();
        match (&mut self.dialog, key) {
            (_, KeyCode::Esc | KeyCode::Enter) => self.dialog = Dialog::None,
            (_, KeyCode::Left | KeyCode::Right) => {
                self.browsing.go(if key == KeyCode::Left { -1 } else { 1 }, all);
                self.open();
            }
            (Dialog::Completion(opened), KeyCode::PageUp) => opened.scroll(-opened.page()),
            (Dialog::Completion(opened), KeyCode::PageDown | KeyCode::Char(' ')) => opened.scroll(opened.page()),
            (Dialog::Completion(opened), _) => opened.scroll(distance(key).unwrap_or(0)),
            _ => {}
        }
    }

    fn press_in_swap(&mut self, key: KeyCode, with_control: bool) {
        match (&mut self.dialog, key) {
            (_, KeyCode::Esc) => self.dialog = Dialog::None,
            (_, KeyCode::Enter) => self.go_on_with_swap(),
            (Dialog::Swap(swapping), KeyCode::Backspace) => swapping.erase(false),
            (Dialog::Swap(swapping), KeyCode::Char('u')) if with_control => swapping.erase(true),
            (Dialog::Swap(swapping), KeyCode::Char(c)) if !with_control => swapping.write(c),
            (Dialog::Swap(swapping), _) => swapping.go(distance(key).unwrap_or(0)),
            _ => {}
        }
    }
}

/// Returns how far down a list a key moves.
fn distance(key: KeyCode) -> Option<i64> {
    match key {
        KeyCode::Up | KeyCode::Char('k') => Some(-1),
        KeyCode::Down | KeyCode::Char('j') => Some(1),
        KeyCode::PageUp => Some(-PAGE),
        KeyCode::PageDown => Some(PAGE),
        KeyCode::Home => Some(-i64::MAX),
        KeyCode::End => Some(i64::MAX),
        _ => None,
    }
}
