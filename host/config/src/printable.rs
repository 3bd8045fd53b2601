//! Makes untrusted text safe to print.

use regex_syntax::hir::{Class, Hir, HirKind};
use std::path::Path;
use std::sync::LazyLock;

/// Maximum length of a printed path: Linux's limit.
const LONGEST_PATH: usize = 4096;

/// Returns the text in at most this many bytes, with everything visible: control characters, escape sequences, line ends and bidirectional
/// marks become `\u{..}`, so untrusted text can't move the cursor, or forge or hide lines.
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

/// Returns a text in at most about this many bytes, with everything but its line ends visible. A single line is truncated at its end, like
/// [`printable`]'s, several lines at their beginning.
#[must_use]
pub fn printable_lines(text: &str, limit: usize) -> String {
    if !text.contains('\n') {
        return printable(text, limit);
    }
    let lines: Vec<String> = text.lines().map(|line| printable(&line.replace('\t', "    "), limit)).collect();
    let text = lines.join("\n");
    if text.len() <= limit {
        return text;
    }
    // The last lines of an error are the most informative.
    let from = text.char_indices().map(|(at, _)| at).find(|at| text.len() - at <= limit).unwrap_or(text.len());
    format!("({from} bytes left out)...{}", &text[from..])
}

/// Returns a number in its shortest form: `0`, `0.1`, or `1e300` rather than 300 digits.
#[must_use]
pub fn shortest(number: f64) -> String {
    let text = format!("{number:?}");
    text.strip_suffix(".0").map_or_else(|| text.clone(), str::to_owned)
}

/// Returns bytes, such as a hash, as lower-case hexadecimal digits.
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digit = |of: u8| char::from(DIGITS[usize::from(of & 15)]);
    let mut text = String::with_capacity(2 * bytes.len());
    bytes.iter().for_each(|byte| text.extend([digit(byte >> 4), digit(*byte)]));
    text
}

/// Returns a printable path; files in an untrusted folder may have any name.
#[must_use]
pub fn printable_path(path: &Path) -> String {
    printable(&path.to_string_lossy(), LONGEST_PATH)
}

/// Returns a path as one shell word, for a command that is printed to be pasted. Hidden characters and bytes that are not text are escaped
/// in `$'..'`, which keeps the word on one line. Shells that don't support that see another path, but nothing else: the path's single
/// quotes and backslashes are escaped.
#[must_use]
pub fn shell_word(path: &Path) -> String {
    let bytes = path.as_os_str().as_encoded_bytes();
    // A leading dash would be read as a flag.
    let here = if bytes.starts_with(b"-") { "./" } else { "" };
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-./:,+@%".contains(c);
    match std::str::from_utf8(bytes) {
        Ok(text) if !text.is_empty() && text.chars().all(plain) => format!("{here}{text}"),
        Ok(text) if !text.chars().any(is_hidden) => format!("{here}'{}'", text.replace('\'', r"'\''")),
        _ => {
            let byte = |byte: &u8| match byte {
                b' '..=b'~' if !matches!(byte, b'\'' | b'\\') => char::from(*byte).to_string(),
                _ => format!("\\{byte:03o}"),
            };
            format!("{here}$'{}'", bytes.iter().map(byte).collect::<String>())
        }
    }
}

/// Returns whether a text can be a name: 1 to `longest` bytes, without hidden characters, leading or trailing spaces, or white space other
/// than the ordinary space.
#[must_use]
pub fn is_shown(text: &str, longest: usize) -> bool {
    let odd = |c: char| is_hidden(c) || (c.is_whitespace() && c != ' ');
    !text.is_empty() && text.len() <= longest && text.trim() == text && !text.chars().any(odd)
}

/// Returns whether a character does anything other than occupy its place. Characters without width are those that Unicode says to ignore if
/// they are not supported.
#[must_use]
pub fn is_hidden(c: char) -> bool {
    c.is_control() || matches!(c, '\u{2028}'..='\u{202e}' | '\u{fff9}'..='\u{fffb}') || (!c.is_ascii() && is_ignorable(c))
}

/// Returns whether a character selects a variant of the one before it, as in emoji. It hides nothing, so displayed text may contain it, but
/// names may not.
#[must_use]
pub fn is_variation_selector(c: char) -> bool {
    matches!(c, '\u{fe00}'..='\u{fe0f}')
}

/// Returns whether a character has Unicode's property `Default_Ignorable_Code_Point`.
fn is_ignorable(c: char) -> bool {
    static RANGES: LazyLock<Vec<(char, char)>> = LazyLock::new(|| {
        let class = match regex_syntax::parse(r"\p{Default_Ignorable_Code_Point}").map(Hir::into_kind) {
            Ok(HirKind::Class(Class::Unicode(class))) => class,
            other => unreachable!("a property is a class of characters: {other:?}"),
        };
        class.ranges().iter().map(|range| (range.start(), range.end())).collect()
    });
    let place = RANGES.partition_point(|(_, end)| *end < c);
    RANGES.get(place).is_some_and(|(start, _)| *start <= c)
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

    #[test]
    fn of_several_lines_the_last_are_kept_and_of_one_its_beginning() {
        assert_eq!(printable_lines("one\n\ttwo\x1b", 99), "one\n    two\\u{1b}");
        assert_eq!(printable_lines("first\nsecond\nthird", 8), "(10 bytes left out)...nd\nthird");
        assert_eq!(printable_lines("a wrong path", 7), printable("a wrong path", 7));
        assert_eq!(printable("a wrong path", 7), "a wrong... (5 bytes more)");
    }

    #[test]
    fn what_takes_no_place_is_hidden() {
        let ignorable = [
            '\u{ad}',
            '\u{34f}',
            '\u{61c}',
            '\u{115f}',
            '\u{1160}',
            '\u{17b4}',
            '\u{180b}',
            '\u{180e}',
            '\u{200b}',
            '\u{200f}',
            '\u{2060}',
            '\u{2065}',
            '\u{206f}',
            '\u{3164}',
            '\u{fe00}',
            '\u{fe0f}',
            '\u{feff}',
            '\u{ffa0}',
            '\u{fff0}',
            '\u{1bca0}',
            '\u{1d173}',
            '\u{e0000}',
            '\u{e0101}',
            '\u{e0fff}',
        ];
        for c in ignorable.into_iter().chain(['\u{202e}', '\u{2028}', '\u{fff9}', '\u{7f}', '\u{85}']) {
            assert!(is_hidden(c) && printable(&c.to_string(), 99).starts_with("\\u{"), "{:x}", u32::from(c));
            assert!(!is_shown(&format!("kl{c}"), 99), "{:x}", u32::from(c));
        }
        for c in ['a', ' ', '\u{a0}', '\u{e9}', '\u{301}', '\u{3000}', '\u{1100}', '\u{4e16}', '\u{fffd}', '\u{1f469}'] {
            assert!(!is_hidden(c), "{:x}", u32::from(c));
        }
    }

    #[test]
    fn a_name_has_no_spaces_that_look_like_another_name() {
        for name in ["kl ", " kl", "k\u{a0}l", "kl\u{a0}", "k\u{3000}l", "k\u{2009}l", "k\tl", "k\u{1680}l", "", " "] {
            assert!(!is_shown(name, 99), "{name:?}");
        }
        assert!(is_shown("share of right answers", 99) && is_shown("\u{4e16}\u{754c}", 99));
    }

    #[test]
    fn numbers_are_short() {
        let numbers = [0.0, 5.0, -0.1, 1e300, -1e-300, 1e-5, 123_456.0, f64::NAN];
        assert_eq!(numbers.map(shortest), ["0", "5", "-0.1", "1e300", "-1e-300", "1e-5", "123456", "NaN"]);
    }

    #[test]
    fn a_path_is_one_word_of_a_shell() {
        let word = |text: &str| shell_word(Path::new(text));
        assert_eq!(word("runs/a-1_b.c"), "runs/a-1_b.c");
        assert_eq!(word("my run/checkpoint-1"), "'my run/checkpoint-1'");
        assert_eq!(word("./a;touch X"), "'./a;touch X'");
        assert_eq!(word("it's"), r"'it'\''s'");
        assert_eq!(word("-rf"), "./-rf");
        assert_eq!(word(""), "''");
        assert_eq!(word("~/\u{e9}"), "'~/\u{e9}'");
        assert_eq!(word("a\n'\\\u{202e}"), r"$'a\012\047\134\342\200\256'");
    }

    proptest! {
        #[cfg(unix)]
        #[test]
        fn a_shell_reads_the_word_as_the_path_and_never_as_more(text in "[^\0]{1,20}", ended in "[\n'\\\\;$ a]{1,12}") {
            // A shell without `$'..'` also reads a single word.
            for text in [&text, &ended] {
                let script = format!("set -- {}; printf %s $#", shell_word(Path::new(text)));
                let out = std::process::Command::new("sh").args(["-c", &script]).output().unwrap();
                prop_assert_eq!(String::from_utf8_lossy(&out.stdout), "1", "{:?}", text);
            }
            let word = shell_word(Path::new(&text));
            prop_assume!(!word.contains("$'"));
            let out = std::process::Command::new("sh").args(["-c", &format!("printf %s {word}")]).output().unwrap();
            let said = String::from_utf8(out.stdout).unwrap();
            prop_assert_eq!(said.strip_prefix("./").filter(|_| text.starts_with('-')).unwrap_or(&said), &text);
        }

        #[test]
        fn no_text_gets_past_it(text: String, limit in 0usize..50) {
            let shown = printable(&text, limit);
            prop_assert!(!shown.chars().any(is_hidden));
            prop_assert!(shown.len() <= limit + "... (18446744073709551615 bytes more)".len());
        }
    }
}
