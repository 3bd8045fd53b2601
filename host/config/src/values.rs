//! Values in the user's spelling: converts text to TOML values, and rewords the parser's errors.

use super::{PluginEntry, did_you_mean, printable};
use serde_json::Value as Json;
use toml::{Table, Value};

/// Parses the text of a flag: TOML or JSON if it is either, otherwise a string.
pub fn scalar(text: &str) -> Value {
    let toml = || toml::from_str::<Table>(&format!("v = {text}")).ok()?.remove("v");
    let json = || from_json(serde_json::from_str(text.trim()).ok()?);
    let nested = text.trim_start().starts_with(['{', '[']);
    toml().or_else(|| nested.then(json)?).unwrap_or_else(|| Value::String(text.to_owned()))
}

/// Converts JSON to TOML, which has no null: null members are omitted. Returns `None` for a null.
pub(super) fn from_json(value: Json) -> Option<Value> {
    Some(match value {
        Json::Null => return None,
        Json::Bool(value) => Value::Boolean(value),
        Json::Number(number) => match number.as_i64() {
            Some(integer) => Value::Integer(integer),
            None => Value::Float(number.as_f64()?),
        },
        Json::String(text) => Value::String(text),
        Json::Array(items) => Value::Array(items.into_iter().filter_map(from_json).collect()),
        Json::Object(members) => {
            Value::Table(members.into_iter().filter_map(|(key, value)| Some((key, from_json(value)?))).collect())
        }
    })
}

/// Returns the first number in a value that is not finite, and its path.
pub(super) fn not_finite(value: &Value) -> Option<(String, f64)> {
    let below = |key: String, value: &Value| {
        let (inner, number) = not_finite(value)?;
        Some((if inner.is_empty() { key } else { format!("{key}.{inner}") }, number))
    };
    match value {
        Value::Float(number) if !number.is_finite() => Some((String::new(), *number)),
        Value::Array(all) => all.iter().enumerate().find_map(|(i, value)| {
            let text = |key: &str| value.get(key).and_then(Value::as_str).map(str::to_owned);
            let name = text("name").or_else(|| text("path").map(|path| PluginEntry::new(path).name().to_owned()));
            below(name.unwrap_or_else(|| i.to_string()), value)
        }),
        Value::Table(table) => table.iter().find_map(|(key, value)| below(key.clone(), value)),
        _ => None,
    }
}

/// Sets the value at a path, creating tables along it.
pub(super) fn insert(table: &mut Table, path: &[String], value: Value) {
    match path {
        [] => {}
        [key] => {
            table.insert(key.clone(), value);
        }
        [key, rest @ ..] => {
            let inner = table.entry(key.clone()).or_insert_with(|| Value::Table(Table::new()));
            if !inner.is_table() {
                *inner = Value::Table(Table::new());
            }
            if let Value::Table(inner) = inner {
                insert(inner, rest, value);
            }
        }
    }
}

/// Spellings of true and false that Python's flag and YAML parsers accept.
const SWITCHES: [(&str, [&str; 5]); 2] = [("true", ["t", "yes", "y", "on", "1"]), ("false", ["f", "no", "n", "off", "0"])];

/// Parses a text as the value of a switch.
pub fn switched(text: &str) -> Option<bool> {
    let means = |(name, others): &(&str, [&str; 5])| others.iter().chain([name]).any(|word| word.eq_ignore_ascii_case(text));
    SWITCHES.iter().find(|switch| means(switch)).map(|(name, _)| *name == "true")
}

/// Converts a value to its key's kind: a boolean to its name, a single item to a list, or a text to a boolean.
pub(super) fn spelled(kind: &str, value: Value) -> Value {
    match (kind, value) {
        ("boolean", Value::String(text)) => switched(&text).map_or(Value::String(text), Value::Boolean),
        ("boolean", Value::Integer(number @ (0 | 1))) => Value::Boolean(number == 1),
        ("integer", Value::String(text)) => text.parse().map_or(Value::String(text), Value::Integer),
        ("number", Value::String(text)) => text.parse().map_or(Value::String(text), Value::Float),
        ("array", item @ Value::String(_)) => Value::Array(vec![item]),
        ("object", Value::String(text)) => match scalar(&text) {
            Value::Table(table) => Value::Table(table),
            _ => pairs(&text).map_or(Value::String(text), Value::Table),
        },
        ("string", Value::Boolean(on)) => Value::String(on.to_string()),
        ("string", Value::String(text)) if ["true", "false"].iter().any(|word| word.eq_ignore_ascii_case(&text)) => {
            Value::String(text.to_lowercase())
        }
        (_, other) => other,
    }
}

/// Converts other programs' spellings of no limit to the key's own.
pub(super) fn unlimited(key: &str, value: Value) -> Value {
    let is_none = value.as_str().is_some_and(|text| text.eq_ignore_ascii_case("none"));
    match (key, &value) {
        // -1 is vLLM's value; TRL's is 0, as in rlhost.
        ("top_k" | "eval_top_k", Value::Integer(-1)) => Value::Integer(0),
        ("save_total_limit", Value::String(_)) if is_none => Value::Integer(0),
        _ => value,
    }
}

/// Unsupported values of transformers, by the beginning of their names, with the reason.
const UNSUPPORTED: [(&str, &[&str], &str); 6] = [
    ("optim", &["galore_", "apollo_"], "low-rank optimizers are not supported; for less memory, use LoRA (--use-peft)"),
    ("optim", &["lomo", "adalomo"], "updates during the backward pass are not supported; adafactor has the smallest state here"),
    ("optim", &["adamw_torch_4bit"], "moments in 4 bits are not supported; adafactor has a smaller state than adamw_torch"),
    ("optim", &["adamw_anyprecision"], "moments are always float32, as adamw_torch has them"),
    (
        "save_strategy",
        &["best"],
        "checkpoints are saved at regular steps; --save-total-limit 1 with --metric-for-best-model keeps only the best and the newest",
    ),
    ("max_completion_length", &["none", "None"], "completions need a limit; give a number of tokens, up to the model's context"),
];

/// Returns the reason why a key does not accept a value of transformers, if it is one that rlhost does not support.
pub(super) fn unsupported(key: &str, value: &Value) -> Option<String> {
    let text = value.as_str()?;
    let names = |(of, begins, _): &&(&str, &[&str], &str)| *of == key && begins.iter().any(|begin| text.starts_with(begin));
    UNSUPPORTED.iter().find(names).map(|(_, _, why)| format!("{text:?}: {why}"))
}

/// Parses a text of the form `KEY=VALUE,KEY=VALUE` as a table, the form in which transformers takes optimizer settings.
fn pairs(text: &str) -> Option<Table> {
    let pair = |part: &str| {
        let (key, value) = part.split_once('=')?;
        let value = scalar(value.trim());
        let value = match value.as_str().and_then(switched) {
            Some(switch) => Value::Boolean(switch),
            None => value,
        };
        Some((key.trim().to_owned(), value))
    };
    text.split(',').map(pair).collect()
}

/// Returns the reporting targets as a list, without those that only other programs support.
pub(super) fn reported_to(value: Value) -> Value {
    const OWN: [&str; 5] = ["none", "tensorboard", "wandb", "mlflow", "trackio"];
    const FOREIGN: [&str; 10] =
        ["azure_ml", "clearml", "codecarbon", "comet_ml", "dagshub", "dvclive", "flyte", "kubeflow", "neptune", "swanlab"];
    let items = match value {
        Value::Array(items) => items,
        one => vec![one],
    };
    let parts = items.into_iter().flat_map(|item| match item {
        Value::String(text) => text.split(',').map(|part| Value::String(part.trim().to_owned())).collect(),
        other => vec![other],
    });
    let (mut own, mut others) = (Vec::new(), Vec::new());
    for part in parts {
        match part.as_str() {
            Some("all") => own.extend(OWN[1..].iter().map(|name| Value::from(*name))),
            Some(name) if FOREIGN.contains(&name) => others.push(name.to_owned()),
            _ => own.push(part),
        }
    }
    if !others.is_empty() {
        tracing::warn!("report_to: {} is not supported; it can be {} or all", others.join(", "), OWN.join(", "));
        if own.is_empty() {
            own.push("tensorboard".into());
        }
    }
    let mut once: Vec<Value> = Vec::new();
    for name in own {
        if !once.contains(&name) {
            once.push(name);
        }
    }
    Value::Array(once)
}

/// Converts a key's value to a list of plugins: one path, a list of paths or tables, or a table of plugins by name
/// (`[plugin.NAME.config]`).
pub(super) fn plugin_entries(key: &str, given: Value) -> Result<Value, String> {
    let entries = match given {
        path @ Value::String(_) => vec![plugin_entry(path)],
        Value::Array(items) => items.into_iter().map(plugin_entry).collect(),
        Value::Table(table) if table.values().all(Value::is_table) && of_no_entry(&table).is_some() => {
            let own = of_no_entry(&table).unwrap_or_default();
            return Err(format!("[{key}.{own}] belongs to no entry; put [[{key}]] with a path before it"));
        }
        Value::Table(table) if table.values().all(Value::is_table) => table.into_iter().map(named_entry).collect(),
        other => return Err(format!("is {other}; it must be a list of paths, or [[{key}]] tables with a path")),
    };
    match entries.iter().find(|entry| !entry.is_table()) {
        Some(other) => Err(format!("contains {other}; each entry must be a path or a table with a path")),
        None => Ok(Value::Array(entries)),
    }
}

/// Returns the name of an entry's subtable that a table of entries by name has instead of an entry.
fn of_no_entry(table: &Table) -> Option<&'static str> {
    let has_path = |entry: &Value| entry.as_table().is_some_and(|entry| entry.contains_key("path"));
    OF_ENTRIES.into_iter().find(|name| table.get(*name).is_some_and(|entry| !has_path(entry)))
}

/// Returns entries of environments, which may be given as for [`plugin_entries`] or as one table.
pub(super) fn environment_entries(key: &str, given: Value) -> Result<Value, String> {
    match given {
        Value::Table(table) if !table.values().all(Value::is_table) => Ok(Value::Array(vec![Value::Table(table)])),
        other => plugin_entries(key, other),
    }
}

/// Returns the entry of the plugin at a path, or the entry itself.
fn plugin_entry(given: Value) -> Value {
    match given {
        path @ Value::String(_) => Value::Table(Table::from_iter([("path".to_owned(), path)])),
        other => other,
    }
}

/// Adds the path that a plugin's name implies, unless its table has one; then adds the name, if it differs from the file's.
fn named_entry((name, mut entry): (String, Value)) -> Value {
    if let Value::Table(table) = &mut entry {
        let path = table.entry("path").or_insert_with(|| Value::String(format!("{name}.wasm")));
        if path.as_str().is_some_and(|path| PluginEntry::new(path.to_owned()).name() != name) {
            table.entry("name").or_insert(Value::String(name));
        }
    }
    entry
}

/// Names of Rust's types, and their names for users.
const TYPES: [(&str, &str); 11] = [
    ("struct PluginEntry", "a path, or a table with a path"),
    ("struct PluginLimits", "a table of limits"),
    ("struct HttpLimits", "a table of limits on requests"),
    ("a map", "a table"),
    ("a sequence", "a list"),
    ("f64", "a number"),
    ("usize", "a whole number of 0 or more"),
    ("u64", "a whole number of 0 or more"),
    ("u32", "a whole number of 0 or more"),
    ("u16", "a whole number from 0 to 65535"),
    ("i64", "a whole number"),
];

/// Maximum length of a key or value in an error message, in bytes.
const LONGEST_SHOWN: usize = 256;

/// Keys of an entry that are tables.
const OF_ENTRIES: [&str; 5] = ["config", "folders", "http", "limits", "secrets"];

/// Beginning of an error about an unknown key, up to the key.
pub(super) const UNKNOWN_KEY: &str = "unknown key `";

/// Maximum number of a table's names in an error message.
const FEW: usize = 8;

/// Rewords the parser's error: suggests the nearest name instead of listing all, and replaces names of Rust types.
pub(super) fn reworded(message: &str) -> String {
    let message = message.trim();
    let quoted: Vec<&str> = message.split('`').skip(1).step_by(2).collect();
    match quoted.split_first() {
        Some((key, known)) if message.starts_with("unknown field") => {
            let near = did_you_mean(key, known.iter().copied());
            let near = match near.is_empty() {
                false => near,
                true if known.len() <= FEW => format!("; it can be {}", known.join(", ")),
                true => "; `rlhost train --help` lists all keys".to_owned(),
            };
            return format!("{UNKNOWN_KEY}{}`{near}", printable(key, LONGEST_SHOWN));
        }
        Some((given, known)) if message.starts_with("unknown variant") => {
            let near = did_you_mean(given, known.iter().copied());
            return format!("{:?} is not one of {}{near}", printable(given, LONGEST_SHOWN), known.join(", "));
        }
        _ => {}
    }
    // TOML has no larger integers, so this one was passed as text.
    let number = message.strip_prefix("invalid type: string \"").and_then(|rest| rest.split_once('"'));
    let too_large = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) && text.parse::<i64>().is_err();
    if let Some((digits, _)) = number.filter(|(text, _)| too_large(text)) {
        return format!("{digits} is too large; the largest whole number is {}", i64::MAX);
    }
    match message.rsplit_once("expected ") {
        Some((before, kind)) => match TYPES.iter().find(|(rust, _)| *rust == kind) {
            Some((_, plain)) => format!("{before}expected {plain}"),
            None => message.to_owned(),
        },
        None => message.to_owned(),
    }
}
