//! The turns of a conversation, as datasets write them.

use crate::config::printable;
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
    #[serde(alias = "from", deserialize_with = "role")]
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
    type Error = &'static str;

    fn try_from(WrittenMessage { role, content, rest }: WrittenMessage) -> Result<Self, Self::Error> {
        // A turn with only tool calls has no text.
        let calls = || rest.contains_key("tool_calls").then(Content::default);
        let content = content.or_else(calls).ok_or("missing field `content`")?;
        Ok(Self { role, content, rest })
    }
}

/// Maximum length of a printed content, in bytes.
const SHOWN: usize = 64;

/// ShareGPT's role names work too.
fn role<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let name = String::deserialize(deserializer)?;
    Ok(match name.as_str() {
        "human" => "user".to_owned(),
        "gpt" => "assistant".to_owned(),
        _ => name,
    })
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
}
