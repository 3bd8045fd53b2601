//! What the terminal can show.

use ratatui_core::style::{Color, Modifier, Style};

/// What the terminal can show. Nothing is said by colour alone.
#[derive(Clone, Copy, Debug)]
pub struct TerminalTheme {
    /// Whether there are colours.
    pub color: bool,
    /// Whether its font has the patterns of Braille, which draw finer curves.
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

    /// The colour of a curve.
    pub(crate) fn curve(self) -> Color {
        if self.color { Color::Green } else { Color::Reset }
    }

    fn colored(self, color: Color) -> Style {
        if self.color { Style::new().fg(color) } else { Style::new() }
    }
}
