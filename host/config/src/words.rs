//! Formats numbers and counts for people: on the terminal, in the log, in findings and on pages.

use std::time::Duration;

/// Formats a number with four significant digits and thousands separators.
pub fn number(v: f64) -> String {
    let size = v.abs();
    if v == 0.0 {
        "0".to_owned()
    } else if !v.is_finite() {
        v.to_string()
    } else if !(1e-3..1e7).contains(&size) {
        let text = format!("{v:.2e}");
        let (digits, power) = text.split_once('e').unwrap_or((&text, "0"));
        format!("{}e{power}", trimmed(digits))
    } else if size >= 1000.0 {
        grouped(&format!("{v:.0}"))
    } else {
        let decimals = (3.0 - size.log10().floor()).max(0.0) as usize;
        trimmed(&format!("{v:.decimals$}")).to_owned()
    }
}

/// Formats a number for a column, such that decimal points are mostly aligned.
pub fn in_column(v: f64) -> String {
    match v.abs() {
        0.0 => "0".to_owned(),
        size if !(1e-3..1e7).contains(&size) => format!("{v:.1e}"),
        size if size >= 1e4 => grouped(&format!("{v:.0}")),
        size if size >= 100.0 => format!("{v:.1}"),
        _ => format!("{v:.3}"),
    }
}

/// Formats a count with thousands separators.
pub fn count(n: u64) -> String {
    grouped(&n.to_string())
}

/// Formats a number with its noun: `1 step`, `2 steps`.
pub fn counted(n: u64, what: &str) -> String {
    format!("{} {what}{}", count(n), if n == 1 { "" } else { "s" })
}

/// Appends a clause to a message: after a semicolon, or on a line of its own if the message has several lines, such as a traceback.
pub fn followed_by(message: &str, clause: &str) -> String {
    let message = message.trim_end();
    format!("{message}{}{clause}", if message.contains('\n') { "\n" } else { "; " })
}

/// Formats a duration like a clock: `0:07`, `12:30`, `1:02:03`, `2d 03:00`.
pub fn clock(time: Duration) -> String {
    let seconds = time.as_secs();
    let (minutes, hours) = (seconds / 60 % 60, seconds / 3600);
    match hours {
        0 => format!("{minutes}:{:02}", seconds % 60),
        1..24 => format!("{hours}:{minutes:02}:{:02}", seconds % 60),
        _ => format!("{}d {:02}:{minutes:02}", hours / 24, hours % 24),
    }
}

/// Removes trailing zeros.
fn trimmed(text: &str) -> &str {
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { text }
}

/// Adds thousands separators to an integer, which may have a sign.
fn grouped(text: &str) -> String {
    let (sign, digits) = text.strip_prefix('-').map_or(("", text), |digits| ("-", digits));
    let mut shown = sign.to_owned();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            shown.push(',');
        }
        shown.push(digit);
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_four_digits_that_say_something() {
        let cases = [
            (0.0, "0"),
            (20.0, "20"),
            (-0.10000000149, "-0.1"),
            (1.592144823, "1.592"),
            (0.0023224, "0.002322"),
            (99.99999, "100"),
            (606_556.4, "606,556"),
            (-1234.5, "-1,234"),
            (3.0e9, "3e9"),
            (-3.85e-4, "-3.85e-4"),
            (f64::NEG_INFINITY, "-inf"),
        ];
        for (v, expected) in cases {
            assert_eq!(number(v), expected);
        }
    }

    #[test]
    fn numbers_of_a_column_have_the_digits_that_matter() {
        let all = [0.0, 0.25, -1.5, 123.456, 9876.54, 123_456.7, -123_456.7, 1e9, 0.000_123];
        let expected = ["0", "0.250", "-1.500", "123.5", "9876.5", "123,457", "-123,457", "1.0e9", "1.2e-4"];
        assert_eq!(all.map(in_column), expected);
    }

    #[test]
    fn things_are_counted() {
        assert_eq!([0, 1, 2, 1000].map(|n| counted(n, "step")), ["0 steps", "1 step", "2 steps", "1,000 steps"]);
        assert_eq!(count(u64::MAX), "18,446,744,073,709,551,615");
    }

    #[test]
    fn a_clause_after_a_traceback_has_a_line_of_its_own() {
        assert_eq!(followed_by("can't read rw.py", "step 3 is saved"), "can't read rw.py; step 3 is saved");
        let traceback = "Traceback (most recent call last):\n  line 3\nKeyError: 'answer'\n";
        assert_eq!(followed_by(traceback, "step 3 is saved"), format!("{traceback}step 3 is saved"));
    }

    #[test]
    fn a_clock_shows_what_matters_of_a_duration() {
        let all = [7, 750, 3723, 190_000].map(|seconds| clock(Duration::from_secs(seconds)));
        assert_eq!(all, ["0:07", "12:30", "1:02:03", "2d 04:46"]);
    }
}
