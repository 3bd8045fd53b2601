//! Draws the header, with the run's state and progress, and the line of keys.

use crate::config::words::{clock, count, number};
use crate::text;
use crate::view::{Dialog, View};
use crate::watched_run::WatchedRun;
use ratatui_core::layout::Rect;
use ratatui_core::terminal::Frame;
use ratatui_core::text::{Line, Span};
use rlhost_live::RunState;
use std::time::Duration;

/// Maximum duration shown, in seconds; longer estimates are meaningless.
const LONGEST: f64 = 1e8;

/// Draws the header: on two lines, or its most important part on one.
pub(super) fn draw(frame: &mut Frame<'_>, area: Rect, view: &View) {
    let (watched, look) = (&view.watched, view.theme);
    let state = state(watched);
    let style = match watched.state {
        _ if watched.is_gone => look.bad(),
        RunState::Running | RunState::Finished => look.good(),
        RunState::Failed | RunState::Interrupted => look.bad(),
        RunState::Paused | RunState::Stopped | RunState::Empty => look.strong(),
    };
    let name = Span::styled(watched.name.as_str(), look.title());
    if area.height < 2 {
        let spans = [steps(watched, true), "  ".into(), state, "  ".into()].map(|text| Span::styled(text, style));
        let rest = format!("  {}", figures(watched).join("  "));
        return frame.render_widget(Line::from_iter(spans.into_iter().chain([name, Span::raw(rest)])), area);
    }
    let origin = watched.origin.as_ref().map(|origin| format!("  {} of {}", origin.algorithm, origin.model));
    let facts = [vec![steps(watched, false)], figures(watched)].concat().join("  ");
    let lines = [
        Line::from(vec![name, Span::raw(origin.unwrap_or_default())]),
        Line::from(vec![Span::styled(state, style), Span::raw("  "), Span::raw(facts)]),
    ];
    for (line, row) in lines.into_iter().zip(area.rows()) {
        frame.render_widget(line, row);
    }
}

/// Describes the state of the run.
fn state(watched: &WatchedRun) -> String {
    match watched.state {
        _ if watched.is_gone => "its folder is gone".to_owned(),
        RunState::Running if watched.step().is_none() => "running, no step yet".to_owned(),
        RunState::Empty => "not begun".to_owned(),
        RunState::Finished | RunState::Stopped | RunState::Failed => format!("ended: {}", watched.state.name()),
        RunState::Interrupted => "ended: interrupted".to_owned(),
        RunState::Running | RunState::Paused => watched.state.name().to_owned(),
    }
}

/// Describes the number of steps taken, abbreviated on a narrow screen.
fn steps(watched: &WatchedRun, is_short: bool) -> String {
    let (step, most) = (watched.step().unwrap_or(0), watched.live.events.max_steps);
    match most {
        Some(most) if is_short => format!("{}/{}", count(step), count(most)),
        Some(most) if most > 0 => {
            let share = (step.min(most) as f64 / most as f64 * 100.0).floor();
            format!("step {} of {} ({share}%)", count(step), count(most))
        }
        _ => format!("step {}", count(step)),
    }
}

/// Returns the remaining time, speed and epoch, if they are known.
fn figures(watched: &WatchedRun) -> Vec<String> {
    let metrics = &watched.live.metrics;
    let epoch = metrics.last("epoch").map(|epoch| format!("epoch {}", number(epoch)));
    let rate = metrics.rate().map(|rate| match rate >= 1.0 {
        true => format!("{} steps/s", number(rate)),
        false => format!("{} s a step", number(1.0 / rate)),
    });
    let left = watched.live.remaining_seconds(watched.state).filter(|left| *left < LONGEST);
    let left = left.map(|left| format!("{} left", clock(Duration::from_secs_f64(left))));
    let ended = !watched.is_at_work() && watched.step().is_some();
    let took = watched.live.seconds(watched.state).filter(|took| ended && (0.0..LONGEST).contains(took));
    let took = took.map(|took| format!("took {}", clock(Duration::from_secs_f64(took))));
    [left, took, rate, epoch].into_iter().flatten().collect()
}

/// Draws the line of keys, or a note for the user instead.
pub(super) fn draw_keys(frame: &mut Frame<'_>, area: Rect, view: &View) {
    let keys = match &view.dialog {
        Dialog::Completion(_) => "Esc back  up/down scroll  left/right newer/older  q quit",
        _ => "? help  q quit  s swap  arrows: metric, completion  Enter open  1-4 one panel",
    };
    let note = view.watched.note().map(|note| format!("{note}  ")).unwrap_or_default();
    let width = usize::from(area.width);
    let line = Line::from(vec![Span::styled(text::cut(&note, width), view.theme.mark()), Span::styled(keys, view.theme.dim())]);
    frame.render_widget(line, area);
}
