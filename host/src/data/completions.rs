//! Datasets of given completions: a prompt with its completion, a whole text, or a whole
//! conversation.

use super::prompts::text_or_chat;
use super::rows::{self, Place, Row};
use super::{Dataset, Prompt, Result};
use serde_json::{Map, Value};

/// One row of a dataset of completions.
#[derive(Clone, Debug)]
pub struct CompletionRow {
    /// Where it stands.
    pub place: Place,
    /// What was asked; none where all of the text is learned.
    pub prompt: Option<Prompt>,
    /// The answer, of the prompt's kind.
    pub completion: Prompt,
    /// All other columns.
    pub columns: Map<String, Value>,
}

/// Reads a whole dataset of completions: columns `prompt` and `completion`, or `text`, or
/// `messages`.
///
/// # Errors
/// Names the file and the first row that can't be used, with the columns that are there.
pub fn read_completions(dataset: &Dataset) -> Result<Vec<CompletionRow>> {
    let row = |(place, columns): Row| completion(&place, columns).map_err(|detail| place.wrong(detail));
    rows::read(dataset)?.into_iter().map(row).collect()
}

fn completion(place: &Place, mut columns: Map<String, Value>) -> std::result::Result<CompletionRow, String> {
    let found = rows::names(&columns);
    if let Some(value) = columns.shift_remove("completion") {
        let completion = text_or_chat("completion", value)?;
        let missing = || format!("has a column \"completion\" but no \"prompt\"; it has {found}");
        let prompt = text_or_chat("prompt", columns.shift_remove("prompt").ok_or_else(missing)?)?;
        if matches!(prompt, Prompt::Chat(_)) != matches!(completion, Prompt::Chat(_)) {
            return Err("prompt and completion must be both strings or both lists of messages".into());
        }
        return Ok(CompletionRow { place: place.clone(), prompt: Some(prompt), completion, columns });
    }
    for name in ["text", "messages"] {
        if let Some(value) = columns.shift_remove(name) {
            return Ok(CompletionRow { place: place.clone(), prompt: None, completion: text_or_chat(name, value)?, columns });
        }
    }
    Err(format!("has neither \"prompt\" and \"completion\", nor \"text\", nor \"messages\"; it has {found}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(row: Value) -> std::result::Result<CompletionRow, String> {
        let Value::Object(columns) = row else { panic!("a test gives an object") };
        completion(&Place::first(), columns)
    }

    #[test]
    fn rows_are_answers_texts_or_conversations() {
        let answered = read(json!({"prompt": "p", "completion": "c", "id": 4})).unwrap();
        assert!(matches!(answered.prompt, Some(Prompt::Text(p)) if p == "p") && answered.columns["id"] == 4);
        assert!(read(json!({"text": "t"})).unwrap().prompt.is_none());
        assert!(read(json!({"messages": [{"role": "user", "content": "q"}]})).is_ok());
        assert!(read(json!({"completion": "c"})).unwrap_err().contains("no \"prompt\""));
        assert!(read(json!({"body": "t"})).unwrap_err().contains("body"));
    }
}
