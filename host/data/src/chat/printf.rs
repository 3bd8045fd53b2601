//! Python's operator `%`: remainder of numbers, and string formatting.

use super::arguments::{all, error, parts};
use super::text::{ascii, number, repr, str};
use minijinja::value::{Kwargs, Rest, ValueKind};
use minijinja::{Error, Value};

/// Maximum number of digits of a float.
const MOST_DIGITS: usize = 1000;

/// Operator `%`.
pub(super) fn modulo(left: &Value, right: &Value) -> Result<Value, Error> {
    if let Some(format) = left.as_str() {
        let values: Vec<Value> = if right.is_tuple() { right.try_iter()?.collect() } else { vec![right.clone()] };
        // To Python a list is a mapping here, whose items need not be used.
        let is_mapping = matches!(right.kind(), ValueKind::Map | ValueKind::Seq | ValueKind::Iterable) && !right.is_tuple();
        return formatted(format, &values, Some(right).filter(|_| is_mapping)).map(Value::from);
    }
    let unfit = || error(format!("can't take {} % {}", left.kind(), right.kind()));
    if is_integer(left) && is_integer(right) {
        let [left, right] = [left, right].map(|value| i128::try_from(value.clone()).map_err(|_| unfit()));
        let (left, right) = (left?, right?);
        let remainder = left.checked_rem(right).or_else(|| (right == -1).then_some(0));
        let remainder = remainder.ok_or_else(|| error("division by zero"))?;
        let whole = if remainder != 0 && (remainder < 0) != (right < 0) { remainder + right } else { remainder };
        return Ok(i64::try_from(whole).map_or_else(|_| Value::from(whole), Value::from));
    }
    let [left, right] = [left, right].map(|value| as_float(value).ok_or_else(unfit));
    let (left, right) = (left?, right?);
    if right == 0.0 {
        return Err(error("division by zero"));
    }
    let remainder = left % right;
    Ok(Value::from(if remainder != 0.0 && (remainder < 0.0) != (right < 0.0) {
        remainder + right
    } else if remainder == 0.0 {
        0.0_f64.copysign(right)
    } else {
        remainder
    }))
}

fn is_integer(value: &Value) -> bool {
    value.is_integer() || value.kind() == ValueKind::Bool
}

fn as_float(value: &Value) -> Option<f64> {
    match value.kind() {
        ValueKind::Bool => Some(f64::from(u8::from(value.is_true()))),
        ValueKind::Number if value.is_integer() => i128::try_from(value.clone()).ok().map(|number| number as f64),
        ValueKind::Number => f64::try_from(value.clone()).ok(),
        _ => None,
    }
}

/// Filter `format`.
pub(super) fn format(value: &Value, args: Rest<Value>, named: Kwargs) -> Result<String, Error> {
    let all = all(args, named);
    let (positional, named) = parts(&all);
    let named = (!named.is_empty()).then(|| Value::from_pairs(named));
    if named.is_some() && !positional.is_empty() {
        return Err(error("format: takes arguments by place or by name, not both"));
    }
    formatted(&str(value)?, positional, named.as_ref())
}

/// Formats values in order, or the values of a mapping where the format refers to them by name.
fn formatted(format: &str, values: &[Value], named: Option<&Value>) -> Result<String, Error> {
    let (mut text, mut rest, mut values, mut used) = (String::new(), format, values.iter(), 0);
    let mut is_named = false;
    while let Some((before, after)) = rest.split_once('%') {
        text.push_str(before);
        let mut next = || {
            used += 1;
            values.next().cloned().ok_or_else(|| error("not enough arguments for the format"))
        };
        let mut spec = FormatSpec::default();
        let mut after = after;
        let mut own = None;
        if let Some((name, then)) = after.strip_prefix('(').and_then(|after| after.split_once(')')) {
            let map =
                named.filter(|map| map.kind() == ValueKind::Map).ok_or_else(|| error("a format with names needs a mapping"))?;
            own = Some(map.get_item(&name.into())?);
            (after, is_named) = (then, true);
        }
        let flags = after.find(|c| !"-+ 0#".contains(c)).unwrap_or(after.len());
        spec.flags = &after[..flags];
        after = &after[flags..];
        let mut size = |after: &mut &str| -> Result<Option<i64>, Error> {
            if let Some(then) = after.strip_prefix('*') {
                *after = then;
                return next()?.as_i64().map(Some).ok_or_else(|| error("* wants an integer"));
            }
            let digits = after.find(|c: char| !c.is_ascii_digit()).unwrap_or(after.len());
            let (digits, then) = after.split_at(digits);
            *after = then;
            if digits.is_empty() { Ok(None) } else { digits.parse().map(Some).map_err(|_| error("a width is too large")) }
        };
        let width = size(&mut after)?.unwrap_or(0);
        spec.left = width < 0 || spec.flags.contains('-');
        spec.width = usize::try_from(width.unsigned_abs()).unwrap_or(usize::MAX);
        if let Some(mut then) = after.strip_prefix('.') {
            spec.digits = Some(usize::try_from(size(&mut then)?.unwrap_or(0)).unwrap_or(0));
            after = then;
        }
        after = after.trim_start_matches(['h', 'l', 'L']);
        let kind = after.chars().next().ok_or_else(|| error("a format ends within a field"))?;
        rest = &after[kind.len_utf8()..];
        if kind == '%' {
            text.push('%');
            continue;
        }
        let value = own.map_or_else(&mut next, Ok)?;
        spec.write(kind, &value, &mut text)?;
    }
    text.push_str(rest);
    if values.next().is_some() && !is_named && !(used == 0 && named.is_some()) {
        return Err(error("not all arguments are used by the format"));
    }
    Ok(text)
}

/// Conversion specifier of a format.
#[derive(Default)]
struct FormatSpec<'a> {
    flags: &'a str,
    left: bool,
    width: usize,
    digits: Option<usize>,
}

impl FormatSpec<'_> {
    fn write(&self, kind: char, value: &Value, text: &mut String) -> Result<(), Error> {
        let own = match kind {
            's' => self.shortened(str(value)?),
            'r' => self.shortened(repr(value)?),
            'a' => self.shortened(ascii(&repr(value)?)),
            'c' => character(value)?,
            'd' | 'i' | 'u' | 'x' | 'X' | 'o' => return self.integer(kind, value, text),
            'e' | 'E' | 'f' | 'F' | 'g' | 'G' => return self.float(kind, value, text),
            _ => return Err(error(format!("unknown format %{kind}"))),
        };
        self.pad("", &own, false, text);
        Ok(())
    }

    fn shortened(&self, text: String) -> String {
        match self.digits {
            Some(length) => text.chars().take(length).collect(),
            None => text,
        }
    }

    fn integer(&self, kind: char, value: &Value, text: &mut String) -> Result<(), Error> {
        let number = if is_integer(value) { i128::try_from(value.clone()).ok() } else { None };
        let whole = as_float(value).filter(|float| !"xXo".contains(kind) && float.is_finite());
        let number = number.or_else(|| whole.map(|float| float.trunc() as i128));
        let number = number.ok_or_else(|| error(format!("%{kind} wants a number, not {}", value.kind())))?;
        let magnitude = number.unsigned_abs();
        let (prefix, digits) = match kind {
            'x' => ("0x", format!("{magnitude:x}")),
            'X' => ("0X", format!("{magnitude:X}")),
            'o' => ("0o", format!("{magnitude:o}")),
            _ => ("", magnitude.to_string()),
        };
        let zeros = self.digits.unwrap_or(0).saturating_sub(digits.len());
        let prefix = if self.flags.contains('#') { prefix } else { "" };
        self.pad(&(self.sign(number < 0).to_owned() + prefix), &("0".repeat(zeros) + &digits), true, text);
        Ok(())
    }

    fn float(&self, kind: char, value: &Value, text: &mut String) -> Result<(), Error> {
        let number = as_float(value).ok_or_else(|| error(format!("%{kind} wants a number, not {}", value.kind())))?;
        let digits = self.digits.unwrap_or(6);
        if digits > MOST_DIGITS {
            return Err(error(format!("%{kind} can't have more than {MOST_DIGITS} digits")));
        }
        let magnitude = number.abs();
        let mut own = match kind.to_ascii_lowercase() {
            _ if !number.is_finite() => self::number(&Value::from(magnitude)),
            'f' => format!("{magnitude:.digits$}"),
            'e' => scientific(magnitude, digits),
            _ => general(magnitude, digits.max(1), self.flags.contains('#')),
        };
        if kind.is_ascii_uppercase() {
            own = own.to_uppercase();
        }
        self.pad(self.sign(number.is_sign_negative() && !number.is_nan()), &own, number.is_finite(), text);
        Ok(())
    }

    fn sign(&self, negative: bool) -> &'static str {
        match negative {
            true => "-",
            false if self.flags.contains('+') => "+",
            false if self.flags.contains(' ') => " ",
            false => "",
        }
    }

    /// Writes a text padded to the width.
    fn pad(&self, prefix: &str, own: &str, zeros: bool, text: &mut String) {
        let missing = self.width.saturating_sub(prefix.chars().count() + own.chars().count());
        let padding = |with: &str| with.repeat(missing);
        let parts = match (self.left, zeros && self.flags.contains('0')) {
            (true, _) => [prefix, own, &padding(" ")].concat(),
            (false, true) => [prefix, &padding("0"), own].concat(),
            (false, false) => [&padding(" "), prefix, own].concat(),
        };
        text.push_str(&parts);
    }
}

/// Returns the character given as a string or by its code point.
fn character(value: &Value) -> Result<String, Error> {
    let code = value.as_i64().and_then(|code| u32::try_from(code).ok()).and_then(char::from_u32);
    let own = value.as_str().filter(|text| text.chars().count() == 1).map(ToOwned::to_owned);
    own.or_else(|| code.map(String::from)).ok_or_else(|| error("%c wants a character or its number"))
}

/// Writes a number with an exponent of at least two digits.
pub(super) fn scientific(number: f64, digits: usize) -> String {
    let text = format!("{number:.digits$e}");
    let Some((mantissa, exponent)) = text.split_once('e') else { return text };
    let (sign, size) = exponent.strip_prefix('-').map_or(('+', exponent), |size| ('-', size));
    format!("{mantissa}e{sign}{size:0>2}")
}

/// Writes a number with this precision, in scientific notation if it is very large or small.
pub(super) fn general(number: f64, digits: usize, keep_zeros: bool) -> String {
    let text = scientific(number, digits - 1);
    let exponent: i64 = text.split_once('e').and_then(|(_, exponent)| exponent.parse().ok()).unwrap_or(0);
    let trimmed = |text: &str| match text.contains('.') && !keep_zeros {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text.to_owned(),
    };
    if exponent < -4 || exponent >= digits as i64 {
        let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "+00"));
        return format!("{}e{exponent}", trimmed(mantissa));
    }
    let places = usize::try_from(digits as i64 - 1 - exponent).unwrap_or(0);
    trimmed(&format!("{number:.places$}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use minijinja::value::{Serde, Tuple};
    use serde_json::{Value as Json, json};

    fn format_values(format: &str, values: Json) -> Result<String, String> {
        let values = match values {
            Json::Array(values) => {
                Tuple::from(values.into_iter().map(|value| Serde(value).into()).collect::<Vec<Value>>()).into()
            }
            other => Serde(other).into(),
        };
        modulo(&format.into(), &values).map(|text| text.to_string()).map_err(|e| e.to_string())
    }

    #[test]
    fn formats_are_those_of_python() {
        for (format, values, expected) in [
            ("%s %r %%", json!(["a", "it's"]), "a \"it's\" %"),
            ("%d|%5d|%-5d|%05d|%+d", json!([3.9, 3, 3, -3, 3]), "3|    3|3    |-0003|+3"),
            ("%x %#x %X %o", json!([255, 255, 255, 8]), "ff 0xff FF 10"),
            ("%.2f %8.3f %e %.1E", json!([1, 2.5, 12345.678, 0.00012]), "1.00    2.500 1.234568e+04 1.2E-04"),
            ("%g %g %g %g", json!([1e16, 1e-5, 0.5, 100000]), "1e+16 1e-05 0.5 100000"),
            ("%*d|%.3s|%c%c", json!([4, 7, "abcdef", "x", 65]), "   7|abc|xA"),
            ("%(a)s-%(b)02d", json!({"a": 1e-5, "b": 3}), "1e-05-03"),
            ("%s", json!({"a": 1}), "{'a': 1}"),
        ] {
            assert_eq!(format_values(format, values).as_deref(), Ok(expected), "{format}");
        }
        assert!(format_values("%s", json!([])).unwrap_err().contains("not enough"));
        assert!(format_values("%s", json!([1, 2])).unwrap_err().contains("not all"));
        assert!(format_values("%d", json!(["x"])).unwrap_err().contains("wants a number"));
        assert!(format_values("%y", json!([1])).unwrap_err().contains("unknown format"));
        assert!(format_values("%.99999f", json!([1])).unwrap_err().contains("digits"));
    }

    #[test]
    fn remainders_have_the_divisors_sign() {
        let of = |left: Json, right: Json| modulo(&Serde(left).into(), &Serde(right).into()).map(|value| str(&value).unwrap());
        for (left, right, expected) in [
            (json!(7), json!(3), "1"),
            (json!(-7), json!(3), "2"),
            (json!(7), json!(-3), "-2"),
            (json!(-6), json!(3), "0"),
            (json!(7.5), json!(2), "1.5"),
            (json!(-7.5), json!(2), "0.5"),
            (json!(true), json!(2), "1"),
        ] {
            assert_eq!(of(left.clone(), right.clone()).unwrap(), expected, "{left} % {right}");
        }
        assert!(of(json!(1), json!(0)).unwrap_err().to_string().contains("division by zero"));
        assert!(of(json!([1]), json!(2)).is_err());
    }
}
