//! Texts from a run's files, prepared for the page.

use crate::config::printable;

/// Returns a text with its line breaks, hidden characters made visible, truncated if it is too long.
pub(super) fn shown(text: &str, longest: usize) -> String {
    let mut end = text.len().min(longest);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let lines = text[..end].split('\n').map(|line| printable(&line.replace('\t', "    "), usize::MAX));
    let mut shown = lines.collect::<Vec<_>>().join("\n");
    if end < text.len() {
        shown.push_str(&format!("\u{2026} ({} bytes more)", text.len() - end));
    }
    shown
}
