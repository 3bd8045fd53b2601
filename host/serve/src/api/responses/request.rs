//! Translates a request into one of `/v1/chat/completions`.

use super::super::error::{ApiError, Result};
use super::super::fields::Fields;
use serde_json::{Map, Value, json};
use std::collections::HashMap;

/// Fields with the same meaning in both APIs, including vLLM's extensions.
const SAME: [&str; 18] = [
    "model",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "logit_bias",
    "seed",
    "stop",
    "stop_token_ids",
    "ignore_eos",
    "skip_special_tokens",
    "stream",
    "stream_options",
    "tool_choice",
    "parallel_tool_calls",
    "cache_salt",
    "chat_template_kwargs",
];

/// Fields without effect on the sampled tokens.
const NEUTRAL: [&str; 6] =
    ["user", "metadata", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"];

/// Removes the fields of the request; returns them translated for `/v1/chat/completions`.
pub(super) fn chat(fields: &mut Fields) -> Result<Map<String, Value>> {
    let mut chat = Map::new();
    for name in SAME {
        chat.extend(fields.take(name).map(|value| (name.to_owned(), value)));
    }
    chat.extend(fields.take("max_output_tokens").map(|limit| ("max_tokens".to_owned(), limit)));
    let mut messages = ResponsesMessages::default();
    if let Some(instructions) = fields.text("instructions")? {
        messages.all.push(json!({"role": "system", "content": instructions}));
    }
    match fields.take("input") {
        Some(text @ Value::String(_)) => messages.all.push(json!({"role": "user", "content": text})),
        Some(Value::Array(items)) if !items.is_empty() => {
            for (i, item) in items.into_iter().enumerate() {
                messages.add(item, &format!("input[{i}]"))?;
            }
        }
        Some(_) => return Err(ApiError::field("input", "must be a string or a list of items, not empty")),
        None => return Err(ApiError::field("input", "is missing")),
    }
    chat.insert("messages".into(), messages.all.into());
    chat.extend(tools(fields)?.map(|tools| ("tools".to_owned(), tools)));
    chat.extend(effort(fields)?.map(|effort| ("reasoning_effort".to_owned(), effort)));
    check_rest(fields)?;
    Ok(chat)
}

/// Rejects unsupported fields that would change the answer.
fn check_rest(fields: &mut Fields) -> Result<()> {
    for name in ["previous_response_id", "conversation", "prompt"] {
        if fields.take(name).is_some() {
            return Err(ApiError::field(name, "not supported, since nothing is stored; send the whole conversation as input"));
        }
    }
    fields.only("store", &[json!(false)])?;
    fields.only("background", &[json!(false)])?;
    fields.only("truncation", &[json!("disabled")])?;
    fields.only("top_logprobs", &[json!(0)])?;
    fields.only("include", &[json!([]), json!(["reasoning.encrypted_content"])])?;
    let mut text = Fields::from_object(fields.object("text")?.unwrap_or_default(), "text.");
    text.only("format", &[json!({"type": "text"})])?;
    text.only("verbosity", &[json!("medium")])?;
    text.finish()?;
    fields.ignore(&NEUTRAL);
    Ok(())
}

fn effort(fields: &mut Fields) -> Result<Option<Value>> {
    let mut reasoning = Fields::from_object(fields.object("reasoning")?.unwrap_or_default(), "reasoning.");
    let effort = reasoning.take("effort");
    reasoning.finish()?;
    Ok(effort)
}

/// Messages translated so far.
#[derive(Default)]
struct ResponsesMessages {
    all: Vec<Value>,
    /// Function names by the id of their call.
    called: HashMap<String, String>,
}

impl ResponsesMessages {
    fn add(&mut self, item: Value, place: &str) -> Result<()> {
        let Value::Object(item) = item else { return Err(ApiError::field(place, "must be an object")) };
        let mut item = ResponsesInputItem { fields: item, place };
        match item.kind() {
            "message" => self.add_message(&mut item),
            "function_call" => self.add_call(&mut item),
            "function_call_output" => {
                let id = item.string("call_id")?;
                let mut message = json!({"role": "tool", "tool_call_id": id, "content": item.texts("output")?});
                if let Some(name) = self.called.get(&id) {
                    message["name"] = name.as_str().into();
                }
                self.all.push(message);
                Ok(())
            }
            kind => Err(ApiError::field(place, format!("an item of type {kind:?} is not supported"))),
        }
    }

    fn add_message(&mut self, item: &mut ResponsesInputItem<'_>) -> Result<()> {
        let role = match item.string("role")?.as_str() {
            "user" => "user",
            "assistant" => "assistant",
            // Chat templates know the developer's role by its older name.
            "system" | "developer" => "system",
            _ => return Err(ApiError::field(item.place, "its role must be user, assistant, system or developer")),
        };
        let content = item.texts("content")?;
        self.all.push(json!({"role": role, "content": content}));
        Ok(())
    }

    /// Adds a call to the assistant's turn that its text or an earlier call has begun, or else begins a turn.
    fn add_call(&mut self, item: &mut ResponsesInputItem<'_>) -> Result<()> {
        let (id, name, arguments) = (item.string("call_id")?, item.string("name")?, item.string("arguments")?);
        let call = json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}});
        self.called.insert(id, name);
        match self.all.last_mut().filter(|last| last["role"] == "assistant") {
            Some(turn) => match turn["tool_calls"].as_array_mut() {
                Some(calls) => calls.push(call),
                None => turn["tool_calls"] = json!([call]),
            },
            None => self.all.push(json!({"role": "assistant", "content": null, "tool_calls": [call]})),
        }
        Ok(())
    }
}

/// Item of the input.
struct ResponsesInputItem<'a> {
    fields: Map<String, Value>,
    place: &'a str,
}

impl ResponsesInputItem<'_> {
    /// Returns the type of the item: a message by default.
    fn kind(&self) -> &str {
        self.fields.get("type").map_or("message", |kind| kind.as_str().unwrap_or_default())
    }

    fn string(&mut self, name: &str) -> Result<String> {
        match self.fields.shift_remove(name) {
            Some(Value::String(text)) => Ok(text),
            _ => Err(ApiError::field(&format!("{}.{name}", self.place), "must be a string")),
        }
    }

    /// Removes and returns a text, or a list of text parts.
    fn texts(&mut self, name: &str) -> Result<Value> {
        let place = format!("{}.{name}", self.place);
        let part = |(i, part): (usize, Value)| match (part["type"].as_str(), &part["text"]) {
            (Some("input_text" | "output_text" | "text"), text @ Value::String(_)) => Ok(json!({"type": "text", "text": text})),
            (kind, _) => {
                let kind = kind.unwrap_or("none");
                Err(ApiError::field(
                    &format!("{place}[{i}]"),
                    format!("a part of type {kind:?} is not supported, or lacks its text"),
                ))
            }
        };
        match self.fields.shift_remove(name) {
            Some(text @ Value::String(_)) => Ok(text),
            Some(Value::Array(parts)) => parts.into_iter().enumerate().map(part).collect(),
            _ => Err(ApiError::field(&place, "must be a string or a list of parts")),
        }
    }
}

/// Removes and returns the functions that the model may call. Strict schemas are not enforced.
fn tools(fields: &mut Fields) -> Result<Option<Value>> {
    let all = match fields.take("tools") {
        None => return Ok(None),
        Some(Value::Array(all)) => all,
        Some(_) => return Err(ApiError::field("tools", "must be a list of tools")),
    };
    let read = |(i, tool): (usize, Value)| {
        if tool["type"] != "function" {
            return Err(ApiError::field(&format!("tools[{i}].type"), "not supported; only functions are"));
        }
        let mut function = Map::new();
        for name in ["name", "description", "parameters"] {
            if !tool[name].is_null() {
                function.insert(name.into(), tool[name].clone());
            }
        }
        Ok(json!({"type": "function", "function": function}))
    };
    all.into_iter().enumerate().map(read).collect::<Result<_>>().map(Some)
}
