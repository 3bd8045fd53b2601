//! The turns of a conversation, as datasets write them.

use crate::config::{json, printable};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value as Json};
use std::ops::Deref;

/// One turn of a conversation.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(try_from = "WrittenMessage")]
pub struct Message {
    /// Who speaks: system, user or assistant.
    pub role: String,
    /// What is said.
    pub content: Content,
    /// Other fields for the template: tool calls, reasoning.
    #[serde(flatten)]
    pub rest: Map<String, Json>,
}

/// What a turn says: a text or null, which templates tell from an empty text. DeepSeek's, for one, writes a turn's tool calls only if
/// its content is null. Everything else reads null as an empty text.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Content(Option<String>);

impl Deref for Content {
    type Target = str;

    fn deref(&self) -> &str {
        self.0.as_deref().unwrap_or_default()
    }
}

impl From<String> for Content {
    fn from(text: String) -> Self {
        Self(Some(text))
    }
}

impl From<&str> for Content {
    fn from(text: &str) -> Self {
        Self(Some(text.to_owned()))
    }
}

impl<'de> Deserialize<'de> for Content {
    /// Reads a text, null, or a list of parts with texts, which are joined.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let parts = match Json::deserialize(deserializer)? {
            Json::Null => return Ok(Self(None)),
            Json::String(text) => return Ok(text.into()),
            Json::Array(parts) => parts,
            other => vec![other],
        };
        let text = |part: Json| match part {
            Json::String(text) => Ok(text),
            part if part["type"].as_str().is_none_or(|kind| kind == "text") && part["text"].is_string() => {
                Ok(part["text"].as_str().unwrap_or_default().to_owned())
            }
            other => {
                let other = printable(&other.to_string(), SHOWN);
                Err(D::Error::custom(format!(
                    "its `content` has {other}; it must be a text, or a list of parts of type \"text\""
                )))
            }
        };
        parts.into_iter().map(text).collect::<Result<String, _>>().map(Self::from)
    }
}

/// A turn as datasets have it.
#[derive(Deserialize)]
#[serde(expecting = "a message with `role` and `content`")]
struct WrittenMessage {
    #[serde(alias = "from")]
    role: String,
    #[serde(default, alias = "value", deserialize_with = "present")]
    content: Option<Content>,
    #[serde(flatten)]
    rest: Map<String, Json>,
}

/// Tells null from a missing field.
fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Content>, D::Error> {
    Content::deserialize(deserializer).map(Some)
}

impl TryFrom<WrittenMessage> for Message {
    type Error = String;

    fn try_from(WrittenMessage { role, content, mut rest }: WrittenMessage) -> Result<Self, Self::Error> {
        if let Some(Json::String(text)) = rest.get("tool_calls") {
            let calls = match text.trim() {
                "" => Json::Null,
                text => json::value(text).map_err(|e| format!("its `tool_calls` are text that is not JSON: {e}"))?,
            };
            rest.insert("tool_calls".into(), calls);
        }
        let role = role_of(role);
        // A turn with only tool calls has no text.
        let calls = || rest.contains_key("tool_calls").then(Content::default);
        let content = content.or_else(calls).ok_or("missing field `content`")?;
        if role == CALL {
            return calling(&content, rest);
        }
        Ok(Self { role, content, rest })
    }
}

/// Maximum length of a printed content, in bytes.
const SHOWN: usize = 64;

/// The role of a turn whose content is a tool call, in ShareGPT's and LLaMA-Factory's datasets.
const CALL: &str = "function_call";

/// Roles as datasets spell them, in lower case, and as chat templates do.
const ROLES: [(&str, &str); 19] = [
    ("system", "system"),
    ("user", "user"),
    ("human", "user"),
    ("prompter", "user"),
    ("assistant", "assistant"),
    ("gpt", "assistant"),
    ("chatgpt", "assistant"),
    ("bot", "assistant"),
    ("chatbot", "assistant"),
    ("model", "assistant"),
    ("ai", "assistant"),
    ("tool", "tool"),
    ("observation", "tool"),
    ("tool_response", "tool"),
    ("tool_result", "tool"),
    ("function_response", "tool"),
    (CALL, CALL),
    ("tool_call", CALL),
    ("developer", "developer"),
];

/// Returns a role as chat templates spell it; one that is not known stays as it is.
fn role_of(name: String) -> String {
    let lower = name.trim().to_lowercase().replace([' ', '-'], "_");
    ROLES.iter().find(|(spelled, _)| *spelled == lower).map_or(name, |(_, role)| (*role).to_owned())
}

/// Returns the assistant's turn with the calls that a content is: a JSON object with a name and arguments, or a list of them, after its
/// reasoning if it has one.
fn calling(content: &Content, mut rest: Map<String, Json>) -> Result<Message, String> {
    let role = "assistant".to_owned();
    if content.trim().is_empty() && rest.get("tool_calls").is_some_and(|calls| !calls.is_null()) {
        return Ok(Message { role, content: Content::default(), rest });
    }
    let (thought, text) = match content.split_once("</think>") {
        Some((thought, text)) => (Content::from(format!("{thought}</think>")), text),
        None => (Content::default(), &**content),
    };
    let wrong = |said: String| {
        format!("its role is \"{CALL}\", but its content is not a JSON object with \"name\" and \"arguments\"{said}")
    };
    let calls = match json::value(text.trim()).map_err(|e| wrong(format!(": {e}")))? {
        Json::Array(calls) if !calls.is_empty() => calls,
        one => vec![one],
    };
    let call = |call: Json| {
        let function = call.get("function").filter(|function| function.is_object()).unwrap_or(&call);
        let name = function.get("name").and_then(Json::as_str).ok_or_else(|| wrong(String::new()))?;
        let arguments = match function.get("arguments").or_else(|| function.get("parameters")) {
            None | Some(Json::Null) => Json::Object(Map::new()),
            Some(Json::String(text)) => json::object(text).map_or_else(|_| Json::from(text.as_str()), Json::Object),
            Some(arguments) => arguments.clone(),
        };
        Ok(serde_json::json!({"type": "function", "function": {"name": name, "arguments": arguments}}))
    };
    let calls = calls.into_iter().map(call).collect::<Result<Json, String>>()?;
    rest.insert("tool_calls".into(), calls);
    Ok(Message { role, content: thought, rest })
}

/// Returns a text as a conversation, with what it takes: a JSON list of messages and nothing else. An empty list may be an answer.
pub(super) fn conversation_in(text: &str, most: u64) -> Option<(Json, json::Size)> {
    let (value, size) = text.trim_start().starts_with('[').then(|| json::sized(text, most).ok())??;
    let read = Vec::<Message>::deserialize(&value).ok()?;
    (!read.is_empty()).then_some((value, size))
}

/// Returns whether a text begins like a list of messages, in JSON or as Python prints it.
pub(super) fn begins_conversation(text: &str) -> bool {
    let mut rest = text;
    for open in [&['['][..], &['{'], &['"', '\'']] {
        let Some(after) = rest.trim_start().strip_prefix(open) else { return false };
        rest = after;
    }
    ["role", "content", "from", "value"].iter().any(|key| rest.starts_with(key))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_a_turn_says_may_be_in_parts() {
        let read = |content: Json| {
            let message: Result<Message, _> = serde_json::from_value(json!({"role": "user", "content": content}));
            message.map(|message| message.content).map_err(|e| e.to_string())
        };
        assert_eq!(read(json!([{"type": "text", "text": "a "}, {"text": "b"}, "c"])), Ok("a bc".into()));
        assert_eq!(read(json!([])), Ok("".into()));
        for wrong in [json!([{"type": "image", "text": "x"}]), json!([[1]]), 7.into()] {
            let refused = read(wrong).unwrap_err();
            assert!(refused.contains("its `content` has") && refused.contains("\"text\""), "{refused}");
        }
    }

    #[test]
    fn null_is_an_empty_text_that_stays_null() {
        let written = json!({"role": "assistant", "content": null, "tool_calls": []});
        let message: Message = serde_json::from_value(written.clone()).unwrap();
        assert_eq!((&*message.content, serde_json::to_value(&message).unwrap()), ("", written));
        let silent: Message = serde_json::from_value(json!({"role": "assistant", "tool_calls": []})).unwrap();
        assert_eq!(silent, message);
        let missing = serde_json::from_value::<Message>(json!({"role": "assistant"})).unwrap_err().to_string();
        assert!(missing.contains("missing field `content`"), "{missing}");
    }

    #[test]
    fn roles_are_read_in_every_spelling_of_datasets() {
        let role = |name: &str| serde_json::from_value::<Message>(json!({"from": name, "value": "a"})).unwrap().role;
        for (spelled, wanted) in [
            ("human", "user"),
            ("USER", "user"),
            ("Human", "user"),
            ("gpt", "assistant"),
            ("ASSISTANT", "assistant"),
            ("model", "assistant"),
            ("bot", "assistant"),
            ("System", "system"),
            ("observation", "tool"),
            ("TOOL", "tool"),
            ("Function-Response", "tool"),
            ("critic", "critic"),
            ("Critic", "Critic"),
            ("ipython", "ipython"),
        ] {
            assert_eq!(role(spelled), wanted, "{spelled}");
        }
    }

    #[test]
    fn a_turn_that_is_a_call_becomes_the_assistants_tool_calls() {
        let read = |content: &str| {
            serde_json::from_value::<Message>(json!({"from": "function_call", "value": content})).map_err(|e| e.to_string())
        };
        let call = |name: &str, arguments: Json| json!({"type": "function", "function": {"name": name, "arguments": arguments}});
        let one = read(r#" {"name": "f", "arguments": {"x": [1]}} "#).unwrap();
        assert_eq!(
            serde_json::to_value(&one).unwrap(),
            json!({"role": "assistant", "content": null, "tool_calls": [call("f", json!({"x": [1]}))]})
        );
        let calls = |content: &str| read(content).unwrap().rest["tool_calls"].clone();
        assert_eq!(
            calls(r#"[{"name": "f"}, {"function": {"name": "g", "arguments": "{\"y\": 2}"}}]"#),
            json!([call("f", json!({})), call("g", json!({"y": 2}))])
        );
        let thought = read(r#"<think>hm</think>{"name": "f", "parameters": {}}"#).unwrap();
        assert_eq!((&*thought.content, &thought.rest["tool_calls"]), ("<think>hm</think>", &json!([call("f", json!({}))])));
        for wrong in ["", "f(1)", "{}", "[1]", r#"{"name": 3}"#] {
            assert!(read(wrong).unwrap_err().contains("is not a JSON object with \"name\""), "{wrong}");
        }
        let text = json!({"role": "assistant", "content": "", "tool_calls": "[{\"name\": \"f\"}]"});
        assert_eq!(serde_json::from_value::<Message>(text).unwrap().rest["tool_calls"], json!([{"name": "f"}]));
        let odd = json!({"role": "assistant", "content": "", "tool_calls": "f(1)"});
        assert!(
            serde_json::from_value::<Message>(odd).unwrap_err().to_string().contains("`tool_calls` are text that is not JSON")
        );
    }
}
