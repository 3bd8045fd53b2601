//! Tells whether a text is one number, such as `$1,080`, `\frac12` or `12 cm^2`, or a formula that has numbers in it.

use crate::number::{Number, Written, last, plain};

/// What a text is, for comparing numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// One number: with a currency, a unit, words, or a name and an equals sign before it.
    One(Number),
    /// Several numbers, or a formula.
    Formula,
    /// Words.
    Words,
}

/// Letters that are units after a number and a space. Some are units directly after a number, too.
const UNIT_LETTERS: &str = "mgshlLNJWVAKCFtd";
const ADJACENT_LETTERS: &str = "mgshLCFW";
/// Short units that may follow a number directly. Others with as many letters may be products of variables.
const SHORT_UNITS: [&str; 36] = [
    "cm", "mm", "km", "dm", "nm", "kg", "mg", "ml", "mL", "cl", "lb", "lbs", "oz", "ft", "in", "yd", "mi", "hr", "hrs", "min",
    "sec", "ms", "mph", "kmh", "pm", "am", "st", "nd", "rd", "th", "pts", "USD", "EUR", "GBP", "Hz", "kWh",
];
/// Words that are mathematics.
const MATHEMATICS: [&str; 13] = ["sqrt", "log", "ln", "sin", "cos", "tan", "pi", "exp", "inf", "infinity", "frac", "over", "mod"];

/// Returns what a text is.
#[must_use]
pub fn content(text: &str) -> Content {
    // Longer texts are solutions, not answers.
    if text.len() > 4000 {
        return Content::Formula;
    }
    let text = without_exponents(&scientific(&plain(&without_layout(&closed_fractions(text)))));
    let Some(Written { text: written, number }) = last(&text) else {
        let formula = text.contains(|c: char| "\\^_=<>+*|/√π∞±×÷·".contains(c) || c.is_numeric()) || !has_word(&text);
        return if formula && !text.trim().is_empty() { Content::Formula } else { Content::Words };
    };
    let start = written.as_ptr() as usize - text.as_ptr() as usize;
    let (before, after) = (&text[..start], &text[start + written.len()..]);
    let in_parentheses = written.contains(',') && before.ends_with(['(', '[']) && after.starts_with([')', ']']);
    let factorial = after.starts_with('!') && !has_word(before);
    if !in_parentheses && !factorial && is_before_number(before) && is_after_number(after) {
        Content::One(number)
    } else {
        Content::Formula
    }
}

fn has_word(text: &str) -> bool {
    words(text).any(|word| word.chars().count() > 1 && !MATHEMATICS.contains(&word))
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_alphabetic()).filter(|word| !word.is_empty())
}

/// Returns whether a text has only what may stand around a number: words and punctuation.
fn is_prose(text: &str) -> bool {
    let characters: Vec<char> = text.chars().collect();
    let letter = |at: Option<usize>| at.and_then(|at| characters.get(at)).is_some_and(|c| c.is_alphabetic());
    characters.iter().enumerate().all(|(at, c)| match c {
        '-' | '\u{2212}' | '/' => letter(at.checked_sub(1)) && letter(Some(at + 1)),
        c => c.is_alphabetic() || c.is_whitespace() || ".,;:!?()[]'\"$€£¥%°#&–—’“”".contains(*c),
    }) && !words(text).any(|word| MATHEMATICS.contains(&word) || word == "π")
}

fn is_before_number(text: &str) -> bool {
    let trimmed = text.trim_end().trim_end_matches(['$', '€', '£', '¥']).trim_end();
    let text = match trimmed.strip_suffix(['=', '≈']) {
        Some(name) if words(name).count() <= 1 => return is_prose(name),
        _ => text,
    };
    let articles = |word: &str| matches!(word, "a" | "A" | "I") && has_word(text);
    is_prose(text)
        && !text.ends_with(|c: char| c.is_alphabetic())
        && words(text).all(|word| word.chars().count() > 1 || articles(word))
}

fn is_after_number(text: &str) -> bool {
    let adjacent = text.starts_with(|c: char| c.is_alphabetic());
    is_prose(text)
        && words(text).enumerate().all(|(at, word)| {
            let adjacent = adjacent && at == 0;
            match word.chars().count() {
                1 if adjacent => ADJACENT_LETTERS.contains(word),
                1 => UNIT_LETTERS.contains(word) || word == "a" && has_word(text),
                2 | 3 if adjacent => SHORT_UNITS.contains(&word),
                _ => true,
            }
        })
}

/// Takes out what only affects layout: dollar signs, `\(`, `\text{...}` around words, spaces, degrees.
fn without_layout(text: &str) -> String {
    let mut text = text.to_owned();
    for mark in ["^{\\circ}", "^\\circ", "\\circ", "\\degree", "°", "\\displaystyle", "\\!"] {
        text = text.replace(mark, "");
    }
    // `\$` stays a currency.
    text = text.replace("\\$", "\u{1}").replace('$', "").replace('\u{1}', "$");
    for mark in ["\\(", "\\)", "\\[", "\\]", "\\;", "\\:", "\\ ", "\\quad", "~"] {
        text = text.replace(mark, " ");
    }
    text = text.replace("\\left", "").replace("\\right", "");
    for command in ["\\text{", "\\textbf{", "\\mathrm{", "\\mathbf{", "\\textit{", "\\mbox{", "\\boldsymbol{"] {
        while let Some((before, after)) = text.split_once(command) {
            let Some((inside, rest)) = after.split_once('}') else { break };
            text = format!("{before} {inside}{rest}");
        }
    }
    text
}

/// Puts braces around the two parts of `\frac12`, `\frac1{2}` and `\frac{1}2`.
fn closed_fractions(text: &str) -> String {
    let text = text.replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac");
    let mut parts = text.split("\\frac");
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        out.push_str("\\frac");
        let closed = argument(part).and_then(|(above, rest)| Some((above, argument(rest)?)));
        match closed {
            // In \frac123, it is unclear what the third digit belongs to.
            Some((above, (below, rest))) if !rest.starts_with(|c: char| c.is_ascii_digit()) => {
                out.push_str(&format!("{{{above}}}{{{below}}}{rest}"));
            }
            // Nothing around a number may have this.
            _ => out.push_str(&format!("_{part}")),
        }
    }
    out
}

fn argument(text: &str) -> Option<(&str, &str)> {
    let text = text.trim_start();
    match text.strip_prefix('{') {
        Some(inside) => inside.split_once('}'),
        None => text.starts_with(|c: char| c.is_ascii_digit()).then(|| text.split_at(1)),
    }
}

/// Rewrites `1.5 \times 10^{3}` as `1.5e3`.
fn scientific(text: &str) -> String {
    for sign in ["\\times", "\\cdot", "×", "·", "*"] {
        let Some((before, after)) = text.split_once(sign) else { continue };
        let Some(exponent) = after.trim_start().strip_prefix("10^") else { continue };
        let (exponent, rest) = match exponent.strip_prefix('{') {
            Some(inside) => inside.split_once('}').unwrap_or((inside, "")),
            None => {
                let sign = usize::from(exponent.starts_with('-'));
                let digits = exponent[sign..].bytes().take_while(u8::is_ascii_digit).count();
                exponent.split_at(sign + digits)
            }
        };
        let before = before.trim_end();
        let exponent = exponent.trim();
        if before.ends_with(|c: char| c.is_ascii_digit()) && exponent.parse::<i32>().is_ok() {
            return format!("{before}e{exponent}{rest}");
        }
    }
    text.to_owned()
}

/// Takes the exponents off units, such as `cm^2`.
fn without_exponents(text: &str) -> String {
    let mut text = text.to_owned();
    for exponent in ["^{2}", "^{3}", "^2", "^3", "²", "³"] {
        while let Some(at) = text.find(exponent) {
            let unit = text[..at].trim_end();
            let letters = unit.len() - unit.trim_end_matches(|c: char| c.is_ascii_alphabetic()).len();
            let word = &unit[unit.len() - letters..];
            let known = SHORT_UNITS.contains(&word) || letters > 3 || word == "m";
            if !known || unit[..unit.len() - letters].ends_with('\\') || MATHEMATICS.contains(&word) {
                break;
            }
            text.replace_range(unit.len()..at + exponent.len(), "");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is(text: &str, number: &str) -> bool {
        let wanted = last(number).map(|written| Content::One(written.number));
        Some(content(text)) == wanted
    }

    #[test]
    fn one_number_may_have_words_and_signs_around_it() {
        for (text, number) in [
            ("72", "72"),
            ("$72$", "72"),
            ("\\$1{,}080", "1080"),
            ("-$5", "-5"),
            ("18 dollars", "18"),
            ("It is 18.", "18"),
            ("x = 5", "5"),
            ("$x=\\frac{1}{2}$", "1/2"),
            ("\\frac12", "1/2"),
            ("\\dfrac1{2}", "1/2"),
            ("-\\frac{3}{4}", "-3/4"),
            ("3/4", "3/4"),
            ("20\\%", "20%"),
            ("15% of it", "15%"),
            ("12 cm^2", "12"),
            ("7 pm", "7"),
            ("12\\text{ cm}^2", "12"),
            ("90^\\circ", "90"),
            ("5 m", "5"),
            ("5kg", "5"),
            ("1.5 \\times 10^{3}", "1500"),
            ("2e-3", "0.002"),
            ("(5)", "5"),
            ("(1,080 eggs)", "1080"),
            ("The answer is 5!", "5"),
        ] {
            assert!(is(text, number), "{text}: {:?}", content(text));
        }
    }

    #[test]
    fn formulas_are_not_their_last_number() {
        for text in [
            "x^2+3",
            "10^3",
            "$\\frac{\\sqrt{2}}{2}$",
            "\\frac{\\sqrt2}{2}",
            "(1,2)",
            "1,2",
            "6\\pi",
            "6π",
            "2x",
            "3n",
            "2xy",
            "x5",
            "2 + 3",
            "3 - 5",
            "- 5",
            "\\sqrt{5}",
            "5!",
            "3 1/2",
            "x < 5",
            "2\\cdot 3",
            "i",
            "x",
            "\\frac{x}{7}",
            "a_1",
            "52_8",
            "\\frac123",
            "3 of 4",
            "(1,200)",
            "2^{10}",
            "sqrt(2)",
            "log 5",
            "5 or 99999999999999999999999999999999999999999999",
            "2i",
            "5k",
            "|5|",
            "\\{5\\}",
            "11:30",
            "x = y = 5 + z",
        ] {
            assert_eq!(content(text), Content::Formula, "{text}");
        }
    }

    #[test]
    fn words_are_words() {
        for text in ["", "seven", "Result", "no answer", "\\text{yes}"] {
            assert_eq!(content(text), Content::Words, "{text}");
        }
    }
}
