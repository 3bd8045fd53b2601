//! Jinja's filters, tests and functions that the engine lacks or implements differently.

use super::arguments::{TemplateArguments, all, error};
use super::views::{MappingView, Range};
use super::{html, json, layout, letters, macros, methods, namespace, operators, pretty, printf, sequences, sorting, text};
use minijinja::value::{Kwargs, Rest, ValueKind};
use minijinja::{Environment, Error, Value, filters};
use minijinja_contrib::globals;
use std::fmt::Write;

/// Registers the filters, tests and functions.
pub(super) fn add(environment: &mut Environment<'_>) {
    environment.set_formatter(text::print);
    environment.set_unknown_method_callback(methods::call);
    environment.remove_global("debug");
    environment.add_function("namespace", namespace::namespace);
    environment.add_function(namespace::ASSIGN, namespace::assign);
    environment.add_function("range", |args: Rest<Value>, named: Kwargs| Range::from_arguments(&all(args, named)));
    environment.add_function(macros::CALLER, macros::caller);
    environment.add_function("dict", dict);
    environment.add_function("cycler", |items: Rest<Value>| globals::cycler(items.0));
    environment.add_function("joiner", globals::joiner);
    environment.add_filter(text::CONCAT, text::concatenated);
    environment.add_filter(methods::UNCALLED, methods::uncalled);
    environment.add_filter(text::MODULO, printf::modulo);
    environment.add_filter("string", text::string);
    environment.add_filter("join", text::join);
    environment.add_filter("pprint", pretty::pprint);
    environment.add_filter("format", printf::format);
    environment.add_filter("tojson", json::to_json);
    environment.add_filter("replace", replace);
    environment.add_filter("default", default);
    environment.add_filter("d", default);
    environment.add_filter("indent", indent);
    environment.add_filter("length", length);
    environment.add_filter("count", length);
    environment.add_filter("int", int);
    environment.add_filter("float", float);
    environment.add_filter("wordcount", word_count);
    environment.add_filter("urlencode", url_encode);
    environment.add_filter("center", center);
    environment.add_filter("truncate", truncate);
    add_operators(environment);
    add_sequences(environment);
    environment.add_filter("e", html::escape);
    environment.add_filter("escape", html::escape);
    environment.add_filter("forceescape", html::force_escape);
    environment.add_filter("striptags", html::strip_tags);
    environment.add_filter("xmlattr", html::xml_attributes);
    environment.add_filter("wordwrap", layout::word_wrap);
    environment.add_filter("filesizeformat", layout::file_size);
    environment.add_filter("upper", |value: &Value| text::str(value).map(|text| text.to_uppercase()));
    environment.add_filter("lower", |value: &Value| text::str(value).map(|text| text.to_lowercase()));
    environment.add_filter("trim", trim);
    environment.add_filter("abs", |value: &Value| match value.kind() {
        ValueKind::Bool => operators::positive(value),
        _ => filters::abs(value.clone()),
    });
    environment.add_filter("capitalize", |value: &Value| text::str(value).map(|text| letters::capitalized(&text)));
    environment.add_filter("title", |value: &Value| text::str(value).map(|text| letters::title_words(&text)));
    environment.add_test("iterable", |value: &Value| is_sized(value) || value.downcast_object_ref::<MappingView>().is_some());
    environment.add_test("sequence", is_sized);
    environment.add_test("number", |value: &Value| matches!(value.kind(), ValueKind::Number | ValueKind::Bool));
    environment.add_test("integer", |value: &Value| value.is_integer());
    environment.add_test("callable", |value: &Value| {
        let is_data = is_sized(value) || value.downcast_object_ref::<MappingView>().is_some() || namespace::is_namespace(value);
        value.is_undefined() || value.kind() == ValueKind::Plain && !is_data
    });
}

/// Registers what the operators are rewritten to, and the tests named like them.
fn add_operators(environment: &mut Environment<'_>) {
    environment.add_filter(operators::COMPARED, operators::compared);
    environment.add_filter(operators::MULTIPLIED, operators::multiplied);
    environment.add_filter(operators::NEGATIVE, operators::negative);
    environment.add_filter(operators::POSITIVE, operators::positive);
    environment.add_test("odd", |value: &Value| Ok::<_, Error>(printf::modulo(value, &2.into())? == Value::from(1)));
    environment.add_test("even", |value: &Value| Ok::<_, Error>(printf::modulo(value, &2.into())? == Value::from(0)));
    environment.add_test("divisibleby", |value: &Value, by: &Value| Ok::<_, Error>(printf::modulo(value, by)? == Value::from(0)));
    environment.add_test(macros::MISSING, macros::is_missing);
    for (operator, names) in [
        ("<", ["lt", "lessthan", "<"].as_slice()),
        ("<=", &["le", "<="]),
        (">", &["gt", "greaterthan", ">"]),
        (">=", &["ge", ">="]),
        ("in", &["in"]),
    ] {
        for name in names {
            environment.add_test(*name, move |left: &Value, right: &Value| operators::compare(left, operator, right));
        }
    }
}

/// Registers filters of lists and other values with items.
fn add_sequences(environment: &mut Environment<'_>) {
    environment.add_filter(sequences::SLICED, sequences::sliced);
    environment.add_filter(sequences::ITERATED, sequences::iterated);
    environment.add_filter(sequences::UNPACKED, sequences::unpacked);
    environment.add_filter(sequences::EACH_UNPACKED, sequences::each_unpacked);
    environment.add_filter("first", sequences::first);
    environment.add_filter("last", sequences::last);
    environment.add_filter("list", sequences::list);
    environment.add_filter("items", sequences::items);
    environment.add_filter("reverse", sequences::reverse);
    environment.add_filter("attr", methods::attribute);
    environment.add_filter("sum", sequences::sum);
    environment.add_filter("batch", sequences::batch);
    environment.add_filter("slice", sequences::slice);
    environment.add_filter("sort", sorting::sort);
    environment.add_filter("unique", sorting::unique);
    environment.add_filter("min", sorting::min);
    environment.add_filter("max", sorting::max);
    environment.add_filter("dictsort", sorting::dictsort);
    environment.add_filter("groupby", sorting::groupby);
}

/// Returns whether a value has a length and items, like strings and mappings. None does not, as in Python.
fn is_sized(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::String | ValueKind::Seq | ValueKind::Map | ValueKind::Iterable | ValueKind::Undefined)
        || value.downcast_object_ref::<Range>().is_some()
}

/// Python's `dict`.
fn dict(args: Rest<Value>, named: Kwargs) -> Result<Value, Error> {
    let mut pairs: Vec<(Value, Value)> = Vec::new();
    for value in &all(args, named) {
        match value.as_object().filter(|_| value.kind() == ValueKind::Map) {
            Some(object) => pairs.extend(object.try_iter_pairs().into_iter().flatten()),
            None => {
                for pair in value.try_iter()?.checked() {
                    let pair: Vec<Value> = pair?.try_iter()?.collect();
                    let [key, value] = <[Value; 2]>::try_from(pair).map_err(|_| error("dict: wants pairs"))?;
                    pairs.push((key, value));
                }
            }
        }
    }
    Ok(Value::from_pairs(pairs))
}

fn replace(value: &Value, args: Rest<Value>, named: Kwargs) -> Result<String, Error> {
    let args = TemplateArguments::bind(&all(args, named), &["old", "new", "count"])?;
    let (old, new) = (text::str(args.required(0)?)?, text::str(args.required(1)?)?);
    let whole = text::str(value)?;
    Ok(match args.integer(2)?.map(usize::try_from) {
        Some(Ok(count)) => whole.replacen(&old, &new, count),
        _ => whole.replace(&old, &new),
    })
}

fn default(value: &Value, args: Rest<Value>, named: Kwargs) -> Result<Value, Error> {
    let args = TemplateArguments::bind(&all(args, named), &["default_value", "boolean"])?;
    let is_missing = value.is_undefined() || args.is_true(1) && !value.is_true();
    Ok(if is_missing { args.given(0).cloned().unwrap_or_else(|| "".into()) } else { value.clone() })
}

fn indent(value: &Value, args: Rest<Value>, named: Kwargs) -> Result<String, Error> {
    let args = TemplateArguments::bind(&all(args, named), &["width", "first", "blank"])?;
    let by = match args.value(0) {
        None => " ".repeat(4),
        Some(text) if text.as_str().is_some() => text.as_str().unwrap_or_default().to_owned(),
        Some(_) => " ".repeat(args.integer(0)?.and_then(|width| usize::try_from(width).ok()).unwrap_or(0)),
    };
    let whole = text::str(value)? + "\n";
    let mut indented = String::new();
    for (i, line) in methods::lines(&whole, false).into_iter().enumerate() {
        indented.push_str(if i > 0 { "\n" } else { "" });
        let is_indented = if i == 0 { args.is_true(1) } else { args.is_true(2) || !line.is_empty() };
        indented.push_str(if is_indented { &by } else { "" });
        indented.push_str(line);
    }
    Ok(indented)
}

/// Filter `length`. Undefined has length 0.
fn length(value: &Value) -> Result<usize, Error> {
    if value.is_undefined() { Ok(0) } else { filters::length(value) }
}

/// Filter `int`; what is not a number becomes the default.
fn int(value: &Value, args: Rest<Value>, named: Kwargs) -> Result<Value, Error> {
    let args = TemplateArguments::bind(&all(args, named), &["default", "base"])?;
    let base = args.integer(1)?.unwrap_or(10);
    let number = match value.kind() {
        ValueKind::Undefined => return Err(error("int: the value is undefined")),
        ValueKind::String => {
            let text = letters::with_ascii_digits(value.as_str().unwrap_or_default());
            let text = text.trim();
            match integer(text, base) {
                None => whole(text.replace('_', "").parse().unwrap_or(f64::NAN))?,
                number => number,
            }
        }
        ValueKind::Bool => Some(i128::from(value.is_true())),
        ValueKind::Number if value.is_integer() => return Ok(value.clone()),
        ValueKind::Number => whole(f64::try_from(value.clone()).unwrap_or(f64::NAN))?,
        _ => None,
    };
    let value = number.map(|number| i64::try_from(number).map_or_else(|_| Value::from(number), Value::from));
    Ok(value.or_else(|| args.value(0).cloned()).unwrap_or_else(|| 0.into()))
}

/// Truncates a float to an integer; `None` if it is not finite.
///
/// # Errors
/// If the integer has more digits than the engine's.
fn whole(float: f64) -> Result<Option<i128>, Error> {
    match float.is_finite() {
        true if float.abs() >= 1e38 => Err(error("int: the number is too large")),
        is_finite => Ok(is_finite.then_some(float.trunc() as i128)),
    }
}

/// Parses an integer as Python does.
fn integer(text: &str, base: i64) -> Option<i128> {
    let (negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let lower = digits.to_ascii_lowercase();
    let prefixed = |prefix: &str| lower.strip_prefix(prefix).map(str::to_owned);
    let (base, digits) = match base {
        0 | 16 if lower.starts_with("0x") => (16, prefixed("0x")?),
        0 | 8 if lower.starts_with("0o") => (8, prefixed("0o")?),
        0 | 2 if lower.starts_with("0b") => (2, prefixed("0b")?),
        0 => (10, lower),
        _ => (u32::try_from(base).ok().filter(|base| (2..=36).contains(base))?, lower),
    };
    if digits.starts_with(['_', '+', '-']) || digits.ends_with('_') || digits.contains("__") {
        return None;
    }
    let number = i128::from_str_radix(&digits.replace('_', ""), base).ok()?;
    Some(if negative { -number } else { number })
}

/// Filter `float`; what is not a number becomes the default.
fn float(value: &Value, args: Rest<Value>, named: Kwargs) -> Result<Value, Error> {
    let args = TemplateArguments::bind(&all(args, named), &["default"])?;
    let number = match value.kind() {
        ValueKind::Undefined => return Err(error("float: the value is undefined")),
        ValueKind::String => {
            value.as_str().and_then(|text| letters::with_ascii_digits(text).trim().replace('_', "").parse().ok())
        }
        ValueKind::Bool => Some(f64::from(u8::from(value.is_true()))),
        ValueKind::Number if value.is_integer() => i128::try_from(value.clone()).ok().map(|number| number as f64),
        ValueKind::Number => f64::try_from(value.clone()).ok(),
        _ => None,
    };
    Ok(number.map(Value::from).or_else(|| args.value(0).cloned()).unwrap_or_else(|| 0.0.into()))
}

fn word_count(value: &Value) -> Result<usize, Error> {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    Ok(text::str(value)?.split(|c| !is_part(c)).filter(|word| !word.is_empty()).count())
}

/// Filter `urlencode`: encodes a text for a path, or pairs for a query.
fn url_encode(value: &Value) -> Result<String, Error> {
    let pairs: Vec<Value> = match value.kind() {
        ValueKind::Map => {
            let pairs = value.as_object().and_then(|object| object.try_iter_pairs()).into_iter().flatten();
            pairs.map(|(key, value)| Value::from(vec![key, value])).collect()
        }
        ValueKind::Seq | ValueKind::Iterable => value.try_iter()?.collect(),
        _ => return Ok(quoted(&text::str(value)?, "/", "%20")),
    };
    let mut query = Vec::new();
    for pair in pairs {
        let parts = pair.try_iter()?.map(|part| Ok(quoted(&text::str(&part)?, "", "+")));
        query.push(parts.collect::<Result<Vec<_>, Error>>()?.join("="));
    }
    Ok(query.join("&"))
}

fn quoted(text: &str, safe: &str, space: &str) -> String {
    let mut quoted = String::new();
    for byte in text.bytes() {
        match byte {
            b' ' => quoted.push_str(space),
            _ if byte.is_ascii_alphanumeric() || b"_.-~".contains(&byte) || safe.as_bytes().contains(&byte) => {
                quoted.push(char::from(byte));
            }
            _ => _ = write!(quoted, "%{byte:02X}"),
        }
    }
    quoted
}

/// Filter `trim`.
fn trim(value: &Value, args: Rest<Value>, named: Kwargs) -> Result<String, Error> {
    let args = TemplateArguments::bind(&all(args, named), &["chars"])?;
    Ok(methods::strip(&text::str(value)?, args.text(0)?, true, true).to_owned())
}

fn center(value: &Value, args: Rest<Value>, named: Kwargs) -> Result<String, Error> {
    let args = TemplateArguments::bind(&all(args, named), &["width"])?;
    methods::centered(&text::str(value)?, args.integer(0)?.unwrap_or(80))
}

/// Filter `truncate`.
fn truncate(value: &Value, args: Rest<Value>, named: Kwargs) -> Result<String, Error> {
    let args = TemplateArguments::bind(&all(args, named), &["length", "killwords", "end", "leeway"])?;
    let (whole, end) = (text::str(value)?, args.text(2)?.unwrap_or("..."));
    let count = |at, default| Ok::<_, Error>(args.integer(at)?.map_or(default, |n| usize::try_from(n).unwrap_or(0)));
    let (length, leeway) = (count(0, 255)?, count(3, 5)?);
    if whole.chars().count() <= length.saturating_add(leeway) {
        return Ok(whole);
    }
    let shown = length.checked_sub(end.chars().count()).ok_or_else(|| error("truncate: the length is shorter than the end"))?;
    let mut shown: String = whole.chars().take(shown).collect();
    if !args.is_true(1)
        && let Some((words, _)) = shown.rsplit_once(' ')
    {
        shown = words.to_owned();
    }
    Ok(shown + end)
}
