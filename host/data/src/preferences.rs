//! Preference datasets: a prompt, a chosen and a rejected completion. The prompt may be implicit: the common prefix of both.

use super::prompt::{text_or_chat, with_system};
use super::rows::{Location, RowColumns};
use super::{ChatMessage, Result, TemplateVariables, TextOrChat};
use serde_json::{Map, Value};

/// Row of a preference dataset.
#[derive(Clone, Debug)]
pub struct PreferenceRow {
    /// Index of the row in the dataset.
    pub row: usize,
    /// Location of the row in its file.
    pub place: Location,
    /// Prompt.
    pub prompt: TextOrChat,
    /// Preferred completion, of the same kind as the prompt.
    pub chosen: TextOrChat,
    /// Other completion.
    pub rejected: TextOrChat,
    /// Variables of the chat template.
    pub extras: TemplateVariables,
    /// Other columns.
    pub columns: Map<String, Value>,
}

impl PreferenceRow {
    /// Reads one row.
    ///
    /// # Errors
    /// If the row is not a usable pair.
    pub fn from_columns(row: usize, place: &Location, columns: RowColumns) -> Result<Self> {
        prompted(row, place, columns).map_err(|detail| place.row_error(detail))
    }

    /// Reads one row for models that read full texts: without a common prefix, the prompt is empty.
    ///
    /// # Errors
    /// If the row is not a usable pair.
    pub fn from_whole_texts(row: usize, place: &Location, columns: RowColumns) -> Result<Self> {
        preference(row, place, columns).map(|(read, _)| read).map_err(|detail| place.row_error(detail))
    }
}

/// Reads one row with a prompt, which may be empty only if it is given explicitly.
pub(super) fn prompted(row: usize, place: &Location, columns: RowColumns) -> std::result::Result<PreferenceRow, String> {
    let absent = super::rows::absent(columns.contains_key("prompt"), "prompt");
    match preference(row, place, columns)? {
        (read, true) => Ok(read),
        (read, false) => {
            let advice = super::rows::advice(&read.columns, &["prompt"], true);
            Err(format!("{absent}, and its answers have no common beginning{advice}"))
        }
    }
}

/// Reads one row. Also returns whether it has a prompt.
pub(super) fn preference(
    row: usize,
    place: &Location,
    mut columns: Map<String, Value>,
) -> std::result::Result<(PreferenceRow, bool), String> {
    let found = super::rows::names(&columns);
    let mut answer = |name: &str| {
        let is_there = columns.contains_key(name);
        let wanted = "a preference dataset has \"prompt\", \"chosen\" and \"rejected\", and this row";
        let missing = || format!("{}; {wanted} {found}", super::rows::absent(is_there, name));
        text_or_chat(name, super::rows::take(&mut columns, name).ok_or_else(missing)?)
    };
    let (chosen, rejected) = (answer("chosen")?, answer("rejected")?);
    // Name of the prompt in LLaMA-Factory's ShareGPT files.
    let mut take = |name: &'static str| super::rows::take(&mut columns, name).map(|value| (name, value));
    let prompt = take("prompt").or_else(|| take("conversations"));
    let kind = |p: &TextOrChat| matches!(p, TextOrChat::Chat(_));
    let read = |(name, value)| match name {
        "conversations" => with_system(text_or_chat(name, value)?, &columns),
        _ => text_or_chat(name, value),
    };
    let given = prompt.map(read).transpose()?;
    // A plain prompt next to full conversations repeats their beginning, as in TRL's `maybe_extract_prompt`.
    let given = given.filter(|prompt| kind(prompt) || !begin_alike(&chosen, &rejected));
    let has_prompt = given.is_some();
    let (prompt, chosen, rejected) = match given {
        Some(prompt) => (prompt, chosen, rejected),
        None => in_common(chosen, rejected)?,
    };
    let begins_alike = has_prompt || !prompt.is_empty();
    if kind(&prompt) != kind(&chosen) || kind(&prompt) != kind(&rejected) {
        return Err("prompt, chosen and rejected must be all strings or all lists of messages".into());
    }
    let extras = prompt.extras(&columns)?;
    Ok((PreferenceRow { row, place: place.clone(), prompt, chosen, rejected, extras, columns }, begins_alike))
}

/// Returns whether two answers are conversations of several messages with the same first message.
fn begin_alike(chosen: &TextOrChat, rejected: &TextOrChat) -> bool {
    let (TextOrChat::Chat(chosen), TextOrChat::Chat(rejected)) = (chosen, rejected) else { return false };
    chosen.len().min(rejected.len()) > 1 && chosen.first() == rejected.first()
}

/// Splits off the common prefix of two answers, like TRL's `extract_prompt`: whole messages, or characters up to a space before the
/// difference. If one answer is a prefix of the other, its last message or character remains in the answer. The common prefix may be empty.
fn in_common(chosen: TextOrChat, rejected: TextOrChat) -> std::result::Result<(TextOrChat, TextOrChat, TextOrChat), String> {
    match (chosen, rejected) {
        (TextOrChat::Chat(mut chosen), TextOrChat::Chat(mut rejected)) => {
            let same = chosen.iter().zip(&rejected).take_while(|(a, b)| a == b).count();
            let same = same.min(chosen.len().min(rejected.len()) - 1);
            let prompt: Vec<ChatMessage> = chosen.drain(..same).collect();
            rejected.drain(..same);
            Ok((TextOrChat::Chat(prompt), TextOrChat::Chat(chosen), TextOrChat::Chat(rejected)))
        }
        (TextOrChat::Text(chosen), TextOrChat::Text(rejected)) => {
            let same = chosen.char_indices().zip(rejected.chars()).find(|((_, a), b)| a != b).map(|((at, _), _)| at);
            let shorter = if chosen.len() < rejected.len() { &chosen } else { &rejected };
            let last = shorter.char_indices().next_back().map_or(0, |(at, _)| at);
            let same = match same {
                Some(same) if chosen[..same].ends_with(' ') => same - 1,
                Some(same) => same,
                None => last,
            };
            let rest = |text: &str| TextOrChat::Text(text[same..].to_owned());
            Ok((TextOrChat::Text(chosen[..same].to_owned()), rest(&chosen), rest(&rejected)))
        }
        _ => Err("chosen and rejected must be both strings or both lists of messages".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(row: Value) -> std::result::Result<PreferenceRow, String> {
        let Value::Object(columns) = row else { panic!("a test gives an object") };
        prompted(0, &Location::first(), columns)
    }

    fn text(prompt: &TextOrChat) -> &str {
        let TextOrChat::Text(text) = prompt else { panic!("{prompt:?}") };
        text
    }

    #[test]
    fn a_prompt_may_be_empty_and_null_is_none() {
        let empty = read(json!({"prompt": "", "chosen": "a", "rejected": "b"})).unwrap();
        assert_eq!(empty.prompt, TextOrChat::Text(String::new()));
        let common = read(json!({"prompt": null, "chosen": "x a", "rejected": "x b"})).unwrap();
        assert_eq!(common.prompt, TextOrChat::Text("x".into()));
    }

    #[test]
    fn prompts_are_given_or_what_the_answers_have_in_common() {
        let given = read(json!({"prompt": "p", "chosen": "c", "rejected": "r", "score": 3})).unwrap();
        assert_eq!((text(&given.prompt), text(&given.chosen), given.columns["score"].as_i64()), ("p", "c", Some(3)));
        let implied = read(json!({"chosen": "The sky is blue.", "rejected": "The sky is green."})).unwrap();
        assert_eq!((text(&implied.prompt), text(&implied.chosen), text(&implied.rejected)), ("The sky is", " blue.", " green."));
        let message = |role: &str, content: &str| json!({"role": role, "content": content});
        let chat = read(json!({
            "chosen": [message("user", "q"), message("assistant", "a")],
            "rejected": [message("user", "q"), message("assistant", "b")],
        }))
        .unwrap();
        assert_eq!(
            chat.prompt,
            TextOrChat::Chat(vec![ChatMessage { role: "user".into(), content: "q".into(), ..ChatMessage::default() }])
        );
        let from = |from: &str, value: &str| json!({"from": from, "value": value});
        let sharegpt = json!({"conversations": [from("human", "q")], "chosen": from("gpt", "a"), "rejected": from("gpt", "b")});
        let answer = |text: &str| {
            TextOrChat::Chat(vec![ChatMessage { role: "assistant".into(), content: text.into(), ..ChatMessage::default() }])
        };
        assert_eq!(read(sharegpt).unwrap().chosen, answer("a"));
        let [q, a, b] = [from("human", "q"), from("gpt", "a"), from("gpt", "b")];
        let texts = json!({"prompt": json!([q]).to_string(), "chosen": a.to_string(), "rejected": b.to_string()});
        let texts = read(texts).unwrap();
        assert_eq!((&texts.chosen, &texts.rejected), (&answer("a"), &answer("b")));
        let system = json!({"system": "be brief", "conversations": [q], "chosen": a, "rejected": b});
        let TextOrChat::Chat(turns) = read(system).unwrap().prompt else { panic!("it is a conversation") };
        assert_eq!((turns.len(), &*turns[0].content), (2, "be brief"));
    }

    #[test]
    fn of_answers_that_do_not_differ_the_last_message_is_the_answer() {
        let message = |content: &str| json!({"role": "user", "content": content});
        let same = read(json!({"chosen": [message("q"), message("a")], "rejected": [message("q"), message("a")]})).unwrap();
        assert_eq!((&same.chosen, &same.rejected), (&same.chosen, &same.chosen));
        assert!(matches!((&same.prompt, &same.chosen),
                (TextOrChat::Chat(p), TextOrChat::Chat(c)) if p.len() == 1 && &*c[0].content == "a"));
        // One answer is longer than the other.
        let longer =
            read(json!({"chosen": [message("q"), message("a"), message("b")], "rejected": [message("q"), message("a")]}));
        let longer = longer.unwrap();
        assert!(matches!((&longer.chosen, &longer.rejected),
                (TextOrChat::Chat(c), TextOrChat::Chat(r)) if c.len() == 2 && r.len() == 1));
        let texts = read(json!({"chosen": "to be", "rejected": "to be"})).unwrap();
        assert_eq!((text(&texts.prompt), text(&texts.chosen), text(&texts.rejected)), ("to b", "e", "e"));
        assert!(read(json!({"chosen": [message("q")], "rejected": [message("q")]})).unwrap_err().contains("common beginning"));
        let empty = read(json!({"prompt": "p", "chosen": "c", "rejected": ""})).unwrap();
        assert_eq!(text(&empty.rejected), "");
    }

    #[test]
    fn what_is_missing_or_mixed_is_named() {
        let missing = read(json!({"prompt": "p", "chosen": "c"})).unwrap_err();
        assert!(missing.contains("\"rejected\"") && missing.contains("prompt, chosen"), "{missing}");
        assert!(read(json!({"chosen": "a", "rejected": "b"})).unwrap_err().contains("common beginning"));
        let Value::Object(apart) = json!({"chosen": "a b", "rejected": "b"}) else { unreachable!() };
        let apart = PreferenceRow::from_whole_texts(0, &Location::first(), apart).unwrap();
        assert_eq!((text(&apart.prompt), text(&apart.chosen), text(&apart.rejected)), ("", "a b", "b"));
        // Full conversations next to a plain prompt, as in UltraFeedback.
        let message = |role: &str, content: &str| json!({"role": role, "content": content});
        let whole = |answer: &str| [message("user", "q"), message("assistant", answer)];
        let repeated = read(json!({"prompt": "q", "chosen": whole("a"), "rejected": whole("b")})).unwrap();
        assert!(matches!((&repeated.prompt, &repeated.chosen),
                (TextOrChat::Chat(p), TextOrChat::Chat(c)) if &*p[0].content == "q" && c.len() == 1));
        let answers = |answer: &str| [message("assistant", answer)];
        let apart = read(json!({"prompt": "q", "chosen": answers("a"), "rejected": answers("b")}));
        assert!(apart.unwrap_err().contains("must be all strings"), "its prompt is nowhere else");
        let mixed = read(json!({"prompt": "p", "chosen": "c", "rejected": [{"role": "assistant", "content": "r"}]}));
        assert!(mixed.unwrap_err().contains("must be all strings"));
    }
}
