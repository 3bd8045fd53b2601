//! Methods of Python's strings, lists and mappings that the engine lacks or implements differently.

use super::arguments::{TemplateArguments, error, parts};
use super::format;
use super::letters::{self, is_space};
use super::sequences::method_of_range;
use super::views::{MappingView, Range};
use minijinja::value::{Object, ObjectRepr, Tuple, ValueKind};
use minijinja::{Error, ErrorKind, State, Value};
use minijinja_contrib::pycompat;
use std::fmt;
use std::sync::Arc;

/// Name of the filter for attributes that are named like a mapping's methods.
pub(super) const UNCALLED: &str = "attribute_or_method";

/// Methods of mappings.
pub(super) const OF_MAPPINGS: [&str; 11] =
    ["clear", "copy", "fromkeys", "get", "items", "keys", "pop", "popitem", "setdefault", "update", "values"];

/// Method as a value, without a call.
#[derive(Debug)]
struct UncalledMethod(String);

impl Object for UncalledMethod {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<built-in method {} of dict object>", self.0)
    }
}

/// Returns an attribute that is not called. On a mapping it is the method, as in Python, even if there is a key of this name.
pub(super) fn uncalled(value: &Value, name: &str) -> Result<Value, Error> {
    match value.kind() {
        ValueKind::Map => Ok(Value::from_object(UncalledMethod(name.to_owned()))),
        _ => value.get_attr(name),
    }
}

/// Filter `attr`: looks up an attribute, but no item. The engine's own objects, such as `loop`, are mappings to it.
pub(super) fn attribute(value: &Value, name: &str) -> Result<Value, Error> {
    let is_dict = value.as_object().is_some_and(|object| !object.type_name().starts_with("minijinja::vm::"));
    match value.kind() {
        ValueKind::Map if is_dict && OF_MAPPINGS.contains(&name) => uncalled(value, name),
        ValueKind::Map if is_dict => Ok(Value::UNDEFINED),
        ValueKind::Map | ValueKind::Plain | ValueKind::Undefined => value.get_attr(name),
        _ => Ok(Value::UNDEFINED),
    }
}

/// Calls a method of a value.
pub(super) fn call(state: &mut State<'_, '_>, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    let own = match value.kind() {
        ValueKind::String => of_string(value.as_str().unwrap_or_default(), name, args)?,
        ValueKind::Seq | ValueKind::Iterable => of_list(value, name, args)?,
        ValueKind::Map => of_mapping(value, name, args)?,
        ValueKind::Number => of_number(value, name, args)?,
        ValueKind::Plain => match value.downcast_object_ref::<Range>() {
            Some(range) => method_of_range(value, range, name, args)?,
            None => None,
        },
        _ => None,
    };
    match own {
        Some(result) => Ok(result),
        None => pycompat::unknown_method_callback(state, value, name, args),
    }
}

fn of_string(text: &str, name: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    let chars = |args: &[Value]| Ok::<_, Error>(TemplateArguments::bind(args, &["chars"])?.text(0)?.map(str::to_owned));
    Ok(Some(match name {
        "strip" => strip(text, chars(args)?.as_deref(), true, true).into(),
        "lstrip" => strip(text, chars(args)?.as_deref(), true, false).into(),
        "rstrip" => strip(text, chars(args)?.as_deref(), false, true).into(),
        "split" | "rsplit" => split(text, name == "rsplit", &TemplateArguments::bind(args, &["sep", "maxsplit"])?)?,
        "splitlines" => {
            lines(text, TemplateArguments::bind(args, &["keepends"])?.is_true(0)).into_iter().map(Value::from).collect()
        }
        "expandtabs" => expanded(text, TemplateArguments::bind(args, &["tabsize"])?.integer(0)?.unwrap_or(8)).into(),
        "format" => format::format(text, args)?.into(),
        "format_map" => format::format_map(text, TemplateArguments::bind(args, &["mapping"])?.required(0)?)?.into(),
        "find" | "rfind" | "index" | "rindex" | "count" => {
            search(text, name, &TemplateArguments::bind(args, &["sub", "start", "end"])?)?
        }
        "startswith" | "endswith" => affix(text, name, &TemplateArguments::bind(args, &["prefix", "start", "end"])?)?.into(),
        "replace" => replace(text, &TemplateArguments::bind(args, &["old", "new", "count"])?)?.into(),
        "partition" | "rpartition" => partition(text, name == "rpartition", &TemplateArguments::bind(args, &["sep"])?)?,
        "removeprefix" => text.strip_prefix(needed(args)?.as_str()).unwrap_or(text).into(),
        "removesuffix" => text.strip_suffix(needed(args)?.as_str()).unwrap_or(text).into(),
        "center" | "ljust" | "rjust" => justify(text, name, &TemplateArguments::bind(args, &["width", "fillchar"])?)?.into(),
        "zfill" => zfill(text, TemplateArguments::bind(args, &["width"])?.integer(0)?.unwrap_or(0)).into(),
        "join" => joined(text, &TemplateArguments::bind(args, &["iterable"])?)?.into(),
        _ => return of_letters(text, name).filter(|_| args.is_empty()).map_or(Ok(None), |value| Ok(Some(value))),
    }))
}

/// Methods about the letters of a string, which have no arguments.
fn of_letters(text: &str, name: &str) -> Option<Value> {
    let all = |is: fn(char) -> bool| Value::from(!text.is_empty() && text.chars().all(is));
    Some(match name {
        "capitalize" => letters::capitalized(text).into(),
        "title" => letters::titled(text).into(),
        "swapcase" => letters::swapped(text).into(),
        "casefold" => letters::case_folded(text).into(),
        "istitle" => letters::is_titled(text).into(),
        "islower" => letters::is_lower(text).into(),
        "isupper" => letters::is_upper(text).into(),
        "isidentifier" => letters::is_identifier(text).into(),
        "isprintable" => text.chars().all(letters::is_printable).into(),
        "isspace" => all(is_space),
        "isalpha" => all(letters::is_letter),
        "isalnum" => all(letters::is_alphanumeric),
        "isdecimal" => all(letters::is_decimal),
        "isdigit" => all(letters::is_digit),
        "isnumeric" => all(letters::is_numeric),
        _ => return None,
    })
}

fn of_list(value: &Value, name: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    let items = || value.try_iter()?.checked().collect::<Result<Vec<Value>, Error>>();
    Ok(Some(match name {
        "index" => {
            let args = TemplateArguments::bind(args, &["value", "start", "stop"])?;
            let (items, wanted) = (items()?, args.required(0)?);
            let span = span(items.len(), args.integer(1)?, args.integer(2)?);
            let found = items[span.clone()].iter().position(|item| item == wanted);
            Value::from(found.ok_or_else(|| error("index: the value is not in the list"))? + span.start)
        }
        "count" => {
            let args = TemplateArguments::bind(args, &["value"])?;
            let wanted = args.required(0)?;
            Value::from(items()?.iter().filter(|item| *item == wanted).count())
        }
        "copy" if !value.is_tuple() => Value::from(items()?),
        "append" | "extend" | "insert" | "pop" | "remove" | "clear" | "sort" | "reverse" => {
            return Err(error(format!("{name}: a chat template can't change a list; use list + [item]")));
        }
        _ => return Ok(None),
    }))
}

fn of_mapping(value: &Value, name: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    Ok(Some(match name {
        "copy" => value.clone(),
        "get" if parts(args).1.is_empty() => {
            let args = TemplateArguments::bind(args, &["key", "default"])?;
            let key = args.required(0)?;
            let found = value.as_object().and_then(|object| object.get_value(key));
            found.or_else(|| args.given(1).cloned()).unwrap_or_else(|| Value::from(()))
        }
        "keys" | "values" | "items" => {
            TemplateArguments::bind(args, &[])?;
            return Ok(MappingView::for_method(value, name));
        }
        "get" => return Err(error("get: takes no arguments by name")),
        "update" | "pop" | "popitem" | "clear" | "setdefault" => {
            return Err(error(format!("{name}: a chat template can't change a mapping; use dict(mapping, key=value)")));
        }
        _ => return Ok(None),
    }))
}

fn of_number(value: &Value, name: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    Ok(match name {
        "is_integer" => {
            TemplateArguments::bind(args, &[])?;
            let float = f64::try_from(value.clone()).map_err(|e| error(e.to_string()))?;
            Some((value.is_integer() || float.fract() == 0.0).into())
        }
        _ => return Err(Error::from(ErrorKind::UnknownMethod)),
    })
}

/// Returns the argument of a method that takes exactly one.
fn needed(args: &[Value]) -> Result<String, Error> {
    TemplateArguments::bind(args, &["text"])?.text(0)?.map(str::to_owned).ok_or_else(|| error("argument 1 must be a string"))
}

pub(super) fn strip<'a>(text: &'a str, chars: Option<&str>, left: bool, right: bool) -> &'a str {
    let goes = |c: char| chars.map_or_else(|| is_space(c), |chars| chars.contains(c));
    let text = if left { text.trim_start_matches(goes) } else { text };
    if right { text.trim_end_matches(goes) } else { text }
}

fn split(text: &str, from_right: bool, args: &TemplateArguments) -> Result<Value, Error> {
    let most = args.integer(1)?.and_then(|most| usize::try_from(most).ok()).unwrap_or(usize::MAX);
    let Some(between) = args.text(0)? else { return Ok(words(text, from_right, most)) };
    if between.is_empty() {
        return Err(error("split: the separator is empty"));
    }
    let pieces = most.saturating_add(1);
    let mut parts: Vec<Value> = match from_right {
        false => text.splitn(pieces, between).map(Value::from).collect(),
        true => text.rsplitn(pieces, between).map(Value::from).collect(),
    };
    if from_right {
        parts.reverse();
    }
    Ok(parts.into())
}

/// Splits a text at runs of whitespace, at most `most` times.
fn words(text: &str, from_right: bool, most: usize) -> Value {
    let (mut parts, mut rest) = (Vec::new(), strip(text, None, !from_right, from_right));
    while !rest.is_empty() {
        let end = if from_right { rest.rfind(is_space) } else { rest.find(is_space) };
        let Some(at) = end.filter(|_| parts.len() < most) else {
            // The last part keeps the whitespace at its far end.
            parts.push(rest);
            break;
        };
        let space = rest[at..].chars().next().map_or(1, char::len_utf8);
        let (before, after) = (&rest[..at], &rest[at + space..]);
        parts.push(if from_right { after } else { before });
        rest = if from_right { strip(before, None, false, true) } else { strip(after, None, true, false) };
    }
    if from_right {
        parts.reverse();
    }
    parts.into_iter().map(Value::from).collect()
}

pub(super) fn lines(text: &str, keep_ends: bool) -> Vec<&str> {
    let is_end =
        |c: char| matches!(c, '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}');
    let (mut lines, mut rest) = (Vec::new(), text);
    while !rest.is_empty() {
        let at = rest.find(is_end).unwrap_or(rest.len());
        let end = rest[at..].chars().next().map_or(0, char::len_utf8);
        let end = if rest[at..].starts_with("\r\n") { 2 } else { end };
        lines.push(if keep_ends { &rest[..at + end] } else { &rest[..at] });
        rest = &rest[at + end..];
    }
    lines
}

/// Returns the range of a slice with Python's bounds; negative bounds count from the end.
fn span(length: usize, start: Option<i64>, end: Option<i64>) -> std::ops::Range<usize> {
    let place = |bound: i64| match usize::try_from(bound) {
        Ok(bound) => bound.min(length),
        Err(_) => length.saturating_sub(usize::try_from(bound.unsigned_abs()).unwrap_or(usize::MAX)),
    };
    let (start, end) = (start.map_or(0, place), end.map_or(length, place));
    start..end.max(start)
}

/// Returns the part of a text between two bounds and its start, all counted in characters. `None` if the part would begin after the text
/// or after its own end, so that not even the empty string is in it.
fn part<'a>(text: &'a str, args: &TemplateArguments) -> Result<Option<(&'a str, usize)>, Error> {
    let (start, end) = (args.integer(1)?, args.integer(2)?);
    if start.is_none() && end.is_none() {
        return Ok(Some((text, 0)));
    }
    let length = text.chars().count();
    let place = |bound: i64| if bound < 0 { bound.saturating_add(length as i64).max(0) } else { bound };
    let first = start.map_or(0, place);
    if first > end.map_or(length as i64, place).min(length as i64) {
        return Ok(None);
    }
    let span = span(length, start, end);
    let byte = |at: usize| text.char_indices().nth(at).map_or(text.len(), |(byte, _)| byte);
    Ok(Some((&text[byte(span.start)..byte(span.end)], span.start)))
}

fn search(text: &str, name: &str, args: &TemplateArguments) -> Result<Value, Error> {
    let wanted = args.text(0)?.ok_or_else(|| error(format!("{name}: argument 1 must be a string")))?;
    let part = part(text, args)?;
    let found = match (name, part) {
        ("count", part) => return Ok(part.map_or(0, |(part, _)| part.matches(wanted).count()).into()),
        ("find" | "index", Some((part, start))) => part.find(wanted).map(|at| start + part[..at].chars().count()),
        (_, Some((part, start))) => part.rfind(wanted).map(|at| start + part[..at].chars().count()),
        (_, None) => None,
    };
    match found {
        Some(at) => Ok(at.into()),
        None if name.ends_with("find") => Ok((-1).into()),
        None => Err(error(format!("{name}: the string is not found"))),
    }
}

fn affix(text: &str, name: &str, args: &TemplateArguments) -> Result<bool, Error> {
    let part = part(text, args)?;
    let wanted = args.required(0)?;
    let has = |wanted: &Value| {
        let wanted = wanted.as_str().ok_or_else(|| error(format!("{name}: wants a string or a tuple of strings")))?;
        let fits = |part: &str| if name == "startswith" { part.starts_with(wanted) } else { part.ends_with(wanted) };
        Ok(part.is_some_and(|(part, _)| fits(part)))
    };
    if !wanted.is_tuple() {
        return has(wanted);
    }
    for one in wanted.try_iter()?.checked() {
        if has(&one?)? {
            return Ok(true);
        }
    }
    Ok(false)
}

fn replace(text: &str, args: &TemplateArguments) -> Result<String, Error> {
    let wanted = |at| args.text(at)?.ok_or_else(|| error(format!("replace: argument {} must be a string", at + 1)));
    let (old, new) = (wanted(0)?, wanted(1)?);
    Ok(match args.integer(2)?.map(usize::try_from) {
        Some(Ok(count)) => text.replacen(old, new, count),
        _ => text.replace(old, new),
    })
}

fn partition(text: &str, from_right: bool, args: &TemplateArguments) -> Result<Value, Error> {
    let between = args.text(0)?.filter(|between| !between.is_empty());
    let between = between.ok_or_else(|| error("partition: the separator must be a string that is not empty"))?;
    let parts = if from_right { text.rsplit_once(between) } else { text.split_once(between) };
    Ok(Value::from(Tuple::from(match (parts, from_right) {
        (Some((before, after)), _) => [before, between, after].map(Value::from),
        (None, false) => [text, "", ""].map(Value::from),
        (None, true) => ["", "", text].map(Value::from),
    })))
}

fn justify(text: &str, name: &str, args: &TemplateArguments) -> Result<String, Error> {
    let width = usize::try_from(args.integer(0)?.unwrap_or(0)).unwrap_or(0);
    let fill = args.text(1)?.unwrap_or(" ");
    if fill.chars().count() != 1 {
        return Err(error(format!("{name}: the fill must be one character")));
    }
    let missing = width.saturating_sub(text.chars().count());
    let left = match name {
        "ljust" => 0,
        "rjust" => missing,
        _ => missing / 2 + (missing & width & 1),
    };
    Ok([&fill.repeat(left), text, &fill.repeat(missing - left)].concat())
}

/// Centers a text, like the filter `center`.
pub(super) fn centered(text: &str, width: i64) -> Result<String, Error> {
    justify(text, "center", &TemplateArguments::bind(&[width.into()], &["width", "fillchar"])?)
}

/// Expands tabs to the next multiple of `width`.
fn expanded(text: &str, width: i64) -> String {
    let width = usize::try_from(width).unwrap_or(0);
    let (mut expanded, mut column) = (String::new(), 0);
    for c in text.chars() {
        match c {
            '\t' => {
                let spaces = width.saturating_sub(column % width.max(1));
                expanded.extend(std::iter::repeat_n(' ', spaces));
                column += spaces;
            }
            '\n' | '\r' => {
                expanded.push(c);
                column = 0;
            }
            _ => {
                expanded.push(c);
                column += 1;
            }
        }
    }
    expanded
}

fn zfill(text: &str, width: i64) -> String {
    let missing = usize::try_from(width).unwrap_or(0).saturating_sub(text.chars().count());
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    [&text[..text.len() - digits.len()], &"0".repeat(missing), digits].concat()
}

fn joined(between: &str, args: &TemplateArguments) -> Result<String, Error> {
    let mut text = String::new();
    for (i, item) in args.required(0)?.try_iter()?.checked().enumerate() {
        let item = item?;
        text.push_str(if i > 0 { between } else { "" });
        text.push_str(item.as_str().ok_or_else(|| error(format!("join: item {} must be a string, not {}", i + 1, item.kind())))?);
    }
    Ok(text)
}
