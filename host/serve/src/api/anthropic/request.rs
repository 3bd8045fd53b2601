//! Translates Anthropic's requests into OpenAI's form.

use super::super::error::{ApiError, Result, THREAD};
use super::super::fields::Fields;
use serde_json::{Map, Value, json};
use std::collections::HashMap;

/// Fields with the same meaning in both APIs, including vLLM's extensions.
const SAME: [&str; 15] = [
    "model",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "logit_bias",
    "stream",
    "seed",
    "stop_token_ids",
    "ignore_eos",
    "skip_special_tokens",
    "cache_salt",
    "chat_template_kwargs",
    "reasoning_effort",
];

/// Fields without effect on the sampled tokens.
const NEUTRAL: [&str; 3] = ["metadata", "service_tier", "cache_control"];

/// Returns the fields of the request in OpenAI's form, without a token limit.
pub(super) fn chat(mut fields: Fields) -> Result<Map<String, Value>> {
    let mut chat = Map::new();
    for name in SAME {
        chat.extend(fields.take(name).map(|value| (name.to_owned(), value)));
    }
    if let Some(stops) = fields.take("stop_sequences") {
        if !stops.as_array().is_some_and(|stops| stops.iter().all(Value::is_string)) {
            return Err(ApiError::field("stop_sequences", "must be a list of strings"));
        }
        chat.insert("stop".into(), stops);
    }
    let mut messages = AnthropicMessages::default();
    if let Some(system) = fields.take("system") {
        let content = texts(system, "system")?;
        messages.all.push(json!({"role": "system", "content": content}));
    }
    let all = match fields.take("messages") {
        Some(Value::Array(all)) if !all.is_empty() => all,
        _ => return Err(ApiError::field("messages", "must be a list of messages, not empty")),
    };
    for (i, message) in all.into_iter().enumerate() {
        messages.add(message, &format!("messages[{i}]"))?;
    }
    // A final assistant message is the beginning of the answer.
    if messages.all.last().is_some_and(|last| last["role"] == "assistant") {
        chat.insert("continue_final_message".into(), true.into());
    }
    chat.insert("messages".into(), messages.all.into());
    chat.extend(tools(&mut fields)?.map(|tools| ("tools".to_owned(), tools)));
    chat.extend(tool_choice(&mut fields)?.map(|choice| ("tool_choice".to_owned(), choice)));
    if fields.take(THREAD).is_some() {
        return Err(ApiError::field(THREAD, "not supported, since nothing is stored; send all messages"));
    }
    fields.only("thinking", &[json!({"type": "disabled"})])?;
    fields.ignore(&NEUTRAL);
    fields.finish()?;
    Ok(chat)
}

/// Messages translated so far.
#[derive(Default)]
struct AnthropicMessages {
    all: Vec<Value>,
    /// Tool names by the id of their call.
    called: HashMap<String, Value>,
}

impl AnthropicMessages {
    fn add(&mut self, message: Value, place: &str) -> Result<()> {
        let Value::Object(mut message) = message else { return Err(ApiError::field(place, "must be an object")) };
        let content = message.shift_remove("content").unwrap_or_default();
        let place = format!("{place}.content");
        match message.get("role").and_then(Value::as_str) {
            Some("user") => self.add_user(blocks(content, &place)?),
            Some("assistant") => self.add_assistant(blocks(content, &place)?),
            Some("system") => {
                let content = texts(content, &place)?;
                self.all.push(json!({"role": "system", "content": content}));
                Ok(())
            }
            _ => Err(ApiError::field(place.trim_end_matches(".content"), "its role must be \"user\" or \"assistant\"")),
        }
    }

    /// Adds text blocks and tool results in order.
    fn add_user(&mut self, blocks: Vec<ContentBlock>) -> Result<()> {
        let mut text = Vec::new();
        for mut block in blocks {
            match block.kind.as_str() {
                "text" => text.push(block.text()?),
                "tool_result" => {
                    self.flush(&mut text);
                    let id = block.string("tool_use_id")?;
                    let content = block.fields.shift_remove("content").filter(|content| !content.is_null());
                    let content = content.map(|content| texts(content, &format!("{}.content", block.place))).transpose()?;
                    let mut result = json!({"role": "tool", "tool_call_id": id, "content": content.unwrap_or_else(|| "".into())});
                    if let Some(name) = self.called.get(&id) {
                        result["name"] = name.clone();
                    }
                    if block.fields.get("is_error") == Some(&Value::Bool(true)) {
                        result["is_error"] = true.into();
                    }
                    self.all.push(result);
                }
                _ => return Err(block.unsupported()),
            }
        }
        self.flush(&mut text);
        Ok(())
    }

    fn flush(&mut self, text: &mut Vec<Value>) {
        if !text.is_empty() {
            self.all.push(json!({"role": "user", "content": std::mem::take(text)}));
        }
    }

    fn add_assistant(&mut self, blocks: Vec<ContentBlock>) -> Result<()> {
        let (mut text, mut calls, mut thoughts) = (Vec::new(), Vec::new(), String::new());
        for mut block in blocks {
            match block.kind.as_str() {
                "text" if calls.is_empty() => text.push(block.text()?),
                "text" => return Err(ApiError::field(&block.place, "a text after a tool_use is not supported")),
                "tool_use" => {
                    let (id, name) = (block.string("id")?, block.string("name")?);
                    let input = block.fields.shift_remove("input").unwrap_or_else(|| json!({}));
                    self.called.insert(id.clone(), name.as_str().into());
                    calls.push(json!({"id": id, "type": "function", "function": {"name": name, "arguments": input}}));
                }
                "thinking" => thoughts += &block.string("thinking")?,
                _ => return Err(block.unsupported()),
            }
        }
        let mut message = json!({"role": "assistant", "content": if text.is_empty() { Value::Null } else { text.into() }});
        if !calls.is_empty() {
            message["tool_calls"] = calls.into();
        }
        if !thoughts.is_empty() {
            message["reasoning_content"] = thoughts.into();
        }
        self.all.push(message);
        Ok(())
    }
}

/// Content block of a message.
struct ContentBlock {
    kind: String,
    fields: Map<String, Value>,
    place: String,
}

impl ContentBlock {
    fn string(&mut self, name: &str) -> Result<String> {
        match self.fields.shift_remove(name) {
            Some(Value::String(text)) => Ok(text),
            _ => Err(ApiError::field(&format!("{}.{name}", self.place), "must be a string")),
        }
    }

    fn text(&mut self) -> Result<Value> {
        Ok(json!({"type": "text", "text": self.string("text")?}))
    }

    fn unsupported(&self) -> ApiError {
        ApiError::field(&self.place, format!("a block of type {:?} is not supported here", self.kind))
    }
}

/// Parses a message's content: a text, or a non-empty list of blocks.
fn blocks(content: Value, place: &str) -> Result<Vec<ContentBlock>> {
    let wrong = || ApiError::field(place, "must be a string or a list of blocks, not empty");
    let all = match content {
        text @ Value::String(_) => vec![json!({"type": "text", "text": text})],
        Value::Array(all) if !all.is_empty() => all,
        _ => return Err(wrong()),
    };
    let read = |(i, block): (usize, Value)| {
        let Value::Object(fields) = block else { return Err(wrong()) };
        let kind = fields.get("type").and_then(Value::as_str).unwrap_or_default().to_owned();
        Ok(ContentBlock { kind, fields, place: format!("{place}[{i}]") })
    };
    all.into_iter().enumerate().map(read).collect()
}

/// Parses content that may contain only text.
fn texts(content: Value, place: &str) -> Result<Value> {
    let text = |mut block: ContentBlock| if block.kind == "text" { block.text() } else { Err(block.unsupported()) };
    if content.as_array().is_some_and(Vec::is_empty) {
        return Ok("".into());
    }
    blocks(content, place)?.into_iter().map(text).collect()
}

fn tools(fields: &mut Fields) -> Result<Option<Value>> {
    let all = match fields.take("tools") {
        None => return Ok(None),
        Some(Value::Array(all)) => all,
        Some(_) => return Err(ApiError::field("tools", "must be a list of tools")),
    };
    let read = |(i, tool): (usize, Value)| {
        if !tool["type"].is_null() && tool["type"] != "custom" {
            return Err(ApiError::field(&format!("tools[{i}].type"), "not supported; leave it out, or set it to \"custom\""));
        }
        let schema = tool.get("input_schema").cloned().unwrap_or_else(|| json!({"type": "object", "properties": {}}));
        let mut function = json!({"name": tool["name"]});
        if !tool["description"].is_null() {
            function["description"] = tool["description"].clone();
        }
        function["parameters"] = schema;
        Ok(json!({"type": "function", "function": function}))
    };
    all.into_iter().enumerate().map(read).collect::<Result<_>>().map(Some)
}

fn tool_choice(fields: &mut Fields) -> Result<Option<Value>> {
    let Some(choice) = fields.object("tool_choice")? else { return Ok(None) };
    let mut choice = Fields::from_object(choice, "tool_choice.");
    let kind = choice.text("type")?;
    choice.only("disable_parallel_tool_use", &[json!(false)])?;
    match kind.as_deref() {
        Some(kind @ ("auto" | "none")) => Ok(Some(kind.into())),
        _ => Err(ApiError::field("tool_choice", "its type must be \"auto\" or \"none\"; a call can't be forced")),
    }
}
