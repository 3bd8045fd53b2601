//! Messages of a conversation, in the forms that datasets use.

use crate::config::{json, printable};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value as Json};
use std::ops::Deref;

/// Names under which templates read the reasoning of a message.
pub(super) const REASONING: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];

/// Message of a conversation.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(try_from = "WrittenMessage")]
pub struct ChatMessage {
    /// Role of the author: system, user or assistant.
    pub role: String,
    /// Text of the message.
    pub content: MessageContent,
    /// Other fields for the template: tool calls, reasoning.
    #[serde(flatten)]
    pub rest: Map<String, Json>,
}

/// Content of a message: a text or null, which some templates distinguish from an empty text. DeepSeek's, for example, writes a turn's tool
/// calls only if its content is null. All other code treats null as an empty text.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(transparent)]
pub struct MessageContent(Option<String>);

impl Deref for MessageContent {
    type Target = str;

    fn deref(&self) -> &str {
        self.0.as_deref().unwrap_or_default()
    }
}

impl From<String> for MessageContent {
    fn from(text: String) -> Self {
        Self(Some(text))
    }
}

impl From<&str> for MessageContent {
    fn from(text: &str) -> Self {
        Self(Some(text.to_owned()))
    }
}

impl<'de> Deserialize<'de> for MessageContent {
    /// Reads a text, null, or a list of text parts, which are concatenated.
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

/// Message in the form of datasets.
#[derive(Deserialize)]
#[serde(expecting = "a message with `role` and `content`")]
struct WrittenMessage {
    role: Option<String>,
    /// Role in ShareGPT's form.
    from: Option<String>,
    #[serde(default, alias = "value", deserialize_with = "present")]
    content: Option<MessageContent>,
    #[serde(flatten)]
    rest: Map<String, Json>,
}

/// Distinguishes null from a missing field.
fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<MessageContent>, D::Error> {
    MessageContent::deserialize(deserializer).map(Some)
}

impl TryFrom<WrittenMessage> for ChatMessage {
    type Error = String;

    fn try_from(WrittenMessage { role, from, content, mut rest }: WrittenMessage) -> Result<Self, Self::Error> {
        let shared = from.is_some();
        let role = match (role, from) {
            (Some(role), None) => standard(role),
            (None, Some(from)) => role_of(from),
            (Some(_), Some(_)) => return Err("has both `role` and `from`".into()),
            (None, None) => return Err("missing field `role`".into()),
        };
        if let Some(calls) = rest.get_mut("tool_calls") {
            *calls = parsed(calls.take())?;
        }
        call_of_old(&mut rest)?;
        // A turn that consists of tool calls has no text.
        let calls = || rest.contains_key("tool_calls").then(MessageContent::default);
        let content = content.or_else(calls).ok_or("missing field `content`")?;
        if shared && role == CALL {
            return calling(&content, rest);
        }
        Ok(Self { role, content, rest })
    }
}

/// Maximum length of a printed content, in bytes.
const SHOWN: usize = 64;

/// Role of a message whose content is a tool call, in ShareGPT's and LLaMA-Factory's datasets.
const CALL: &str = "function_call";

/// Roles that chat templates know, in lower case.
const STANDARD: [&str; 5] = ["system", "user", "assistant", "tool", "developer"];

/// Role of a tool's result in OpenAI's older form of calls.
const FUNCTION: &str = "function";

/// Normalizes the value of `role`: standard roles are lower-cased; others are kept, since the template may know them.
fn standard(name: String) -> String {
    let lower = name.trim().to_lowercase();
    match lower.as_str() {
        FUNCTION => "tool".to_owned(),
        role if STANDARD.contains(&role) => lower,
        _ => name,
    }
}

/// Roles in the `from` field of ShareGPT's and LLaMA-Factory's datasets, in lower case, with their names in chat templates.
const ROLES: [(&str, &str); 20] = [
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
    (FUNCTION, "tool"),
    (CALL, CALL),
    ("tool_call", CALL),
    ("developer", "developer"),
];

/// Translates the value of `from` to the role in chat templates; unknown values are kept.
fn role_of(name: String) -> String {
    known_role(&name).map_or(name, str::to_owned)
}

/// Returns the role in chat templates for a known value of `from`.
fn known_role(name: &str) -> Option<&'static str> {
    let lower = name.trim().to_lowercase().replace([' ', '-'], "_");
    ROLES.iter().find(|(spelled, _)| *spelled == lower).map(|(_, role)| *role)
}

/// Returns an assistant message for a content that is a tool call: a JSON object with a name and arguments, or a list of such objects,
/// optionally after the reasoning.
fn calling(content: &MessageContent, mut rest: Map<String, Json>) -> Result<ChatMessage, String> {
    let role = "assistant".to_owned();
    if content.trim().is_empty() && rest.get("tool_calls").is_some_and(|calls| !calls.is_null()) {
        return Ok(ChatMessage { role, content: MessageContent::default(), rest });
    }
    let (thought, text) = match content.split_once("</think>") {
        Some((thought, text)) => (MessageContent::from(format!("{thought}</think>")), text),
        None => (MessageContent::default(), &**content),
    };
    let wrong = |said: String| {
        format!("its role is \"{CALL}\", but its content is not a JSON object with \"name\" and \"arguments\"{said}")
    };
    let calls = match json::value(text.trim()).map_err(|e| wrong(format!(": {e}")))? {
        Json::Array(calls) if !calls.is_empty() => calls,
        one => vec![one],
    };
    let calls = calls.iter().map(|call| call_of(call).ok_or_else(|| wrong(String::new()))).collect::<Result<Json, String>>()?;
    rest.insert("tool_calls".into(), calls);
    Ok(ChatMessage { role, content: thought, rest })
}

/// Returns a call in the form of chat templates, from an object with a name and arguments (or arguments as JSON text); `None` if it has no
/// name.
fn call_of(call: &Json) -> Option<Json> {
    let function = call.get("function").filter(|function| function.is_object()).unwrap_or(call);
    let name = function.get("name").and_then(Json::as_str)?;
    let arguments = match function.get("arguments").or_else(|| function.get("parameters")) {
        None | Some(Json::Null) => Json::Object(Map::new()),
        Some(Json::String(text)) => json::object(text).map_or_else(|_| Json::from(text.as_str()), Json::Object),
        Some(arguments) => arguments.clone(),
    };
    Some(serde_json::json!({"type": "function", "function": {"name": name, "arguments": arguments}}))
}

/// Parses a message's calls. Each, and the list as a whole, may be JSON text; calls that are other text are left to the template.
fn parsed(calls: Json) -> Result<Json, String> {
    let read = |text: &str| match text.trim() {
        "" => Ok(Json::Null),
        text => json::value(text).map_err(|e| format!("its `tool_calls` are text that is not JSON: {e}")),
    };
    let calls = if let Json::String(text) = &calls { read(text)? } else { calls };
    let Json::Array(calls) = calls else { return Ok(calls) };
    let item = |call: Json| match call.as_str().map(json::object) {
        Some(Ok(object)) => Json::Object(object),
        _ => call,
    };
    Ok(calls.into_iter().map(item).collect())
}

/// Converts the single call of a message in OpenAI's older form.
fn call_of_old(rest: &mut Map<String, Json>) -> Result<(), String> {
    let has_calls = rest.get("tool_calls").is_some_and(|calls| !calls.is_null());
    let Some(old) = rest.get(CALL).filter(|old| !old.is_null() && !has_calls) else { return Ok(()) };
    let wrong = || format!("its `{CALL}` is not a JSON object with \"name\" and \"arguments\"");
    let object = if let Json::String(text) = old { json::value(text).map_err(|_| wrong())? } else { old.clone() };
    let call = call_of(&object).ok_or_else(wrong)?;
    rest.remove(CALL);
    rest.insert("tool_calls".into(), Json::Array(vec![call]));
    Ok(())
}

/// Returns whether an object is exactly a message: a role and a content, both texts. In ShareGPT's form, the role must be a known one.
pub(super) fn is_plain_message(object: &Map<String, Json>) -> bool {
    let text = |key: &str| object.get(key).and_then(Json::as_str);
    let is_shared = || text("from").is_some_and(|from| known_role(from).is_some()) && text("value").is_some();
    object.len() == 2 && (text("role").is_some() && text("content").is_some() || is_shared())
}

/// Parses a text that is exactly a JSON list of messages; also returns its size. An empty list is not a conversation, as it may be an
/// answer.
pub(super) fn conversation_in(text: &str, most: u64) -> Option<(Json, json::JsonSize)> {
    let (value, size) = text.trim_start().starts_with('[').then(|| json::sized(text, most).ok())??;
    let read = Vec::<ChatMessage>::deserialize(&value).ok()?;
    (!read.is_empty()).then_some((value, size))
}

/// Returns whether a text begins like a list of messages, in JSON or in Python's notation.
pub(super) fn begins_conversation(text: &str) -> bool {
    let mut rest = text;
    for open in [&['['][..], &['{'], &['"', '\'']] {
        let Some(after) = rest.trim_start().strip_prefix(open) else { return false };
        rest = after;
    }
    ["role", "content", "from", "value"].iter().any(|key| rest.starts_with(key))
}

/// Returns whether a text looks like a list of messages but is not JSON, such as the output of Python's `str()`.
pub(super) fn is_broken_conversation(text: &str) -> bool {
    let has = |key: &str| text.contains(&format!("'{key}'")) || text.contains(&format!("\"{key}\""));
    let has_keys = has("role") && has("content") || has("from") && has("value");
    begins_conversation(text) && has_keys && json::value(text).is_err()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_a_turn_says_may_be_in_parts() {
        let read = |content: Json| {
            let message: Result<ChatMessage, _> = serde_json::from_value(json!({"role": "user", "content": content}));
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
        let message: ChatMessage = serde_json::from_value(written.clone()).unwrap();
        assert_eq!((&*message.content, serde_json::to_value(&message).unwrap()), ("", written));
        let silent: ChatMessage = serde_json::from_value(json!({"role": "assistant", "tool_calls": []})).unwrap();
        assert_eq!(silent, message);
        let missing = serde_json::from_value::<ChatMessage>(json!({"role": "assistant"})).unwrap_err().to_string();
        assert!(missing.contains("missing field `content`"), "{missing}");
    }

    #[test]
    fn roles_are_read_in_every_spelling_of_datasets() {
        let role = |name: &str| serde_json::from_value::<ChatMessage>(json!({"from": name, "value": "a"})).unwrap().role;
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
            ("function", "tool"),
            ("critic", "critic"),
            ("Critic", "Critic"),
            ("ipython", "ipython"),
        ] {
            assert_eq!(role(spelled), wanted, "{spelled}");
        }
    }

    #[test]
    fn roles_that_a_template_may_know_stay_as_they_are() {
        let read = |row: Json| serde_json::from_value::<ChatMessage>(row).map_err(|e| e.to_string());
        for (written, wanted) in [
            ("USER", "user"),
            ("Assistant", "assistant"),
            ("Developer", "developer"),
            ("observation", "observation"),
            ("tool_call", "tool_call"),
            ("function_call", "function_call"),
            ("human", "human"),
            ("Critic", "Critic"),
        ] {
            assert_eq!(read(json!({"role": written, "content": "a"})).unwrap().role, wanted, "{written}");
        }
        assert!(read(json!({"content": "a"})).unwrap_err().contains("missing field `role`"));
        assert!(read(json!({"role": "user", "from": "human", "content": "a"})).unwrap_err().contains("both `role` and `from`"));
    }

    #[test]
    fn older_calls_become_tool_calls() {
        let read = |row: Json| serde_json::from_value::<ChatMessage>(row).map_err(|e| e.to_string());
        let call = json!([{"type": "function", "function": {"name": "f", "arguments": {"x": 1}}}]);
        let written = json!({"name": "f", "arguments": "{\"x\": 1}"});
        let wanted = json!({"role": "assistant", "content": null, "tool_calls": call});
        for old in [written.clone(), written.to_string().into()] {
            for row in [
                json!({"role": "assistant", "content": null, "function_call": old}),
                json!({"role": "assistant", "function_call": old}),
            ] {
                assert_eq!(serde_json::to_value(read(row).unwrap()).unwrap(), wanted);
            }
        }
        let result = read(json!({"role": "function", "name": "f", "content": "3"})).unwrap();
        assert_eq!((result.role.as_str(), &result.rest["name"]), ("tool", &json!("f")));
        assert!(
            read(json!({"role": "assistant", "content": "", "function_call": "f(1)"})).unwrap_err().contains("`function_call`")
        );
        // Null: a table has the column for other messages.
        let none = read(json!({"role": "user", "content": "q", "function_call": null})).unwrap();
        assert!(!none.rest.contains_key("tool_calls"));
        // Each call is JSON text.
        let texts = read(json!({"role": "assistant", "content": "", "tool_calls": [call[0].to_string()]})).unwrap();
        assert_eq!(texts.rest["tool_calls"], call);
        let own = read(json!({"role": "assistant", "content": "", "tool_calls": ["f(1)"]})).unwrap();
        assert_eq!(own.rest["tool_calls"], json!(["f(1)"]));
        let odd = read(json!({"role": "assistant", "content": "", "tool_calls": "f(1)"})).unwrap_err();
        assert!(odd.contains("`tool_calls` are text that is not JSON"), "{odd}");
    }

    #[test]
    fn a_turn_that_is_a_call_becomes_the_assistants_tool_calls() {
        let read = |content: &str| {
            serde_json::from_value::<ChatMessage>(json!({"from": "function_call", "value": content})).map_err(|e| e.to_string())
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
        assert_eq!(serde_json::from_value::<ChatMessage>(text).unwrap().rest["tool_calls"], json!([{"name": "f"}]));
        let odd = json!({"role": "assistant", "content": "", "tool_calls": "f(1)"});
        assert!(
            serde_json::from_value::<ChatMessage>(odd)
                .unwrap_err()
                .to_string()
                .contains("`tool_calls` are text that is not JSON")
        );
    }
}
