//! YAML from outside: TRL's configuration files, and the front matter of dataset cards.

use serde_json::Value as Json;
use serde_yaml_ng::Value as Yaml;
use toml::{Table, Value};

/// Maximum nesting of brackets; the parser takes time quadratic in it.
const DEEPEST: usize = 64;

/// Parses the keys of a file; the error has the line. Null values are omitted.
pub(super) fn table(text: &str) -> Result<Table, (usize, String)> {
    if let Some(line) = too_deep(text) {
        return Err((line, format!("brackets are nested more than {DEEPEST} deep")));
    }
    let wrong = |e: serde_yaml_ng::Error| (e.location().map_or(1, |at| at.line()), e.to_string());
    match converted(serde_yaml_ng::from_str(text).map_err(wrong)?) {
        None => Ok(Table::new()),
        Some(Value::Table(table)) => Ok(table),
        Some(_) => Err((1, "expected keys with their values, as in `seed: 42`".to_owned())),
    }
}

/// Maximum size of a front matter in bytes.
const LARGEST_FRONT: usize = 1 << 20;

/// Returns the values of a Markdown text's front matter, which is YAML between lines of three dashes; none if it has no front matter.
/// A key that is not a text becomes one.
///
/// # Errors
/// If it is not YAML, or too large. The error has the line.
pub fn front_matter(text: &str) -> Result<Option<Json>, (usize, String)> {
    let text = text.trim_start_matches('\u{feff}');
    let own = text.trim_start();
    let before = text[..text.len() - own.len()].matches('\n').count();
    let mut at = 0;
    for (i, line) in own.split_inclusive('\n').enumerate() {
        let is_mark = line.trim_end() == "---";
        match (i, is_mark) {
            (0, false) => return Ok(None),
            (0, true) => at = line.len(),
            (_, true) => {
                let begin = own.find('\n').map_or(own.len(), |end| end + 1);
                return json(&own[begin..at]).map(Some).map_err(|(line, said)| (before + 1 + line, said));
            }
            (_, false) => at += line.len(),
        }
    }
    Ok(None)
}

/// Returns the values of a YAML document. A key that is not a text becomes one.
///
/// # Errors
/// If it is not YAML, or too large. The error has the line.
pub fn yaml_document(text: &str) -> Result<Json, (usize, String)> {
    json(text.trim_start_matches('\u{feff}'))
}

/// Parses a document as JSON.
fn json(text: &str) -> Result<Json, (usize, String)> {
    if text.len() > LARGEST_FRONT {
        return Err((1, format!("has a front matter of {} bytes; the maximum is {LARGEST_FRONT}", text.len())));
    }
    if let Some(line) = too_deep(text) {
        return Err((line, format!("brackets are nested more than {DEEPEST} deep")));
    }
    let wrong = |e: serde_yaml_ng::Error| (e.location().map_or(1, |at| at.line()), e.to_string());
    Ok(as_json(serde_yaml_ng::from_str(text).map_err(wrong)?))
}

fn as_json(value: Yaml) -> Json {
    match value {
        Yaml::Null => Json::Null,
        Yaml::Bool(on) => Json::Bool(on),
        Yaml::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(integer), _) => integer.into(),
            (None, Some(integer)) => integer.into(),
            (None, None) => number.as_f64().into(),
        },
        Yaml::String(text) => Json::String(text),
        Yaml::Sequence(items) => items.into_iter().map(as_json).collect(),
        Yaml::Mapping(members) => members.into_iter().map(|(key, value)| (key_of(key), as_json(value))).collect(),
        Yaml::Tagged(tagged) => as_json(tagged.value),
    }
}

/// Returns a key as text.
fn key_of(key: Yaml) -> String {
    match key {
        Yaml::String(key) => key,
        other => serde_yaml_ng::to_string(&other).map_or_else(|_| String::new(), |text| text.trim().to_owned()),
    }
}

/// Returns the line on which too many brackets are open.
fn too_deep(text: &str) -> Option<usize> {
    let (mut open, mut line) = (0usize, 1);
    for c in text.chars() {
        match c {
            '[' | '{' => open += 1,
            ']' | '}' => open = open.saturating_sub(1),
            '\n' => line += 1,
            _ => {}
        }
        if open > DEEPEST {
            return Some(line);
        }
    }
    None
}

/// Converts a value. TOML has no null: in lists and tables it is omitted, except where it lifts a limit.
fn converted(value: Yaml) -> Option<Value> {
    Some(match value {
        Yaml::Null => return None,
        Yaml::Bool(on) => Value::Boolean(on),
        Yaml::Number(number) => match number.as_i64() {
            Some(integer) => Value::Integer(integer),
            None => Value::Float(number.as_f64()?),
        },
        Yaml::String(text) => Value::String(text),
        Yaml::Sequence(items) => Value::Array(items.into_iter().filter_map(converted).collect()),
        Yaml::Mapping(members) => Value::Table(members.into_iter().filter_map(member).collect()),
        Yaml::Tagged(tagged) => return converted(tagged.value),
    })
}

fn member((key, value): (Yaml, Yaml)) -> Option<(String, Value)> {
    let key = match key {
        Yaml::String(key) => key,
        other => serde_yaml_ng::to_string(&other).ok()?.trim().to_owned(),
    };
    // TRL's null is no limit, not the default.
    let is_limit = ["max_length", "max_completion_length"].contains(&key.as_str());
    let value = if value.is_null() && is_limit { Some(Value::String("none".to_owned())) } else { converted(value) };
    Some((key, value?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_values_of_a_file_are_what_toml_would_have() {
        let read = table("model_name_or_path: a/b\nlearning_rate: 1e-5\nstop: [x, 'y']\nbf16: true\nrun_name: null\n").unwrap();
        let same: Table =
            toml::from_str("model_name_or_path = 'a/b'\nlearning_rate = 1e-5\nstop = ['x', 'y']\nbf16 = true").unwrap();
        assert_eq!(read, same);
        assert!(table("").unwrap().is_empty());
    }

    #[test]
    fn mistakes_have_their_line() {
        let (line, said) = table("seed: 1\nmodel: [\n").unwrap_err();
        assert!(line >= 2, "{line}: {said}");
        assert!(table("seed: 1\nseed: 2\n").unwrap_err().1.contains("duplicate"));
        assert_eq!(table("- seed\n").unwrap_err().0, 1);
        // References that multiply.
        let bomb =
            (1..30).fold("a0: &a0 [x, x]\n".to_owned(), |text, i| format!("{text}a{i}: &a{i} [*a{}, *a{}]\n", i - 1, i - 1));
        assert!(table(&bomb).is_err());
        assert!(table(&format!("seed: 1\nstop: {}", "[".repeat(100_000))).unwrap_err().1.contains("brackets"));
    }

    #[test]
    fn what_toml_does_not_have_is_not_lost() {
        let read = table("max_length: null\nlearning_rate: .nan\nseed: null\n").unwrap();
        assert_eq!((read.len(), read["max_length"].as_str()), (2, Some("none")));
        assert!(read["learning_rate"].as_float().unwrap().is_nan());
    }

    #[test]
    fn a_front_matter_is_between_dashes() {
        let read = |text: &str| front_matter(text).unwrap();
        assert_eq!(read("---\na: [1, x]\n2: true\n---\n# Title\n").unwrap(), serde_json::json!({"a": [1, "x"], "2": true}));
        assert_eq!(read("\u{feff}\n---\r\na: 1\r\n---").unwrap()["a"], 1);
        for none in ["", "# Title", "text\n---\na: 1\n---\n", "---\na: 1\n", "---", "--- \n"] {
            assert_eq!(read(none), None, "{none:?}");
        }
        assert_eq!(front_matter("---\na: 1\nb: [\n---\n").unwrap_err().0, 4);
        assert!(front_matter(&format!("---\n{}\n---\n", "#".repeat(LARGEST_FRONT))).unwrap_err().1.contains("maximum"));
    }
}
