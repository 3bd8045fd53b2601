//! Draws the titles of panels.

use ratatui_core::layout::{Constraint, Layout, Rect};
use ratatui_core::style::Style;
use ratatui_core::terminal::Frame;
use ratatui_core::text::{Line, Span};

/// Draws a panel's title, and further text to its right. Returns the area below.
pub(super) fn titled(frame: &mut Frame<'_>, area: Rect, title: Span<'_>, more: &str, dim: Style) -> Rect {
    let [top, below] = Layout::vertical([Constraint::Length(1), Constraint::Min(0)]).areas(area);
    let more = if more.is_empty() { String::new() } else { format!("  {more}") };
    let rule = "\u{2500}".repeat(usize::from(top.width));
    frame.render_widget(Line::from(vec![title, Span::styled(more, dim), Span::raw(" "), Span::styled(rule, dim)]), top);
    below
}
