//! What is right: an answer, or the rows of a query.

use crate::SqliteSettings;
use rlhost_plugin_sdk::environment::Start;
use rlhost_plugin_sdk::prelude::*;
use rusqlite::types::ValueRef;
use std::hash::{DefaultHasher, Hash, Hasher};

/// What a row of the dataset says is right.
pub enum RowReference {
    /// A text or a number.
    Answer(String),
    /// A reference query.
    Query(String),
    /// Nothing.
    Nothing,
}

impl RowReference {
    /// Reads it. An answer counts more than a query.
    pub fn from_row(settings: &SqliteSettings, start: &Start) -> Result<Self, Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum AnswerValue {
            Integer(i64),
            Number(f64),
            Text(String),
        }
        if let Some(answer) = start.column_as(&settings.answer_column)? {
            return Ok(Self::Answer(match answer {
                AnswerValue::Integer(number) => number.to_string(),
                AnswerValue::Number(number) => number.to_string(),
                AnswerValue::Text(text) => text,
            }));
        }
        Ok(start.column_as(&settings.query_column)?.map_or(Self::Nothing, Self::Query))
    }
}

/// Removes commas between the digits of a number, as in 1,234.
fn without_commas(text: &str) -> String {
    let bytes = text.as_bytes();
    let digit = |i: usize| bytes.get(i).is_some_and(u8::is_ascii_digit);
    let stays = |i: usize| bytes[i] != b',' || i == 0 || !digit(i - 1) || !(1..=3).all(|ahead| digit(i + ahead));
    text.char_indices().filter(|(i, _)| stays(*i)).map(|(_, c)| c).collect()
}

/// Returns the length of the number at the beginning of a text, without its sign; 0 if there is none.
fn length_of_number(text: &str) -> usize {
    let digits = |from: usize| text.as_bytes().iter().skip(from).take_while(|byte| byte.is_ascii_digit()).count();
    let mut length = digits(0);
    if length > 0 && text[length..].starts_with('.') && digits(length + 1) > 0 {
        length += 1 + digits(length + 1);
    }
    let exponent = text[length..].strip_prefix(['e', 'E']).map(|rest| 1 + usize::from(rest.starts_with(['+', '-'])));
    if let Some(sign) = exponent.filter(|sign| length > 0 && digits(length + sign) > 0) {
        length += sign + digits(length + sign);
    }
    length
}

/// Returns the last number in a text.
fn number_in(text: &str) -> Option<f64> {
    let text = without_commas(text);
    let (mut last, mut at) = (None, 0);
    while let Some(next) = text[at..].find(|c: char| c.is_ascii_digit()) {
        let (begin, length) = (at + next, length_of_number(&text[at + next..]));
        let signed = if begin > at && text[..begin].ends_with('-') { begin - 1 } else { begin };
        last = text[signed..begin + length].parse().ok();
        at = begin + length;
    }
    last
}

/// Returns whether what the model said is the right answer: by its last number if that is one, else whether it ends with the text.
pub fn is_right(said: &str, right: &str) -> bool {
    let wanted = without_commas(right.trim()).parse().ok().filter(|number: &f64| number.is_finite());
    if let Some(wanted) = wanted {
        return number_in(said).is_some_and(|said| (said - wanted).abs() <= 1e-6 * wanted.abs().max(1.0));
    }
    let plain = |text: &str| text.trim().trim_end_matches(['.', '!']).to_lowercase();
    plain(said).ends_with(&plain(right))
}

/// What identifies the rows of a result.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RowsFingerprint {
    count: u64,
    in_order: u64,
    in_any_order: u64,
}

impl RowsFingerprint {
    /// Adds a row. Numbers are the same if twelve of their digits are: sums depend on the order of what is added.
    pub fn push<'a>(&mut self, row: impl Iterator<Item = ValueRef<'a>>) {
        let mut hasher = DefaultHasher::new();
        for value in row {
            match value {
                ValueRef::Null => 0_u8.hash(&mut hasher),
                ValueRef::Integer(number) => (1_u8, number).hash(&mut hasher),
                ValueRef::Real(number) => {
                    let number: f64 = format!("{number:.11e}").parse().unwrap_or(number);
                    match number.fract() == 0.0 && number.abs() < 9e15 {
                        true => (1_u8, number as i64).hash(&mut hasher),
                        false => (2_u8, number.to_bits()).hash(&mut hasher),
                    }
                }
                ValueRef::Text(bytes) => (3_u8, bytes).hash(&mut hasher),
                ValueRef::Blob(bytes) => (4_u8, bytes).hash(&mut hasher),
            }
        }
        let row = hasher.finish();
        let mut hasher = DefaultHasher::new();
        (self.in_order, row).hash(&mut hasher);
        self.in_order = hasher.finish();
        self.in_any_order = self.in_any_order.wrapping_add(row);
        self.count += 1;
    }

    /// Returns their number.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns whether both are the same rows, in the same order if that counts.
    pub fn matches(&self, others: &Self, ordered: bool) -> bool {
        self.count == others.count && self.in_any_order == others.in_any_order && (!ordered || self.in_order == others.in_order)
    }
}

/// Returns the length of the comment, text or name in quotes at the beginning of an SQL text; `None` if there is none.
fn length_of_quoted(sql: &str) -> Option<usize> {
    let end = [("--", "\n"), ("/*", "*/"), ("'", "'"), ("\"", "\""), ("`", "`"), ("[", "]")];
    let (begin, end) = end.into_iter().find(|(begin, _)| sql.starts_with(begin))?;
    let inside = &sql[begin.len()..];
    Some(inside.find(end).map_or(sql.len(), |length| begin.len() + length + end.len()))
}

/// Returns whether a query orders its rows: has an ORDER BY outside of parentheses.
pub fn is_ordered(sql: &str) -> bool {
    let (mut outside, mut depth, mut at) = (String::new(), 0_usize, 0);
    while let Some(next) = sql[at..].chars().next() {
        if let Some(length) = length_of_quoted(&sql[at..]) {
            outside.push(' ');
            at += length;
            continue;
        }
        match next {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ if depth == 0 => outside.push(next.to_ascii_lowercase()),
            _ => {}
        }
        at += next.len_utf8();
    }
    let words: Vec<&str> = outside.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty()).collect();
    words.windows(2).any(|pair| pair == ["order", "by"])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_compared_by_its_last_number_or_by_its_ending() {
        assert!(is_right("There are 1,234 of them.", "1234"));
        assert!(is_right("between 3 and 7.50", "7.5"));
        assert!(is_right("-4", "-4"));
        assert!(is_right("It is 2e3", "2000"));
        assert!(!is_right("7 or 8", "7"));
        assert!(!is_right("no idea", "7"));
        assert!(is_right(" The capital is Paris. ", "paris"));
        assert!(!is_right("Paris or Rome", "Paris"));
        assert!(is_right("see 2024-03-01", "2024-03-01"));
    }

    #[test]
    fn numbers_are_found_with_sign_point_and_exponent() {
        assert_eq!(number_in("a -1.5e-3."), Some(-1.5e-3));
        assert_eq!(number_in("12,345,678"), Some(12_345_678.0));
        assert_eq!(number_in("1,2"), Some(2.0));
        assert_eq!(number_in("x 5e"), Some(5.0));
        assert_eq!(number_in("3-4"), Some(-4.0));
        assert_eq!(number_in("none"), None);
    }

    #[test]
    fn rows_are_compared_with_or_without_their_order() {
        let rows = |values: &[ValueRef<'_>]| {
            let mut rows = RowsFingerprint::default();
            values.iter().for_each(|value| rows.push(std::iter::once(*value)));
            rows
        };
        let (one, two, text) = (ValueRef::Integer(1), ValueRef::Integer(2), ValueRef::Text(b"1"));
        assert!(rows(&[one, two]).matches(&rows(&[two, one]), false));
        assert!(!rows(&[one, two]).matches(&rows(&[two, one]), true));
        assert!(!rows(&[one, one]).matches(&rows(&[one]), false));
        assert!(!rows(&[one]).matches(&rows(&[text]), false));
        assert!(rows(&[one]).matches(&rows(&[ValueRef::Real(1.0)]), true));
        assert!(rows(&[ValueRef::Real(0.1 + 0.2)]).matches(&rows(&[ValueRef::Real(0.3)]), true));
        let large = |number| rows(&[ValueRef::Integer(number)]);
        assert!(!large(12_345_678_901_234).matches(&large(12_345_678_901_235), false));
    }

    #[test]
    fn only_an_order_of_the_whole_query_counts() {
        assert!(is_ordered("SELECT a FROM t ORDER\n BY a"));
        assert!(is_ordered("select a from t order /* ) */ by a limit (1)"));
        for not in [
            "SELECT a FROM t",
            "SELECT a FROM (SELECT a FROM t ORDER BY a)",
            "SELECT row_number() OVER (ORDER BY a) FROM t",
            "SELECT 'order by' FROM t -- order by a",
            "SELECT \"order by\", order_by FROM t",
        ] {
            assert!(!is_ordered(not), "{not}");
        }
    }
}
