//! Parses calculations without LaTeX, such as `3*(4+1)^2`, as Python does.

use super::tree::Term;

/// Maximum nesting of calculations.
const DEEPEST: u32 = 40;

/// Parses a calculation, or returns `None` if it isn't one.
#[must_use]
pub fn parse(text: &str) -> Option<Term> {
    if text.len() > super::lex::LONGEST {
        return None;
    }
    let mut rest = text.trim();
    let term = sum(&mut rest, 0)?;
    rest.is_empty().then_some(term)
}

fn take(rest: &mut &str, mark: &str) -> bool {
    let Some(after) = rest.strip_prefix(mark) else { return false };
    *rest = after.trim_start();
    true
}

fn sum(rest: &mut &str, depth: u32) -> Option<Term> {
    let mut sum = product(rest, depth)?;
    loop {
        if take(rest, "+") {
            sum = sum.plus(product(rest, depth)?);
        } else if take(rest, "-") {
            sum = sum.plus(product(rest, depth)?.negated());
        } else {
            return Some(sum);
        }
    }
}

fn product(rest: &mut &str, depth: u32) -> Option<Term> {
    let mut product = signed(rest, depth)?;
    loop {
        if rest.starts_with("**") || rest.starts_with("//") {
            return None;
        } else if take(rest, "*") {
            product = product.times(signed(rest, depth)?);
        } else if take(rest, "/") {
            product = product.over(signed(rest, depth)?);
        } else {
            return Some(product);
        }
    }
}

fn signed(rest: &mut &str, depth: u32) -> Option<Term> {
    if depth > DEEPEST {
        return None;
    }
    if take(rest, "-") {
        return Some(signed(rest, depth + 1)?.negated());
    }
    if take(rest, "+") {
        return signed(rest, depth + 1);
    }
    let base = atom(rest, depth)?;
    if take(rest, "^") || take(rest, "**") { Some(base.to_the(signed(rest, depth + 1)?)) } else { Some(base) }
}

fn atom(rest: &mut &str, depth: u32) -> Option<Term> {
    if take(rest, "(") {
        let inside = sum(rest, depth + 1)?;
        return take(rest, ")").then_some(inside);
    }
    let length = rest.bytes().take_while(|b| b.is_ascii_digit() || *b == b'.').count();
    let (number, after) = rest.split_at(length);
    *rest = after.trim_start();
    let whole = number.bytes().all(|b| b.is_ascii_digit());
    let padded = whole && number.len() > 1 && number.starts_with('0');
    let valid = number.bytes().any(|b| b.is_ascii_digit()) && number.matches('.').count() <= 1 && !padded;
    valid.then(|| Term::number(number))?
}
