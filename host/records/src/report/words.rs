//! Formats numbers, times, hashes and outside text for the page.

use crate::config::words as plain;
pub(super) use crate::config::words::{count, counted};
use crate::config::{is_hidden, is_variation_selector};
use crate::run::short_hash;
use jiff::Timestamp;
use serde_json::Value;
use std::borrow::Cow;

/// Formats a number with four significant digits and a minus as it is printed; `format.js` of the page has the same rule.
pub(super) fn number(v: f64) -> String {
    plain::number(v).replace('-', "\u{2212}")
}

/// Formats a duration in its two largest units.
pub(super) fn duration(seconds: f64) -> String {
    let whole = seconds.max(0.0).round() as u64;
    match whole {
        0..60 => format!("{} s", number((seconds * 100.0).round() / 100.0)),
        60..3600 => format!("{} min {:02} s", whole / 60, whole % 60),
        3600..86_400 => format!("{} h {:02} min", whole / 3600, whole % 3600 / 60),
        _ => format!("{} d {:02} h", whole / 86_400, whole % 86_400 / 3600),
    }
}

/// Formats a time, in UTC.
pub(super) fn moment(time: Timestamp) -> String {
    time.strftime("%Y-%m-%d %H:%M:%S UTC").to_string()
}

/// Shortens a hash.
pub(super) fn hash(hash: &str) -> String {
    short_hash(hash).to_owned()
}

/// Formats a value of the configuration or of an event.
pub(super) fn value(v: &Value) -> String {
    match v {
        Value::String(text) => text.clone(),
        Value::Number(n) if n.is_f64() => n.as_f64().map_or_else(|| n.to_string(), number),
        other => other.to_string(),
    }
}

/// Truncates a text to `most` characters. Returns it and the number of characters omitted.
pub(super) fn shortened(text: &str, most: usize) -> (&str, usize) {
    match text.char_indices().nth(most) {
        Some((end, _)) => (&text[..end], text[end..].chars().count()),
        None => (text, 0),
    }
}

/// Makes characters visible that would move, reorder or hide others, as on the terminal. Line ends and tabs stay, as do the joiners and
/// selectors that are part of emoji and of some scripts.
pub(super) fn visible(text: &str) -> Cow<'_, str> {
    let kept = |c: char| matches!(c, '\n' | '\t' | '\u{200c}' | '\u{200d}') || is_variation_selector(c) || !is_hidden(c);
    if text.chars().all(kept) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len());
    for c in text.replace("\r\n", "\n").chars() {
        if kept(c) {
            shown.push(c);
        } else {
            shown.extend(c.escape_unicode());
        }
    }
    Cow::Owned(shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_moves_or_reorders_text_is_shown() {
        assert_eq!(visible("a\r\n\tb\u{e9}\u{1f469}\u{200d}\u{1f680}"), "a\n\tb\u{e9}\u{1f469}\u{200d}\u{1f680}");
        assert_eq!(visible("\u{2764}\u{fe0f} a\u{e0101}"), "\u{2764}\u{fe0f} a\\u{e0101}");
        assert_eq!(visible("\x1b[2J\r\u{9b}\u{202e}x\u{2066}\u{7f}"), "\\u{1b}[2J\\u{d}\\u{9b}\\u{202e}x\\u{2066}\\u{7f}");
    }

    #[test]
    fn numbers_have_four_digits_that_say_something() {
        let cases = [
            (0.0, "0"),
            (20.0, "20"),
            (-6.35, "\u{2212}6.35"),
            (1.592144823, "1.592"),
            (0.0023224, "0.002322"),
            (99.99999, "100"),
            (606556.0, "606,556"),
            (-1234.5, "\u{2212}1,234"),
            (0.000384568, "3.85e\u{2212}4"),
            (3.0e9, "3e9"),
        ];
        for (v, expected) in cases {
            assert_eq!(number(v), expected, "{v}");
        }
        assert_eq!(
            [0.034, 57.58, 61.0, 7260.0, 190_000.0].map(duration),
            ["0.03 s", "57.58 s", "1 min 01 s", "2 h 01 min", "2 d 04 h"]
        );
        assert_eq!(shortened("a\u{1f980}bc", 2), ("a\u{1f980}", 2));
    }
}
