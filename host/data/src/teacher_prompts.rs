//! Prompts as a teacher reads them, with what the policy is not told (Shenfeld et al. 2026, arXiv 2601.19897).

use super::prompt_form::text_of;
use super::rows::RowColumns;
use super::{ChatMessage, TextOrChat};
use crate::config::{PromptTemplate, RunConfig, printable};
use serde::Deserialize;
use serde_json::Value;

/// Name of the policy's prompt in a template.
const PROMPT: &str = "prompt";

/// Column with what only the teacher reads.
const PRIVILEGED: &str = "privileged_context";

/// Builds prompts for a teacher.
#[derive(Clone, Debug)]
pub struct TeacherPrompts {
    template: PromptTemplate,
}

impl TeacherPrompts {
    /// Reads the settings from a configuration; `None` if the teacher reads the policy's prompts.
    pub fn from_config(config: &RunConfig) -> Option<Self> {
        // Errors in the template were reported when the configuration was read.
        let template = PromptTemplate::parse(config.teacher_prompt_template.as_deref()?).ok()?;
        Some(Self { template })
    }

    /// Returns a row's prompt as the teacher reads it. In a conversation, the last question is replaced.
    ///
    /// # Errors
    /// If a column is missing or not text, or the conversation does not end with a question. The message says which.
    pub fn prompt(&self, prompt: &TextOrChat, columns: &RowColumns) -> Result<TextOrChat, String> {
        let filled = |asked: &str| {
            self.template.fill(|name| match name {
                PROMPT => Ok(asked.to_owned()),
                PRIVILEGED => privileged(columns),
                other => text_of(columns, other),
            })
        };
        let built = match prompt {
            TextOrChat::Text(text) => filled(text).map(TextOrChat::Text),
            TextOrChat::Chat(messages) => match messages.split_last() {
                Some((last, before)) if last.role == "user" => filled(&last.content).map(|text| {
                    let question = ChatMessage { role: last.role.clone(), content: text.into(), ..ChatMessage::default() };
                    TextOrChat::Chat([before, &[question]].concat())
                }),
                last => {
                    let role = last.map_or_else(String::new, |(last, _)| printable(&last.role, 40));
                    Err(format!("the prompt must end with a question of the user, not with a turn of {role:?}"))
                }
            },
        };
        built.map_err(|detail| format!("teacher_prompt_template: {detail}"))
    }
}

/// Returns what only the teacher reads: a text, or the contents of messages, one a line.
fn privileged(columns: &RowColumns) -> Result<String, String> {
    let found = columns.get(PRIVILEGED).filter(|value| !value.is_null());
    // Texts that look like JSON are texts.
    if let Some(Value::String(text)) = found {
        return Ok(text.clone());
    }
    let messages = found.filter(|value| value.is_array()).and_then(|value| Vec::<ChatMessage>::deserialize(value).ok());
    match messages {
        Some(messages) if messages.is_empty() => Err(format!("column {PRIVILEGED:?} is an empty list of messages")),
        Some(messages) => {
            let contents: Vec<&str> = messages.iter().map(|message| &*message.content).filter(|text| !text.is_empty()).collect();
            Ok(contents.join("\n"))
        }
        None if matches!(found, Some(Value::Array(_) | Value::Object(_))) => {
            Err(format!("column {PRIVILEGED:?} is neither a text nor a list of messages"))
        }
        None => text_of(columns, PRIVILEGED),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn built(template: &str, prompt: &TextOrChat, columns: Value) -> Result<TextOrChat, String> {
        let config = RunConfig { teacher_prompt_template: Some(template.into()), ..RunConfig::default() };
        TeacherPrompts::from_config(&config).unwrap().prompt(prompt, columns.as_object().unwrap())
    }

    #[test]
    fn a_text_or_the_last_question_is_filled_into_the_template() {
        let text = TextOrChat::Text("2 + 2?".into());
        let usual = "{prompt}\n\n{privileged_context}";
        let hint = json!({"privileged_context": "It is {4}.", "answer": 4});
        assert_eq!(built(usual, &text, hint.clone()).unwrap(), TextOrChat::Text("2 + 2?\n\nIt is {4}.".into()));
        let quoted = json!({"privileged_context": "[{\"role\": \"user\", \"content\": \"4\"}]"});
        assert_eq!(
            built("{privileged_context}", &text, quoted.clone()).unwrap(),
            TextOrChat::Text(quoted["privileged_context"].as_str().unwrap().into())
        );
        assert_eq!(built("{prompt} ({answer})", &text, hint).unwrap(), TextOrChat::Text("2 + 2? (4)".into()));
        let message =
            |role: &str, content: &str| ChatMessage { role: role.into(), content: content.into(), ..ChatMessage::default() };
        let chat = TextOrChat::Chat(vec![message("system", "Count."), message("user", "2 + 2?")]);
        let shown = json!({"privileged_context": [{"role": "user", "content": "1 + 1?"}, {"role": "assistant", "content": "2"}]});
        let want = TextOrChat::Chat(vec![message("system", "Count."), message("user", "2 + 2?\n\n1 + 1?\n2")]);
        assert_eq!(built(usual, &chat, shown).unwrap(), want);
    }

    #[test]
    fn what_is_missing_is_named() {
        let usual = "{prompt} {privileged_context}";
        let text = TextOrChat::Text("2 + 2?".into());
        let refused = |prompt: &TextOrChat, columns: Value| built(usual, prompt, columns).unwrap_err();
        assert!(
            refused(&text, json!({"hint": "4"})).contains("teacher_prompt_template: there is no column \"privileged_context\"")
        );
        assert!(refused(&text, json!({"privileged_context": null})).contains("is null"));
        assert!(refused(&text, json!({"privileged_context": {"a": 1}})).contains("neither a text nor a list of messages"));
        assert!(refused(&text, json!({"privileged_context": []})).contains("an empty list"));
        let answered = vec![ChatMessage { role: "assistant".into(), content: "4".into(), ..ChatMessage::default() }];
        assert!(refused(&TextOrChat::Chat(answered), json!({"privileged_context": "4"})).contains("a turn of \"assistant\""));
    }
}
