//! Fields of a conversation: messages, tools, and the chat template's variables.

use super::app::App;
use super::error::{ApiError, Result};
use super::fields::Fields;
use super::final_message;
use crate::config::json;
use crate::data::{ChatMessage, TemplateVariables, Tokenizer};
use crate::session;
use serde_json::{Map, Value};

/// Conversation as the tokens before the model's turn.
pub(super) struct TokenizedConversation {
    pub tokens: Vec<u32>,
    /// Tools that the model may call; null if none.
    pub tools: Value,
}

/// Removes and tokenizes the conversation.
pub(super) fn conversation(app: &App, fields: &mut Fields) -> Result<TokenizedConversation> {
    let tokenizer = &app.tokenizer;
    if !tokenizer.has_chat() {
        let remedy = if app.session.is_some() {
            "give the run one with --chat-template-path"
        } else {
            "start the server with --chat-template"
        };
        let detail = format!("this model's tokenizer has no chat template; use /v1/completions, or {remedy}");
        return Err(ApiError::invalid(detail));
    }
    let mut messages = messages(fields)?;
    let tools = tools(tokenizer, fields)?;
    let mut kwargs = fields.object("chat_template_kwargs")?.unwrap_or_default();
    if let Some(effort) = fields.take("reasoning_effort") {
        // Passed on to the template, as in vLLM.
        kwargs.entry("reasoning_effort").or_insert(effort);
    }
    let continues = fields.flag("continue_final_message")?;
    let generate = fields.flag_or("add_generation_prompt", !continues)?;
    if continues && generate {
        return Err(ApiError::field("add_generation_prompt", "must be false together with continue_final_message"));
    }
    let special = fields.flag("add_special_tokens")?;
    for name in ["functions", "function_call", "chat_template", "documents"] {
        fields.only(name, &[Value::Bool(false)])?;
    }
    let extras = TemplateVariables { tools: tools.clone(), kwargs };
    if let Some(session) = app.session.as_ref().filter(|_| generate && !continues) {
        let new = session::ConversationPrompt { messages, extras };
        let tokens = match session.continuation_prompt(tokenizer, &new)? {
            Some(tokens) => tokens,
            None => tokenizer.encode(&tokenizer.render_chat(&new.messages, true, &new.extras)?, special)?,
        };
        session.announce_prompt(&tokens, new);
        return Ok(TokenizedConversation { tokens, tools });
    }
    let text = if continues {
        final_message::render(tokenizer, &mut messages, &extras)?
    } else {
        tokenizer.render_chat(&messages, generate, &extras)?
    };
    Ok(TokenizedConversation { tokens: tokenizer.encode(&text, special)?, tools })
}

fn messages(fields: &mut Fields) -> Result<Vec<ChatMessage>> {
    let wrong = |detail: &str| ApiError::field("messages", detail);
    let mut all = match fields.take("messages") {
        Some(Value::Array(all)) if !all.is_empty() => all,
        Some(_) => return Err(wrong("must be a list of messages, not empty")),
        None => return Err(wrong("is missing")),
    };
    all.iter_mut().for_each(with_arguments);
    let read = |(i, message): (usize, Value)| {
        serde_json::from_value(message).map_err(|e| ApiError::field(&format!("messages[{i}]"), e.to_string()))
    };
    all.into_iter().enumerate().map(read).collect()
}

/// Parses the arguments of a message's calls: clients send them as JSON text, and chat templates expect objects.
fn with_arguments(message: &mut Value) {
    let calls = message.get_mut("tool_calls").and_then(Value::as_array_mut).into_iter().flatten();
    for arguments in calls.filter_map(|call| call.get_mut("function")?.get_mut("arguments")) {
        let object = arguments.as_str().and_then(|text| match text.trim() {
            "" => Some(Map::new()),
            text => json::object(text).ok(),
        });
        if let Some(object) = object {
            *arguments = Value::Object(object);
        }
    }
}

/// Removes and returns the tools that the model may call; null if there are none, or `tool_choice` forbids calls.
fn tools(tokenizer: &Tokenizer, fields: &mut Fields) -> Result<Value> {
    let tools = match fields.take("tools") {
        None => Vec::new(),
        Some(Value::Array(tools)) => tools,
        Some(_) => return Err(ApiError::field("tools", "must be a list of tools")),
    };
    fields.only("parallel_tool_calls", &[Value::Bool(true)])?;
    if let Some(i) = tools.iter().position(|tool| !tool["function"]["name"].is_string()) {
        return Err(ApiError::field(&format!("tools[{i}]"), "must be {\"type\": \"function\", \"function\": {\"name\": ...}}"));
    }
    match fields.take("tool_choice") {
        None => {}
        Some(Value::String(choice)) if choice == "auto" => {}
        Some(Value::String(choice)) if choice == "none" => return Ok(Value::Null),
        Some(_) => return Err(ApiError::field("tool_choice", "must be \"auto\" or \"none\"; a call can't be forced")),
    }
    if tools.is_empty() {
        return Ok(Value::Null);
    }
    tokenizer.check_tools()?;
    Ok(tools.into())
}
