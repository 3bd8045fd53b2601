//! Shows how many rows of a dataset have been treated, on a terminal.

use indicatif::{ProgressBar, ProgressFinish, ProgressStyle};

/// Returns a bar for this many rows, or a count if their number is not known. It disappears when it is dropped.
pub(super) fn bar(what: &'static str, rows: Option<usize>) -> ProgressBar {
    if !tracing::enabled!(tracing::Level::INFO) {
        return ProgressBar::hidden();
    }
    let (bar, template) = match rows {
        Some(rows) => (ProgressBar::new(rows as u64), "{msg} {wide_bar} {human_pos}/{human_len} rows, {eta} left"),
        None => (ProgressBar::no_length(), "{msg}: {human_pos} rows, {elapsed}"),
    };
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    bar.with_style(style).with_message(what).with_finish(ProgressFinish::AndClear)
}
