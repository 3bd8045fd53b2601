//! Draws the run's plugins, with their versions and scores.

use super::title::titled;
use crate::config::words::number;
use crate::text;
use crate::view::View;
use ratatui_core::layout::Rect;
use ratatui_core::style::Style;
use ratatui_core::terminal::Frame;
use ratatui_core::text::{Line, Span};

/// Widths of the columns after the name, and minimum width of the name.
const VERSION: usize = 8;
const WIDE_VERSION: usize = 12;
const MEAN: usize = 8;
const ERRORS: usize = 6;
const LEAST_NAME: usize = 8;

/// Minimum widths at which versions are shown, and at which they have all digits ever shown.
const LEAST_WITH_VERSION: usize = LEAST_NAME + VERSION + MEAN + ERRORS + 3;
const WIDE: usize = 46;

/// Draws the plugins as a table.
pub(super) fn draw(frame: &mut Frame<'_>, area: Rect, view: &View) {
    if area.is_empty() {
        return;
    }
    let (look, watched) = (view.theme, &view.watched);
    let time = watched.live.metrics.last("time/reward").map(|time| format!("scoring {} s a step", number(time)));
    let below = titled(frame, area, Span::styled("plugins", look.title()), &time.unwrap_or_default(), look.dim());
    let plugins = watched.plugins();
    if plugins.is_empty() {
        return frame.render_widget(Line::styled("None loaded yet.", look.dim()), below);
    }
    let width = usize::from(below.width);
    // With little space, scores are more useful than versions.
    let version = match width {
        WIDE.. => WIDE_VERSION,
        LEAST_WITH_VERSION.. => VERSION,
        _ => 0,
    };
    let gaps = if version > 0 { 3 } else { 2 };
    let name = width.saturating_sub(version + MEAN + ERRORS + gaps).max(LEAST_NAME);
    let columns = |[mean, errors]: [&str; 2]| format!("{} {}", text::right(mean, MEAN), text::right(errors, ERRORS));
    let row = |own: &str, hash: &str, rest: &str| {
        let rest = text::right(rest, MEAN + 1 + ERRORS);
        let version = if version > 0 { format!(" {}", text::padded(hash, version)) } else { String::new() };
        format!("{}{version} {rest}", text::padded(own, name))
    };
    let head = Line::styled(row("", "version", &columns(["mean", "errors"])), look.dim());
    // If not everything fits, the table's head is dropped first.
    let head = Some(head).filter(|_| plugins.len() < usize::from(below.height));
    let lines = plugins.iter().map(|plugin| {
        let figure = |value: Option<f64>| value.map(number).unwrap_or_default();
        let has_failed = plugin.errors.is_some_and(|errors| errors > 0.0);
        let hash: String = plugin.hash.chars().take(version).collect();
        // A plugin without scores shows its role instead.
        let rest = match plugin.role.starts_with("reward") {
            true => columns([&figure(plugin.mean), &figure(plugin.errors)]),
            false => plugin.role.clone(),
        };
        Line::styled(row(&plugin.name, &hash, &rest), if has_failed { look.bad() } else { Style::new() })
    });
    for (line, place) in head.into_iter().chain(lines).zip(below.rows()) {
        frame.render_widget(line, place);
    }
}
