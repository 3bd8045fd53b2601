//! Rewrites LaTeX as people and models write it into the form that the parser reads, like `latex2sympy2_extended`.

use super::boxes::{BoxSelection, unboxed};
use super::lex::LONGEST;
use super::units::without_units;

/// Options for rewriting a formula.
#[derive(Clone, Copy, Debug)]
pub struct RewriteOptions {
    /// The boxes that count.
    pub boxes: BoxSelection,
    /// Whether to complete operators without braces, such as `\frac12`; only for references.
    pub lenient: bool,
}

/// Returns a formula's plain form, or `None` if it is too long.
#[must_use]
pub fn normalized(text: &str, how: RewriteOptions) -> Option<String> {
    let text = unboxed(text, how.boxes);
    if text.len() > LONGEST {
        return None;
    }
    let mut text = text.replace("\\mathrm{T}", "T").replace("\\mathrm{d}", "d").replace("{\\rm d}", "d");
    text = text.replace("\\left[\\begin{matrix}", "\\begin{bmatrix}").replace("\\end{matrix}\\right]", "\\end{bmatrix}");
    text = substituted(&text, |_, rest| sized_bracket(rest));
    text = substituted(&text, removed);
    text = substituted(&text, replaced);
    text = text.replace(['\n', '\t'], " ");
    if !text.contains("matrix") {
        text = substituted(&text, |_, rest| {
            let letter = rest.strip_prefix("\\\\")?.starts_with(|c: char| c.is_ascii_alphabetic());
            letter.then_some((2, "\\"))
        });
    }
    text = without_units(&text);
    if how.lenient {
        if text.starts_with('.') {
            text.insert(0, '0');
        }
        if text == "0.5" {
            text = "\\frac{1}{2}".into();
        }
        text = super::malformed::completed(&text);
    }
    (text.len() <= LONGEST).then(|| text.trim().to_owned())
}

/// Replaces the matches of `find`, which gets the text before and after a position, and returns a match's length and its replacement.
fn substituted<'a>(text: &str, find: impl Fn(&str, &str) -> Option<(usize, &'a str)>) -> String {
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    while let Some(first) = text[at..].chars().next() {
        match find(&text[..at], &text[at..]) {
            Some((length, replacement)) if length > 0 => {
                out.push_str(replacement);
                at += length;
            }
            _ => {
                out.push(first);
                at += first.len_utf8();
            }
        }
    }
    out
}

/// Finds `\left` and `\right` before a bracket.
fn sized_bracket(rest: &str) -> Option<(usize, &'static str)> {
    const LEFT: [&str; 15] = [
        "\\{",
        "{",
        "\\|",
        "|",
        "[",
        "(",
        "\\lgroup",
        "\\lbrace",
        "\\lbrack",
        "\\lvert",
        "\\vert",
        "\\lceil",
        "\\lfloor",
        "\\langle",
        "\\llcorner",
    ];
    const RIGHT: [&str; 15] = [
        "\\}",
        "}",
        "\\|",
        "|",
        "]",
        ")",
        "\\rgroup",
        "\\rbrace",
        "\\rbrack",
        "\\rvert",
        "\\vert",
        "\\rceil",
        "\\rfloor",
        "\\rangle",
        "\\lrcorner",
    ];
    for (word, brackets) in [("\\left", LEFT), ("\\right", RIGHT), ("\\mleft", LEFT), ("\\mright", RIGHT)] {
        if let Some(after) = rest.strip_prefix(word)
            && brackets.iter().any(|bracket| after.starts_with(bracket))
        {
            return Some((word.len(), ""));
        }
    }
    None
}

/// Finds parts without meaning.
fn removed(before: &str, rest: &str) -> Option<(usize, &'static str)> {
    if let Some(after) = rest.strip_prefix("\\!") {
        return Some((rest.len() - after.trim_start().len(), ""));
    }
    if let Some(after) = rest.strip_prefix("\\text")
        && let Some(inside) = after.trim_start().strip_prefix('{')
        && let Some(after) = inside.trim_start().strip_prefix('}')
    {
        return Some((rest.len() - after.len(), ""));
    }
    for text in ["\\mathrm{th}", "\\$", "$", "\\displaystyle"] {
        if rest.starts_with(text) {
            return Some((text.len(), ""));
        }
    }
    (rest.starts_with(['"', '\'']) && !before.ends_with('\\')).then_some((1, ""))
}

fn spaced(rest: &str) -> &str {
    rest.trim_start()
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Finds alternative spellings.
fn replaced(before: &str, rest: &str) -> Option<(usize, &'static str)> {
    const COMMANDS: [(&str, &str); 10] = [
        ("\\mathrm", "\\text"),
        ("\\mathit", "\\text"),
        ("\\mathbf", "\\text"),
        ("\\textnormal", "\\text"),
        ("\\textbf", "\\text"),
        ("\\textit", "\\text"),
        ("\\textrm", "\\text"),
        ("\\dfrac", "\\frac"),
        ("\\tfrac", "\\frac"),
        ("\\cfrac", "\\frac"),
    ];
    if let Some((written, meant)) = COMMANDS.iter().find(|(written, _)| rest.starts_with(written)) {
        return Some((written.len(), meant));
    }
    let first = rest.chars().next()?;
    if first.is_whitespace() && rest[first.len_utf8()..].starts_with('.') {
        return Some((first.len_utf8() + 1, " 0."));
    }
    if rest.starts_with("{.") {
        return Some((2, "{0."));
    }
    if rest.starts_with("~=") {
        return Some((2, "\\approx"));
    }
    list_separator(before, rest).or_else(|| {
        if !before.ends_with('\\')
            && let Some(after) = rest.strip_prefix('\\')
            && let Some(space) = after.chars().next().filter(|c| c.is_whitespace())
        {
            return Some((1 + space.len_utf8(), " "));
        }
        word(before, rest)
    })
}

/// Finds `{,}`, and words between elements.
fn list_separator(before: &str, rest: &str) -> Option<(usize, &'static str)> {
    if let Some(inside) = spaced(rest).strip_prefix('{')
        && let Some(inside) = spaced(inside).strip_prefix(',')
        && let Some(after) = spaced(inside).strip_prefix('}')
    {
        return Some((rest.len() - after.len(), ","));
    }
    let start = spaced(rest.strip_prefix(',').unwrap_or(rest));
    if !before.ends_with(|c: char| c.is_ascii_alphabetic()) {
        for word in ["and", "or"] {
            if let Some(after) = start.strip_prefix(word)
                && !after.starts_with(|c: char| c.is_ascii_alphabetic())
            {
                return Some((rest.len() - after.len(), ","));
            }
        }
    }
    let inside = spaced(start.strip_prefix("\\text{")?);
    let inside = inside.strip_prefix("and").or_else(|| inside.strip_prefix("or"))?;
    Some((rest.len() - spaced(inside).strip_prefix('}')?.len(), ","))
}

/// Finds words and commands for infinity, per cent and roots.
fn word(before: &str, rest: &str) -> Option<(usize, &'static str)> {
    if rest.starts_with("infinity") {
        return Some((8, "\\infty"));
    }
    let dots = rest.strip_prefix(',').unwrap_or(rest);
    if let Some(after) = dots.strip_prefix("\\ldots") {
        return Some((rest.len() - after.len(), " "));
    }
    let start = spaced(rest);
    let begins = if start.len() < rest.len() { true } else { !before.ends_with(is_word) };
    for percent in ["percentage", "percent", "pct"] {
        if let Some(after) = start.strip_prefix(percent)
            && begins
            && !after.starts_with(is_word)
        {
            return Some((rest.len() - after.len(), "\\%"));
        }
        if let Some(after) = rest.strip_prefix("\\text{").and_then(|inside| inside.strip_prefix(percent)?.strip_prefix('}')) {
            return Some((rest.len() - after.len(), "%"));
        }
    }
    if rest.starts_with("inf") && !before.ends_with('\\') {
        return Some((3, "\\infty"));
    }
    rest.starts_with(" sqrt").then_some((5, "\\sqrt"))
}
