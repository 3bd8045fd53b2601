//! Filters `wordwrap`, like Python's `textwrap`, and `filesizeformat`.

use super::arguments::{TemplateArguments, all, error};
use super::letters::{is_alphanumeric, is_letter, is_space};
use super::methods::lines;
use super::text::str;
use minijinja::value::{Kwargs, Rest, ValueKind};
use minijinja::{Error, Value};

/// Filter `wordwrap`.
pub(super) fn word_wrap(value: &Value, args: Rest<Value>, named: Kwargs) -> Result<String, Error> {
    let names = ["width", "break_long_words", "wrapstring", "break_on_hyphens"];
    let args = TemplateArguments::bind(&all(args, named), &names)?;
    let text = value.as_str().ok_or_else(|| error(format!("wordwrap: wants a string, not {}", value.kind())))?;
    let width = args.integer(0)?.unwrap_or(79);
    let width =
        usize::try_from(width).ok().filter(|width| *width > 0).ok_or_else(|| error("wordwrap: the width must be positive"))?;
    let is_set = |at: usize| args.given(at).is_none_or(Value::is_true);
    let wrapper = TextWrapper { width, break_long_words: is_set(1), break_on_hyphens: is_set(3) };
    let between = args.text(2)?.unwrap_or("\n");
    let wrapped = lines(text, false).into_iter().map(|line| wrapper.wrap(line).join(between));
    Ok(wrapped.collect::<Vec<_>>().join(between))
}

struct TextWrapper {
    width: usize,
    break_long_words: bool,
    break_on_hyphens: bool,
}

impl TextWrapper {
    fn wrap(&self, line: &str) -> Vec<String> {
        let chars: Vec<char> = line.chars().collect();
        let mut chunks = self.chunks(&chars);
        chunks.reverse();
        let is_blank = |chunk: &[char]| chunk.iter().copied().all(is_space);
        let mut wrapped: Vec<String> = Vec::new();
        while let Some(first) = chunks.last() {
            if is_blank(first) && !wrapped.is_empty() {
                chunks.pop();
            }
            let (mut own, mut length): (Vec<&[char]>, usize) = (Vec::new(), 0);
            while let Some(chunk) = chunks.pop_if(|chunk| length + chunk.len() <= self.width) {
                length += chunk.len();
                own.push(chunk);
            }
            if chunks.last().is_some_and(|chunk| chunk.len() > self.width) {
                self.break_word(&mut chunks, &mut own, self.width - length);
            }
            own.pop_if(|chunk| is_blank(chunk));
            if !own.is_empty() {
                wrapped.push(own.concat().into_iter().collect());
            }
        }
        wrapped
    }

    /// Moves the part of a long word for which there is room to a line.
    fn break_word<'a>(&self, chunks: &mut Vec<&'a [char]>, own: &mut Vec<&'a [char]>, room: usize) {
        let Some(word) = chunks.pop() else { return };
        if !self.break_long_words {
            if own.is_empty() {
                own.push(word);
            } else {
                chunks.push(word);
            }
            return;
        }
        let hyphen = word[..room].iter().rposition(|c| *c == '-').filter(|_| self.break_on_hyphens && word.len() > room);
        let hyphen = hyphen.filter(|at| word[..*at].iter().any(|c| *c != '-'));
        let (part, rest) = word.split_at(hyphen.map_or(room, |at| at + 1));
        own.push(part);
        chunks.push(rest);
    }

    /// Splits a line into words, parts of hyphenated words, dashes and spaces.
    fn chunks<'a>(&self, line: &'a [char]) -> Vec<&'a [char]> {
        let (mut chunks, mut at) = (Vec::new(), 0);
        while at < line.len() {
            let end = match line[at..].iter().position(|c| !is_blank(*c)) {
                Some(0) if self.break_on_hyphens => at + part_length(line, at),
                Some(0) => at + line[at..].iter().position(|c| is_blank(*c)).unwrap_or(line.len() - at),
                Some(spaces) => at + spaces,
                None => line.len(),
            };
            chunks.push(&line[at..end]);
            at = end;
        }
        chunks
    }
}

/// Whitespace at which Python's `textwrap` breaks lines.
fn is_blank(c: char) -> bool {
    matches!(c, '\t' | '\n' | '\u{b}' | '\u{c}' | '\r' | ' ')
}

/// Returns the length of the part of a word that begins here.
fn part_length(line: &[char], from: usize) -> usize {
    let is_word = |c: char| is_alphanumeric(c) || c == '_';
    let is_before_dash = |c: char| is_word(c) || "!\"'&.,?".contains(c);
    let letter = |at: Option<usize>| at.and_then(|at| line.get(at)).is_some_and(|c| is_letter(*c));
    let dash_end = |at: usize| {
        let count = line[at..].iter().take_while(|c| **c == '-').count();
        let is_dash = count >= 2 && at > 0 && is_before_dash(line[at - 1]) && line.get(at + count).is_some_and(|c| is_word(*c));
        is_dash.then_some(count)
    };
    if let Some(length) = dash_end(from) {
        return length;
    }
    for end in from + 1..line.len() {
        if line[end] == '-' {
            let after_letters = letter(end.checked_sub(2)) && letter(Some(end - 1));
            let after_part = letter(end.checked_sub(3)) && line[end.saturating_sub(2)] == '-' && is_before_dash(line[end - 1]);
            let second = if line.get(end + 2) == Some(&'-') { end + 3 } else { end + 2 };
            if (after_letters || after_part) && letter(Some(end + 1)) && letter(Some(second)) {
                return end + 1 - from;
            }
        }
        if is_blank(line[end]) || dash_end(end).is_some() {
            return end - from;
        }
    }
    line.len() - from
}

/// Filter `filesizeformat`.
pub(super) fn file_size(value: &Value, args: Rest<Value>, named: Kwargs) -> Result<String, Error> {
    let args = TemplateArguments::bind(&all(args, named), &["binary"])?;
    let number = match value.kind() {
        ValueKind::String => str(value)?.trim().parse().ok(),
        ValueKind::Bool => Some(f64::from(u8::from(value.is_true()))),
        ValueKind::Number => f64::try_from(value.clone()).ok().or_else(|| i128::try_from(value.clone()).ok().map(|n| n as f64)),
        _ => None,
    };
    let bytes: f64 = number.ok_or_else(|| error(format!("filesizeformat: wants a number, not {}", value.kind())))?;
    let (base, infix): (f64, _) = if args.is_true(0) { (1024.0, "i") } else { (1000.0, "") };
    if bytes == 1.0 {
        return Ok("1 Byte".into());
    }
    if bytes < base {
        return Ok(format!("{} Bytes", bytes.trunc()));
    }
    let prefixes: Vec<char> = if infix.is_empty() { "kMGTPEZY" } else { "KMGTPEZY" }.chars().collect();
    let unit = |i: usize| base.powi(i as i32 + 2);
    let i = (0..prefixes.len()).find(|i| bytes < unit(*i)).unwrap_or(prefixes.len() - 1);
    Ok(format!("{:.1} {}{infix}B", base * bytes / unit(i), prefixes[i]))
}
