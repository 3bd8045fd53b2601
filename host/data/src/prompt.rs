//! Prompts, and rows of prompt datasets.

use super::message::{conversation_in, is_broken_conversation, is_plain_message};
use super::rows::{Location, RowColumns, VALUES};
use super::{ChatMessage, Result, TemplateVariables};
use crate::config::json;
use serde::Deserialize;
use serde_json::{Map, Value};

/// Prompt or answer.
#[derive(Clone, Debug, PartialEq)]
pub enum TextOrChat {
    /// Text: a prompt to continue, or its continuation.
    Text(String),
    /// Conversation: messages to answer, or the answer.
    Chat(Vec<ChatMessage>),
}

impl TextOrChat {
    /// Returns whether the text is empty or there are no messages.
    pub(super) fn is_empty(&self) -> bool {
        match self {
            Self::Text(text) => text.is_empty(),
            Self::Chat(messages) => messages.is_empty(),
        }
    }

    /// Returns the template's variables from the row's other columns.
    pub(super) fn extras(&self, columns: &Map<String, Value>) -> std::result::Result<TemplateVariables, String> {
        match self {
            Self::Text(_) => Ok(TemplateVariables::default()),
            Self::Chat(_) => TemplateVariables::from_columns(columns),
        }
    }
}

/// Row of a prompt dataset.
#[derive(Clone, Debug)]
pub struct PromptRow {
    /// Index of the row in the dataset.
    pub row: usize,
    /// Location of the row in its file.
    pub place: Location,
    /// Prompt.
    pub prompt: TextOrChat,
    /// Variables of the chat template.
    pub extras: TemplateVariables,
    /// Other columns.
    pub columns: Map<String, Value>,
}

impl PromptRow {
    /// Reads one row.
    ///
    /// # Errors
    /// If the row has no usable prompt.
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

/// Maximum size in bytes of a text to tokenize: a prompt, a completion, a document, a conversation. Tokenizing needs about 200 bytes of
/// memory per byte.
pub(super) const LONGEST: usize = 4 << 20;

fn short_enough(column: &str, bytes: usize) -> std::result::Result<(), String> {
    let mib = |bytes: usize| bytes as f64 / f64::from(1 << 20);
    if bytes > LONGEST {
        let (has, most) = (mib(bytes), LONGEST >> 20);
        return Err(format!("column {column:?} has {has:.1} MiB of text; at most {most} MiB can be tokenized at once"));
    }
    Ok(())
}

/// Columns that always hold conversations, never plain text.
const CONVERSATIONS: [&str; 2] = ["messages", "conversations"];

/// Returns the conversation that a column holds as JSON text; `None` for plain text. The column `text` is always plain; others are, unless
/// they are exactly a JSON list of messages, or one message.
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
    // Any other object may be an answer.
    Ok(one.filter(is_plain_message).map(Value::Object))
}

/// Parses a string, a list of messages with `role` and `content` (or `from` and `value`, as in ShareGPT), or a single message. Lists and
/// messages may be JSON text.
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

/// Parses an item of a list that is a JSON object as text; other items are returned unchanged.
fn message_of(item: Value) -> Value {
    match &item {
        Value::String(text) => json::object(text).map_or(item, Value::Object),
        _ => item,
    }
}

/// Puts the column `system`, which LLaMA-Factory's ShareGPT files have next to `conversations`, in front of a conversation, unless it
/// begins with a system message.
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

/// Rejects an empty text or conversation.
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
        // Text that only begins like a conversation is plain text, except in columns for conversations.
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
        // Exactly one message.
        let one = |message: &Value| TextOrChat::Chat(vec![serde_json::from_value(message.clone()).unwrap()]);
        for column in ["prompt", "completion", "chosen", "rejected"] {
            assert_eq!(text_or_chat(column, talk[0].to_string().into()).unwrap(), one(&talk[0]), "{column}");
            assert_eq!(text_or_chat(column, shared[0].to_string().into()).unwrap(), one(&talk[0]), "{column}");
            for other in [
                json!({"role": "user", "content": "q", "id": 3}),
                json!({"from": "human", "value": "q", "id": 3}),
                json!({"from": "human", "value": 3}),
                json!({"from": "EUR", "value": "q"}),
            ] {
                assert_eq!(text_or_chat(column, other.to_string().into()), Ok(TextOrChat::Text(other.to_string())));
            }
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
