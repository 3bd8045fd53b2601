//! Evaluates arithmetic expressions: numbers, `+ - * / %`, `^`, parentheses.

/// Maximum length of an expression, in bytes.
const LONGEST: usize = 1000;

/// Maximum nesting.
const DEEPEST: usize = 50;

/// Returns an expression's value; the error is a sentence for its author.
pub(crate) fn value_of(expression: &str) -> Result<f64, String> {
    if expression.len() > LONGEST {
        return Err(format!("the expression has {} bytes; the limit is {LONGEST}", expression.len()));
    }
    let mut reader = ArithmeticParser { rest: expression.trim_start(), depth: 0 };
    let value = reader.sum()?;
    if !reader.rest.is_empty() {
        return Err(format!("can't read {:?}", reader.rest.chars().take(20).collect::<String>()));
    }
    if value.is_finite() { Ok(value) } else { Err("the result is not a finite number".into()) }
}

struct ArithmeticParser<'a> {
    rest: &'a str,
    depth: usize,
}

impl ArithmeticParser<'_> {
    fn take(&mut self, wanted: char) -> bool {
        let Some(rest) = self.rest.strip_prefix(wanted) else { return false };
        self.rest = rest.trim_start();
        true
    }

    fn sum(&mut self) -> Result<f64, String> {
        let mut value = self.product()?;
        loop {
            if self.take('+') {
                value += self.product()?;
            } else if self.take('-') {
                value -= self.product()?;
            } else {
                return Ok(value);
            }
        }
    }

    fn product(&mut self) -> Result<f64, String> {
        let mut value = self.signed()?;
        loop {
            if self.rest.starts_with("**") {
                return Ok(value);
            } else if self.take('*') {
                value *= self.signed()?;
            } else if self.take('/') {
                value /= nonzero(self.signed()?)?;
            } else if self.take('%') {
                let by = nonzero(self.signed()?)?;
                value -= by * (value / by).floor();
            } else {
                return Ok(value);
            }
        }
    }

    fn signed(&mut self) -> Result<f64, String> {
        self.depth += 1;
        if self.depth > DEEPEST {
            return Err("the expression is nested too deeply".into());
        }
        let value = if self.take('-') { -self.signed()? } else { self.power()? };
        self.depth -= 1;
        Ok(value)
    }

    fn power(&mut self) -> Result<f64, String> {
        let base = self.atom()?;
        let raised = self.take('^') || (self.rest.starts_with("**") && self.take('*') && self.take('*'));
        Ok(if raised { base.powf(self.signed()?) } else { base })
    }

    fn atom(&mut self) -> Result<f64, String> {
        if self.take('(') {
            let value = self.sum()?;
            return if self.take(')') { Ok(value) } else { Err("a parenthesis is not closed".into()) };
        }
        let end = self.rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(self.rest.len());
        let (number, rest) = self.rest.split_at(end);
        let value = number.parse().map_err(|_| match rest.chars().next() {
            _ if !number.is_empty() => format!("{number:?} is not a number"),
            Some(other) => format!("can't read {other:?} where a number should be"),
            None => "a number is missing at the end".into(),
        })?;
        self.rest = rest.trim_start();
        Ok(value)
    }
}

fn nonzero(by: f64) -> Result<f64, String> {
    if by == 0.0 { Err("division by zero".into()) } else { Ok(by) }
}

#[cfg(test)]
mod tests {
    use super::value_of;

    #[test]
    fn values_are_those_of_arithmetic() {
        for (expression, value) in [
            ("1 + 2 * 3", 7.0),
            ("(1 + 2) * 3", 9.0),
            ("2 - 3 - 4", -5.0),
            ("-2 ^ 2", -4.0),
            ("2 ** 3 ** 2", 512.0),
            ("7 / 2", 3.5),
            ("-7 % 3", 2.0),
            (" 12.5*-4 ", -50.0),
        ] {
            assert_eq!(value_of(expression), Ok(value), "{expression}");
        }
    }

    #[test]
    fn mistakes_are_told_and_depth_is_bounded() {
        for (expression, told) in [
            ("", "missing"),
            ("2 +", "missing"),
            ("1 / (2 - 2)", "zero"),
            ("(1", "not closed"),
            ("1.2.3", "not a number"),
            ("import os", "can't read"),
            ("2 3", "can't read"),
            ("9 ^ 999", "finite"),
        ] {
            let said = value_of(expression).unwrap_err();
            assert!(said.contains(told), "{expression}: {said}");
        }
        assert!(value_of(&"(".repeat(900)).is_err());
        assert!(value_of(&"-".repeat(900)).is_err());
        assert!(value_of(&"1+".repeat(600)).is_err());
    }
}
