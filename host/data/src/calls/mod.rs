//! Parses tool calls in a model's turn, in the format of the model family.

pub(super) mod probe;
mod tagged;
mod thoughts;

use serde_json::{Deserializer, Value};
use tagged::MOST;

/// Format in which a model family writes tool calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum ToolCallFormat {
    /// `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`: Hermes, Qwen, and models without a template.
    #[default]
    Hermes,
    /// `<tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>`: Qwen3-Coder, Qwen3.5, Nemotron 3.
    Functions,
    /// `<tool_call>NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value></tool_call>`: GLM.
    KeysAndValues,
    /// `[TOOL_CALLS] [{"name": ..., "arguments": {...}}]` or `[TOOL_CALLS]name[ARGS]{...}`: Mistral.
    Mistral,
    /// `{"name": ..., "parameters": {...}}` as the whole turn: Llama 3.
    Llama,
    /// `<｜tool▁call▁begin｜>NAME<｜tool▁sep｜>{...}<｜tool▁call▁end｜>`, or the name after the separator, then JSON in a code block: DeepSeek.
    DeepSeek,
    /// `to=functions.NAME<|channel|>commentary json<|message|>{...}<|call|>`: gpt-oss.
    Channels,
}

/// Number of tokens at the end of a prompt that are searched for an open thought.
pub(super) const TAIL: usize = 32;

impl ToolCallFormat {
    /// Returns the format that a chat template uses.
    pub(super) fn from_template(template: &str) -> Self {
        match template {
            _ if template.contains("<function=") => Self::Functions,
            _ if template.contains("<arg_key>") => Self::KeysAndValues,
            _ if template.contains("<tool_call>") => Self::Hermes,
            _ if template.contains("[TOOL_CALLS]") => Self::Mistral,
            _ if template.contains("<｜tool▁call▁begin｜>") => Self::DeepSeek,
            _ if template.contains("<|channel|>commentary") => Self::Channels,
            _ if template.contains("<|python_tag|>") || template.contains("\"parameters\":") => Self::Llama,
            _ => Self::Hermes,
        }
    }

    /// Returns the markers around each call, or around all calls.
    fn marks(self) -> Option<(&'static str, &'static str)> {
        match self {
            Self::Hermes | Self::Functions | Self::KeysAndValues => Some(("<tool_call>", "</tool_call>")),
            // All calls follow this marker.
            Self::Mistral => Some(("[TOOL_CALLS]", "</s>")),
            Self::DeepSeek => Some(("<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>")),
            Self::Channels => Some(("to=functions.", "<|call|>")),
            Self::Llama => None,
        }
    }

    /// Returns where the calls of a turn begin, after its thoughts.
    pub(super) fn begin(self, text: &str) -> Option<usize> {
        let open = match self {
            Self::Llama => return Some(text.find(['{', '<']).filter(|&at| text[..at].trim().is_empty()).unwrap_or(0)),
            Self::DeepSeek if text.contains("<｜tool▁calls▁begin｜>") => "<｜tool▁calls▁begin｜>",
            Self::Channels if text.contains("<|start|>assistant to=functions.") => "<|start|>assistant to=functions.",
            _ => self.marks()?.0,
        };
        let thought = thoughts::end(text);
        text[thought..].find(open).map(|at| thought + at).or_else(|| text.find(open))
    }

    /// Returns the name and arguments of each well-formed call in a turn that follows a prompt, given the tools' JSON schemas. Thoughts are
    /// skipped.
    pub(super) fn found(self, prompt: &str, turn: &str, tools: &Value) -> Vec<(String, String)> {
        let text = match self {
            Self::Llama if turn.trim_start().starts_with(['{', '<']) && !turn.trim_start().starts_with("<think") => {
                turn.to_owned()
            }
            _ => thoughts::left_out(prompt, turn, self.marks()),
        };
        let mut calls = match self {
            Self::Hermes => hermes(&text),
            Self::Functions => tagged::functions(&text, tools),
            Self::KeysAndValues => tagged::keys_and_values(&text, tools),
            Self::Mistral => mistral(&text),
            Self::Llama => llama(&text),
            Self::DeepSeek => deepseek(&text),
            Self::Channels => channels(&text),
        };
        calls.truncate(MOST);
        calls
    }
}

/// Returns the calls that a text contains, in any of the formats.
pub fn calls_in(text: &str) -> Vec<(String, String)> {
    use ToolCallFormat::{Channels, DeepSeek, Functions, Hermes, KeysAndValues, Llama, Mistral};
    let formats = [Hermes, Functions, KeysAndValues, Mistral, Llama, DeepSeek, Channels];
    formats.into_iter().flat_map(|format| format.found("", text, &Value::Null)).collect()
}

/// Returns the first JSON value of a text, and the text after it.
fn first_value(text: &str) -> Option<(Value, &str)> {
    let mut values = Deserializer::from_str(text).into_iter::<Value>();
    let value = values.next()?.ok()?;
    Some((value, &text[values.byte_offset()..]))
}

/// Returns the name and arguments of a call; the arguments may be JSON text.
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

fn deepseek(text: &str) -> Vec<(String, String)> {
    let inside = text.split("<｜tool▁call▁begin｜>").skip(1).filter_map(|part| Some(part.split_once("<｜tool▁call▁end｜>")?.0));
    let read = |part: &str| {
        let (before, after) = part.split_once("<｜tool▁sep｜>")?;
        // Older models write the kind of call before the separator.
        let (name, arguments) = after.split_once("\n```json").unwrap_or((before, after));
        let name = name.trim();
        (!name.is_empty()).then_some(())?;
        Some((name.to_owned(), first_value(arguments)?.0.to_string()))
    };
    inside.filter_map(read).collect()
}

fn channels(text: &str) -> Vec<(String, String)> {
    let read = |part: &str| {
        let (header, after) = part.split_once("<|message|>")?;
        let end = header.find(|c: char| c.is_whitespace() || c == '<').unwrap_or(header.len());
        let name = &header[..end];
        (!name.is_empty()).then_some(())?;
        Some((name.to_owned(), first_value(after)?.0.to_string()))
    };
    text.split("to=functions.").skip(1).filter_map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::ToolCallFormat;

    pub(super) fn found(format: ToolCallFormat, text: &str) -> Vec<(String, String)> {
        format.found("", text, &serde_json::Value::Null)
    }

    #[test]
    fn what_is_thought_is_no_call() {
        let call = "<tool_call>{\"name\": \"a\"}</tool_call>";
        let none = serde_json::Value::Null;
        assert!(found(ToolCallFormat::Hermes, &format!("<think>maybe {call}</think>42")).is_empty());
        assert_eq!(found(ToolCallFormat::Hermes, &format!("<think>maybe {call}</think>{call}")), one("a", "{}"));
        assert!(
            ToolCallFormat::Hermes
                .found("<|im_start|>assistant\n<think>\n", &format!("maybe {call}</think>42"), &none)
                .is_empty()
        );
        assert_eq!(ToolCallFormat::Hermes.found("<think>\n\n</think>\n\n", call, &none), one("a", "{}"));
        assert!(ToolCallFormat::Hermes.found("<think>\n", call, &none).is_empty());
        assert!(found(ToolCallFormat::Mistral, "[THINK][TOOL_CALLS]add[ARGS]{}[/THINK]3").is_empty());
        assert!(found(ToolCallFormat::Llama, "<think>{\"name\": \"a\", \"parameters\": {}}</think>3").is_empty());
        assert_eq!(found(ToolCallFormat::Llama, "<think>x</think>{\"name\": \"a\", \"parameters\": {}}"), one("a", "{}"));
        let said = "<|channel|>analysis<|message|>to=functions.a<|channel|>commentary json<|message|>{}<|call|><|end|>";
        assert!(found(ToolCallFormat::Channels, said).is_empty());
        let written =
            found(ToolCallFormat::Hermes, "<tool_call>{\"name\": \"a\", \"arguments\": {\"x\": \"<think>\"}}</tool_call>");
        assert_eq!(written, one("a", r#"{"x":"<think>"}"#));
    }

    fn one(name: &str, arguments: &str) -> Vec<(String, String)> {
        vec![(name.into(), arguments.into())]
    }

    #[test]
    fn calls_are_found_in_the_format_of_each_family() {
        let hermes =
            "Let me see.\n<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1, \"b\": [2]}}\n</tool_call><|im_end|>";
        assert_eq!(found(ToolCallFormat::Hermes, hermes), one("add", r#"{"a":1,"b":[2]}"#));
        let two = "<tool_call>{\"name\": \"a\"}</tool_call>\n<tool_call>{\"name\": \"b\", \"arguments\": \"{}\"}</tool_call>";
        assert_eq!(found(ToolCallFormat::Hermes, two), [("a".into(), "{}".into()), ("b".into(), "{}".into())]);
        let list = "[TOOL_CALLS] [{\"name\": \"add\", \"arguments\": {\"a\": 1}, \"id\": \"abcdefghi\"}]</s>";
        assert_eq!(found(ToolCallFormat::Mistral, list), one("add", r#"{"a":1}"#));
        assert_eq!(found(ToolCallFormat::Mistral, "[TOOL_CALLS]add[ARGS]{\"a\": 1}</s>"), one("add", r#"{"a":1}"#));
        assert_eq!(
            found(ToolCallFormat::Llama, "{\"name\": \"add\", \"parameters\": {\"a\": 1}}<|eot_id|>"),
            one("add", r#"{"a":1}"#)
        );
        let tagged = "<|python_tag|>{\"name\": \"a\", \"parameters\": {}}; {\"name\": \"b\", \"parameters\": {}}<|eom_id|>";
        assert_eq!(found(ToolCallFormat::Llama, tagged).len(), 2);
        let old = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>add\n```json\n{\"a\": 1}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>";
        assert_eq!(found(ToolCallFormat::DeepSeek, old), one("add", r#"{"a":1}"#));
        assert_eq!(
            found(ToolCallFormat::DeepSeek, "<｜tool▁call▁begin｜>add<｜tool▁sep｜>{\"a\": 1}<｜tool▁call▁end｜>"),
            one("add", r#"{"a":1}"#)
        );
        for text in [
            "<|channel|>analysis<|message|>hm<|end|><|start|>assistant to=functions.add<|channel|>commentary json<|message|>{\"a\": 1}<|call|>",
            "<|channel|>commentary to=functions.add <|constrain|>json<|message|>{\"a\": 1}<|call|>",
        ] {
            assert_eq!(found(ToolCallFormat::Channels, text), one("add", r#"{"a":1}"#));
        }
    }

    #[test]
    fn malformed_calls_are_text() {
        for text in ["<tool_call>{\"name\": \"a\"", "<tool_call>{\"name\": </tool_call>", "<tool_call>[]</tool_call>", "no", ""] {
            assert!(found(ToolCallFormat::Hermes, text).is_empty(), "{text}");
        }
        for text in ["[TOOL_CALLS] [{]", "[TOOL_CALLS]", "x [ARGS] {}"] {
            assert!(found(ToolCallFormat::Mistral, text).is_empty(), "{text}");
        }
        for text in ["I say {\"name\": \"a\"}", "{\"name\": 3}", "{\"name\"", "<|python_tag|>print(1)"] {
            assert!(found(ToolCallFormat::Llama, text).is_empty(), "{text}");
        }
        assert_eq!(found(ToolCallFormat::Hermes, &"<tool_call>{\"name\": \"a\"}</tool_call>".repeat(100)).len(), 64);
    }

    #[test]
    fn the_template_says_the_format() {
        assert_eq!(ToolCallFormat::from_template("... <tool_call> ... <|im_start|>"), ToolCallFormat::Hermes);
        assert_eq!(ToolCallFormat::from_template("... [TOOL_CALLS] ..."), ToolCallFormat::Mistral);
        assert_eq!(
            ToolCallFormat::from_template("... '{\"name\": ..., \"parameters\": ...' <|python_tag|>"),
            ToolCallFormat::Llama
        );
        assert_eq!(ToolCallFormat::from_template("... <tool_call>\\n<function= ..."), ToolCallFormat::Functions);
        assert_eq!(ToolCallFormat::from_template("... <tool_call>{name}<arg_key> ..."), ToolCallFormat::KeysAndValues);
        assert_eq!(ToolCallFormat::from_template("... <｜tool▁call▁begin｜> ..."), ToolCallFormat::DeepSeek);
        assert_eq!(ToolCallFormat::from_template("... <|channel|>commentary ..."), ToolCallFormat::Channels);
        assert_eq!(ToolCallFormat::from_template("plain"), ToolCallFormat::Hermes);
    }
}
