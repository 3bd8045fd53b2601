//! `{% generation %}`: transformers' marks around the assistant's text in a chat template.
//!
//! The engine has no such tag. It is rewritten to a call block, which passes its text to a function, like transformers' own. To locate the
//! text in the output, the function surrounds it with characters that do not occur in the conversation.

use super::chat::RenderError;
use minijinja::value::Kwargs;
use minijinja::{Environment, Error, State, Value};
use std::collections::HashSet;
use std::ops::Range;

/// Name of the function, and of its argument.
const FUNCTION: &str = "generation_block";
pub(super) const ARGUMENT: &str = "generation_marks";

/// Private-use characters for the marks.
const PRIVATE: std::ops::RangeInclusive<char> = '\u{F0000}'..='\u{FFFFD}';

/// Returns the opening of the call block.
pub(super) fn call() -> String {
    format!("call {FUNCTION}({ARGUMENT})")
}

/// Registers the function.
pub(super) fn add_function(environment: &mut Environment<'_>) {
    let block = |state: &mut State<'_, '_>, marks: Option<String>, options: Kwargs| -> Result<String, Error> {
        let said = options.get::<Value>("caller")?.call(state, &[])?.to_string();
        let mut marks = marks.iter().flat_map(|marks| marks.chars());
        Ok(marks.next().into_iter().map(String::from).chain([said]).chain(marks.map(String::from)).collect())
    };
    environment.add_function(FUNCTION, block);
}

/// Returns two characters that the text does not contain.
pub(super) fn free(text: &str) -> Result<[char; 2], RenderError> {
    let taken: HashSet<char> = text.chars().filter(|c| PRIVATE.contains(c)).collect();
    let mut free = PRIVATE.filter(|c| !taken.contains(c));
    match (free.next(), free.next()) {
        (Some(open), Some(close)) => Ok([open, close]),
        _ => Err(RenderError::Refused("the conversation has all 65,534 characters of a private use plane".into())),
    }
}

/// Returns the ranges of the marked parts in the text without marks.
///
/// # Errors
/// If the marked text without its marks differs from the plain text.
pub(super) fn spans(marked: &str, [open, close]: [char; 2], plain: &str) -> Result<Vec<Range<usize>>, RenderError> {
    let (mut bytes, mut opened, mut spans) = (0, Vec::new(), Vec::new());
    for c in marked.chars() {
        if c == open {
            opened.push(bytes);
        } else if c == close {
            spans.extend(opened.pop().map(|begin| begin..bytes));
        } else {
            bytes += c.len_utf8();
        }
    }
    let same = marked.chars().filter(|c| ![open, close].contains(c)).eq(plain.chars());
    if same && opened.is_empty() {
        return Ok(spans);
    }
    Err(RenderError::Refused(
        "the template changes the text of {% generation %} blocks after they end, so their place is lost".into(),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_characters_that_the_text_lacks() {
        let text = "a\u{F0000}b\u{F0002}";
        let [open, close] = free(text).unwrap();
        assert_eq!([open, close], ['\u{F0001}', '\u{F0003}']);
        assert_eq!(spans(&format!("a\u{F0000}{open}b{close}\u{F0002}"), [open, close], text).unwrap(), vec![5..6]);
        assert!(spans(&format!("a\u{F0000}{open}b{close}"), [open, close], text).is_err());
        let all: String = PRIVATE.collect();
        assert!(free(&all).is_err());
    }
}
