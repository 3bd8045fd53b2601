//! Prepares untrusted text for the terminal: printable, in rows of a width.

use crate::config::printable;
use unicode_segmentation::UnicodeSegmentation;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// Maximum number of combining marks on one character. More, which no script needs, would be drawn over neighbouring rows.
const MOST_MARKS: usize = 4;

/// Returns untrusted text on one line, in about `longest` bytes at most.
pub(crate) fn line(text: &str, longest: usize) -> String {
    // Whitespace may be most of the text, so the part to be processed is bounded first.
    let begin = text.floor_char_boundary(longest.saturating_mul(4));
    let words = text[..begin].split_whitespace().collect::<Vec<_>>().join(" ");
    escaped(&words, longest)
}

/// Returns untrusted text on one line, with all its spaces, in about `longest` bytes at most.
pub(crate) fn escaped(text: &str, longest: usize) -> String {
    with_few_marks(printable(text, longest))
}

/// Returns untrusted text as lines, in about `longest` bytes at most.
pub(crate) fn lines(text: &str, longest: usize) -> Vec<String> {
    let end = text.floor_char_boundary(longest);
    let shown = text[..end].split('\n').map(|line| {
        let line = line.strip_suffix('\r').unwrap_or(line);
        escaped(&line.replace('\t', "    "), usize::MAX)
    });
    let mut shown: Vec<String> = shown.collect();
    if end < text.len() {
        shown.push(format!("... ({} bytes more)", text.len() - end));
    }
    shown
}

/// Replaces excess combining marks of a character by their code points.
fn with_few_marks(text: String) -> String {
    if text.is_ascii() {
        return text;
    }
    let (mut shown, mut marks) = (String::with_capacity(text.len()), 0);
    for c in text.chars() {
        marks = if c.width() == Some(0) { marks + 1 } else { 0 };
        match marks > MOST_MARKS {
            true => shown.extend(c.escape_unicode()),
            false => shown.push(c),
        }
    }
    shown
}

/// Truncates a text to a width, with an ellipsis.
pub(crate) fn cut(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    let (mut shown, mut taken) = (String::new(), 0);
    for piece in text.graphemes(true) {
        taken += piece.width();
        if taken >= width {
            break;
        }
        shown.push_str(piece);
    }
    if width > 0 {
        shown.push('\u{2026}');
    }
    shown
}

/// Truncates or pads a text to a width.
pub(crate) fn padded(text: &str, width: usize) -> String {
    let mut shown = cut(text, width);
    let taken = shown.width();
    shown.extend(std::iter::repeat_n(' ', width.saturating_sub(taken)));
    shown
}

/// Truncates or pads a text to a width, right-aligned.
pub(crate) fn right(text: &str, width: usize) -> String {
    let shown = cut(text, width);
    format!("{}{shown}", " ".repeat(width.saturating_sub(shown.width())))
}

/// Wraps a line into rows of a width, between words where possible.
pub(crate) fn wrapped(line: &str, width: usize) -> Vec<String> {
    let width = width.max(1);
    if line.width() <= width {
        return vec![line.to_owned()];
    }
    // Start of the row's last word, in bytes.
    let (mut rows, mut row, mut taken, mut word) = (Vec::new(), String::new(), 0, 0);
    for piece in line.graphemes(true) {
        while taken + piece.width() > width && !row.is_empty() {
            // A space at the end of a row is not carried over.
            let rest = if piece == " " || word == 0 { String::new() } else { row.split_off(word) };
            rows.push(row.trim_end().to_owned());
            (taken, row, word) = (rest.width(), rest, 0);
        }
        if piece == " " && row.is_empty() && !rows.is_empty() {
            continue;
        }
        row.push_str(piece);
        taken += piece.width();
        if piece == " " {
            word = row.len();
        }
    }
    rows.push(row);
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::is_hidden;

    #[test]
    fn nothing_of_a_hostile_text_reaches_the_terminal_as_it_is() {
        let hostile = "\x1b[2J\x1b]0;title\x07\r\n\u{9b}31m\u{202e}desrever\u{2066} a\u{200d}b\0\u{7f}";
        let shown = line(hostile, 400);
        assert!(!shown.chars().any(is_hidden) && shown.contains("\\u{1b}[2J") && shown.contains("\\u{202e}desrever"), "{shown}");
        for shown in lines(hostile, 400) {
            assert!(!shown.chars().any(is_hidden), "{shown}");
        }
        assert_eq!(lines("one\r\n\ttwo\n", 400), ["one", "    two", ""]);
        assert_eq!(lines("\u{e9}\u{e9}\u{e9}", 3), ["\u{e9}", "... (4 bytes more)"]);
        assert_eq!(line("  a \n\n b\t c", 400), "a b c");
    }

    #[test]
    fn characters_have_few_marks() {
        let four = format!("a{}", "\u{301}".repeat(4));
        assert_eq!(line(&four, 99), four);
        let many = line(&format!("a{}b", "\u{301}".repeat(100)), 9999);
        assert!(many.starts_with(&four) && many.matches('\u{301}').count() == 4 && many.ends_with("\\u{301}b"), "{many}");
    }

    #[test]
    fn texts_fit_their_width_however_wide_their_characters_are() {
        assert_eq!((cut("abcdef", 4), cut("abc", 3), cut("abc", 0)), ("abc\u{2026}".into(), "abc".into(), String::new()));
        assert_eq!(
            (cut("\u{4e16}\u{754c}\u{4e16}", 4), cut("\u{4e16}\u{754c}", 3)),
            ("\u{4e16}\u{2026}".into(), "\u{4e16}\u{2026}".into())
        );
        assert_eq!((padded("ab", 4), right("ab", 4), right("abcdef", 4)), ("ab  ".into(), "  ab".into(), "abc\u{2026}".into()));
        assert_eq!(wrapped("the quick brown fox", 10), ["the quick", "brown fox"]);
        assert_eq!(wrapped("abcdefghij", 4), ["abcd", "efgh", "ij"]);
        assert_eq!(wrapped("a\u{301}\u{4e16}\u{754c}\u{4e16}b", 3), ["a\u{301}\u{4e16}", "\u{754c}", "\u{4e16}b"]);
        assert_eq!(wrapped("ab  cd", 3), ["ab", "cd"]);
        assert_eq!((wrapped("", 5), wrapped("\u{4e16}", 1)), (vec![String::new()], vec!["\u{4e16}".to_owned()]));
        for width in 1..12 {
            let all = wrapped("some words, one_that_is_long, and \u{4e16}\u{754c} e\u{301}", width);
            assert!(all.iter().all(|row| row.width() <= width.max(2)), "{width}: {all:?}");
        }
    }
}
