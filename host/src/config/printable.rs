//! Makes outside text safe to print.

use std::path::Path;

/// Maximum length of a printed path: Linux's limit.
const LONGEST_PATH: usize = 4096;

/// Returns the text in at most this many bytes, with everything visible: control characters, escape sequences, line ends and
/// bidirectional marks become `\u{..}`, so outside text can't move a cursor, forge a line or hide one.
#[must_use]
pub fn printable(text: &str, limit: usize) -> String {
    let mut shown = String::with_capacity(text.len().min(limit));
    for (at, c) in text.char_indices() {
        let before = shown.len();
        match c {
            '\n' => shown.push_str("\\n"),
            '\r' => shown.push_str("\\r"),
            '\t' => shown.push_str("\\t"),
            c if is_hidden(c) => shown.extend(c.escape_unicode()),
            c => shown.push(c),
        }
        if shown.len() > limit {
            shown.truncate(before);
            shown.push_str(&format!("... ({} bytes more)", text.len() - at));
            break;
        }
    }
    shown
}

/// Returns bytes, such as a hash, in lower-case hexadecimal digits.
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digit = |of: u8| char::from(DIGITS[usize::from(of & 15)]);
    let mut text = String::with_capacity(2 * bytes.len());
    bytes.iter().for_each(|byte| text.extend([digit(byte >> 4), digit(*byte)]));
    text
}

/// Returns a printable path; files of an outside folder may have any name.
#[must_use]
pub fn printable_path(path: &Path) -> String {
    printable(&path.to_string_lossy(), LONGEST_PATH)
}

/// Returns whether a text can be a name: of 1 to `longest` bytes, without hidden characters.
#[must_use]
pub fn is_shown(text: &str, longest: usize) -> bool {
    !text.is_empty() && text.len() <= longest && !text.chars().any(is_hidden)
}

/// Returns whether a character does anything other than occupy its place.
#[must_use]
pub fn is_hidden(c: char) -> bool {
    let marks = matches!(c, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}');
    c.is_control()
        || marks
        || matches!(c, '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_hides_is_shown_and_what_is_long_is_cut() {
        assert_eq!(printable("na\u{ef}ve \u{4e16}\u{754c}", 99), "na\u{ef}ve \u{4e16}\u{754c}");
        assert_eq!(printable("\x1b[2Jgone\r\nINFO forged", 99), "\\u{1b}[2Jgone\\r\\nINFO forged");
        assert_eq!(printable("a\u{202e}b\u{85}", 99), "a\\u{202e}b\\u{85}");
        assert_eq!(printable("\u{e9}\u{e9}\u{e9}", 4), "\u{e9}\u{e9}... (2 bytes more)");
    }

    proptest! {
        #[test]
        fn no_text_gets_past_it(text: String, limit in 0usize..50) {
            let shown = printable(&text, limit);
            prop_assert!(!shown.chars().any(is_hidden));
            prop_assert!(shown.len() <= limit + "... (18446744073709551615 bytes more)".len());
        }
    }
}
