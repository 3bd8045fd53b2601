//! Finds numbers and calculations in references without LaTeX, by the patterns of math_verify.

use std::ops::Range;

use super::anchor::{TextMatch, after_word, final_answers, final_answers_before_hope, within};
use super::tree::{FormulaNode, Term};

/// A number or a calculation in a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlainFormula {
    start: usize,
    end: usize,
    kind: PlainFormulaKind,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum PlainFormulaKind {
    Calculation(Range<usize>),
    Number { text: String, percent: bool },
}

impl TextMatch for PlainFormula {
    fn start(&self) -> usize {
        self.start
    }

    fn end(&self) -> usize {
        self.end
    }

    fn with_start(self, start: usize) -> Self {
        Self { start, ..self }
    }
}

impl PlainFormula {
    /// Returns the value of the formula, and its text.
    #[must_use]
    pub fn read(&self, text: &str) -> (Option<FormulaNode>, String) {
        match &self.kind {
            PlainFormulaKind::Calculation(range) => {
                let written = text.get(range.clone()).unwrap_or_default();
                (super::calculation::parse(written).map(FormulaNode::Term), written.to_owned())
            }
            PlainFormulaKind::Number { text, percent } => {
                let number = Term::number(text).map(|n| if *percent { Term::Percent(Box::new(n)) } else { n });
                (number.map(FormulaNode::Term), text.clone())
            }
        }
    }
}

/// Returns the matches of each pattern of a priority.
#[must_use]
pub fn find(text: &str, priority: u32) -> Vec<PlainFormula> {
    let either = |at: usize| calculation_at(text, at).or_else(|| number_at(text, at));
    let spaced = |at: usize| {
        let rest = text.get(at..)?;
        let after = at + rest.len() - rest.trim_start().len();
        let last = text.get(at..after)?.chars().next_back().map_or(0, char::len_utf8);
        either(after).or_else(|| if last > 0 { either(after - last) } else { None })
    };
    let not_before_equals = |plain: &PlainFormula| !text.get(plain.end..).unwrap_or_default().trim_start().starts_with('=');
    let answer = |end: usize| {
        let starts: Vec<usize> = within(text, end, 100).collect();
        let equals = starts.iter().rev().filter(|at| text.get(**at..).is_some_and(|rest| rest.starts_with('=')));
        let mut found = equals.filter_map(|at| spaced(at + 1)).filter(not_before_equals);
        found.next().or_else(|| starts.iter().take(51).filter_map(|at| either(*at)).find(not_before_equals))
    };
    match priority {
        0 => final_answers_before_hope(text, spaced),
        50 => final_answers(text, either),
        100 => after_word(text, "answer", |end| text.get(end..)?.starts_with(':').then(|| answer(end + 1))?),
        200 => after_word(text, "answer", answer),
        _ => {
            let mut found = all(text, |at| calculation_at(text, at));
            found.extend(all(text, |at| number_at(text, at)));
            found
        }
    }
}

fn all(text: &str, find: impl Fn(usize) -> Option<PlainFormula>) -> Vec<PlainFormula> {
    let (mut found, mut from) = (Vec::new(), 0);
    for (at, _) in text.char_indices() {
        if at >= from
            && let Some(plain) = find(at)
        {
            from = plain.end;
            found.push(plain);
        }
    }
    found
}

/// Returns the positions at which a match may start if `at` is the start of the text, or a space or equals sign.
fn starts(text: &str, at: usize) -> impl Iterator<Item = usize> {
    let first = text.get(at..).and_then(|rest| rest.chars().next()).filter(|c| c.is_whitespace() || *c == '=');
    let after = first.map(|c| at + c.len_utf8());
    let plain = (at == 0).then_some(0).into_iter().chain(after);
    plain.flat_map(move |start| {
        let bold = text.get(start..).is_some_and(|rest| rest.starts_with("**"));
        bold.then_some(start + 2).into_iter().chain([start])
    })
}

/// Maximum length of a calculation, in bytes.
const LONGEST: usize = 400;

fn is_operator(c: char) -> bool {
    matches!(c, '+' | '-' | '*' | '×' | '/' | '^' | '(' | ')' | '÷')
}

fn calculation_at(text: &str, at: usize) -> Option<PlainFormula> {
    starts(text, at).find_map(|start| {
        let mut first = start;
        for sign in ['-', '(', '-'] {
            first += usize::from(text.get(first..)?.starts_with(sign));
        }
        let rest = text.get(first..)?;
        if !rest.starts_with(|c: char| c.is_ascii_digit()) {
            return None;
        }
        // A longer match is a table rather than a calculation.
        let rest = rest.get(..rest.floor_char_boundary(LONGEST)).unwrap_or(rest);
        let (mut operator, mut best) = (false, None);
        let mut previous_operator = false;
        for (offset, c) in rest.char_indices().skip(1).chain([(rest.len(), '\0')]) {
            let end = first + offset;
            if operator && let Some(length) = suffix(text.get(end..)?) {
                best = Some((end, length));
            }
            if !(c.is_ascii_digit() || c == '.' || c.is_whitespace() || is_operator(c)) {
                break;
            }
            // A character must follow the operator.
            operator |= previous_operator;
            previous_operator |= is_operator(c);
        }
        best.map(|(end, suffix)| PlainFormula { start: at, end: end + suffix, kind: PlainFormulaKind::Calculation(start..end) })
    })
}

/// Returns the length of a calculation's end.
fn suffix(rest: &str) -> Option<usize> {
    let length = |rest: &str| match rest.chars().next() {
        None => Some(0),
        Some(c) if c.is_whitespace() || matches!(c, '.' | ',' | ':' | ')' | '$') => Some(c.len_utf8()),
        Some(_) => None,
    };
    let bold = rest.strip_prefix("**").and_then(length).map(|length| length + 2);
    bold.or_else(|| length(rest))
}

fn number_at(text: &str, at: usize) -> Option<PlainFormula> {
    starts(text, at).find_map(|start| {
        let rest = text.get(start..)?;
        let first = rest.chars().next()?;
        let signed = "$€£¥₹₽₪₩₫฿₡₢₣₤₥₦₧₨₭₮₯₰₱₲₳₴₵₶₷₸₺₻₼₾₿".contains(first);
        let after = if signed { start + first.len_utf8() } else { start };
        [after, start].into_iter().find_map(|from| number_from(text, at, from))
    })
}

fn number_from(text: &str, at: usize, from: usize) -> Option<PlainFormula> {
    if text.get(..from)?.ends_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    let rest = text.get(from..)?;
    let digits = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
    let sign = usize::from(rest.starts_with('-'));
    let body = &rest[sign..];
    let places = |rest: &str, marks: &[char]| rest.strip_prefix(marks).map_or(0, digits);
    let mut whole = 0;
    if !body.starts_with('0') {
        whole = grouped(body);
    }
    let (integer, decimals) = if whole > 0 {
        (whole, places(&body[whole..], &['.']))
    } else {
        (digits(body), places(&body[digits(body)..], &['.', ',']))
    };
    if integer == 0 && (decimals == 0 || sign > 0 || !body.starts_with('.')) {
        return None;
    }
    let end = sign + integer + if decimals > 0 { 1 + decimals } else { 0 };
    let written: String = rest[..sign + integer].chars().filter(|c| !matches!(c, ',' | ' ')).collect();
    let trimmed = written.trim_start_matches('0');
    let trimmed = if trimmed.is_empty() { "0" } else { trimmed };
    let number = format!("{trimmed}{}", rest[sign + integer..end].replace(',', "."));
    let after = rest[end..].trim_start();
    let words = ["%", "percent", "Percent", "pct", "Pct"];
    let percent = words.iter().find(|word| after.starts_with(**word));
    let end = percent.map_or(end, |word| rest.len() - after.len() + word.len());
    Some(PlainFormula { start: at, end: from + end, kind: PlainFormulaKind::Number { text: number, percent: percent.is_some() } })
}

/// Returns the length of a number with thousands separators, or 0.
fn grouped(text: &str) -> usize {
    let digits = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
    let mut length = digits(text);
    if !(1..=3).contains(&length) {
        return 0;
    }
    let first = length;
    while text[length..].starts_with([',', ' ']) && digits(&text[length + 1..]) >= 3 {
        length += 4;
        if digits(&text[length..]) > 0 {
            break;
        }
    }
    if length > first { length } else { 0 }
}
