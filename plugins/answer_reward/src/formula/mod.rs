//! Compares formulas as TRL's `accuracy_reward` does with math_verify.
//!
//! A reference is read leniently: LaTeX in dollar signs, `\[...\]` and the like, or in `\boxed{...}`, or a plain number. An answer must be
//! LaTeX in `\boxed{...}` or after the word "answer". Both become expressions, which are equal if their values are.

use std::cmp::Reverse;

use anchor::{TextMatch, after_word, final_answers, final_answers_before_hope, within};
use boxes::BoxSelection;
use environment::{FormulaList, MarkedText};
use normalize::RewriteOptions;
use plain::PlainFormula;
use tree::{FormulaNode, Term};

pub mod anchor;
pub mod boxes;
pub mod calculation;
pub mod compare;
pub mod environment;
pub mod expression;
pub mod functions;
pub mod letters;
pub mod lex;
pub mod malformed;
pub mod modular;
pub mod normalize;
pub mod parse;
pub mod plain;
pub mod plain_text;
pub mod sets;
pub mod surroundings;
pub mod tree;
pub mod units;
pub mod value;

/// Number of bytes at the end of a completion that are searched.
const LONGEST_COMPLETION: usize = 1 << 20;
/// Number of bytes at the end of a reference that are searched, because every position is tried for each completion.
const LONGEST_REFERENCE: usize = 1 << 14;
/// Maximum number of formulas of a reference that are tried.
const MOST_TRIED: usize = 50;

/// The result of reading a text: the first formula that could be parsed, and the text of the first that was found.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FormulaReading {
    /// The formula.
    pub node: Option<FormulaNode>,
    /// The text.
    pub text: Option<String>,
}

impl TextMatch for FormulaList {
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

/// Returns whether the answer in a completion matches the reference, or `None` if the reference has no formula.
#[must_use]
pub fn is_right(completion: &str, reference: &str) -> Option<bool> {
    let reference = read_reference(end(reference, LONGEST_REFERENCE));
    if reference == FormulaReading::default() {
        return None;
    }
    let answer = read_answer(end(completion, LONGEST_COMPLETION));
    let same_text = reference.text.as_deref().zip(answer.text.as_deref()).is_some_and(|(a, b)| a.trim() == b.trim());
    let same = |reference: &FormulaNode, answer: &FormulaNode| compare::same(reference, answer);
    Some(same_text || reference.node.as_ref().zip(answer.node.as_ref()).is_some_and(|(a, b)| same(a, b)))
}

/// Returns the end of a text, at most `longest` bytes.
fn end(text: &str, longest: usize) -> &str {
    let mut from = text.len().saturating_sub(longest);
    while !text.is_char_boundary(from) {
        from += 1;
    }
    &text[from..]
}

/// Finds LaTeX by the patterns of a priority, except boxes.
fn latex(marked: &MarkedText<'_>, priority: u32) -> Vec<FormulaList> {
    let text = marked.text;
    let near = |end: usize| within(text, end, 50).find_map(|at| marked.list(at, false));
    match priority {
        0 => final_answers_before_hope(text, |at| marked.list_after_space(at)),
        50 => final_answers(text, |at| marked.list_after_space(at)),
        100 => after_word(text, "answer", |end| text.get(end..)?.starts_with(':').then(|| near(end + 1))?),
        200 => after_word(text, "answer", near),
        _ => marked.lists(false),
    }
}

fn boxes(marked: &MarkedText<'_>) -> Vec<FormulaList> {
    marked.lists(true).into_iter().chain(marked.boxes()).collect()
}

/// Reads the formula that a completion gives as its answer.
#[must_use]
pub fn read_answer(completion: &str) -> FormulaReading {
    let marked = MarkedText::new(completion);
    for priority in [0, 50, 100, 200] {
        let mut found = latex(&marked, priority);
        if priority == 0 {
            found.extend(boxes(&marked));
        }
        // The match that ends last counts, even if it can't be parsed.
        if let Some(found) = found.into_iter().min_by_key(|found| (Reverse(found.end), found.start)) {
            let (node, text) = read(completion, &found, false);
            return FormulaReading { node, text: text.filter(|text| !text.is_empty()) };
        }
    }
    FormulaReading::default()
}

/// Reads a reference.
#[must_use]
pub fn read_reference(reference: &str) -> FormulaReading {
    enum FormulaMatch {
        Latex(FormulaList),
        Plain(PlainFormula),
    }
    let marked = MarkedText::new(reference);
    let (mut text, mut latex_text, mut has_latex, mut tried) = (None, None, false, 0);
    for priority in [0, 50, 100, 200, 300] {
        let mut found: Vec<FormulaMatch> = latex(&marked, priority).into_iter().map(FormulaMatch::Latex).collect();
        if priority == 50 {
            found.extend(boxes(&marked).into_iter().map(FormulaMatch::Latex));
        }
        found.extend(plain::find(reference, priority).into_iter().map(FormulaMatch::Plain));
        found.sort_by_key(|found| match found {
            FormulaMatch::Latex(found) => (Reverse(found.end), found.start),
            FormulaMatch::Plain(found) => (Reverse(found.end()), found.start()),
        });
        for found in found {
            let (node, written) = match &found {
                FormulaMatch::Latex(found) => read(reference, found, true),
                FormulaMatch::Plain(found) => {
                    let (node, text) = found.read(reference);
                    (node, Some(text))
                }
            };
            let written = written.filter(|text| !text.is_empty());
            if matches!(found, FormulaMatch::Latex(_)) {
                has_latex = true;
                latex_text = latex_text.or_else(|| written.clone());
            }
            text = text.or_else(|| written.clone());
            tried += 1;
            if node.is_some() || tried == MOST_TRIED {
                return match found {
                    FormulaMatch::Latex(_) => FormulaReading { node, text },
                    // LaTeX that can't be parsed is compared as text, unless it only consists of a number.
                    FormulaMatch::Plain(_) if has_latex => {
                        let only = latex_text.as_deref().is_some_and(|latex| surroundings::number(latex) == written);
                        let node = node.filter(|_| only);
                        if node.is_none() && has_other_digits(reference) {
                            FormulaReading::default()
                        } else {
                            FormulaReading { node, text: latex_text }
                        }
                    }
                    FormulaMatch::Plain(_) => prefer_whole_formula(reference, FormulaReading { node, text }),
                };
            }
        }
    }
    if has_other_digits(reference) { FormulaReading::default() } else { FormulaReading { node: None, text } }
}

/// Returns whether a text has full-width, Arabic, Persian or Devanagari digits. math_verify finds such numbers but fails to convert them,
/// and TRL then skips the row.
fn has_other_digits(text: &str) -> bool {
    let other = |c: char| matches!(c, '０'..='９' | '\u{660}'..='\u{669}' | '\u{6f0}'..='\u{6f9}' | '\u{966}'..='\u{96f}');
    text.contains(other)
}

/// Corrects the reading of a reference that is a formula without dollar signs. If only a number in it was found, such as the 2 in
/// `2\sqrt{3}`, the complete formula counts instead.
fn prefer_whole_formula(reference: &str, number: FormulaReading) -> FormulaReading {
    let words = reference.split(|c: char| !c.is_alphabetic() && c != '\\').any(|word| word.len() > 1 && !word.starts_with('\\'));
    if words || reference.contains('=') {
        return number;
    }
    let how = RewriteOptions { boxes: BoxSelection::All, lenient: true };
    let text = normalize::normalized(reference, how);
    match text.as_deref().and_then(parse::parse) {
        Some(node) => FormulaReading { node: Some(node), text },
        None if reference.contains('\\') && surroundings::number(reference) != number.text => FormulaReading::default(),
        None => number,
    }
}

/// Returns the value of a list of formulas, and its plain text.
fn read(text: &str, found: &FormulaList, lenient: bool) -> (Option<FormulaNode>, Option<String>) {
    let (mut nodes, mut texts) = (Vec::new(), Vec::new());
    for part in &found.parts {
        let boxes = if part.open_end { BoxSelection::Last } else { BoxSelection::All };
        let written = text.get(part.range.clone()).unwrap_or_default();
        let Some(plain) = normalize::normalized(written, RewriteOptions { boxes, lenient }) else {
            nodes.push(None);
            texts.push(String::new());
            continue;
        };
        let node = parse::parse(&plain).or_else(|| parse::parse(last_side(&plain)?));
        nodes.push(match node {
            Some(FormulaNode::Term(term)) if part.percent => Some(FormulaNode::Term(Term::Percent(Box::new(term)))),
            Some(_) if part.percent => None,
            other => other,
        });
        texts.push(plain);
    }
    if nodes.len() > 1 && nodes.iter().all(Option::is_some) {
        let elements = nodes.into_iter().flatten().flat_map(|node| match node {
            FormulaNode::Finite(elements) => elements,
            other => vec![other],
        });
        return (Some(FormulaNode::finite(elements.collect())), Some(texts.join(" and ")));
    }
    (nodes.into_iter().next().flatten(), texts.into_iter().next())
}

/// Returns the text after the last of several equals signs, if the formula is not a list.
fn last_side(text: &str) -> Option<&str> {
    let signs = text.match_indices('=').filter(|(at, _)| !text[..*at].ends_with(['\\', '<', '!', '>']));
    let places: Vec<usize> = signs.map(|(at, _)| at).collect();
    let last = *places.last().filter(|_| places.len() > 1 && !text.contains([',', ';']))?;
    text.get(last + 1..)
}
