//! Filters for HTML: `escape`, `forceescape`, `striptags` and `xmlattr`.

use super::arguments::{TemplateArguments, all, error};
use super::letters::is_space;
use super::text::str;
use minijinja::value::{Kwargs, Rest, ValueKind};
use minijinja::{Error, Value};

/// Entities that `striptags` replaces.
const ENTITIES: [(&str, &str); 6] = [("amp", "&"), ("lt", "<"), ("gt", ">"), ("quot", "\""), ("apos", "'"), ("nbsp", "\u{a0}")];

/// Filter `escape`.
pub(super) fn escape(value: &Value) -> Result<Value, Error> {
    if value.is_safe() { Ok(value.clone()) } else { force_escape(value) }
}

/// Filter `forceescape`.
pub(super) fn force_escape(value: &Value) -> Result<Value, Error> {
    str(value).map(|text| Value::from_safe_string(escaped(&text)))
}

fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped += "&amp;",
            '<' => escaped += "&lt;",
            '>' => escaped += "&gt;",
            '\'' => escaped += "&#39;",
            '"' => escaped += "&#34;",
            _ => escaped.push(c),
        }
    }
    escaped
}

/// Filter `xmlattr`.
pub(super) fn xml_attributes(value: &Value, args: Rest<Value>, named: Kwargs) -> Result<String, Error> {
    let args = TemplateArguments::bind(&all(args, named), &["autospace"])?;
    if value.kind() != ValueKind::Map {
        return Err(error(format!("xmlattr: wants a mapping, not {}", value.kind())));
    }
    let mut text = String::new();
    for (key, value) in value.as_object().and_then(|object| object.try_iter_pairs()).into_iter().flatten() {
        if value.is_none() || value.is_undefined() {
            continue;
        }
        let key = str(&key)?;
        if key.contains(|c: char| is_space(c) || "/>=".contains(c)) {
            return Err(error(format!("xmlattr: {key:?} is not a name of an attribute")));
        }
        let value = escape(&value)?;
        text += &format!(" {}=\"{}\"", escaped(&key), str(&value)?);
    }
    let has_space = args.given(0).is_none_or(Value::is_true);
    Ok(if has_space { text } else { text.trim_start().to_owned() })
}

/// Filter `striptags`.
pub(super) fn strip_tags(value: &Value) -> Result<String, Error> {
    let text = without(&without(&str(value)?, "<!--", "-->"), "<", ">");
    let words: Vec<&str> = text.split(is_space).filter(|word| !word.is_empty()).collect();
    unescaped(&words.join(" "))
}

/// Removes what is between delimiters.
fn without(text: &str, open: &str, close: &str) -> String {
    let (mut kept, mut rest) = (String::new(), text);
    while let Some(start) = rest.find(open) {
        let Some(end) = rest[start..].find(close) else { break };
        kept += &rest[..start];
        rest = &rest[start + end + close.len()..];
    }
    kept + rest
}

/// Replaces entities by the characters that they name.
fn unescaped(text: &str) -> Result<String, Error> {
    let (mut unescaped, mut rest) = (String::new(), text);
    while let Some((before, after)) = rest.split_once('&') {
        unescaped += before;
        let name = &after[..after.find(|c: char| !c.is_ascii_alphanumeric() && c != '#').unwrap_or(after.len())];
        let is_closed = after[name.len()..].starts_with(';');
        let code = name.strip_prefix('#').and_then(|code| match code.strip_prefix(['x', 'X']) {
            Some(code) => u32::from_str_radix(code, 16).ok(),
            None => code.parse().ok(),
        });
        let known = ENTITIES.iter().find(|(other, _)| *other == name).map(|(_, text)| (*text).to_owned());
        let known = known.or_else(|| code.and_then(char::from_u32).map(String::from)).filter(|_| is_closed);
        if known.is_none() && (is_closed || name.starts_with('#')) && !name.is_empty() {
            return Err(error(format!("striptags: does not know the entity &{name}")));
        }
        let length = if known.is_some() { name.len() + 1 } else { 0 };
        unescaped += known.as_deref().unwrap_or("&");
        rest = &after[length..];
    }
    Ok(unescaped + rest)
}
