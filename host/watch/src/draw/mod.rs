//! Draws the view. On a terminal of any size, the step and the state come first, then the curves, then everything else that fits.

mod charts;
mod completions;
mod dialogs;
mod events;
mod header;
mod plugins;
mod title;

use crate::view::{Dialog, Panel, View};
use ratatui_core::layout::{Constraint, Layout, Rect};
use ratatui_core::terminal::Frame;

/// Minimum width at which the plugins are next to the completions.
const WIDE: u16 = 72;

/// Minimum height with two lines of header.
const TALL: u16 = 14;

/// Minimum height with a line of keys.
const WITH_KEYS: u16 = 7;

/// Areas of the panels; a panel without height is not shown.
#[derive(Default)]
struct PanelAreas {
    curves: Rect,
    completions: Rect,
    plugins: Rect,
    events: Rect,
}

/// Draws the view.
pub(crate) fn draw(frame: &mut Frame<'_>, view: &mut View) {
    let area = frame.area();
    let (header, footer) = (if area.height >= TALL { 2 } else { 1 }, u16::from(area.height >= WITH_KEYS));
    let [header, body, footer] =
        Layout::vertical([Constraint::Length(header), Constraint::Min(0), Constraint::Length(footer)]).areas(area);
    header::draw(frame, header, view);
    header::draw_keys(frame, footer, view);
    if let Dialog::Completion(opened) = &mut view.dialog {
        let all = view.watched.live.completions.entries.len();
        return completions::draw_opened(frame, body, opened, all, view.theme);
    }
    let places = match view.only {
        Some(panel) => alone(panel, body),
        None => together(body, view),
    };
    charts::draw(frame, places.curves, view);
    completions::draw(frame, places.completions, view);
    plugins::draw(frame, places.plugins, view);
    events::draw(frame, places.events, view);
    dialogs::draw(frame, body, view);
}

fn alone(panel: Panel, body: Rect) -> PanelAreas {
    match panel {
        Panel::Curves => PanelAreas { curves: body, ..PanelAreas::default() },
        Panel::Completions => PanelAreas { completions: body, ..PanelAreas::default() },
        Panel::Plugins => PanelAreas { plugins: body, ..PanelAreas::default() },
        Panel::Events => PanelAreas { events: body, ..PanelAreas::default() },
    }
}

/// Divides the body among the panels. Each has a row for its title.
fn together(body: Rect, view: &View) -> PanelAreas {
    let rows = body.height;
    let events = match rows {
        0..4 => 0,
        4..8 => 2,
        _ => (rows / 5).clamp(3, 12),
    };
    let is_wide = body.width >= WIDE;
    let own = if is_wide || rows < 16 { 0 } else { (view.watched.plugins().len() as u16 + 1).clamp(2, rows / 5) };
    let rest = rows - events - own;
    // As many completions as fit into about half of the remaining height.
    let cards = (rest / 2).saturating_sub(1) / completions::ROWS;
    let cards = if cards == 0 && rest >= 8 { 1 } else { cards };
    let completions = if cards == 0 { 0 } else { 1 + cards * completions::ROWS };
    let [curves, middle, below, events] = Layout::vertical([
        Constraint::Length(rest - completions),
        Constraint::Length(completions),
        Constraint::Length(own),
        Constraint::Length(events),
    ])
    .areas(body);
    if !is_wide {
        return PanelAreas { curves, completions: middle, plugins: below, events };
    }
    let beside = Constraint::Length((body.width * 2 / 5).clamp(36, 64));
    let [completions, _, plugins] = Layout::horizontal([Constraint::Min(0), Constraint::Length(1), beside]).areas(middle);
    PanelAreas { curves, completions, plugins, events }
}
