//! A prompt and a row of a dataset of prompts.

use super::message::{conversation_in, is_broken_conversation, is_plain_message};
use super::rows::{Location, RowColumns, VALUES};
use super::{ChatMessage, Result, TemplateVariables};
use crate::config::json;
use serde::Deserialize;
use serde_json::{Map, Value};

/// A prompt for the model, or what it answers.
#[derive(Clone, Debug, PartialEq)]
pub enum TextOrChat {
    /// A text: a prompt that the model continues, or its continuation.
    Text(String),
    /// A conversation that it answers.
    Chat(Vec<ChatMessage>),
}

impl TextOrChat {
    /// Returns whether it is an empty text or has no messages.
    pub(super) fn is_empty(&self) -> bool {
        match self {
            Self::Text(text) => text.is_empty(),
            Self::Chat(messages) => messages.is_empty(),
        }
    }

    /// Template variables from a row's other columns.
    pub(super) fn extras(&self, columns: &Map<String, Value>) -> std::result::Result<TemplateVariables, String> {
        match self {
            Self::Text(_) => Ok(TemplateVariables::default()),
            Self::Chat(_) => TemplateVariables::from_columns(columns),
        }
    }
}

/// One row of a dataset.
#[derive(Clone, Debug)]
pub struct PromptRow {
    /// Its number in the dataset, from 0.
    pub row: usize,
    /// Its location in the file.
    pub place: Location,
    /// The prompt.
    pub prompt: TextOrChat,
    /// The template's variables.
    pub extras: TemplateVariables,
    /// All other columns.
    pub columns: Map<String, Value>,
}

impl PromptRow {
    /// Reads one row.
    ///
    /// # Errors
    /// If it has no usable prompt.
    pub fn from_columns(row: usize, place: &Location, columns: RowColumns) -> Result<Self> {
        let (prompt, extras, columns) = prompt(columns).map_err(|detail| place.row_error(detail))?;
        Ok(Self { row, place: place.clone(), prompt, extras, columns })
    }
}

pub(super) fn prompt(
    mut columns: Map<String, Value>,
) -> std::result::Result<(TextOrChat, TemplateVariables, Map<String, Value>), String> {
    let (found, is_there) = (super::rows::names(&columns), columns.contains_key("prompt"));
    let value = super::rows::take(&mut columns, "prompt").ok_or_else(|| match super::rows::absent(is_there, "prompt") {
        absent if is_there => absent,
        absent => format!("{absent}; it has {found}{}", super::rows::advice(&columns, &["prompt"], true)),
    })?;
    let prompt = not_empty("prompt", text_or_chat("prompt", value)?)?;
    let extras = prompt.extras(&columns)?;
    Ok((prompt, extras, columns))
}

/// Maximum size of a tokenized text in bytes: a prompt, a completion, a document, a conversation. Tokenizing takes about 200
/// bytes for each.
pub(super) const LONGEST: usize = 4 << 20;

fn short_enough(column: &str, bytes: usize) -> std::result::Result<(), String> {
    let mib = |bytes: usize| bytes as f64 / f64::from(1 << 20);
    if bytes > LONGEST {
        let (has, most) = (mib(bytes), LONGEST >> 20);
        return Err(format!("column {column:?} has {has:.1} MiB of text; at most {most} MiB can be tokenized at once"));
    }
    Ok(())
}

/// Columns that are conversations, never plain text.
const CONVERSATIONS: [&str; 2] = ["messages", "conversations"];

/// Returns the conversation that a column's text is, as JSON; none if it is plain text: a column `text` always, others unless they are
/// a JSON list of messages as a whole, or one message.
fn conversation_of(column: &str, text: &str) -> std::result::Result<Option<Value>, String> {
    if column == "text" {
        return Ok(None);
    }
    if let Some((conversation, _)) = conversation_in(text, VALUES) {
        return Ok(Some(conversation));
    }
    let form = "messages must be JSON, from json.dumps() and not str(), with \"role\" and \"content\"";
    let one = if text.trim_start().starts_with('{') { json::object(text).ok() } else { None };
    if CONVERSATIONS.contains(&column) {
        let one = one.map(Value::Object).filter(|one| ChatMessage::deserialize(one).is_ok());
        let plain = format!("to learn plain text, read the column as \"text\" (--columns text={column})");
        return one.map(Some).ok_or_else(|| format!("column {column:?} is text, but not a list of messages: {form}; {plain}"));
    }
    if is_broken_conversation(text) {
        return Err(format!("column {column:?} is text that begins like a list of messages but is not JSON: {form}"));
    }
    // Another object may be an answer.
    Ok(one.filter(is_plain_message).map(Value::Object))
}

/// Reads a string, a list of messages with `role` and `content` (or `from` and `value`, as in ShareGPT), or one such message. Either
/// may be JSON text.
pub(super) fn text_or_chat(column: &str, value: Value) -> std::result::Result<TextOrChat, String> {
    let value = match value {
        Value::Object(_) => Value::Array(vec![value]),
        Value::String(text) => match conversation_of(column, &text)? {
            Some(one @ Value::Object(_)) => Value::Array(vec![one]),
            Some(all) => all,
            None => Value::String(text),
        },
        Value::Array(items) if items.iter().any(Value::is_string) => items.into_iter().map(message_of).collect(),
        other => other,
    };
    match value {
        Value::String(text) => {
            short_enough(column, text.len())?;
            Ok(TextOrChat::Text(text))
        }
        Value::Array(messages) => {
            let messages: Vec<ChatMessage> = serde_json::from_value(Value::Array(messages))
                .map_err(|e| format!("column {column:?} is not a list of messages with \"role\" and \"content\": {e}"))?;
            if messages.is_empty() {
                return Err(format!("column {column:?} is an empty conversation"));
            }
            short_enough(column, messages.iter().map(|message| message.content.len()).sum())?;
            Ok(TextOrChat::Chat(messages))
        }
        _ => Err(format!("column {column:?} is neither a string nor a list of messages")),
    }
}

/// Returns the JSON object that an item of a list is as text; another item stays as it is.
fn message_of(item: Value) -> Value {
    match &item {
        Value::String(text) => json::object(text).map_or(item, Value::Object),
        _ => item,
    }
}

/// Puts the column `system`, which LLaMA-Factory's ShareGPT files have beside `conversations`, in front of these, unless they begin
/// with a system turn of their own.
pub(super) fn with_system(conversation: TextOrChat, columns: &RowColumns) -> std::result::Result<TextOrChat, String> {
    let system = columns.get("system").and_then(Value::as_str).filter(|text| !text.is_empty());
    match (conversation, system) {
        (TextOrChat::Chat(mut messages), Some(system)) if messages.first().is_some_and(|first| first.role != "system") => {
            messages.insert(0, ChatMessage { role: "system".into(), content: system.into(), ..ChatMessage::default() });
            short_enough("conversations", messages.iter().map(|message| message.content.len()).sum())?;
            Ok(TextOrChat::Chat(messages))
        }
        (other, _) => Ok(other),
    }
}

/// Returns a text unless it is empty.
pub(super) fn not_empty(column: &str, prompt: TextOrChat) -> std::result::Result<TextOrChat, String> {
    match prompt {
        TextOrChat::Text(text) if text.is_empty() => Err(format!("column {column:?} is empty")),
        prompt => Ok(prompt),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{UnusableRows, parse_prompts, read_prompts};
    use proptest::prelude::*;
    use std::io::Write;
    use std::path::Path;

    fn read_text(text: &str) -> std::result::Result<Vec<PromptRow>, String> {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        let mut refused = UnusableRows::default();
        let rows = read_prompts(&file.path().into(), &mut refused).map_err(|e| e.to_string())?;
        refused.warning(rows.len()).map(|_| rows).map_err(|e| e.to_string())
    }

    #[test]
    fn reads_texts_conversations_and_further_columns() {
        let rows = read_text("{\"prompt\": \"a\", \"answer\": 7}\n\n{\"prompt\": [{\"role\": \"user\", \"content\": \"b\"}]}\n")
            .unwrap();
        assert_eq!(rows[0].columns["answer"], 7);
        assert!(rows[1].place.row_error("x").to_string().ends_with(":3: x"));
        assert_eq!(
            rows[1].prompt,
            TextOrChat::Chat(vec![ChatMessage { role: "user".into(), content: "b".into(), ..ChatMessage::default() }])
        );
    }

    #[test]
    fn names_the_line_and_the_columns() {
        let broken = read_text("{\"prompt\": \"a\"}\n{\"prompt\": \n").unwrap_err();
        assert!(broken.contains(":2: is not a line of JSON"), "{broken}");
        let missing = read_text("{\"question\": \"a\", \"answer\": 1}\n").unwrap_err();
        assert!(missing.contains(":1:") && missing.contains("question, answer"), "{missing}");
        assert!(read_text("\n\n").unwrap_err().contains("no rows"));
    }

    #[test]
    fn texts_that_would_take_gigabytes_to_tokenize_are_refused() {
        let long = "a ".repeat(LONGEST / 2);
        assert!(read_text(&serde_json::json!({ "prompt": long }).to_string()).is_ok());
        let longer = format!("{long}a");
        let chat = serde_json::json!([{"role": "user", "content": long}, {"role": "user", "content": "a"}]);
        for prompt in [longer.into(), chat] {
            let error = read_text(&serde_json::json!({ "prompt": prompt }).to_string()).unwrap_err();
            assert!(error.contains(":1: column \"prompt\" has 4.0 MiB of text"), "{error}");
        }
    }

    #[test]
    fn conversations_may_be_json_text() {
        use serde_json::json;
        let talk = json!([{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]);
        let shared = json!([{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]);
        let chat = text_or_chat("messages", talk.clone()).unwrap();
        for column in ["messages", "conversations", "prompt", "completion", "chosen", "rejected"] {
            for text in [talk.to_string(), format!(" {talk:#}\n"), shared.to_string()] {
                assert_eq!(text_or_chat(column, text.into()).unwrap(), chat, "{column}");
            }
            let items: Value = talk.as_array().unwrap().iter().map(|message| Value::from(message.to_string())).collect();
            assert_eq!(text_or_chat(column, items).unwrap(), chat, "{column}");
        }
        assert!(matches!(text_or_chat("messages", talk[0].to_string().into()).unwrap(), TextOrChat::Chat(one) if one.len() == 1));
        // What only begins like one is text, except where a column is nothing else.
        let texts = [
            "[1] is a list",
            "[]",
            "[{\"role\": \"user\"}]",
            "[{\"value\": 1}] it is",
            "hello",
            "{\"a\": 1}",
            "{\"role\": 1}",
            "",
        ];
        for text in texts {
            assert_eq!(text_or_chat("prompt", text.into()), Ok(TextOrChat::Text(text.into())));
            for column in CONVERSATIONS {
                let error = text_or_chat(column, text.into()).unwrap_err();
                assert!(error.contains("is text, but not a list of messages") && error.contains("--columns text="), "{error}");
            }
        }
        assert_eq!(text_or_chat("text", talk.to_string().into()), Ok(TextOrChat::Text(talk.to_string())));
        // One message and nothing else.
        for column in ["prompt", "completion", "chosen", "rejected"] {
            let one = text_or_chat(column, talk[0].to_string().into()).unwrap();
            assert!(matches!(one, TextOrChat::Chat(one) if one.len() == 1), "{column}");
            let more = json!({"role": "user", "content": "q", "id": 3}).to_string();
            assert_eq!(text_or_chat(column, more.clone().into()), Ok(TextOrChat::Text(more)));
        }
    }

    #[test]
    fn messages_that_python_printed_are_named_by_row() {
        let printed = "[{'role': 'user', 'content': \"what's this\"}]";
        let rows = format!("{{\"prompt\": \"a\"}}\n{}\n", serde_json::json!({ "prompt": printed }));
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(rows.as_bytes()).unwrap();
        let mut refused = UnusableRows::default();
        assert_eq!(read_prompts(&file.path().into(), &mut refused).unwrap().len(), 1);
        let warning = refused.warning(1).unwrap().unwrap();
        assert!(warning.contains(":2: column \"prompt\" is text that begins like a list of messages"), "{warning}");
        let text = serde_json::json!({"text": printed})["text"].clone();
        assert_eq!(text_or_chat("text", text), Ok(TextOrChat::Text(printed.into())));
    }

    proptest! {
        #[test]
        fn no_line_makes_the_reader_panic(line in "\\PC{0,60}", shaped in "[{}\\[\\]\":,a-z0-9prompt ]{0,60}") {
            let path = Path::new("p");
            let _ = parse_prompts(path, line.as_bytes());
            let _ = parse_prompts(path, shaped.as_bytes());
        }
    }
}
