//! The capabilities of the terminal.

use ratatui_core::style::{Color, Modifier, Style};

/// The capabilities of the terminal. Colour is never the only indication of anything.
#[derive(Clone, Copy, Debug)]
pub struct TerminalTheme {
    /// Whether the terminal has colours.
    pub color: bool,
    /// Whether the terminal's font has Braille patterns, which draw finer curves.
    pub braille: bool,
}

impl TerminalTheme {
    pub(crate) fn title(self) -> Style {
        self.colored(Color::Cyan).add_modifier(Modifier::BOLD)
    }

    pub(crate) fn strong(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    pub(crate) fn dim(self) -> Style {
        Style::new().add_modifier(Modifier::DIM)
    }

    pub(crate) fn chosen(self) -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }

    pub(crate) fn good(self) -> Style {
        self.colored(Color::Green).add_modifier(Modifier::BOLD)
    }

    pub(crate) fn bad(self) -> Style {
        self.colored(Color::Red).add_modifier(Modifier::BOLD)
    }

    pub(crate) fn mark(self) -> Style {
        self.colored(Color::Yellow)
    }

    /// Returns the colour of a curve.
    pub(crate) fn curve(self) -> Color {
        if self.color { Color::Green } else { Color::Reset }
    }

    fn colored(self, color: Color) -> Style {
        if self.color { Style::new().fg(color) } else { Style::new() }
    }
}
