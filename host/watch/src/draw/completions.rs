//! Draws the newest completions, or one of them in full.

use super::title::titled;
use crate::config::words::count;
use crate::pager::CompletionPager;
use crate::theme::TerminalTheme;
use crate::view::View;
use ratatui_core::layout::Rect;
use ratatui_core::style::Style;
use ratatui_core::terminal::Frame;
use ratatui_core::text::{Line, Span};

/// Number of rows of a completion in the list.
pub(super) const ROWS: u16 = 3;

/// Draws the newest completions, or older ones if one of those is selected.
pub(super) fn draw(frame: &mut Frame<'_>, area: Rect, view: &mut View) {
    if area.is_empty() {
        return;
    }
    let (look, all) = (view.theme, view.completions());
    let chosen = view.browsing.chosen(all);
    let more = chosen.map(|chosen| format!("{} of {}", count(chosen as u64 + 1), count(all as u64))).unwrap_or_default();
    let below = titled(frame, area, Span::styled("completions", look.title()), &more, look.dim());
    let Some(chosen) = chosen else {
        let said = if view.watched.is_at_work() { "None yet." } else { "The run has recorded none." };
        return frame.render_widget(Line::styled(said, look.dim()), below);
    };
    let most = usize::from(below.height.div_ceil(ROWS));
    let cards = view.browsing.cards(&view.watched.live.completions, most);
    let mut rows = below.rows();
    for (number, card) in cards {
        let (arrow, style) = if number == chosen { ("> ", look.strong()) } else { ("  ", look.dim()) };
        let lines = [
            Line::styled(format!("{arrow}{}", card.figures), style),
            Line::from(vec![Span::styled("  prompt: ", look.dim()), Span::raw(card.prompt)]),
            Line::raw(format!("  {}", card.completion)),
        ];
        for (line, row) in lines.into_iter().zip(rows.by_ref()) {
            frame.render_widget(line, row);
        }
    }
}

/// Draws a completion in full.
pub(super) fn draw_opened(frame: &mut Frame<'_>, area: Rect, opened: &mut CompletionPager, all: usize, look: TerminalTheme) {
    let height = usize::from(area.height.saturating_sub(1));
    let rows = opened.rows(usize::from(area.width), height).to_vec();
    let more = format!("{} of {}  seen {}%", count(opened.number as u64 + 1), count(all as u64), opened.seen());
    let below = titled(frame, area, Span::styled("completion", look.title()), &more, look.dim());
    for (row, place) in rows.into_iter().zip(below.rows()) {
        let style = if row.is_heading { look.title() } else { Style::new() };
        frame.render_widget(Line::styled(row.text, style), place);
    }
}
