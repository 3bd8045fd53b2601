//! Draws curves of metrics over the steps.

use super::title::titled;
use crate::config::words::{count, number};
use crate::text;
use crate::theme::TerminalTheme;
use crate::view::View;
use crate::watched_run::{MetricCurve, SwapMark};
use ratatui_core::layout::{Constraint, Layout, Rect};
use ratatui_core::symbols::Marker;
use ratatui_core::terminal::Frame;
use ratatui_core::text::{Line, Span};
use ratatui_widgets::canvas::{Canvas, Context, Line as Segment};
use rlhost_live::RunState;
use unicode_width::UnicodeWidthStr;

/// Minimum width of charts next to each other, and maximum number of them.
const LEAST_WIDTH: u16 = 38;
const MOST_CHARTS: usize = 4;

/// Minimum width and height, below the title, at which a curve is readable.
const LEAST_PLOT: (u16, u16) = (24, 3);

/// Maximum length of a metric's name, in bytes, and its minimum width next to the value.
const LONGEST_NAME: usize = 400;
const LEAST_NAME: usize = 6;

/// Maximum width of a label of the vertical axis.
const WIDEST_LABEL: usize = 9;

/// The Braille pattern without dots.
const EMPTY_PATTERN: &str = "\u{2800}";

/// Draws the curves of the selected metric and of the following ones.
pub(super) fn draw(frame: &mut Frame<'_>, area: Rect, view: &View) {
    if area.is_empty() {
        return;
    }
    let metrics = view.watched.metrics();
    if view.watched.step().is_none() || metrics.is_empty() {
        return draw_waiting(frame, area, view);
    }
    let charts = usize::from(area.width / LEAST_WIDTH).clamp(1, MOST_CHARTS).min(metrics.len());
    let (first, marks) = (view.curve(&metrics), view.watched.marks());
    let places = Layout::horizontal(vec![Constraint::Fill(1); charts]).spacing(1).split(area);
    for (i, place) in places.iter().enumerate() {
        let at = (first + i) % metrics.len();
        let curve = view.watched.curve(metrics[at], points(*place, view.theme));
        let last = view.watched.last(metrics[at]).map(|last| format!("{}  ", number(last))).unwrap_or_default();
        let more = format!("{last}{}/{}", at + 1, metrics.len());
        let room = usize::from(place.width).saturating_sub(more.len() + 3).max(LEAST_NAME);
        let title = Span::styled(text::cut(&text::line(metrics[at], LONGEST_NAME), room), view.theme.title());
        let below = titled(frame, *place, title, &more, view.theme.dim());
        match below.width < LEAST_PLOT.0 || below.height < LEAST_PLOT.1 {
            true => draw_in_words(frame, below, &curve, &marks),
            false => draw_plot(frame, below, &curve, &marks, view.theme),
        }
    }
}

/// Returns the number of points that fit in an area.
fn points(area: Rect, look: TerminalTheme) -> usize {
    usize::from(area.width) * if look.braille { 2 } else { 1 }
}

/// Shows that there is no curve yet.
fn draw_waiting(frame: &mut Frame<'_>, area: Rect, view: &View) {
    let below = titled(frame, area, Span::styled("curves", view.theme.title()), "", view.theme.dim());
    let said = match view.watched.state {
        _ if !view.watched.is_read => "Reading the run's files.",
        RunState::Running | RunState::Paused => "Waiting for the run's first step.",
        RunState::Empty => "Waiting for the run to begin.",
        _ => "The run ended before a row of metrics; rlhost resume goes on with it.",
    };
    frame.render_widget(Line::raw(said), if below.is_empty() { area } else { below });
}

/// Describes a curve in text.
fn draw_in_words(frame: &mut Frame<'_>, area: Rect, curve: &MetricCurve, marks: &[SwapMark]) {
    let Some(ends) = ends(curve) else { return };
    let (low, high) = (number(ends.low), number(ends.high));
    let swaps = marks.last().map(|mark| format!("{} at step {}", mark.letter, count(mark.step as u64)));
    let lines = [format!("{low} to {high}"), format!("in {} to {}", count(curve.first), count(curve.last))];
    for (row, line) in area.rows().zip(lines.into_iter().chain(swaps)) {
        frame.render_widget(Line::raw(line), row);
    }
}

/// The minimum and maximum of a curve.
struct CurveRange {
    low: f64,
    high: f64,
}

fn ends(curve: &MetricCurve) -> Option<CurveRange> {
    let values = || curve.points.iter().map(|point| point.value);
    Some(CurveRange { low: values().reduce(f64::min)?, high: values().reduce(f64::max)? })
}

/// Draws a curve between its axes.
fn draw_plot(frame: &mut Frame<'_>, area: Rect, curve: &MetricCurve, marks: &[SwapMark], look: TerminalTheme) {
    let Some(ends) = ends(curve) else {
        return frame.render_widget(Line::raw("no value yet"), area);
    };
    let labels = [number(ends.high), number(ends.low)].map(|label| text::cut(&label, WIDEST_LABEL));
    let widest = labels.iter().map(|label| label.width()).max().unwrap_or(0);
    let [above, axis] = Layout::vertical([Constraint::Min(1), Constraint::Length(1)]).areas(area);
    let gutter = Constraint::Length(widest as u16 + 1);
    let [left, plot] = Layout::horizontal([gutter, Constraint::Min(1)]).areas(above);
    for (label, row) in labels.iter().zip([left.rows().next(), left.rows().next_back()]) {
        row.into_iter().for_each(|row| frame.render_widget(Line::styled(text::right(label, widest), look.dim()), row));
    }
    let bounds = |low: f64, high: f64| {
        let room = if high > low { 0.0 } else { (low.abs() * 0.05).max(0.5) };
        [low - room, high + room]
    };
    let (across, up) = (bounds(curve.first as f64, curve.last as f64), bounds(ends.low, ends.high));
    let paint = |context: &mut Context<'_>| {
        let pairs = curve.points.windows(2).map(|pair| (pair[0], pair[1]));
        let single = curve.points.first().filter(|_| curve.points.len() == 1).map(|point| (*point, *point));
        for (a, b) in pairs.chain(single) {
            context.draw(&Segment::new(a.step, a.value, b.step, b.value, look.curve()));
        }
    };
    let marker = if look.braille { Marker::Braille } else { Marker::Dot };
    frame.render_widget(Canvas::default().marker(marker).x_bounds(across).y_bounds(up).paint(paint), plot);
    draw_marks(frame, plot, marks, across, look);
    let axis = Rect { x: plot.x, width: plot.width, ..axis };
    frame.render_widget(Line::styled(axis_labels(curve, usize::from(axis.width)), look.dim()), axis);
}

/// Returns the labels of the first and the last step, and between them the number of steps per point if there are several.
fn axis_labels(curve: &MetricCurve, width: usize) -> String {
    let (first, last) = (count(curve.first), count(curve.last));
    let room = width.saturating_sub(first.len() + last.len());
    let means = if curve.per_point > 1 { format!("means of {}", count(curve.per_point as u64)) } else { String::new() };
    let means = if means.len() + 2 <= room { means } else { String::new() };
    format!("{first}{means:^room$}{last}")
}

/// Draws a line with a letter at each mark, behind the curve.
fn draw_marks(frame: &mut Frame<'_>, plot: Rect, marks: &[SwapMark], across: [f64; 2], look: TerminalTheme) {
    let within = marks.iter().filter(|mark| (across[0]..=across[1]).contains(&mark.step));
    for mark in within {
        let share = (mark.step - across[0]) / (across[1] - across[0]);
        let x = plot.x + (share * f64::from(plot.width.saturating_sub(1))).round() as u16;
        for y in plot.top()..plot.bottom() {
            let Some(cell) = frame.buffer_mut().cell_mut((x, y)) else { continue };
            if y == plot.top() {
                cell.set_char(mark.letter).set_style(look.strong());
            } else if [" ", EMPTY_PATTERN].contains(&cell.symbol()) {
                cell.set_char('\u{250a}').set_style(look.mark());
            }
        }
    }
}
