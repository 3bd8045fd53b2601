//! Formats numbers as plain text, to compare them with names in `\\text{...}`.

use super::tree::Term;

/// Returns the text of an integer or a fraction in lowest terms, or `None` for other terms. As in math_verify, sums and products are not
/// computed, except for mixed fractions.
#[must_use]
pub fn written(term: &Term) -> Option<String> {
    match term {
        Term::Number(number) if !number.decimal && number.places == 0 => {
            Some(format!("{}{}", if number.negative { "-" } else { "" }, number.digits))
        }
        Term::Infinity => Some("oo".to_owned()),
        _ => {
            let Ratio { above, below } = ratio(term)?;
            Some(if below == 1 { above.to_string() } else { format!("{above}/{below}") })
        }
    }
}

/// A fraction in lowest terms with a positive denominator.
struct Ratio {
    above: i128,
    below: i128,
}

impl Ratio {
    fn new(above: i128, below: i128) -> Option<Self> {
        let (mut a, mut b) = (above.checked_abs()?, below.checked_abs().filter(|below| *below > 0)?);
        while b != 0 {
            (a, b) = (b, a % b);
        }
        Some(Self { above: (above / a).checked_mul(below.signum())?, below: below.checked_abs()? / a })
    }
}

fn ratio(term: &Term) -> Option<Ratio> {
    match term {
        Term::Number(_) => Ratio::new(whole(term)?, 1),
        Term::Power(base, exponent) if **exponent == Term::whole(-1) => Ratio::new(1, whole(base)?),
        Term::Product(factors) => quotient(factors),
        Term::Sum(terms) => match terms.as_slice() {
            [first, Term::Product(fraction)] if first.is_natural() => {
                let Ratio { above, below } = quotient(fraction)?;
                Ratio::new(whole(first)?.checked_mul(below)?.checked_add(above)?, below)
            }
            _ => None,
        },
        _ => None,
    }
}

/// Returns the quotient of two numbers with signs.
fn quotient(factors: &[Term]) -> Option<Ratio> {
    let (mut sign, mut above, mut below) = (1, None, None);
    for factor in factors {
        match factor {
            Term::Number(_) if *factor == Term::whole(-1) => sign = -sign,
            Term::Number(_) if above.is_none() => above = Some(whole(factor)?),
            Term::Power(base, exponent) if below.is_none() && **exponent == Term::whole(-1) => below = Some(whole(base)?),
            _ => return None,
        }
    }
    Ratio::new(above.unwrap_or(1).checked_mul(sign)?, below.unwrap_or(1))
}

fn whole(term: &Term) -> Option<i128> {
    match term {
        Term::Number(number) if !number.decimal => number.integer(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::parse::parse;
    use super::super::tree::FormulaNode;
    use super::*;

    #[test]
    fn numbers_and_fractions_are_written_and_other_terms_are_not() {
        let text = |formula: &str| match parse(formula) {
            Some(FormulaNode::Term(term)) => written(&term),
            _ => None,
        };
        for (formula, wanted) in [
            ("13", "13"),
            ("-5", "-5"),
            ("+13", "13"),
            ("\\frac{26}{2}", "13"),
            ("-\\frac{1}{2}", "-1/2"),
            ("\\frac{1}{-2}", "-1/2"),
            ("\\frac{-2}{-4}", "1/2"),
            ("3\\frac{1}{2}", "7/2"),
            ("2^{-1}", "1/2"),
            ("123456789012345678901234567890123456789012", "123456789012345678901234567890123456789012"),
            ("\\infty", "oo"),
        ] {
            assert_eq!(text(formula).as_deref(), Some(wanted), "{formula}");
        }
        for formula in ["10+3", "2\\cdot 6", "2.5", "\\sqrt{169}", "\\frac{1}{0}", "0^{-1}", "x", "13^1", "20\\%"] {
            assert_eq!(text(formula), None, "{formula}");
        }
    }
}
