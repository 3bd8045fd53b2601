//! What the model may read of a result.

use rusqlite::types::ValueRef;
use std::borrow::Cow;

/// A text of limited length.
pub struct LimitedText {
    text: String,
    longest: usize,
    rows: usize,
    is_cut: bool,
}

/// Returns whether what follows a `<` or `[` makes it a mark of a template, such as `<|end|>`, `</s>` or `[INST]`.
fn is_mark(first: char, rest: &str) -> bool {
    if first == '<' {
        let end = rest.find(|c: char| matches!(c, '<' | '>') || c.is_whitespace());
        return end.is_some_and(|end| end > 0 && rest[end..].starts_with('>'));
    }
    let name = rest.strip_prefix('/').unwrap_or(rest);
    let end = name.find(|c: char| !c.is_ascii_uppercase() && c != '_');
    end.is_some_and(|end| end > 0 && name[end..].starts_with(']'))
}

/// Parts what templates might take for a mark, so that a result can't end its message.
fn parted(text: &str) -> Cow<'_, str> {
    let mut parted = String::new();
    let mut done = 0;
    for (at, mark) in text.match_indices(['<', '[']) {
        let after = at + mark.len();
        if is_mark(if mark == "<" { '<' } else { '[' }, &text[after..]) {
            parted.push_str(&text[done..after]);
            parted.push(' ');
            done = after;
        }
    }
    if done == 0 {
        return Cow::Borrowed(text);
    }
    parted.push_str(&text[done..]);
    Cow::Owned(parted)
}

/// Returns a number as SQLite writes it: 15 digits, with a point.
pub fn real(number: f64) -> String {
    let rounded = format!("{number:.14e}").parse().unwrap_or(number);
    format!("{rounded:?}")
}

impl LimitedText {
    /// Creates an empty text that becomes at most `longest` bytes long.
    pub fn new(longest: usize) -> Self {
        Self { text: String::new(), longest, rows: 0, is_cut: false }
    }

    /// Returns a text that the model may read.
    pub fn sanitize(text: &str, longest: usize) -> String {
        let mut made = Self::new(longest);
        made.push(text);
        made.text
    }

    /// Returns whether something was left out.
    pub fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// Returns what it is.
    pub fn into_string(self) -> String {
        self.text
    }

    fn push(&mut self, text: &str) {
        let text = parted(text);
        let room = if self.is_cut { 0 } else { self.longest - self.text.len() };
        self.is_cut |= text.len() > room;
        self.text.push_str(&text[..text.floor_char_boundary(room)]);
    }

    /// Adds a name or a text, on one line.
    pub fn push_line(&mut self, text: &str) {
        match text.contains(['\n', '\r']) {
            true => self.push(&text.replace('\r', "\\r").replace('\n', "\\n")),
            false => self.push(text),
        }
    }

    /// Adds a value.
    pub fn push_value(&mut self, value: ValueRef<'_>) {
        match value {
            ValueRef::Null => self.push("NULL"),
            ValueRef::Integer(number) => self.push(&number.to_string()),
            ValueRef::Real(number) => self.push(&real(number)),
            ValueRef::Text(bytes) => self.push_line(&String::from_utf8_lossy(bytes)),
            ValueRef::Blob(bytes) => {
                let shown: String = bytes.iter().take(self.longest).map(|byte| format!("{byte:02X}")).collect();
                self.push(&format!("X'{shown}'"));
            }
        }
    }

    /// Adds a row: its values, each added by `push`.
    pub fn push_row<T>(&mut self, values: impl Iterator<Item = T>, push: impl Fn(&mut Self, T)) {
        if self.is_cut {
            return;
        }
        if self.rows > 0 {
            self.push("\n");
        }
        self.rows += 1;
        for (place, value) in values.enumerate() {
            if place > 0 {
                self.push(" | ");
            }
            push(self, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_of_templates_are_parted_and_the_rest_stays() {
        let shown = |text: &str| LimitedText::sanitize(text, 200);
        assert_eq!(shown("a<|im_end|>b</s>[INST]c[/INST]"), "a< |im_end|>b< /s>[ INST]c[ /INST]");
        let plain = "1 < 2 > 0, <>, [x], [], [A b], a <b c>, höher <";
        assert_eq!(shown(plain), plain);
        assert_eq!(shown("<<s>>"), "<< s>>");
    }

    #[test]
    fn a_text_is_cut_between_characters() {
        let mut text = LimitedText::new(5);
        text.push_line("äää");
        assert!(text.is_cut());
        text.push_line("b");
        assert_eq!(text.into_string(), "ää");
        assert_eq!(LimitedText::sanitize("12345", 5), "12345");
    }

    #[test]
    fn values_are_written_as_sqlite_writes_them() {
        let shown = |value: ValueRef<'_>| {
            let mut text = LimitedText::new(40);
            text.push_value(value);
            text.into_string()
        };
        assert_eq!(shown(ValueRef::Real(0.1 + 0.2)), "0.3");
        assert_eq!(shown(ValueRef::Real(2.0)), "2.0");
        assert_eq!(shown(ValueRef::Integer(-7)), "-7");
        assert_eq!(shown(ValueRef::Null), "NULL");
        assert_eq!(shown(ValueRef::Blob(&[1, 0xab])), "X'01AB'");
        assert_eq!(shown(ValueRef::Text(b"a\nb\xff")), "a\\nb\u{fffd}");
    }
}
