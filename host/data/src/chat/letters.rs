//! Letters and digits as Python's strings see them, where Rust's standard library differs.

use unicode_general_category::{GeneralCategory, get_general_category};

/// Returns whether Python considers a character whitespace.
pub(super) fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

/// Returns whether a character is printable by Python's `str.isprintable`.
pub(super) fn is_printable(c: char) -> bool {
    use GeneralCategory::{
        Control, Format, LineSeparator, ParagraphSeparator, PrivateUse, SpaceSeparator, Surrogate, Unassigned,
    };
    c.is_ascii_graphic()
        || match get_general_category(c) {
            Control | Format | LineSeparator | ParagraphSeparator | PrivateUse | Surrogate | Unassigned => false,
            SpaceSeparator => c == ' ',
            _ => true,
        }
}

/// Returns whether a character is a letter by `str.isalpha`.
pub(super) fn is_letter(c: char) -> bool {
    use GeneralCategory::{LowercaseLetter, ModifierLetter, OtherLetter, TitlecaseLetter, UppercaseLetter};
    matches!(get_general_category(c), LowercaseLetter | ModifierLetter | OtherLetter | TitlecaseLetter | UppercaseLetter)
}

/// Returns whether a character is a decimal digit by `str.isdecimal`.
pub(super) fn is_decimal(c: char) -> bool {
    get_general_category(c) == GeneralCategory::DecimalNumber
}

/// Returns whether a character is a digit by `str.isdigit`.
pub(super) fn is_digit(c: char) -> bool {
    is_decimal(c)
        || matches!(
            u32::from(c),
            0xb2..=0xb3
                | 0xb9
                | 0x1369..=0x1371
                | 0x19da
                | 0x2070
                | 0x2074..=0x2079
                | 0x2080..=0x2089
                | 0x2460..=0x2468
                | 0x2474..=0x247c
                | 0x2488..=0x2490
                | 0x24ea
                | 0x24f5..=0x24fd
                | 0x24ff
                | 0x2776..=0x277e
                | 0x2780..=0x2788
                | 0x278a..=0x2792
                | 0x10a40..=0x10a43
                | 0x10e60..=0x10e68
                | 0x11052..=0x1105a
                | 0x1f100..=0x1f10a
        )
}

/// Letters that are numbers too: Chinese and Japanese numerals.
const NUMERALS: &str = "㐅㒃㠪㭍一七万三九二五亖亿什仟仨伍佰億兆兩八六十千卄卅卌叁参參叄四壱壹幺廾廿弌弍弎弐拾捌\
                        柒漆玖百肆萬貮貳贰阡陆陌陸零\u{f96b}\u{f973}\u{f978}\u{f9b2}\u{f9d1}\u{f9d3}\u{f9fd}𠀁𠁤𠃢𠄡𠤪𠦃𠦌𠦜𠫪𠫽𠬙𢎐𢦘𣬛𦉭\u{2f890}";

/// Returns whether a character is a number by `str.isnumeric`.
pub(super) fn is_numeric(c: char) -> bool {
    use GeneralCategory::{DecimalNumber, LetterNumber, OtherNumber};
    matches!(get_general_category(c), DecimalNumber | LetterNumber | OtherNumber) || NUMERALS.contains(c)
}

/// Returns whether a character is a letter or number by `str.isalnum`.
pub(super) fn is_alphanumeric(c: char) -> bool {
    is_letter(c) || is_numeric(c)
}

/// Returns whether a text is an identifier by `str.isidentifier`.
pub(super) fn is_identifier(text: &str) -> bool {
    use GeneralCategory::{ConnectorPunctuation, LetterNumber, NonspacingMark, SpacingMark};
    let starts = |c: char| c == '_' || is_letter(c) || get_general_category(c) == LetterNumber || "℘℮".contains(c);
    let continues = |c: char| {
        starts(c)
            || is_decimal(c)
            || matches!(get_general_category(c), ConnectorPunctuation | NonspacingMark | SpacingMark)
            || matches!(c, '·' | '\u{387}' | '\u{1369}'..='\u{1371}' | '\u{19da}')
    };
    text.starts_with(starts) && text.chars().all(continues)
}

/// Replaces decimal digits of all scripts by those of ASCII, as Python reads numbers.
pub(super) fn with_ascii_digits(text: &str) -> String {
    let digit = |c: char| {
        // Digits come in runs of ten.
        let before = (1..u32::from(c)).take_while(|back| char::from_u32(u32::from(c) - back).is_some_and(is_decimal)).count();
        char::from_digit(before as u32 % 10, 10).unwrap_or(c)
    };
    text.chars().map(|c| if !c.is_ascii() && is_decimal(c) { digit(c) } else { c }).collect()
}

fn is_titlecase(c: char) -> bool {
    get_general_category(c) == GeneralCategory::TitlecaseLetter
}

fn is_cased(c: char) -> bool {
    c.is_lowercase() || c.is_uppercase() || is_titlecase(c)
}

/// Returns whether letters that have a case are lowercase, and there is one.
pub(super) fn is_lower(text: &str) -> bool {
    text.chars().any(char::is_lowercase) && !text.chars().any(|c| c.is_uppercase() || is_titlecase(c))
}

/// Returns whether letters that have a case are uppercase, and there is one.
pub(super) fn is_upper(text: &str) -> bool {
    text.chars().any(char::is_uppercase) && !text.chars().any(|c| c.is_lowercase() || is_titlecase(c))
}

/// Writes a character as the first of a word.
fn title_case(c: char) -> String {
    let capital = |c: u32, mark: u32| [c, mark].into_iter().filter_map(char::from_u32).collect::<String>();
    match u32::from(c) {
        0x1c4..=0x1c6 => "ǅ".to_owned(),
        0x1c7..=0x1c9 => "ǈ".to_owned(),
        0x1ca..=0x1cc => "ǋ".to_owned(),
        0x1f1..=0x1f3 => "ǲ".to_owned(),
        0x10d0..=0x10ff => c.to_string(),
        // Greek letters with an iota below.
        code @ 0x1f80..=0x1faf => char::from_u32(code | 8).unwrap_or(c).to_string(),
        code @ (0x1fb3 | 0x1fc3 | 0x1ff3) => char::from_u32(code + 9).unwrap_or(c).to_string(),
        0x1fbc | 0x1fcc | 0x1ffc => c.to_string(),
        code @ (0x1fb7 | 0x1fc7 | 0x1ff7) => capital(code + 5, 0x342),
        code @ (0x1fb2 | 0x1fc2 | 0x1ff2) => capital(code + 8, 0x345),
        0x1fb4 => capital(0x386, 0x345),
        0x1fc4 => capital(0x389, 0x345),
        0x1ff4 => capital(0x38f, 0x345),
        // Ligatures: only their first letter.
        0xdf | 0x587 | 0xfb00..=0xfb06 | 0xfb13..=0xfb17 => {
            let mut letters = c.to_uppercase();
            letters.next().into_iter().chain(letters.flat_map(char::to_lowercase)).collect()
        }
        _ => c.to_uppercase().collect(),
    }
}

/// Splits a text into characters, each with its lowercase, which depends on the context for the Greek sigma.
fn lowered(text: &str) -> Vec<(char, String)> {
    let lower = text.to_lowercase();
    let mut letters = lower.chars();
    text.chars().map(|c| (c, letters.by_ref().take(c.to_lowercase().count()).collect())).collect()
}

/// Capitalizes the first character like `str.capitalize`, and writes the others in lowercase.
pub(super) fn capitalized(text: &str) -> String {
    let write = |(i, (c, lower)): (usize, (char, String))| if i == 0 { title_case(c) } else { lower };
    lowered(text).into_iter().enumerate().map(write).collect()
}

/// Capitalizes each word like `str.title`. A word begins after every character without a case.
pub(super) fn titled(text: &str) -> String {
    let (mut titled, mut within) = (String::new(), false);
    for (c, lower) in lowered(text) {
        titled += &if within { lower } else { title_case(c) };
        within = is_cased(c);
    }
    titled
}

/// Returns whether each word is capitalized, like `str.istitle`.
pub(super) fn is_titled(text: &str) -> bool {
    let (mut within, mut any) = (false, false);
    for c in text.chars() {
        let is_capital = c.is_uppercase() || is_titlecase(c);
        if is_capital && within || c.is_lowercase() && !within {
            return false;
        }
        within = is_cased(c);
        any |= within;
    }
    any
}

/// Capitalizes each word like the filter `title`. A word begins after whitespace, a hyphen or an opening bracket.
pub(super) fn title_words(text: &str) -> String {
    let is_between = |c: char| is_space(c) || "-({[<".contains(c);
    let (mut titled, mut word) = (String::new(), String::new());
    let end = |word: &mut String| {
        let first: String = word.chars().take(1).flat_map(char::to_uppercase).collect();
        let rest: String = std::mem::take(word).chars().skip(1).collect();
        first + &rest.to_lowercase()
    };
    for c in text.chars() {
        if is_between(c) {
            titled += &end(&mut word);
            titled.push(c);
        } else {
            word.push(c);
        }
    }
    titled + &end(&mut word)
}

/// Exchanges uppercase and lowercase like `str.swapcase`.
pub(super) fn swapped(text: &str) -> String {
    let swap = |(c, lower): (char, String)| match c {
        _ if c.is_uppercase() => lower,
        _ if c.is_lowercase() => c.to_uppercase().collect(),
        _ => c.to_string(),
    };
    lowered(text).into_iter().map(swap).collect()
}

/// Folds case like `str.casefold`.
pub(super) fn case_folded(text: &str) -> String {
    let fold = |c: char| -> String {
        match u32::from(c) {
            0x131 | 0x13a0..=0x13f5 => c.to_string(),
            code @ 0x13f8..=0x13fd => char::from_u32(code - 8).unwrap_or(c).to_string(),
            code @ 0xab70..=0xabbf => char::from_u32(code - 0xab70 + 0x13a0).unwrap_or(c).to_string(),
            _ => c.to_lowercase().flat_map(char::to_uppercase).flat_map(char::to_lowercase).collect(),
        }
    };
    text.chars().map(fold).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_of_all_scripts_have_their_values() {
        assert_eq!(with_ascii_digits("x١٢９०๓𝟗𝟘𝟶1"), "x129039001");
        assert!(NUMERALS.chars().all(|c| is_numeric(c) && is_letter(c)));
    }
}
