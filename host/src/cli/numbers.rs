//! Numbers as people read them.

/// Formats a number with four significant digits.
pub(super) fn number(v: f64) -> String {
    let size = v.abs();
    if v == 0.0 {
        "0".to_owned()
    } else if !v.is_finite() {
        v.to_string()
    } else if !(1e-3..1e7).contains(&size) {
        let text = format!("{v:.2e}");
        let (digits, power) = text.split_once('e').unwrap_or((&text, "0"));
        format!("{}e{power}", trimmed(digits))
    } else {
        let decimals = (3.0 - size.log10().floor()).max(0.0) as usize;
        trimmed(&format!("{v:.decimals$}")).to_owned()
    }
}

/// Removes trailing zeros.
fn trimmed(text: &str) -> &str {
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_four_digits_that_say_something() {
        let cases =
            [(0.0, "0"), (-0.10000000149, "-0.1"), (1.592144823, "1.592"), (0.0023224, "0.002322"), (606_556.4, "606556")];
        for (v, expected) in cases.into_iter().chain([(3.0e9, "3e9"), (-3.85e-4, "-3.85e-4"), (99.99999, "100"), (20.0, "20")]) {
            assert_eq!(number(v), expected);
        }
    }
}
