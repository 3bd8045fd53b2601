//! Draws the events, newest last.

use super::title::titled;
use crate::config::words::count;
use crate::text;
use crate::view::{Panel, View};
use ratatui_core::layout::Rect;
use ratatui_core::style::Style;
use ratatui_core::terminal::Frame;
use ratatui_core::text::{Line, Span};
use rlhost_live::EventRow;

/// Maximum length of an event's text, in bytes.
const LONGEST_TEXT: usize = 8000;

/// Kinds that are highlighted because they need attention.
const BAD: [&str; 6] =
    ["plugin_refused", "plugin_rolled_back", "plugin_error", "settings_refused", "checkpoint_failed", "failed"];

/// Draws the newest events: one line each, or in full if the panel is alone.
pub(super) fn draw(frame: &mut Frame<'_>, area: Rect, view: &View) {
    if area.is_empty() {
        return;
    }
    let (look, all) = (view.theme, &view.watched.live.events.all);
    let is_alone = view.only == Some(Panel::Events);
    let shown = &all[..all.len() - view.events_below.min(all.len())];
    let more = match view.events_below {
        0 => count(all.len() as u64),
        _ => format!("{} of {}", count(shown.len() as u64), count(all.len() as u64)),
    };
    let below = titled(frame, area, Span::styled("events", look.title()), &more, look.dim());
    let (width, height) = (usize::from(below.width), usize::from(below.height));
    let mut lines: Vec<Line<'_>> = Vec::new();
    for event in shown.iter().rev().take(height) {
        let style = match () {
            () if event.undone => look.dim(),
            () if BAD.contains(&event.kind.as_str()) => look.bad(),
            () => Style::new(),
        };
        let rows = if is_alone { whole(event, width) } else { vec![text::cut(&short(event, width), width)] };
        // From the bottom up; of an event that is too long for the panel, the beginning is shown.
        let room = height - lines.len();
        let rows = rows.into_iter().take(room.max(1)).collect::<Vec<_>>();
        lines.extend(rows.into_iter().rev().map(|row| Line::styled(row, style)));
        if lines.len() >= height {
            break;
        }
    }
    for (line, place) in lines.into_iter().take(height).rev().zip(below.rows()) {
        frame.render_widget(line, place);
    }
}

/// Returns the time and the kind of an event.
fn head(event: &EventRow) -> String {
    let step = event.step.map(|step| format!("step {}: ", count(step))).unwrap_or_default();
    let undone = if event.undone { " (undone by a resume)" } else { "" };
    format!("{step}{}{undone}", text::line(&event.kind, LONGEST_TEXT).replace('_', " "))
}

/// Describes an event on one line.
fn short(event: &EventRow, width: usize) -> String {
    // A character may take several bytes.
    format!("{}  {}", head(event), text::line(&event.text, 4 * width + 16))
}

/// Describes an event in full, in rows of a width.
fn whole(event: &EventRow, width: usize) -> Vec<String> {
    let lines = text::lines(&event.text, LONGEST_TEXT);
    let (first, rest) = lines.split_first().map_or(("", &[][..]), |(first, rest)| (first.as_str(), rest));
    let head = text::wrapped(&format!("{}  {first}", head(event)), width);
    head.into_iter().chain(rest.iter().flat_map(|line| text::wrapped(line, width))).collect()
}
