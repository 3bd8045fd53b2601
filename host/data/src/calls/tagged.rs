//! Calls whose arguments are plain text between tags; the tool's JSON schema determines their types.

use serde_json::{Map, Value};

/// Parses calls `<function=NAME><parameter=KEY>VALUE</parameter></function>` between `<tool_call>` and `</tool_call>`: Qwen3-Coder,
/// Qwen3.5, Nemotron 3.
pub(super) fn functions(text: &str, tools: &Value) -> Vec<(String, String)> {
    let read = |inside: &str| {
        let (name, mut rest) = inside.trim_start().strip_prefix("<function=")?.split_once('>')?;
        let mut arguments = Map::new();
        while let Some((_, after)) = rest.split_once("<parameter=") {
            let (key, after) = after.split_once('>')?;
            let (value, after) = after.split_once("</parameter>")?;
            arguments.insert(key.to_owned(), typed(value.trim(), schema(tools, name, key)));
            rest = after;
        }
        written(name, arguments)
    };
    inside(text).filter_map(read).collect()
}

/// Parses calls `NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value>` between `<tool_call>` and `</tool_call>`: GLM.
pub(super) fn keys_and_values(text: &str, tools: &Value) -> Vec<(String, String)> {
    let read = |inside: &str| {
        let inside = inside.trim_start();
        let end = inside.find(|c: char| c.is_whitespace() || c == '<').unwrap_or(inside.len());
        let (name, mut rest) = inside.split_at(end);
        let mut arguments = Map::new();
        while let Some((_, after)) = rest.split_once("<arg_key>") {
            let (key, after) = after.split_once("</arg_key>")?;
            let (value, after) = after.trim_start().strip_prefix("<arg_value>")?.split_once("</arg_value>")?;
            arguments.insert(key.to_owned(), typed(value, schema(tools, name, key)));
            rest = after;
        }
        written(name, arguments)
    };
    inside(text).filter_map(read).collect()
}

/// Returns the text between the markers of each call.
fn inside(text: &str) -> impl Iterator<Item = &str> {
    text.split("<tool_call>").skip(1).filter_map(|part| Some(part.split_once("</tool_call>")?.0)).take(MOST)
}

fn written(name: &str, arguments: Map<String, Value>) -> Option<(String, String)> {
    let is_name = !name.is_empty() && !name.contains(['\n', '{', '"']);
    is_name.then(|| (name.to_owned(), Value::Object(arguments).to_string()))
}

/// Returns the schema of a tool's parameter, or null.
fn schema<'a>(tools: &'a Value, name: &str, key: &str) -> &'a Value {
    let functions = tools.as_array().into_iter().flatten().map(|tool| tool.get("function").unwrap_or(tool));
    let tool = functions.into_iter().find(|tool| tool["name"] == name);
    tool.map_or(&Value::Null, |tool| &tool["parameters"]["properties"][key])
}

/// Returns the types that a schema allows, in order of preference.
fn types(schema: &Value) -> Vec<&str> {
    let declared = match &schema["type"] {
        Value::Array(types) => types.iter().filter_map(Value::as_str).collect(),
        one => one.as_str().into_iter().collect::<Vec<_>>(),
    };
    let choices = ["anyOf", "oneOf"].into_iter().filter_map(|key| schema[key].as_array()).flatten();
    let nested = choices.flat_map(|choice| match &choice["type"] {
        Value::Array(types) => types.iter().filter_map(Value::as_str).collect(),
        one => one.as_str().into_iter().collect::<Vec<_>>(),
    });
    let nullable = (schema["nullable"] == true).then_some("null");
    declared.into_iter().chain(nested).chain(nullable).collect()
}

/// Converts a text to the first type of the schema that fits, as transformers does; otherwise it stays a string.
fn typed(text: &str, schema: &Value) -> Value {
    let trimmed = text.trim();
    let float = || trimmed.parse::<f64>().ok().filter(|number| number.is_finite());
    let whole = || float().filter(|number| number.fract() == 0.0 && number.abs() < 9e18).map(|number| number as i64);
    let integer = || trimmed.parse::<i64>().ok().or_else(whole);
    for kind in types(schema) {
        let value = match kind {
            "integer" => integer().map(Value::from),
            "number" if trimmed.contains('.') => float().map(Value::from),
            "number" => whole().map(Value::from).or_else(|| float().map(Value::from)),
            "boolean" => match trimmed.to_lowercase().as_str() {
                "true" | "1" => Some(true.into()),
                "false" | "0" => Some(false.into()),
                _ => None,
            },
            "null" => matches!(trimmed, "null" | "None").then_some(Value::Null),
            "object" => serde_json::from_str(text).ok().filter(Value::is_object),
            "array" => serde_json::from_str(text).ok().filter(Value::is_array),
            _ => None,
        };
        if let Some(value) = value {
            return value;
        }
    }
    text.into()
}

/// Maximum number of calls in a turn; further ones remain text.
pub(super) const MOST: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn tools() -> Value {
        let properties = json!({
            "n": {"type": "integer"}, "x": {"type": "number"}, "b": {"type": "boolean"}, "s": {"type": "string"},
            "o": {"anyOf": [{"type": "null"}, {"type": "object"}]}, "l": {"type": ["array", "null"]},
        });
        json!([{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": properties}}}])
    }

    #[test]
    fn arguments_have_the_types_of_the_tools_schema() {
        let value = |key: &str, text: &str| typed(text, schema(&tools(), "f", key));
        for (key, text, expected) in [
            ("n", "7", json!(7)),
            ("n", "3.0", json!(3)),
            ("n", "3.5", json!("3.5")),
            ("x", "7", json!(7)),
            ("x", "1.5", json!(1.5)),
            ("x", "nan", json!("nan")),
            ("b", "True", json!(true)),
            ("b", "0", json!(false)),
            ("b", "yes", json!("yes")),
            ("s", "7", json!("7")),
            ("o", "None", json!(null)),
            ("o", "{\"a\": 1}", json!({"a": 1})),
            ("l", "[1]", json!([1])),
            ("l", "{}", json!("{}")),
            ("other", "7", json!("7")),
        ] {
            assert_eq!(value(key, text), expected, "{key} {text}");
        }
    }

    #[test]
    fn calls_in_tags_are_read_and_malformed_ones_are_text() {
        let text = "Let me see.\n<tool_call>\n<function=f>\n<parameter=n>\n3\n</parameter>\n<parameter=s>\na\n b\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=g>\n</function>\n</tool_call><|im_end|>";
        let one = ("f".to_owned(), json!({"n": 3, "s": "a\n b"}).to_string());
        assert_eq!(functions(text, &tools()), [one.clone(), ("g".to_owned(), "{}".to_owned())]);
        for malformed in
            ["<tool_call><function=f></tool", "<tool_call>f</tool_call>", "<tool_call><function=f><parameter=n>1</tool_call>"]
        {
            assert!(functions(malformed, &tools()).is_empty(), "{malformed}");
        }
        let glm = "<tool_call>f\n<arg_key>n</arg_key>\n<arg_value>3</arg_value>\n<arg_key>s</arg_key>\n<arg_value>a\n b</arg_value>\n</tool_call>";
        assert_eq!(keys_and_values(glm, &tools()), [one]);
        assert_eq!(keys_and_values("<tool_call>g</tool_call>", &tools()), [("g".to_owned(), "{}".to_owned())]);
        assert!(keys_and_values("<tool_call>f<arg_key>n</arg_key>3</tool_call><tool_call>{}</tool_call>", &tools()).is_empty());
    }
}
