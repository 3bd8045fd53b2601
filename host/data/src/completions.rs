//! Datasets with given completions: a prompt with its completion, a text, or a conversation.

use super::prompt::{not_empty, text_or_chat, with_system};
use super::rows::LocatedRow;
use super::rows::{self, Location, RowColumns};
use super::{Dataset, Result, TemplateVariables, TextOrChat, TokenizedRow, UnusableRows};
use serde_json::{Map, Value};

/// Row of a dataset of completions.
#[derive(Clone, Debug)]
pub struct CompletionRow {
    /// Index of the row in the dataset.
    pub row: usize,
    /// Location of the row in its file.
    pub place: Location,
    /// Prompt; `None` if the full text is learned.
    pub prompt: Option<TextOrChat>,
    /// Completion, of the same kind as the prompt.
    pub completion: TextOrChat,
    /// Tokens of the row, if the dataset has them; then there is no text.
    pub tokens: Option<TokenizedRow>,
    /// Variables of the chat template.
    pub extras: TemplateVariables,
    /// Other columns.
    pub columns: Map<String, Value>,
}

/// Reads all rows of a dataset, skipping unusable ones. Columns: `input_ids`, which take precedence; or `prompt` and `completion`, `text`,
/// or `messages` (`conversations` in ShareGPT).
///
/// # Errors
/// Names what is damaged or, if `refused` is strict, the first unusable row.
pub fn read_completions(dataset: &Dataset, refused: &mut UnusableRows) -> Result<Vec<CompletionRow>> {
    let read = |(row, (place, columns)): (usize, LocatedRow)| (row, CompletionRow::from_columns(row, &place, columns));
    refused.collect_usable(rows::read(dataset)?.into_iter().enumerate().map(read))
}

impl CompletionRow {
    /// Reads one row.
    ///
    /// # Errors
    /// If the row is not a usable completion.
    pub fn from_columns(row: usize, place: &Location, mut columns: RowColumns) -> Result<Self> {
        let read = || match TokenizedRow::take(&mut columns)? {
            None => completion(row, place, columns),
            tokens => {
                let (place, completion, extras) = (place.clone(), TextOrChat::Text(String::new()), TemplateVariables::default());
                Ok(Self { row, place, prompt: None, completion, tokens, extras, columns })
            }
        };
        read().map_err(|detail| place.row_error(detail))
    }
}

impl CompletionRow {
    /// Returns a conversation without a prompt as one whose prompt is all that comes before the assistant's last turn.
    #[must_use]
    pub fn split_last_turn(mut self) -> Self {
        if let (None, TextOrChat::Chat(messages)) = (&self.prompt, &mut self.completion)
            && messages.len() > 1
            && messages.last().is_some_and(|last| last.role == "assistant")
        {
            let last = messages.split_off(messages.len() - 1);
            self.prompt = Some(TextOrChat::Chat(std::mem::replace(messages, last)));
        }
        self
    }
}

/// Reads one row.
pub(super) fn completion(
    row: usize,
    place: &Location,
    mut columns: Map<String, Value>,
) -> std::result::Result<CompletionRow, String> {
    let found = super::rows::names(&columns);
    let null =
        ["completion", "conversations", "messages", "text"].into_iter().find(|name| columns.get(*name) == Some(&Value::Null));
    if let Some(value) = super::rows::take(&mut columns, "completion") {
        let completion = text_or_chat("completion", value)?;
        let is_there = columns.contains_key("prompt");
        let missing = || match is_there {
            true => super::rows::absent(is_there, "prompt"),
            false => {
                let advice = super::rows::advice(&columns, &["prompt"], true);
                format!("has a column \"completion\" but no \"prompt\"; it has {found}{advice}")
            }
        };
        let prompt = columns.get("prompt").filter(|prompt| !prompt.is_null()).cloned().ok_or_else(missing)?;
        columns.shift_remove("prompt");
        let prompt = text_or_chat("prompt", prompt)?;
        if matches!(prompt, TextOrChat::Chat(_)) != matches!(completion, TextOrChat::Chat(_)) {
            return Err("prompt and completion must be both strings or both lists of messages".into());
        }
        let extras = completion.extras(&columns)?;
        return Ok(CompletionRow { row, place: place.clone(), prompt: Some(prompt), completion, tokens: None, extras, columns });
    }
    // If there are several, TRL learns from the conversation.
    for name in ["conversations", "messages", "text"] {
        if let Some(value) = super::rows::take(&mut columns, name) {
            let completion = not_empty(name, text_or_chat(name, value)?)?;
            let completion = if name == "conversations" { with_system(completion, &columns)? } else { completion };
            let extras = completion.extras(&columns)?;
            return Ok(CompletionRow { row, place: place.clone(), prompt: None, completion, tokens: None, extras, columns });
        }
    }
    let wanted = "\"prompt\" and \"completion\", nor \"text\", nor \"messages\", nor \"conversations\", nor \"input_ids\"";
    let null = null.map(|name| format!("; {}", super::rows::absent(true, name))).unwrap_or_default();
    let lacking: Vec<&str> = ["prompt", "completion"].into_iter().filter(|name| !columns.contains_key(*name)).collect();
    let advice = if null.is_empty() { super::rows::advice(&columns, &lacking, false) } else { String::new() };
    Err(format!("has neither {wanted}; it has {found}{null}{advice}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(row: Value) -> std::result::Result<CompletionRow, String> {
        let Value::Object(columns) = row else { panic!("a test gives an object") };
        completion(0, &Location::first(), columns)
    }

    #[test]
    fn rows_are_answers_texts_or_conversations() {
        let answered = read(json!({"prompt": "p", "completion": "c", "id": 4})).unwrap();
        assert!(matches!(answered.prompt, Some(TextOrChat::Text(p)) if p == "p") && answered.columns["id"] == 4);
        assert!(read(json!({"text": "t"})).unwrap().prompt.is_none());
        let talk = read(json!({"messages": [{"role": "user", "content": "q"}]})).unwrap().completion;
        assert_eq!(read(json!({"conversations": [{"from": "human", "value": "q"}]})).unwrap().completion, talk);
        let system = json!({"system": "be brief", "conversations": [{"from": "human", "value": "q"}]});
        let TextOrChat::Chat(turns) = read(system).unwrap().completion else { panic!("it is a conversation") };
        assert_eq!((turns.len(), turns[0].role.as_str(), &*turns[0].content), (2, "system", "be brief"));
        let own = json!([{"from": "system", "value": "own"}, {"from": "human", "value": "q"}]);
        let TextOrChat::Chat(turns) = read(json!({"system": "x", "conversations": own})).unwrap().completion else {
            panic!("it is a conversation")
        };
        assert_eq!((turns.len(), &*turns[0].content), (2, "own"));
        for none in [json!(""), json!(null)] {
            let row = json!({"system": none, "conversations": [{"from": "human", "value": "q"}]});
            assert_eq!(read(row).unwrap().completion, talk);
        }
        // A conversation takes precedence over a text. Null counts as missing: tables made of several datasets contain it.
        let both = json!({"text": "t", "messages": [{"role": "user", "content": "q"}]});
        assert_eq!(read(both).unwrap().completion, talk);
        let nulls = json!({"prompt": null, "completion": null, "text": null, "messages": [{"role": "user", "content": "q"}]});
        assert_eq!(read(nulls).unwrap().completion, talk);
        assert!(read(json!({"messages": null, "text": "t"})).unwrap().completion == TextOrChat::Text("t".into()));
        let nothing = read(json!({"messages": null})).unwrap_err();
        assert!(
            nothing.contains("neither") && nothing.ends_with("column \"messages\" is null, or has bytes that are not text"),
            "{nothing}"
        );
        let unprompted = read(json!({"prompt": null, "completion": "c"})).unwrap_err();
        assert!(unprompted.starts_with("column \"prompt\" is null"), "{unprompted}");
        // For an empty answer, the end token is learned; for an empty text, nothing.
        assert!(read(json!({"prompt": "p", "completion": ""})).is_ok());
        assert!(read(json!({"text": ""})).unwrap_err().contains("is empty"));
        assert!(read(json!({"completion": "c"})).unwrap_err().contains("no \"prompt\""));
        assert!(read(json!({"body": "t"})).unwrap_err().contains("body"));
        let unanswered = read(json!({"a": "2", "prompt": "1 + 1?"})).unwrap_err();
        assert!(unanswered.ends_with("it has a, prompt; to read others as such: --columns completion=a"), "{unanswered}");
    }
}
