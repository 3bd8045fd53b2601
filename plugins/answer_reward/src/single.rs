//! Classifies texts: a single number, such as `$1,080`, `\frac12` or `12 cm^2`, or a formula that has numbers in it.

use crate::number::{AnswerNumber, WrittenNumber, last, plain};

/// The content of a text, for comparing numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerContent {
    /// A single number, perhaps with a currency, a unit, words, or a name and an equals sign before it.
    One(AnswerNumber),
    /// Several numbers, or a formula.
    Formula,
    /// Words.
    Words,
}

/// Letters that are units after a number and a space. Some are also units directly after a number.
const UNIT_LETTERS: &str = "mgshlLNJWVAKCFtd";
const ADJACENT_LETTERS: &str = "mgshLCFW";
/// Short units that may follow a number directly. Others with as many letters may be products of variables.
const SHORT_UNITS: [&str; 36] = [
    "cm", "mm", "km", "dm", "nm", "kg", "mg", "ml", "mL", "cl", "lb", "lbs", "oz", "ft", "in", "yd", "mi", "hr", "hrs", "min",
    "sec", "ms", "mph", "kmh", "pm", "am", "st", "nd", "rd", "th", "pts", "USD", "EUR", "GBP", "Hz", "kWh",
];
/// Words with a mathematical meaning.
const MATHEMATICS: [&str; 13] = ["sqrt", "log", "ln", "sin", "cos", "tan", "pi", "exp", "inf", "infinity", "frac", "over", "mod"];

/// Returns the content of a text.
#[must_use]
pub fn content(text: &str) -> AnswerContent {
    // Longer texts are solutions rather than answers.
    if text.len() > 4000 {
        return AnswerContent::Formula;
    }
    let text = closed_fractions(&without_layout(&half_width(text)));
    let text = without_exponents(&scientific(&plain(&text)));
    let Some(WrittenNumber { text: written, number }) = last(&text) else {
        let formula = text.contains(|c: char| "\\^_=<>+*|/√π∞±×÷·".contains(c) || c.is_numeric()) || !has_word(&text);
        return if formula && !text.trim().is_empty() { AnswerContent::Formula } else { AnswerContent::Words };
    };
    let start = written.as_ptr() as usize - text.as_ptr() as usize;
    let (before, after) = (&text[..start], &text[start + written.len()..]);
    let in_parentheses = written.contains(',') && before.ends_with(['(', '[']) && after.starts_with([')', ']']);
    let factorial = after.starts_with('!') && !has_word(before);
    if !in_parentheses && !factorial && is_before_number(before) && is_after_number(after) {
        AnswerContent::One(number)
    } else {
        AnswerContent::Formula
    }
}

fn has_word(text: &str) -> bool {
    words(text).any(|word| word.chars().count() > 1 && !MATHEMATICS.contains(&word))
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_alphabetic()).filter(|word| !word.is_empty())
}

/// Returns whether a text contains only words and punctuation that may surround a number.
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
    let (text, trimmed) = without_plus(trimmed).map_or((text, trimmed), |text| (text, text.trim_end()));
    let text = match trimmed.strip_suffix(['=', '≈']) {
        Some(name) if words(name).count() <= 1 => return is_prose(name),
        _ => text,
    };
    let articles = |word: &str| matches!(word, "a" | "A" | "I") && has_word(text);
    is_prose(text)
        && !text.ends_with(|c: char| c.is_alphabetic())
        && words(text).all(|word| word.chars().count() > 1 || articles(word))
}

/// Returns the text before a trailing plus sign, if the plus is a number's sign rather than an addition.
fn without_plus(text: &str) -> Option<&str> {
    let before = text.strip_suffix('+')?.trim_end();
    let before = before.trim_end_matches(['$', '€', '£', '¥']);
    let alone = before.is_empty() || before.ends_with(['=', '≈', '(', '[', ':']);
    alone.then_some(before)
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

/// Commands that only change the font, the color or the frame of their argument.
const STYLES: [&str; 26] = [
    "text",
    "textbf",
    "textit",
    "textrm",
    "texttt",
    "textsf",
    "textsc",
    "textsl",
    "textup",
    "textmd",
    "textnormal",
    "mbox",
    "emph",
    "underline",
    "operatorname",
    "mathrm",
    "mathbf",
    "mathit",
    "mathsf",
    "mathtt",
    "mathnormal",
    "boldsymbol",
    "bm",
    "fbox",
    "boxed",
    "mathop",
];
/// Marks that only affect layout.
const LAYOUT: [&str; 24] = [
    "^{\\circ}",
    "^\\circ",
    "\\circ",
    "\\degree",
    "°",
    "\\displaystyle",
    "\\textstyle",
    "\\!",
    "\\left",
    "\\right",
    "\\bigl",
    "\\bigr",
    "\\Bigl",
    "\\Bigr",
    "\\biggl",
    "\\biggr",
    "\\big",
    "\\Big",
    "\\bf ",
    "\\rm ",
    "\\it ",
    "\\tt ",
    "\\sf ",
    "\\\\",
];
/// Spaces. Between groups of three digits they separate thousands.
const SPACES: [&str; 12] = ["\\(", "\\)", "\\[", "\\]", "\\;", "\\:", "\\ ", "\\qquad", "\\quad", "~", "\u{a0}", "\u{202f}"];

/// Removes parts that only affect layout: dollar signs, `\(`, `\text{...}` around words, spaces, degrees.
fn without_layout(text: &str) -> String {
    let mut text = unstyled(text);
    for mark in LAYOUT {
        text = text.replace(mark, "");
    }
    for space in ["\\;", "\\:", "\\ ", "~", "\u{a0}", "\u{202f}"] {
        text = without_separators(&text, space);
    }
    // `\$` remains as a currency.
    text = text.replace("\\$", "\u{1}").replace('$', "").replace('\u{1}', "$");
    for space in SPACES {
        text = text.replace(space, " ");
    }
    text = text.replace("\\approx", "≈").replace(" / ", "/");
    let inside = text.trim().strip_prefix('{').and_then(|rest| rest.strip_suffix('}'));
    match inside {
        Some(inside) if !inside.contains(['{', '}']) => inside.to_owned(),
        _ => text,
    }
}

/// Removes separators between groups of three digits.
fn without_separators(text: &str, mark: &str) -> String {
    let mut parts = text.split(mark);
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let before = out.len() - out.trim_end_matches(|c: char| c.is_ascii_digit()).len();
        let after = part.bytes().take_while(u8::is_ascii_digit).count();
        if before == 0 || after != 3 {
            out.push_str(mark);
        }
        out.push_str(part);
    }
    out
}

/// Replaces `\text{...}` and the like, and `\color{...}`, with their contents. A space is kept between letters and digits.
fn unstyled(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    // Stack of brace depths at which open styles end.
    let (mut depth, mut open) = (0_usize, Vec::new());
    while let Some(first) = rest.chars().next() {
        if let Some((argument, is_shown)) = rest.strip_prefix('\\').and_then(styled) {
            if is_shown {
                if out.ends_with(char::is_alphanumeric) {
                    out.push(' ');
                }
                open.push(depth);
                depth += 1;
            }
            rest = argument;
            continue;
        }
        rest = &rest[first.len_utf8()..];
        let escaped = out.ends_with('\\');
        match first {
            '{' if !escaped => depth += 1,
            '}' if !escaped => {
                depth = depth.saturating_sub(1);
                if open.last() == Some(&depth) {
                    open.pop();
                    continue;
                }
            }
            _ => {}
        }
        out.push(first);
    }
    out
}

/// Returns the text after the opening brace of a style, given the text after its backslash, or the text after a color. Also returns which
/// of the two it is.
fn styled(text: &str) -> Option<(&str, bool)> {
    let (name, after) = text.split_at(text.bytes().take_while(u8::is_ascii_alphabetic).count());
    let argument = after.trim_start().strip_prefix('{')?;
    if STYLES.contains(&name) {
        return Some((argument, true));
    }
    if matches!(name, "color" | "textcolor" | "colorbox") {
        let (_, rest) = argument.split_once('}')?;
        return Some(rest.strip_prefix('{').map_or((rest, false), |rest| (rest, true)));
    }
    None
}

/// Puts braces around the two parts of `\frac12`, `\frac1{2}` and `\frac{1}2`, and merges the integer of a mixed fraction into it.
fn closed_fractions(text: &str) -> String {
    let text = ["\\dfrac", "\\tfrac", "\\cfrac"].iter().fold(text.to_owned(), |text, name| text.replace(name, "\\frac"));
    let mut parts = text.split("\\frac");
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let closed = argument(part).and_then(|(above, rest)| Some((above, argument(rest)?)));
        match closed {
            // In \frac123, it is unclear what the third digit belongs to.
            Some((above, (below, rest))) if !rest.starts_with(|c: char| c.is_ascii_digit()) => {
                push_fraction(&mut out, above, below);
                out.push_str(rest);
            }
            // This command can't be part of the text around a single number, so the text is a formula.
            _ => out.push_str(&format!("\\frac_{part}")),
        }
    }
    out
}

fn push_fraction(out: &mut String, above: &str, below: &str) {
    let unsigned = |part| -> (&str, bool) {
        let part = str::trim(part);
        let part = part.strip_prefix('+').unwrap_or(part);
        part.strip_prefix('-').map_or((part, false), |rest| (rest, true))
    };
    let ((above, minus_above), (below, minus_below)) = (unsigned(above), unsigned(below));
    let whole = whole_before(out).zip(above.parse::<u64>().ok()).zip(below.parse::<u64>().ok());
    if let Some((((start, whole), above), below)) = whole
        && !minus_above
        && !minus_below
        && let Some(above) = whole.checked_mul(below).and_then(|product| product.checked_add(above))
    {
        out.truncate(start);
        out.push_str(&format!("\\frac{{{above}}}{{{below}}}"));
        return;
    }
    let sign = if minus_above != minus_below { "-" } else { "" };
    out.push_str(&format!("\\frac{{{sign}{above}}}{{{below}}}"));
}

/// Returns the position and value of an integer at the end of a text.
fn whole_before(text: &str) -> Option<(usize, u64)> {
    let trimmed = text.trim_end();
    let trimmed = trimmed.strip_suffix("\\,").unwrap_or(trimmed);
    let before = trimmed.trim_end_matches(|c: char| c.is_ascii_digit());
    let whole = trimmed[before.len()..].parse().ok()?;
    (!before.ends_with(['.', ','])).then_some((before.len(), whole))
}

fn argument(text: &str) -> Option<(&str, &str)> {
    let text = text.trim_start();
    match text.strip_prefix('{') {
        Some(inside) => inside.split_once('}'),
        None => text.starts_with(|c: char| c.is_ascii_digit()).then(|| text.split_at(1)),
    }
}

/// Replaces full-width digits and signs.
fn half_width(text: &str) -> String {
    let half = |c: char| match c {
        '０'..='９' | '＋' | '－' | '．' | '，' | '％' | '＄' => {
            u8::try_from(u32::from(c) - 0xfee0).map_or(c, char::from)
        }
        c => c,
    };
    text.chars().map(half).collect()
}

/// Rewrites `1.5 \times 10^{3}` as `1.5e3`.
fn scientific(text: &str) -> String {
    for sign in ["\\times", "\\cdot", "×", "·", "*"] {
        let Some((before, after)) = text.split_once(sign) else { continue };
        let Some(exponent) = after.trim_start().strip_prefix("10^") else { continue };
        let (exponent, rest) = match exponent.strip_prefix('{') {
            Some(inside) => inside.split_once('}').unwrap_or((inside, "")),
            None => {
                let sign = usize::from(exponent.starts_with(['-', '+']));
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

/// Removes the exponents of units, such as `cm^2`.
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
        let wanted = last(number).map(|written| AnswerContent::One(written.number));
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
    fn signs_fractions_and_layout_are_read() {
        for (text, number) in [
            ("+18", "18"),
            ("$+18$", "18"),
            ("+\\$18", "18"),
            ("\\$+18", "18"),
            ("+18\\%", "18%"),
            ("+1,018.5", "1018.5"),
            ("+ 18", "18"),
            ("+-18", "-18"),
            ("x = +18", "18"),
            ("(+18)", "18"),
            ("\\text{+18}", "18"),
            ("+.5", "0.5"),
            ("+1e3", "1000"),
            ("+1.5\\times10^{+3}", "1500"),
            ("+\\frac{1}{2}", "1/2"),
            ("\\frac{1}{-2}", "-1/2"),
            ("\\frac{+1}{2}", "1/2"),
            ("\\cfrac{1}{2}", "1/2"),
            ("\\frac{\\text{1}}{2}", "1/2"),
            ("3\\frac12", "7/2"),
            ("3 \\frac{1}{2}", "7/2"),
            ("-3\\,\\frac{1}{2}", "-7/2"),
            ("1 / 2", "1/2"),
            ("\u{2013}18", "-18"),
            ("１８", "18"),
            ("－１．５", "-1.5"),
            ("1~000", "1000"),
            ("1\\;234\\;567", "1234567"),
            ("\\approx 18", "18"),
            ("x \\approx 18", "18"),
            ("{18}", "18"),
            ("\\bigl(18\\bigr)", "18"),
            ("\\fbox{18}", "18"),
            ("18\\\\", "18"),
            ("\\color{red}{18}", "18"),
            ("\\textcolor{red}{18}", "18"),
            ("{\\bf 18}", "18"),
            ("\\textbf{\\text{18} cm}", "18"),
            ("18\\textrm{ cm}^2", "18"),
        ] {
            assert!(is(text, number), "{text}: {:?}", content(text));
        }
    }

    #[test]
    fn fonts_change_no_number() {
        for style in STYLES {
            for (text, number) in [("18", "18"), ("-18", "-18"), ("+18", "18"), (" 18 cm ", "18"), ("\\$18", "18")] {
                assert!(is(&format!("\\{style}{{{text}}}"), number), "{style} {text}");
            }
            assert!(is(&format!("-\\{style} {{18}}"), "-18"), "{style}");
            assert!(is(&format!("18\\{style}{{ cm}}"), "18"), "{style}");
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
            "x+18",
            "2 +18",
            "a +18",
            "++18",
            "18+",
            "5+13",
            "\\text{5}+13",
            "\\pm 18",
            "1~00",
            "\\frac{1}{2}\\frac{1}{3}",
        ] {
            assert_eq!(content(text), AnswerContent::Formula, "{text}");
        }
    }

    #[test]
    fn words_are_words() {
        for text in ["", "seven", "Result", "no answer", "\\text{yes}"] {
            assert_eq!(content(text), AnswerContent::Words, "{text}");
        }
    }
}
