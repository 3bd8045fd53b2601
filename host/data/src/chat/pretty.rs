//! Filter `pprint`: Python's `pprint.pformat`, which sorts keys and breaks lines at 80 characters.

use super::arguments::error;
use super::depth::{DEEPEST_VALUE, too_deep};
use super::methods::lines;
use super::operators::order;
use super::text::{is_tuple, repr};
use minijinja::value::{Tuple, ValueKind};
use minijinja::{Error, Value};
use std::cmp::Ordering;

/// Width of a line.
const WIDTH: usize = 80;

/// Filter `pprint`.
pub(super) fn pprint(value: &Value) -> Result<String, Error> {
    let value = sorted(value, DEEPEST_VALUE)?;
    let mut writer = PrettyWriter { text: String::new() };
    writer.value(&value, Place { indent: 0, allowance: 0, level: 0 })?;
    Ok(writer.text)
}

/// Returns a value with the keys of its mappings sorted.
fn sorted(value: &Value, deepest: usize) -> Result<Value, Error> {
    let deeper = || deepest.checked_sub(1).ok_or_else(too_deep);
    match value.kind() {
        ValueKind::Map => {
            let deeper = deeper()?;
            let pairs = value.as_object().and_then(|object| object.try_iter_pairs()).into_iter().flatten();
            let mut pairs: Vec<(Value, Value)> = pairs.collect();
            pairs.sort_by(|(left, _), (right, _)| match order(left, right) {
                Ok(ordering) => ordering.unwrap_or(Ordering::Equal),
                Err(_) => type_name(left).cmp(type_name(right)),
            });
            let pairs = pairs.into_iter().map(|(key, value)| Ok((key, sorted(&value, deeper)?)));
            Ok(Value::from_pairs(pairs.collect::<Result<Vec<_>, Error>>()?))
        }
        ValueKind::Seq | ValueKind::Iterable => {
            let deeper = deeper()?;
            let items = value.try_iter()?.checked().map(|item| sorted(&item?, deeper));
            let items: Vec<Value> = items.collect::<Result<_, Error>>()?;
            Ok(if is_tuple(value) { Tuple::from(items).into() } else { items.into() })
        }
        _ => Ok(value.clone()),
    }
}

/// Returns the name of a type, by which keys of different types are sorted.
fn type_name(value: &Value) -> &'static str {
    match value.kind() {
        ValueKind::None => "NoneType",
        ValueKind::Bool => "bool",
        ValueKind::Number if value.is_integer() => "int",
        ValueKind::Number => "float",
        ValueKind::String => "str",
        _ if value.is_tuple() => "tuple",
        _ => "",
    }
}

/// Where a value is written.
#[derive(Clone, Copy)]
struct Place {
    indent: usize,
    /// Width that what follows on the last line needs.
    allowance: usize,
    /// Number of lists and mappings around it.
    level: usize,
}

struct PrettyWriter {
    text: String,
}

impl PrettyWriter {
    fn value(&mut self, value: &Value, place: Place) -> Result<(), Error> {
        if place.level > DEEPEST_VALUE {
            return Err(too_deep());
        }
        let whole = repr(value)?;
        let room = WIDTH.saturating_sub(place.indent + place.allowance);
        let fits = whole.chars().count() <= room;
        let inside = Place { level: place.level + 1, ..place };
        match value.kind() {
            _ if fits => self.text += &whole,
            ValueKind::Map => self.mapping(value, inside)?,
            ValueKind::Seq | ValueKind::Iterable => self.list(value, inside)?,
            ValueKind::String => self.string(value.as_str().unwrap_or_default(), inside)?,
            _ => self.text += &whole,
        }
        Ok(())
    }

    fn mapping(&mut self, value: &Value, place: Place) -> Result<(), Error> {
        self.text.push('{');
        let pairs = value.as_object().and_then(|object| object.try_iter_pairs()).into_iter().flatten();
        let (pairs, indent) = (pairs.collect::<Vec<_>>(), place.indent + 1);
        for (i, (key, value)) in pairs.iter().enumerate() {
            self.separate(i, indent);
            let key = repr(key)?;
            let allowance = if i + 1 == pairs.len() { place.allowance + 1 } else { 1 };
            let own = Place { indent: indent + key.chars().count() + 2, allowance, ..place };
            self.text += &key;
            self.text += ": ";
            self.value(value, own)?;
        }
        self.text.push('}');
        Ok(())
    }

    fn list(&mut self, value: &Value, place: Place) -> Result<(), Error> {
        let items: Vec<Value> = value.try_iter()?.checked().collect::<Result<_, Error>>()?;
        let (open, close) = match (is_tuple(value), items.len()) {
            (true, 1) => ("(", ",)"),
            (true, _) => ("(", ")"),
            (false, _) => ("[", "]"),
        };
        self.text += open;
        let indent = place.indent + 1;
        for (i, item) in items.iter().enumerate() {
            self.separate(i, indent);
            let allowance = if i + 1 == items.len() { place.allowance + close.len() } else { 1 };
            self.value(item, Place { indent, allowance, ..place })?;
        }
        self.text += close;
        Ok(())
    }

    /// Begins the line of an item.
    fn separate(&mut self, items_before: usize, indent: usize) {
        if items_before > 0 {
            self.text += ",\n";
            self.text.extend(std::iter::repeat_n(' ', indent));
        }
    }

    /// Writes a long string as several literals.
    fn string(&mut self, text: &str, mut place: Place) -> Result<(), Error> {
        let is_outermost = place.level == 1;
        if is_outermost {
            place.indent += 1;
            place.allowance += 1;
        }
        let chunks = chunks(text, place)?;
        let alone = chunks.len() == 1;
        self.text += if is_outermost && !alone { "(" } else { "" };
        for (i, chunk) in chunks.iter().enumerate() {
            if i > 0 {
                self.text.push('\n');
                self.text.extend(std::iter::repeat_n(' ', place.indent));
            }
            self.text += chunk;
        }
        self.text += if is_outermost && !alone { ")" } else { "" };
        Ok(())
    }
}

/// Splits a string at lines and words into literals that fit.
fn chunks(text: &str, place: Place) -> Result<Vec<String>, Error> {
    let literal = |text: &str| repr(&text.into());
    let fits = |literal: &str, less: usize| literal.chars().count() + less + place.indent <= WIDTH;
    let (mut chunks, lines) = (Vec::new(), lines(text, true));
    for (i, line) in lines.iter().enumerate() {
        let is_last_line = i + 1 == lines.len();
        let whole = literal(line)?;
        if fits(&whole, if is_last_line { place.allowance } else { 0 }) {
            chunks.push(whole);
            continue;
        }
        let (parts, mut current) = (words(line), String::new());
        for (j, part) in parts.iter().enumerate() {
            let less = if is_last_line && j + 1 == parts.len() { place.allowance } else { 0 };
            let candidate = current.clone() + part;
            if fits(&literal(&candidate)?, less) {
                current = candidate;
            } else {
                if !current.is_empty() {
                    chunks.push(literal(&current)?);
                }
                (*part).clone_into(&mut current);
            }
        }
        if !current.is_empty() {
            chunks.push(literal(&current)?);
        }
    }
    if chunks.is_empty() { Err(error("pprint: a string has no lines")) } else { Ok(chunks) }
}

/// Splits a line into words, each with the whitespace after it.
fn words(line: &str) -> Vec<&str> {
    let (mut words, mut rest) = (Vec::new(), line);
    while !rest.is_empty() {
        let word = rest.find(super::letters::is_space).unwrap_or(rest.len());
        let space = rest[word..].find(|c| !super::letters::is_space(c)).unwrap_or(rest.len() - word);
        let (own, after) = rest.split_at(word + space);
        words.push(own);
        rest = after;
    }
    words
}
