//! Completes operators that are written without braces in references.

/// Adds the braces that LaTeX allows to omit, and some that it doesn't: `\frac12`, `\sqrt2`, `x^(10)`, `1/2`.
#[must_use]
pub fn completed(text: &str) -> String {
    let text = parenthesized(text, "^", "^{");
    let text = parenthesized(&text, "sqrt", "\\sqrt{");
    let text = digits_after(&text, "\\frac");
    let text = digits_after(&text, "\\log_");
    let text = fraction_over_digit(&text);
    let text = fraction_of_digit(&text);
    let text = rewritten(&text, "\\sqrt", |rest| {
        let (digit, rest) = digit(optional_space(rest))?;
        Some((format!("\\sqrt{{{digit}}}"), rest))
    });
    let text = text.replace(" sqrt", "\\sqrt");
    let text = rewritten(&text, "\\sqrt", root);
    slash(&fractions(&text))
}

/// Replaces every occurrence of a word, together with the text that `take` consumes after it.
fn rewritten<'a>(text: &'a str, word: &str, take: impl Fn(&'a str) -> Option<(String, &'a str)>) -> String {
    let mut out = String::with_capacity(text.len() + 16);
    let mut rest = text;
    while let Some((before, after)) = rest.split_once(word) {
        out.push_str(before);
        rest = match take(after) {
            Some((replacement, beyond)) => {
                out.push_str(&replacement);
                beyond
            }
            None => {
                out.push_str(word);
                after
            }
        };
    }
    out + rest
}

fn optional_space(text: &str) -> &str {
    match text.chars().next() {
        Some(first) if first.is_whitespace() => &text[first.len_utf8()..],
        _ => text,
    }
}

fn digit(text: &str) -> Option<(&str, &str)> {
    text.starts_with(|c: char| c.is_ascii_digit()).then(|| text.split_at(1))
}

/// Replaces parentheses after a word by braces.
fn parenthesized(text: &str, word: &str, opening: &str) -> String {
    rewritten(text, word, |after| {
        let (inside, rest) = optional_space(after).strip_prefix('(')?.split_once(')')?;
        Some((format!("{opening}{inside}}}"), rest))
    })
}

/// Puts braces around a digit after a word, and around the digits after that.
fn digits_after(text: &str, word: &str) -> String {
    rewritten(text, word, |after| {
        let (first, rest) = digit(optional_space(after))?;
        let rest = optional_space(rest);
        let length = rest.bytes().take_while(u8::is_ascii_digit).count();
        let (second, rest) = rest.split_at(length);
        (length > 0).then(|| (format!("{word}{{{first}}}{{{second}}}"), rest))
    })
}

/// Rewrites `\frac{...}2`.
fn fraction_over_digit(text: &str) -> String {
    rewritten(text, "\\frac", |after| {
        let inside = optional_space(after).strip_prefix('{')?;
        for (at, _) in inside.match_indices('}') {
            if let Some((below, rest)) = digit(optional_space(&inside[at + 1..])) {
                return Some((format!("\\frac{{{}}}{{{below}}}", &inside[..at]), rest));
            }
        }
        None
    })
}

/// Rewrites `\frac1{...}`.
fn fraction_of_digit(text: &str) -> String {
    rewritten(text, "\\frac", |after| {
        let (above, rest) = digit(optional_space(after))?;
        let (below, rest) = optional_space(rest).strip_prefix('{')?.split_once('}')?;
        Some((format!("\\frac{{{above}}}{{{below}}}"), rest))
    })
}

fn root(after: &str) -> Option<(String, &str)> {
    let rest = after.trim_start();
    let first = rest.chars().next()?;
    if matches!(first, '{' | '[') {
        return Some(("\\sqrt".into(), rest));
    }
    Some((format!("\\sqrt{{{first}}}"), &rest[first.len_utf8()..]))
}

/// Puts braces around the two characters after `\frac`, whatever they are. Does nothing if the text ends before that.
fn fractions(text: &str) -> String {
    let mut parts = text.split("\\frac");
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let part = part.trim_start();
        out.push_str("\\frac");
        if part.starts_with('{') {
            out.push_str(part);
            continue;
        }
        let mut characters = part.chars();
        let (Some(above), Some(below)) = (characters.next(), characters.next()) else { return text.to_owned() };
        let rest = characters.as_str();
        match below {
            '{' => out.push_str(&format!("{{{above}}}{{{rest}")),
            _ => out.push_str(&format!("{{{above}}}{{{below}}}{rest}")),
        }
    }
    out
}

/// Rewrites a text that is a quotient of two integers.
fn slash(text: &str) -> String {
    let whole = |part: &str| part.parse::<i64>().is_ok_and(|value| value.to_string() == part);
    match text.split_once('/') {
        Some((above, below)) if whole(above) && whole(below) => format!("\\frac{{{above}}}{{{below}}}"),
        _ => text.to_owned(),
    }
}
