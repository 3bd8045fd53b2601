//! Finds LaTeX in a text, by the patterns of math_verify.

use std::ops::Range;

/// A text with the positions of the marks that end formulas, so that each can be looked up instead of searched for.
pub struct MarkedText<'a> {
    /// The text.
    pub text: &'a str,
    double_dollars: Vec<usize>,
    dollars: Vec<usize>,
    brackets: Vec<usize>,
    parentheses: Vec<usize>,
    newlines: Vec<usize>,
    boxes: Vec<usize>,
    braces: Vec<usize>,
}

/// A formula in a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FormulaSpan {
    /// Range of the formula in the text.
    pub range: Range<usize>,
    /// Whether a percent sign follows.
    pub percent: bool,
    /// Whether it runs from the first box to the last brace of the text.
    pub open_end: bool,
}

/// Formulas that belong together, such as `$1$, $2$ and $3$`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FormulaList {
    /// Start of the list, including words before it.
    pub start: usize,
    /// End of the list.
    pub end: usize,
    /// The formulas.
    pub parts: Vec<FormulaSpan>,
}

/// Maximum number of formulas in a list.
const LONGEST_LIST: usize = 6;

impl<'a> MarkedText<'a> {
    /// Finds the marks.
    #[must_use]
    pub fn new(text: &'a str) -> Self {
        let bytes = text.as_bytes();
        let all = |mark: &[u8]| (0..bytes.len()).filter(|at| bytes[*at..].starts_with(mark)).collect();
        let after_backslash = |at: usize| at > 0 && bytes[at - 1] == b'\\';
        Self {
            text,
            double_dollars: all(b"$$"),
            dollars: (0..bytes.len()).filter(|at| bytes[*at] == b'$' && !after_backslash(*at)).collect(),
            brackets: all(b"\\]"),
            parentheses: all(b"\\)"),
            newlines: all(b"\n"),
            boxes: all(b"\\boxed{"),
            braces: all(b"}"),
        }
    }

    fn has_box(&self, range: &Range<usize>) -> bool {
        let Some(start) = next(&self.boxes, range.start) else { return false };
        // The box is not empty.
        next(&self.braces, start + 8).is_some_and(|brace| brace < range.end)
    }

    /// Returns the range of the formula whose delimiter starts at a position, and the end of its closing delimiter.
    fn delimited(&self, at: usize) -> Option<(Range<usize>, usize)> {
        let rest = self.text.get(at..)?;
        let before = self.text.get(..at)?.chars().next_back();
        let escaped = before == Some('\\');
        let single_line = |range: Range<usize>| next(&self.newlines, range.start).is_none_or(|line| line >= range.end);
        let ended = |ends: &[usize], opening: usize, closing: usize, multiline: bool| {
            let end = next(ends, at + opening)?;
            let range = at + opening..end;
            let fits = !escaped && !range.is_empty() && !self.text[range.clone()].ends_with('\\');
            (fits && (multiline || single_line(range.clone()))).then_some((range, end + closing))
        };
        let mut found = None;
        if rest.starts_with("$$") {
            found = ended(&self.double_dollars, 2, 2, true);
        } else if rest.starts_with("\\[") {
            found = ended(&self.brackets, 2, 2, true);
        } else if rest.starts_with('$') && !before.is_some_and(|c| c.is_ascii_digit()) {
            found = ended(&self.dollars, 1, 1, false);
        } else if rest.starts_with("\\(") {
            found = ended(&self.parentheses, 2, 2, false);
        } else if rest.starts_with(char::is_whitespace) {
            found = in_brackets(rest).map(|(range, end)| (range.start + at..range.end + at, end + at));
        }
        found
    }

    /// Returns the formula that starts at a position and where it ends, including a percent sign and the space before it.
    fn part(&self, at: usize, boxed: bool) -> Option<(FormulaSpan, usize)> {
        let delimited = self.delimited(at).filter(|(range, _)| !boxed || self.has_box(range));
        let (range, end) = match delimited {
            Some(found) => found,
            None if boxed => return None,
            None => {
                let length = fraction(self.text.get(at..)?)?;
                (at..at + length, at + length)
            }
        };
        let after = self.text.get(end..)?.trim_start();
        let sign = ["\\%", "%", "Percentage", "percentage", "Percent", "percent", "Pct", "pct"];
        // The pattern tries "percent" before "percentage", so it matches at most seven characters.
        let length = sign.iter().find(|sign| after.starts_with(**sign)).map_or(0, |sign| sign.len().min(7));
        let part = FormulaSpan { range, percent: length > 0, open_end: false };
        Some((part, self.text.len() - after.len() + length))
    }

    /// Returns the formula that starts at a position after any space, which may be part of it.
    fn part_after_space(&self, at: usize) -> Option<(FormulaSpan, usize)> {
        let rest = self.text.get(at..)?;
        let after = at + rest.len() - rest.trim_start().len();
        let last = self.text[at..after].chars().next_back().map_or(0, char::len_utf8);
        self.part(after, false).or_else(|| if last > 0 { self.part(after - last, false) } else { None })
    }

    /// Returns the list of formulas that starts at a position.
    #[must_use]
    pub fn list(&self, at: usize, boxed: bool) -> Option<FormulaList> {
        self.part(at, boxed).map(|first| self.followed(at, first, boxed))
    }

    /// Returns the list of formulas that starts at a position after any space.
    #[must_use]
    pub fn list_after_space(&self, at: usize) -> Option<FormulaList> {
        self.part_after_space(at).map(|first| self.followed(at, first, false))
    }

    fn followed(&self, start: usize, (first, mut end): (FormulaSpan, usize), boxed: bool) -> FormulaList {
        let mut parts = vec![first];
        while parts.len() < LONGEST_LIST {
            let rest = self.text[end..].trim_start();
            let Some(length) = [",and", "and", ",or", "or", ","].iter().find(|word| rest.starts_with(**word)).map(|w| w.len())
            else {
                break;
            };
            let after = self.text.len() - rest.len() + length;
            let Some((part, beyond)) = self.part_after_space(after) else { break };
            if boxed && !self.has_box(&part.range) {
                break;
            }
            parts.push(part);
            end = beyond;
        }
        FormulaList { start, end, parts }
    }

    /// Returns all lists of formulas.
    #[must_use]
    pub fn lists(&self, boxed: bool) -> Vec<FormulaList> {
        let (mut lists, mut from) = (Vec::new(), 0);
        for (at, first) in self.text.char_indices() {
            if at >= from
                && (matches!(first, '$' | '\\' | '-') || first.is_whitespace())
                && let Some(found) = self.list(at, boxed)
            {
                from = found.end;
                lists.push(found);
            }
        }
        lists
    }

    /// Returns the text from the first box to the last brace.
    #[must_use]
    pub fn boxes(&self) -> Option<FormulaList> {
        let (start, last) = (*self.boxes.first()?, *self.braces.last()?);
        let part = FormulaSpan { range: start..last + 1, percent: false, open_end: true };
        (last >= start + 8).then(|| FormulaList { start, end: last + 1, parts: vec![part] })
    }
}

/// Returns the first mark at or after a position.
fn next(marks: &[usize], from: usize) -> Option<usize> {
    marks.get(marks.partition_point(|at| *at < from)).copied()
}

/// Finds `[...]` between spaces.
fn in_brackets(rest: &str) -> Option<(Range<usize>, usize)> {
    let space = rest.chars().next()?.len_utf8();
    let inside = rest.get(space..)?.strip_prefix('[')?;
    let length = inside.find(['[', ']', '\n'])?;
    let after = inside.get(length..)?.strip_prefix(']')?;
    let following = after.chars().next().filter(|c| c.is_whitespace())?;
    let start = space + 1;
    (length > 0).then_some((start..start + length, start + length + 1 + following.len_utf8()))
}

/// Returns the length of a fraction of two numbers.
fn fraction(text: &str) -> Option<usize> {
    let rest = text.strip_prefix('-').unwrap_or(text).strip_prefix("\\frac{")?;
    let rest = number(rest)?.strip_prefix("}{")?;
    let rest = number(rest)?.strip_prefix('}')?;
    Some(text.len() - rest.len())
}

/// Returns the text after a number.
fn number(text: &str) -> Option<&str> {
    let digits = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
    let text = text.strip_prefix('-').unwrap_or(text);
    let whole = digits(text);
    let rest = text.get(whole..)?;
    let places = rest.strip_prefix(['.', ',']).map_or(0, digits);
    (whole > 0).then(|| if places > 0 { &rest[1 + places..] } else { rest })
}
