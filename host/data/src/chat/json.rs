//! Filter `tojson`: Python's `json.dumps` with the arguments that transformers passes on.

use super::arguments::{TemplateArguments, all, error};
use super::depth::{DEEPEST_VALUE, too_deep};
use super::sorting::sorted_by_key;
use super::text::{failed, float};
use minijinja::value::{Kwargs, Rest, ValueKind};
use minijinja::{Error, Value};
use std::fmt::Write;

/// Maximum width of indentation.
const WIDEST: usize = 1024;

struct TemplateJsonWriter {
    text: String,
    ascii: bool,
    /// Indentation of a level.
    indent: Option<String>,
    /// Separators between items, and after a key.
    separators: [String; 2],
    sorted: bool,
}

/// Writes a value as JSON.
pub(super) fn to_json(value: &Value, args: Rest<Value>, named: Kwargs) -> Result<String, Error> {
    let args = TemplateArguments::bind(&all(args, named), &["ensure_ascii", "indent", "separators", "sort_keys"])?;
    let indent = match args.value(1) {
        Some(text) if text.as_str().is_some() => args.text(1)?.map(str::to_owned),
        Some(_) => {
            let spaces = usize::try_from(args.integer(1)?.unwrap_or(0)).unwrap_or(0);
            if spaces > WIDEST {
                return Err(error(format!("tojson: can't indent by more than {WIDEST} spaces")));
            }
            Some(" ".repeat(spaces))
        }
        None => None,
    };
    let separators = match args.value(2) {
        Some(pair) => {
            let pair: Vec<Value> = pair.try_iter()?.collect();
            match pair.iter().map(Value::as_str).collect::<Vec<_>>()[..] {
                [Some(items), Some(keys)] => [items.to_owned(), keys.to_owned()],
                _ => return Err(error("tojson: separators must be two strings")),
            }
        }
        None => [if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned()],
    };
    let mut writer =
        TemplateJsonWriter { text: String::new(), ascii: args.is_true(0), indent, separators, sorted: args.is_true(3) };
    writer.value(value, DEEPEST_VALUE)?;
    Ok(writer.text)
}

impl TemplateJsonWriter {
    /// Writes a value with at most `deepest` levels of nesting.
    fn value(&mut self, value: &Value, deepest: usize) -> Result<(), Error> {
        match value.kind() {
            ValueKind::None => self.text.push_str("null"),
            ValueKind::Bool => self.text.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => self.text += &number(value),
            ValueKind::String => self.string(value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => self.list(value, deepest)?,
            ValueKind::Map => self.object(value, deepest)?,
            ValueKind::Invalid => return Err(failed(value)),
            kind => return Err(error(format!("tojson: {kind} can't be written as JSON"))),
        }
        Ok(())
    }

    fn list(&mut self, value: &Value, deepest: usize) -> Result<(), Error> {
        let deeper = deepest.checked_sub(1).ok_or_else(too_deep)?;
        self.text.push('[');
        let mut items = 0;
        for item in value.try_iter()?.checked() {
            self.separate(items, DEEPEST_VALUE - deeper);
            self.value(&item?, deeper)?;
            items += 1;
        }
        self.close(']', items, DEEPEST_VALUE - deepest);
        Ok(())
    }

    fn object(&mut self, value: &Value, deepest: usize) -> Result<(), Error> {
        let deeper = deepest.checked_sub(1).ok_or_else(too_deep)?;
        let pairs = value.as_object().and_then(|object| object.try_iter_pairs()).into_iter().flatten();
        let pairs = if self.sorted { sorted_by_key(pairs.collect())? } else { pairs.collect() };
        let pairs = pairs.into_iter().map(|(name, value)| Ok((key(&name)?, value)));
        let pairs: Vec<(String, Value)> = pairs.collect::<Result<_, Error>>()?;
        self.text.push('{');
        for (i, (name, value)) in pairs.iter().enumerate() {
            self.separate(i, DEEPEST_VALUE - deeper);
            self.string(name);
            self.text += &self.separators[1];
            self.value(value, deeper)?;
        }
        self.close('}', pairs.len(), DEEPEST_VALUE - deepest);
        Ok(())
    }

    /// Writes the separator before an item.
    fn separate(&mut self, items_before: usize, level: usize) {
        if items_before > 0 {
            self.text += &self.separators[0];
        }
        self.line(level);
    }

    fn close(&mut self, bracket: char, items: usize, level: usize) {
        if items > 0 {
            self.line(level);
        }
        self.text.push(bracket);
    }

    /// Begins a new line if the output is indented.
    fn line(&mut self, level: usize) {
        if let Some(indent) = &self.indent {
            self.text.push('\n');
            self.text.extend((0..level).map(|_| indent.as_str()));
        }
    }

    fn string(&mut self, text: &str) {
        self.text.push('"');
        for c in text.chars() {
            match c {
                '"' => self.text += "\\\"",
                '\\' => self.text += "\\\\",
                '\n' => self.text += "\\n",
                '\r' => self.text += "\\r",
                '\t' => self.text += "\\t",
                '\u{8}' => self.text += "\\b",
                '\u{c}' => self.text += "\\f",
                _ if c < ' ' || self.ascii && !(' '..='~').contains(&c) => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        _ = write!(self.text, "\\u{unit:04x}");
                    }
                }
                _ => self.text.push(c),
            }
        }
        self.text.push('"');
    }
}

/// Returns a number as Python writes it in JSON.
fn number(value: &Value) -> String {
    match f64::try_from(value.clone()) {
        Ok(number) if !value.is_integer() => match number {
            _ if number.is_nan() => "NaN".to_owned(),
            _ if number.is_infinite() => if number > 0.0 { "Infinity" } else { "-Infinity" }.to_owned(),
            _ => float(number),
        },
        _ => value.to_string(),
    }
}

/// Returns a key as text.
fn key(value: &Value) -> Result<String, Error> {
    match value.kind() {
        ValueKind::String => Ok(value.as_str().unwrap_or_default().to_owned()),
        ValueKind::Number => Ok(number(value)),
        ValueKind::Bool => Ok(if value.is_true() { "true" } else { "false" }.to_owned()),
        ValueKind::None => Ok("null".to_owned()),
        kind => Err(error(format!("tojson: a key can't be {kind}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use minijinja::value::Serde;
    use serde_json::json;

    fn written(value: serde_json::Value, named: &[(&str, Value)]) -> String {
        let named: Kwargs = named.iter().cloned().collect();
        to_json(&Serde(value).into(), Rest(Vec::new()), named).unwrap()
    }

    #[test]
    fn arguments_are_those_of_python() {
        let value = json!({"b": [1, 1e16, 0.00001], "a": {"é": "<\u{1}\u{7f}😀>"}, "c": [], "d": {}});
        assert_eq!(
            written(value.clone(), &[]),
            "{\"b\": [1, 1e+16, 1e-05], \"a\": {\"é\": \"<\\u0001\u{7f}😀>\"}, \"c\": [], \"d\": {}}"
        );
        let pair = || Value::from(vec![Value::from(","), ":".into()]);
        let tight = written(value, &[("separators", pair()), ("sort_keys", true.into()), ("ensure_ascii", true.into())]);
        assert_eq!(tight, r#"{"a":{"\u00e9":"<\u0001\u007f\ud83d\ude00>"},"b":[1,1e+16,1e-05],"c":[],"d":{}}"#);
        assert_eq!(
            written(json!({"a": [1], "b": {"c": 2}}), &[("indent", 2.into())]),
            "{\n  \"a\": [\n    1\n  ],\n  \"b\": {\n    \"c\": 2\n  }\n}"
        );
        assert_eq!(written(json!([1]), &[("indent", "\t".into())]), "[\n\t1\n]");
    }

    #[test]
    fn what_is_no_json_is_refused() {
        let fails = |value: Value| {
            to_json(&value, Rest(Vec::new()), Kwargs::from_iter(Vec::<(String, Value)>::new())).unwrap_err().to_string()
        };
        assert!(fails(Value::UNDEFINED).contains("undefined can't be written"));
        assert!(fails(Value::from_function(|| 1)).contains("can't be written"));
        let deep = (0..=DEEPEST_VALUE).fold(Value::from(1), |inner, _| Value::from(vec![inner]));
        assert!(fails(deep).contains("levels within each other"));
    }
}
