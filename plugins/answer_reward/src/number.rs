//! Parses numbers exactly, as people and models write them in answers.

use std::borrow::Cow;

/// A fraction in lowest terms with a positive denominator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnswerNumber {
    numerator: i128,
    denominator: i128,
    percent: bool,
}

impl AnswerNumber {
    fn new(numerator: i128, denominator: i128, percent: bool) -> Option<Self> {
        let common = i128::try_from(greatest_common_divisor(numerator.unsigned_abs(), denominator.unsigned_abs())).ok()?;
        (denominator > 0).then(|| Self { numerator: numerator / common, denominator: denominator / common, percent })
    }

    fn divided_by(self, other: Self) -> Option<Self> {
        let numerator = self.numerator.checked_mul(other.denominator)?;
        Self::new(numerator, self.denominator.checked_mul(other.numerator)?, self.percent)
    }

    /// Returns whether the number equals a reference, or differs by at most `tolerance` times the reference. 20% equals 20 and 0.2.
    #[must_use]
    pub fn agrees_with(self, reference: Self, tolerance: f64) -> bool {
        let hundred = Self { numerator: 100, denominator: 1, percent: false };
        let worked_in = match (self.percent, reference.percent) {
            (true, false) => self.divided_by(hundred).map(|ours| (ours, reference)),
            (false, true) => reference.divided_by(hundred).map(|theirs| (self, theirs)),
            _ => None,
        };
        self.is_near(reference, tolerance) || worked_in.is_some_and(|(a, b)| a.is_near(b, tolerance))
    }

    fn is_near(self, reference: Self, tolerance: f64) -> bool {
        let float = |n: Self| n.numerator as f64 / n.denominator as f64;
        let same = (self.numerator, self.denominator) == (reference.numerator, reference.denominator);
        // Long numbers may differ and still be equal as floats.
        same || tolerance > 0.0 && (float(self) - float(reference)).abs() <= tolerance * float(reference).abs()
    }
}

fn greatest_common_divisor(mut a: u128, mut b: u128) -> u128 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// A number and the text it was read from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WrittenNumber<'a> {
    /// Text from the sign or first digit to the last digit or percent sign.
    pub text: &'a str,
    /// Value of the number.
    pub number: AnswerNumber,
}

/// Returns the last number in a text: a decimal or a fraction of two, optionally with a sign, a currency sign, commas between
/// thousands, a power of ten, a percent sign. Skips numbers too long for 128 bits.
#[must_use]
pub fn last(text: &str) -> Option<WrittenNumber<'_>> {
    let bytes = text.as_bytes();
    let mut last = None;
    let mut at = 0;
    while at < bytes.len() {
        let begins = bytes[at] != b'.' || at == 0 || !bytes[at - 1].is_ascii_alphanumeric();
        let length = if begins { decimal_length(&bytes[at..]) } else { 0 };
        if length == 0 {
            at += 1;
            continue;
        }
        let (end, written) = read(text, at, at + length);
        last = written.or(last);
        at = end;
    }
    last
}

/// Parses the rest of a number whose first decimal is at `start..end`. Also returns where the number ends.
fn read(text: &str, start: usize, mut end: usize) -> (usize, Option<WrittenNumber<'_>>) {
    let mut number = decimal(&text[start..end]);
    if text[end..].starts_with('/') {
        let length = decimal_length(&text.as_bytes()[end + 1..]);
        let below = decimal(&text[end + 1..end + 1 + length]);
        if let Some(fraction) = number.zip(below).and_then(|(a, b)| a.divided_by(b)) {
            number = Some(fraction);
            end += 1 + length;
        }
    }
    if let Some(percent) = ["%", " %"].iter().find(|sign| text[end..].starts_with(**sign)) {
        number = number.map(|n| AnswerNumber { percent: true, ..n });
        end += percent.len();
    }
    let minus = minus_before(text, start);
    if minus.is_some() {
        number = number.map(|n| AnswerNumber { numerator: -n.numerator, ..n });
    }
    let written = number.map(|number| WrittenNumber { text: &text[minus.unwrap_or(start)..end], number });
    (end, written)
}

/// Returns the position of the minus sign of the number at `start`, which may be before a currency sign. After a letter, a digit
/// or a closing bracket, it is a subtraction or a hyphen.
fn minus_before(text: &str, start: usize) -> Option<usize> {
    let before = &text[..start];
    let before = before.strip_suffix(['$', '€', '£']).unwrap_or(before);
    let rest = before.strip_suffix(['-', '\u{2212}', '\u{2013}', '\u{fe63}', '\u{ff0d}'])?;
    (!rest.ends_with(|c: char| c.is_alphanumeric() || c == ')')).then_some(rest.len())
}

fn digits(bytes: &[u8]) -> usize {
    bytes.iter().take_while(|b| b.is_ascii_digit()).count()
}

/// Returns the length of the decimal at the start of a text, 0 if there is none.
fn decimal_length(bytes: &[u8]) -> usize {
    let tail = |from: usize| bytes.get(from..).unwrap_or(&[]);
    let mut length = digits(bytes);
    if (1..=3).contains(&length) {
        while tail(length).starts_with(b",") && digits(tail(length + 1)) == 3 {
            length += 4;
        }
    }
    if tail(length).starts_with(b".") {
        let places = digits(tail(length + 1));
        length += if places > 0 { 1 + places } else { 0 };
    }
    if length > 0 && matches!(tail(length).first(), Some(b'e' | b'E')) {
        let sign = usize::from(tail(length + 1).starts_with(b"-") || tail(length + 1).starts_with(b"+"));
        let exponent = digits(tail(length + 1 + sign));
        length += if exponent > 0 { 1 + sign + exponent } else { 0 };
    }
    length
}

fn decimal(text: &str) -> Option<AnswerNumber> {
    let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
    let (whole, places) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits: String = whole.chars().chain(places.chars()).filter(|c| *c != ',').collect();
    let value: i128 = digits.parse().ok()?;
    let shift = exponent.parse::<i32>().ok()?.checked_sub(i32::try_from(places.len()).ok()?)?;
    let power = 10_i128.checked_pow(shift.unsigned_abs())?;
    if shift < 0 { AnswerNumber::new(value, power, false) } else { AnswerNumber::new(value.checked_mul(power)?, 1, false) }
}

/// Rewrites LaTeX numbers as plain text: `\frac{3}{4}` as `3/4`, `\$` as `$`, `1{,}000` and `1,\!000` as `1,000`.
#[must_use]
pub fn plain(text: &str) -> Cow<'_, str> {
    if !text.contains(['\\', '{']) {
        return Cow::Borrowed(text);
    }
    let mut text = text.replace("{,}", ",");
    for (latex, plain) in [("\\$", "$"), ("\\%", "%"), ("\\!", ""), ("\\,", ""), ("\\dfrac", "\\frac"), ("\\tfrac", "\\frac")] {
        text = text.replace(latex, plain);
    }
    let mut out = String::with_capacity(text.len());
    let mut rest = text.as_str();
    while let Some((before, after)) = rest.split_once("\\frac") {
        out.push_str(before);
        rest = match two_arguments(after) {
            Some((above, below, beyond)) => {
                out.extend([above, "/", below]);
                beyond
            }
            None => after,
        };
    }
    out.push_str(rest);
    Cow::Owned(out)
}

/// Returns `a`, `b` and the rest of `{a}{b}...`.
fn two_arguments(text: &str) -> Option<(&str, &str, &str)> {
    let (above, rest) = text.strip_prefix('{')?.split_once('}')?;
    let (below, rest) = rest.strip_prefix('{')?.split_once('}')?;
    Some((above.trim(), below.trim(), rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fraction(numerator: i128, denominator: i128) -> Option<AnswerNumber> {
        Some(AnswerNumber { numerator, denominator, percent: false })
    }

    fn value(text: &str) -> Option<AnswerNumber> {
        last(&plain(text)).map(|w| w.number)
    }

    fn agree(a: &str, b: &str, tolerance: f64) -> bool {
        value(a).unwrap().agrees_with(value(b).unwrap(), tolerance)
    }

    #[test]
    fn reads_what_people_write() {
        let cases = [
            ("72", 72, 1),
            ("It is 72.", 72, 1),
            ("72.50", 145, 2),
            (".5", 1, 2),
            ("1,080", 1080, 1),
            ("$1,234,567.25", 4_938_269, 4),
            ("-5", -5, 1),
            ("-$5", -5, 1),
            ("$-5", -5, 1),
            ("+5", 5, 1),
            ("\u{2212}5", -5, 1),
            ("3/4", 3, 4),
            ("-6/8", -3, 4),
            ("1.5/2", 3, 4),
            ("2.5e3", 2500, 1),
            ("5E-1", 1, 2),
            ("007", 7, 1),
            ("0.00", 0, 1),
            (r"\frac{3}{4}", 3, 4),
            (r"-\dfrac{ 3 }{ 4 }", -3, 4),
            (r"\$1{,}080", 1080, 1),
            (r"1,\!080\text{ clips}", 1080, 1),
        ];
        for (text, numerator, denominator) in cases {
            assert_eq!(value(text), fraction(numerator, denominator), "{text}");
        }
    }

    #[test]
    fn tells_where_a_number_ends() {
        let cases = [
            ("10-5", 5, 1),
            ("(2)-5", 5, 1),
            ("f-5", 5, 1),
            ("- 5", 5, 1),
            ("1,2,3", 3, 1),
            ("12,3456", 3456, 1),
            ("1234,567", 567, 1),
            ("3.14.15", 15, 1),
            ("4 and 6.", 6, 1),
            ("48/2=24", 24, 1),
            ("9/x", 9, 1),
            ("7 e", 7, 1),
            ("E5", 5, 1),
            ("3/0", 0, 1),
            (r"\frac{x}{7}", 7, 1),
            (r"\frac12", 12, 1),
        ];
        for (text, numerator, denominator) in cases {
            assert_eq!(value(text), fraction(numerator, denominator), "{text}");
        }
        for none in ["", "none", "-", "$", ".", "e"] {
            assert_eq!(value(none), None, "{none}");
        }
    }

    #[test]
    fn gives_the_text_as_written() {
        let text = |t| last(t).map(|w| w.text);
        assert_eq!(text("so -$1,080.50 then"), Some("-$1,080.50"));
        assert_eq!(text("about 20 % of süß 3/4 ü"), Some("3/4"));
        assert_eq!(text("20%"), Some("20%"));
    }

    #[test]
    fn numbers_too_long_to_hold_are_passed_over() {
        let long = "9".repeat(60);
        assert_eq!(value(&format!("5 or {long}")), fraction(5, 1));
        assert_eq!(value("5 or 1e99999999999"), fraction(5, 1));
        assert_eq!(value("5 or 1e99"), fraction(5, 1));
        assert_eq!(value(&format!("1/{long}")), fraction(1, 1));
    }

    #[test]
    fn agreement_is_exact_unless_told_otherwise() {
        assert!(agree("0.75", "3/4", 0.0));
        assert!(agree("18.00", "$18", 0.0));
        assert!(!agree("0.333", "1/3", 0.0));
        assert!(agree("0.333", "1/3", 0.001));
        assert!(!agree("0.332", "1/3", 0.001));
        assert!(!agree("12345678901234567890", "12345678901234567891", 0.0));
        assert!(!agree("5", "-5", 0.0));
    }

    #[test]
    fn a_percent_sign_may_be_left_out_or_worked_in() {
        for other in ["20", "20%", "20.0 %", "0.2", "1/5"] {
            assert!(agree("20%", other, 0.0) && agree(other, "20%", 0.0), "{other}");
        }
        assert!(!agree("20%", "2000", 0.0));
        assert!(!agree("20", "0.2", 0.0));
        assert!(!agree("20%", "0.2%", 0.0));
    }
}
