//! Finds the tool calls in a model's turn, in the format of its family.

use super::Tokenizer;
use serde_json::{Deserializer, Value};

/// The format in which a family of models writes calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Calls {
    /// `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`: Hermes, Qwen, and models without a template.
    #[default]
    Hermes,
    /// `[TOOL_CALLS] [{"name": ..., "arguments": {...}}]` or `[TOOL_CALLS]name[ARGS]{...}`.
    Mistral,
    /// `{"name": ..., "parameters": {...}}` as the whole turn: Llama 3.
    Llama,
}

/// Maximum number of calls in a turn; the rest is text.
const MOST: usize = 64;

impl Calls {
    /// Returns the format that a chat template uses.
    pub(super) fn of(template: &str) -> Self {
        match template {
            _ if template.contains("<tool_call>") => Self::Hermes,
            _ if template.contains("[TOOL_CALLS]") => Self::Mistral,
            _ if template.contains("<|python_tag|>") || template.contains("\"parameters\":") => Self::Llama,
            _ => Self::Hermes,
        }
    }

    /// Returns the name and the arguments of each well-formed call.
    fn found(self, text: &str) -> Vec<(String, String)> {
        let mut calls = match self {
            Self::Hermes => hermes(text),
            Self::Mistral => mistral(text),
            Self::Llama => llama(text),
        };
        calls.truncate(MOST);
        calls
    }
}

/// Returns the calls that a text has in each format.
#[cfg(any(test, fuzzing))]
pub(crate) fn calls_in(text: &str) -> Vec<(String, String)> {
    [Calls::Hermes, Calls::Mistral, Calls::Llama].into_iter().flat_map(|format| format.found(text)).collect()
}

impl Tokenizer {
    /// Returns the tool calls in a turn, each with its name and arguments. Malformed ones remain text.
    ///
    /// # Errors
    /// If the tokens can't be decoded.
    pub fn calls(&self, turn: &[u32]) -> super::Result<Vec<(String, String)>> {
        let format = self.call_format();
        Ok(format.found(&self.decode_marked(turn)?))
    }
}

/// Returns the first JSON value of a text, and the text after it.
fn first_value(text: &str) -> Option<(Value, &str)> {
    let mut values = Deserializer::from_str(text).into_iter::<Value>();
    let value = values.next()?.ok()?;
    Some((value, &text[values.byte_offset()..]))
}

/// Returns a call's name and arguments, which may be JSON text.
fn call(value: &Value) -> Option<(String, String)> {
    let name = value.get("name")?.as_str().filter(|name| !name.is_empty())?;
    let arguments = match value.get("arguments").or_else(|| value.get("parameters")) {
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
        None => "{}".to_owned(),
    };
    Some((name.to_owned(), arguments))
}

fn hermes(text: &str) -> Vec<(String, String)> {
    let inside = text.split("<tool_call>").skip(1).filter_map(|part| Some(part.split_once("</tool_call>")?.0));
    inside.filter_map(|part| call(&serde_json::from_str(part.trim()).ok()?)).collect()
}

fn mistral(text: &str) -> Vec<(String, String)> {
    let mut calls = Vec::new();
    for part in text.split("[TOOL_CALLS]").skip(1).map(str::trim_start) {
        if let Some((name, arguments)) = part.split_once("[ARGS]") {
            calls.extend(first_value(arguments).map(|(value, _)| (name.trim().to_owned(), value.to_string())));
        } else if let Some((value, _)) = first_value(part) {
            match value {
                Value::Array(all) => calls.extend(all.iter().filter_map(call)),
                one => calls.extend(call(&one)),
            }
        }
    }
    calls
}

fn llama(text: &str) -> Vec<(String, String)> {
    let mut rest = text.trim_start();
    rest = rest.strip_prefix("<|python_tag|>").unwrap_or(rest).trim_start();
    let mut calls = Vec::new();
    while rest.starts_with('{') {
        let Some((value, after)) = first_value(rest) else { break };
        calls.extend(call(&value));
        rest = after.trim_start().trim_start_matches(';').trim_start();
    }
    calls
}

#[cfg(test)]
mod tests {
    use super::Calls;

    fn found(format: Calls, text: &str) -> Vec<(String, String)> {
        format.found(text)
    }

    fn one(name: &str, arguments: &str) -> Vec<(String, String)> {
        vec![(name.into(), arguments.into())]
    }

    #[test]
    fn calls_are_found_in_the_format_of_each_family() {
        let hermes =
            "Let me see.\n<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1, \"b\": [2]}}\n</tool_call><|im_end|>";
        assert_eq!(found(Calls::Hermes, hermes), one("add", r#"{"a":1,"b":[2]}"#));
        let two = "<tool_call>{\"name\": \"a\"}</tool_call>\n<tool_call>{\"name\": \"b\", \"arguments\": \"{}\"}</tool_call>";
        assert_eq!(found(Calls::Hermes, two), [("a".into(), "{}".into()), ("b".into(), "{}".into())]);
        let list = "[TOOL_CALLS] [{\"name\": \"add\", \"arguments\": {\"a\": 1}, \"id\": \"abcdefghi\"}]</s>";
        assert_eq!(found(Calls::Mistral, list), one("add", r#"{"a":1}"#));
        assert_eq!(found(Calls::Mistral, "[TOOL_CALLS]add[ARGS]{\"a\": 1}</s>"), one("add", r#"{"a":1}"#));
        assert_eq!(found(Calls::Llama, "{\"name\": \"add\", \"parameters\": {\"a\": 1}}<|eot_id|>"), one("add", r#"{"a":1}"#));
        let tagged = "<|python_tag|>{\"name\": \"a\", \"parameters\": {}}; {\"name\": \"b\", \"parameters\": {}}<|eom_id|>";
        assert_eq!(found(Calls::Llama, tagged).len(), 2);
    }

    #[test]
    fn malformed_calls_are_text() {
        for text in ["<tool_call>{\"name\": \"a\"", "<tool_call>{\"name\": </tool_call>", "<tool_call>[]</tool_call>", "no", ""] {
            assert!(found(Calls::Hermes, text).is_empty(), "{text}");
        }
        for text in ["[TOOL_CALLS] [{]", "[TOOL_CALLS]", "x [ARGS] {}"] {
            assert!(found(Calls::Mistral, text).is_empty(), "{text}");
        }
        for text in ["I say {\"name\": \"a\"}", "{\"name\": 3}", "{\"name\"", "<|python_tag|>print(1)"] {
            assert!(found(Calls::Llama, text).is_empty(), "{text}");
        }
        assert_eq!(found(Calls::Hermes, &"<tool_call>{\"name\": \"a\"}</tool_call>".repeat(100)).len(), 64);
    }

    #[test]
    fn the_template_says_the_format() {
        assert_eq!(Calls::of("... <tool_call> ... <|im_start|>"), Calls::Hermes);
        assert_eq!(Calls::of("... [TOOL_CALLS] ..."), Calls::Mistral);
        assert_eq!(Calls::of("... '{\"name\": ..., \"parameters\": ...' <|python_tag|>"), Calls::Llama);
        assert_eq!(Calls::of("plain"), Calls::Hermes);
    }
}
