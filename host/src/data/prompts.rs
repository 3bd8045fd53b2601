//! Prompt datasets in JSON lines: a column `prompt`, a string or a conversation, and any others,
//! which the rewards see.

use super::{Error, Message, Result};
use serde_json::{Map, Value};
use std::io::{BufRead, BufReader};
use std::path::Path;

/// What the model is asked.
#[derive(Clone, Debug, PartialEq)]
pub enum Prompt {
    /// A text that the model continues.
    Text(String),
    /// A conversation that it answers.
    Chat(Vec<Message>),
}

/// One row of a dataset.
#[derive(Clone, Debug)]
pub struct PromptRow {
    /// Line in the file, from 1.
    pub line: usize,
    /// What the model is asked.
    pub prompt: Prompt,
    /// All other columns.
    pub columns: Map<String, Value>,
}

/// Reads a whole prompt dataset; empty lines are passed over.
///
/// # Errors
/// Names the file and line of the first row that can't be used, with the columns that are there.
pub fn read_prompts(path: &Path) -> Result<Vec<PromptRow>> {
    let io = |source| Error::Io { path: path.to_owned(), source };
    let file = std::fs::File::open(path).map_err(io)?;
    if file.metadata().map_err(io)?.is_dir() {
        return Err(Error::Dataset { path: path.to_owned(), detail: "is a folder; a dataset is a file of JSON lines".into() });
    }
    parse_prompts(path, BufReader::new(file))
}

/// [`read_prompts`] from any reader; `path` stands in the errors.
pub fn parse_prompts(path: &Path, reader: impl BufRead) -> Result<Vec<PromptRow>> {
    let io = |source| Error::Io { path: path.to_owned(), source };
    let mut rows = Vec::new();
    for (i, line) in reader.lines().enumerate() {
        let wrong = |detail| Error::Row { path: path.to_owned(), line: i + 1, detail };
        let line = line.map_err(|e| match e.kind() {
            std::io::ErrorKind::InvalidData => wrong("is not UTF-8 text".into()),
            _ => io(e),
        })?;
        if !line.trim().is_empty() {
            rows.push(parse_row(i + 1, &line).map_err(wrong)?);
        }
    }
    if rows.is_empty() {
        return Err(Error::Dataset { path: path.to_owned(), detail: "holds no prompts".into() });
    }
    Ok(rows)
}

fn parse_row(line: usize, text: &str) -> std::result::Result<PromptRow, String> {
    let value: Value = serde_json::from_str(text).map_err(|e| {
        // serde_json counts lines too, and here there is but one.
        let said = e.to_string();
        let said = said.split(" at line ").next().unwrap_or_default();
        format!("is not a line of JSON: {said} at column {}", e.column())
    })?;
    let Value::Object(mut columns) = value else {
        return Err("is not a JSON object".into());
    };
    let found = columns.keys().cloned().collect::<Vec<_>>().join(", ");
    let prompt = match columns.shift_remove("prompt") {
        Some(Value::String(text)) if text.is_empty() => return Err("column \"prompt\" is empty".into()),
        Some(Value::String(text)) => Prompt::Text(text),
        Some(messages @ Value::Array(_)) => {
            let messages: Vec<Message> = serde_json::from_value(messages)
                .map_err(|e| format!("column \"prompt\" is no list of messages with \"role\" and \"content\": {e}"))?;
            if messages.is_empty() {
                return Err("column \"prompt\" is an empty conversation".into());
            }
            Prompt::Chat(messages)
        }
        Some(_) => return Err("column \"prompt\" is neither a string nor a list of messages".into()),
        None => return Err(format!("has no column \"prompt\"; it has {}", if found.is_empty() { "none" } else { &found })),
    };
    Ok(PromptRow { line, prompt, columns })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::Write;

    fn read_text(text: &str) -> std::result::Result<Vec<PromptRow>, String> {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        read_prompts(file.path()).map_err(|e| e.to_string())
    }

    #[test]
    fn reads_texts_conversations_and_further_columns() {
        let rows = read_text("{\"prompt\": \"a\", \"answer\": 7}\n\n{\"prompt\": [{\"role\": \"user\", \"content\": \"b\"}]}\n")
            .unwrap();
        assert_eq!(rows[0].columns["answer"], 7);
        assert_eq!(rows[1].line, 3);
        assert_eq!(rows[1].prompt, Prompt::Chat(vec![Message { role: "user".into(), content: "b".into() }]));
    }

    #[test]
    fn names_the_line_and_the_columns() {
        let broken = read_text("{\"prompt\": \"a\"}\n{\"prompt\": \n").unwrap_err();
        assert!(broken.contains(":2: is not a line of JSON"), "{broken}");
        let missing = read_text("{\"question\": \"a\", \"answer\": 1}\n").unwrap_err();
        assert!(missing.contains(":1:") && missing.contains("question, answer"), "{missing}");
        assert!(read_text("\n\n").unwrap_err().contains("no prompts"));
    }

    proptest! {
        #[test]
        fn no_line_makes_the_reader_panic(line in "\\PC{0,60}", shaped in "[{}\\[\\]\":,a-z0-9prompt ]{0,60}") {
            let _ = parse_row(1, &line);
            let _ = parse_row(1, &shaped);
        }
    }
}
