//! Draws the help and the stages of a swap in front of the panels.

use crate::keys::KEYS;
use crate::swap_dialog::{SwapDialog, SwapNotice};
use crate::text;
use crate::theme::TerminalTheme;
use crate::view::{Dialog, View};
use ratatui_core::layout::{Position, Rect};
use ratatui_core::style::Style;
use ratatui_core::terminal::Frame;
use ratatui_core::text::{Line, Span};
use ratatui_widgets::block::Block;
use ratatui_widgets::clear::Clear;
use unicode_width::UnicodeWidthStr;

/// Maximum width of a dialog, and maximum lengths of texts shown, in bytes.
const WIDTH: u16 = 76;
const LONGEST_NAME: usize = 4096;

/// Minimum size with a border.
const LEAST_BORDERED: (u16, u16) = (30, 6);

/// Draws the open dialog, if there is one.
pub(super) fn draw(frame: &mut Frame<'_>, area: Rect, view: &View) {
    match &view.dialog {
        Dialog::None | Dialog::Completion(_) => {}
        Dialog::Help => draw_help(frame, area, view.theme),
        Dialog::Swap(swapping) => draw_swap(frame, area, swapping, view.theme),
    }
}

/// Clears an area of this many lines in the middle, with a border if it fits. Returns the area inside.
fn popup(frame: &mut Frame<'_>, area: Rect, title: &str, lines: usize) -> Rect {
    let height = u16::try_from(lines).unwrap_or(u16::MAX).saturating_add(2);
    if area.width < LEAST_BORDERED.0 || area.height < LEAST_BORDERED.1 {
        frame.render_widget(Clear, area);
        return area;
    }
    let place = middle(area, WIDTH, height);
    frame.render_widget(Clear, place);
    let block = Block::bordered().title(format!(" {title} "));
    let inner = block.inner(place);
    frame.render_widget(block, place);
    inner
}

fn draw_help(frame: &mut Frame<'_>, area: Rect, look: TerminalTheme) {
    let inner = popup(frame, area, "keys", KEYS.len());
    let widest = KEYS.iter().map(|(key, _)| key.width()).max().unwrap_or(0);
    for ((key, what), row) in KEYS.iter().zip(inner.rows()) {
        let key = Span::styled(text::padded(key, widest + 2), look.strong());
        frame.render_widget(Line::from(vec![key, Span::raw(*what)]), row);
    }
}

fn draw_swap(frame: &mut Frame<'_>, area: Rect, swapping: &SwapDialog, look: TerminalTheme) {
    match swapping {
        SwapDialog::Choosing { names, at } => draw_choice(frame, area, names, *at, look),
        SwapDialog::Typing { name, file } => {
            let question = format!("The file that replaces {}, a .wasm file or a script:", text::line(name, LONGEST_NAME));
            draw_input(frame, area, &question, file, look);
        }
        SwapDialog::Waiting { name, file, .. } => {
            let (name, file) = (text::line(name, LONGEST_NAME), text::line(file, LONGEST_NAME));
            let lines = [
                format!("{file} was sent to replace {name}."),
                "The run tries it on its newest completions, and swaps it in before its next step.".to_owned(),
                String::new(),
                "Esc closes this; the events say what came of it.".to_owned(),
            ];
            let rows: Vec<String> = lines.iter().flat_map(|line| text::wrapped(line, inner_width(area))).collect();
            let inner = popup(frame, area, "swap", rows.len());
            for (row, place) in rows.into_iter().zip(inner.rows()) {
                frame.render_widget(Line::raw(row), place);
            }
        }
        SwapDialog::Notice(answer) => draw_answer(frame, area, answer, look),
    }
}

/// Draws a question and the text being typed.
fn draw_input(frame: &mut Frame<'_>, area: Rect, question: &str, typed: &str, look: TerminalTheme) {
    let question = text::wrapped(question, inner_width(area));
    let inner = popup(frame, area, "swap", question.len() + 3);
    // With little space, the typed text is most important.
    let room = usize::from(inner.height.saturating_sub(1));
    let mut rows = inner.rows();
    for (line, row) in question.into_iter().take(room).zip(rows.by_ref()) {
        frame.render_widget(Line::styled(line, look.strong()), row);
    }
    let Some(row) = rows.next() else { return };
    // The path is typed at its end, so that part is shown.
    let shown = tail(&text::escaped(typed, LONGEST_NAME), usize::from(row.width.saturating_sub(3)));
    let x = row.x.saturating_add(2).saturating_add(shown.width() as u16).min(row.right().saturating_sub(1));
    frame.render_widget(Line::raw(format!("> {shown}")), row);
    frame.set_cursor_position(Position { x, y: row.y });
    if let Some(row) = rows.nth(1) {
        frame.render_widget(Line::styled("Enter sends it to the run, Esc cancels.", look.dim()), row);
    }
}

fn draw_choice(frame: &mut Frame<'_>, area: Rect, names: &[String], at: usize, look: TerminalTheme) {
    let inner = popup(frame, area, "swap", names.len() + 2);
    let height = usize::from(inner.height);
    // With little space, the names are most important.
    let (before, list) = if height > 3 { (1, height - 2) } else { (0, height) };
    let from = (at + 1).saturating_sub(list);
    let name = |(i, name): (usize, &String)| {
        let (arrow, style) = if i == at { ("> ", look.chosen()) } else { ("  ", Style::new()) };
        Line::styled(format!("{arrow}{}", text::line(name, LONGEST_NAME)), style)
    };
    let names = names.iter().enumerate().skip(from).take(list).map(name);
    let head = Some(Line::styled("Which plugin is to be replaced?", look.strong())).filter(|_| before == 1);
    let foot = Some(Line::styled("Enter chooses, Esc cancels.", look.dim())).filter(|_| before == 1);
    for (line, row) in head.into_iter().chain(names).chain(foot).zip(inner.rows()) {
        frame.render_widget(line, row);
    }
}

fn draw_answer(frame: &mut Frame<'_>, area: Rect, answer: &SwapNotice, look: TerminalTheme) {
    let width = inner_width(area);
    let rows: Vec<String> = answer.lines.iter().skip(answer.from).flat_map(|line| text::wrapped(line, width)).collect();
    let inner = popup(frame, area, "swap", rows.len() + 3);
    let style = if answer.is_good { look.good() } else { look.bad() };
    let room = usize::from(inner.height).saturating_sub(3).max(1);
    let is_cut = rows.len() > room;
    let head = text::wrapped(&answer.title, width).into_iter().map(|row| Line::styled(row, style));
    let said = rows.into_iter().take(room).map(Line::raw);
    let foot = if is_cut { "up/down scroll, Enter closes." } else { "Enter closes." };
    let foot = [Line::raw(""), Line::styled(foot, look.dim())];
    for (line, row) in head.chain(said).chain(foot).zip(inner.rows()) {
        frame.render_widget(line, row);
    }
}

/// Returns the width inside a dialog's border.
fn inner_width(area: Rect) -> usize {
    usize::from(WIDTH.min(area.width)).saturating_sub(2)
}

/// Returns the end of a text that fits in a width.
fn tail(text: &str, width: usize) -> String {
    let places = text.char_indices().rev().map(|(at, _)| at);
    let from = places.take_while(|at| text[*at..].width() <= width).last().unwrap_or(text.len());
    text[from..].to_owned()
}

/// Returns a rectangle of at most this size, centred in another.
fn middle(of: Rect, width: u16, height: u16) -> Rect {
    let (width, height) = (width.min(of.width), height.min(of.height));
    Rect { x: of.x + (of.width - width) / 2, y: of.y + (of.height - height) / 2, width, height }
}
