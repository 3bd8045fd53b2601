//! Formats values like Python's `str` and `repr`.

use super::arguments::{TemplateArguments, all, error};
use super::depth::{DEEPEST_VALUE, too_deep};
use super::item_group::ItemGroup;
use super::letters::is_printable;
use super::sequences::iterate;
use super::views::MappingView;
use minijinja::value::{Kwargs, Rest, ValueKind};
use minijinja::{Error, Output, State, Value};
use std::fmt::Write;

/// Name of the filter for the operator `~`.
pub(super) const CONCAT: &str = "concatenated_text";

/// Name of the filter for the operator `%`; see [`super::printf`].
pub(super) const MODULO: &str = "modulo_or_format";

/// Returns Python's `str` of a value.
///
/// # Errors
/// If the value is nested too deeply, or one of its items failed.
pub(super) fn str(value: &Value) -> Result<String, Error> {
    let mut text = String::new();
    write(value, &mut text)?;
    Ok(text)
}

/// Returns Python's `repr` of a value.
///
/// # Errors
/// If the value is nested too deeply, or one of its items failed.
pub(super) fn repr(value: &Value) -> Result<String, Error> {
    let mut text = String::new();
    spell(value, DEEPEST_VALUE, &mut text)?;
    Ok(text)
}

/// Writes Python's `str` of a value.
fn write(value: &Value, text: &mut String) -> Result<(), Error> {
    match value.as_str() {
        Some(own) => text.push_str(own),
        None if value.is_undefined() => {}
        None => spell(value, DEEPEST_VALUE, text)?,
    }
    Ok(())
}

/// Writes Python's `repr` of a value with at most `deepest` levels of nesting.
fn spell(value: &Value, deepest: usize, text: &mut String) -> Result<(), Error> {
    let deeper = || deepest.checked_sub(1).ok_or_else(too_deep);
    match value.kind() {
        ValueKind::Undefined => text.push_str("Undefined"),
        ValueKind::Number => text.push_str(&number(value)),
        ValueKind::String if value.is_safe() => {
            text.push_str("Markup(");
            escape_unprintable(&format!("{:?}", Value::from(value.as_str().unwrap_or_default())), text);
            text.push(')');
        }
        ValueKind::String => escape_unprintable(&format!("{value:?}"), text),
        ValueKind::Bytes => _ = write!(text, "{value:?}"),
        ValueKind::Seq | ValueKind::Iterable => {
            let [open, close] = if is_tuple(value) { ["(", ")"] } else { ["[", "]"] };
            text.push_str(open);
            let items = spell_items(value, deeper()?, text)?;
            text.push_str(if is_tuple(value) && items == 1 { "," } else { "" });
            text.push_str(close);
        }
        ValueKind::Map => {
            text.push('{');
            let pairs = value.as_object().and_then(|object| object.try_iter_pairs());
            for (i, (key, item)) in pairs.into_iter().flatten().enumerate() {
                text.push_str(if i > 0 { ", " } else { "" });
                spell(&key, deeper()?, text)?;
                text.push_str(": ");
                spell(&item, deeper()?, text)?;
            }
            text.push('}');
        }
        ValueKind::Invalid => return Err(failed(value)),
        ValueKind::Plain if let Some(view) = value.downcast_object_ref::<MappingView>() => {
            _ = write!(text, "{}([", view.name());
            spell_items(value, deeper()?, text)?;
            text.push_str("])");
        }
        // None, booleans, functions, namespaces.
        _ => _ = write!(text, "{value}"),
    }
    Ok(())
}

/// Writes the items of a value, and returns their number.
fn spell_items(value: &Value, deeper: usize, text: &mut String) -> Result<usize, Error> {
    let mut items = 0;
    for item in value.try_iter()?.checked() {
        text.push_str(if items > 0 { ", " } else { "" });
        spell(&item?, deeper, text)?;
        items += 1;
    }
    Ok(items)
}

/// Returns whether a value is a tuple.
pub(super) fn is_tuple(value: &Value) -> bool {
    value.is_tuple() || value.downcast_object_ref::<ItemGroup>().is_some()
}

/// Appends a text, escaping characters that are not printable by Python's `str.isprintable` as `repr` does.
fn escape_unprintable(spelled: &str, text: &mut String) {
    for c in spelled.chars() {
        if is_printable(c) { text.push(c) } else { escape(c, text) }
    }
}

fn escape(c: char, text: &mut String) {
    _ = match u32::from(c) {
        code @ ..=0xff => write!(text, "\\x{code:02x}"),
        code @ ..=0xffff => write!(text, "\\u{code:04x}"),
        code => write!(text, "\\U{code:08x}"),
    };
}

/// Escapes what is not ASCII, as Python's `ascii` does.
pub(super) fn ascii(spelled: &str) -> String {
    let mut text = String::new();
    for c in spelled.chars() {
        if c.is_ascii() { text.push(c) } else { escape(c, &mut text) }
    }
    text
}

/// Returns the error of an invalid value.
pub(super) fn failed(value: &Value) -> Error {
    error(value.to_string())
}

/// Returns a number's `repr`.
pub(super) fn number(value: &Value) -> String {
    match f64::try_from(value.clone()) {
        Ok(float) if !value.is_integer() => self::float(float),
        _ => value.to_string(),
    }
}

/// Returns a float's `repr`.
pub(super) fn float(float: f64) -> String {
    if !float.is_finite() {
        return if float.is_nan() { "nan".into() } else { format!("{float}") };
    }
    let scientific = format!("{float:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    match exponent.parse::<i32>() {
        Ok(exponent) if !(-4..16).contains(&exponent) => {
            format!("{digits}e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.abs())
        }
        _ => format!("{float:?}"),
    }
}

/// Writes a value that a template prints.
pub(super) fn print(output: &mut Output<'_>, _: &mut State<'_, '_>, value: &Value) -> Result<(), Error> {
    match value.as_str() {
        Some(text) => output.write_str(text)?,
        None => output.write_str(&str(value)?)?,
    }
    Ok(())
}

/// Filter `string`.
pub(super) fn string(value: &Value) -> Result<String, Error> {
    str(value)
}

/// Operator `~`, with its operands as a list.
pub(super) fn concatenated(value: &Value) -> Result<String, Error> {
    let mut text = String::new();
    for item in value.try_iter()?.checked() {
        write(&item?, &mut text)?;
    }
    Ok(text)
}

/// Filter `join`.
pub(super) fn join(value: &Value, args: Rest<Value>, named: Kwargs) -> Result<String, Error> {
    let args = TemplateArguments::bind(&all(args, named), &["d", "attribute"])?;
    let between = args.value(0).map(str).transpose()?.unwrap_or_default();
    let attribute = args.path(1)?;
    let mut text = String::new();
    for (i, item) in iterate(value)?.checked().enumerate() {
        let item = item?;
        text.push_str(if i > 0 { &between } else { "" });
        match &attribute {
            None => write(&item, &mut text)?,
            Some(path) => write(&at_path(item, path, None)?, &mut text)?,
        }
    }
    Ok(text)
}

/// Returns the value at a path of attributes, each of which may have a default.
pub(super) fn at_path(mut value: Value, path: &str, default: Option<&Value>) -> Result<Value, Error> {
    for part in path.split('.') {
        let found = match part.parse::<usize>() {
            Ok(place) => value.get_item_by_index(place)?,
            Err(_) => value.get_attr(part)?,
        };
        value = default.filter(|_| found.is_undefined()).cloned().unwrap_or(found);
    }
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_spelled_as_in_python() {
        for (number, expected) in [
            (1e-5, "1e-05"),
            (0.0001, "0.0001"),
            (1e16, "1e+16"),
            (1e15, "1000000000000000.0"),
            (123_456_789_012_345_680.0, "1.2345678901234568e+17"),
            (-1.5e-10, "-1.5e-10"),
            (1e300, "1e+300"),
            (0.1, "0.1"),
            (-0.0, "-0.0"),
            (3.0, "3.0"),
            (f64::INFINITY, "inf"),
            (f64::NEG_INFINITY, "-inf"),
            (f64::NAN, "nan"),
        ] {
            assert_eq!(float(number), expected);
        }
    }

    #[test]
    fn values_are_spelled_as_in_python_to_a_depth() {
        let value: Value = minijinja::value::Serde(serde_json::json!({"a": [1, 1e-7, "it's", null, true], "b": {}})).into();
        assert_eq!(repr(&value).unwrap(), "{'a': [1, 1e-07, \"it's\", None, True], 'b': {}}");
        let deep = (0..=DEEPEST_VALUE).fold(Value::from(1), |inner, _| Value::from(vec![inner]));
        assert!(repr(&deep).unwrap_err().to_string().contains("levels within each other"));
    }
}
