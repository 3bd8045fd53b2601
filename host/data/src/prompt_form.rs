//! Builds prompts: from a row's columns with a template, and with a system message.

use super::prompt::text_or_chat;
use super::rows::{Location, RowColumns};
use super::{ChatMessage, CompletionRow, PreferenceRow, PromptRow, Result, TemplateVariables, TextOrChat};
use crate::config::{PromptTemplate, RunConfig, did_you_mean, printable};
use serde_json::{Value, json};

/// Maximum length of a column's name in an error, in bytes.
const SHOWN: usize = 64;

/// Settings for building prompts: a template for the row's columns, and a system message.
#[derive(Clone, Debug)]
pub struct PromptForm {
    template: Option<PromptTemplate>,
    system: Option<String>,
    /// Whether plain texts become conversations, because the model has a chat template.
    chat: bool,
    /// Settings as given, in JSON.
    settings: String,
}

pub(super) type PromptFormResult<T> = std::result::Result<T, String>;

impl PromptForm {
    /// Reads the settings from a configuration; `None` if it has none of them. `chat` says whether the model has a chat template.
    pub fn from_config(config: &RunConfig, chat: bool) -> Option<Self> {
        // Errors in the template were reported when the configuration was read.
        let template = config.prompt_template.as_deref().and_then(|template| PromptTemplate::parse(template).ok());
        let system = config.system_prompt.clone();
        let settings = json!([config.prompt_template, system]).to_string();
        (template.is_some() || system.is_some()).then_some(Self { template, system, chat, settings })
    }

    /// Returns the settings as text, for comparison.
    pub fn settings(&self) -> &str {
        &self.settings
    }

    /// Builds the column `prompt` of a row whose `answers` are in these columns.
    ///
    /// # Errors
    /// Names the row, and the column that is missing or not text.
    pub fn fill(&self, place: &Location, columns: &mut RowColumns, answers: &[&str]) -> Result<()> {
        let Some(template) = &self.template else { return Ok(()) };
        let prompt = template.fill(|name| text_of(columns, name)).and_then(|text| prompt_value(text, columns, answers));
        let prompt = prompt.map_err(|detail| place.row_error(format!("prompt_template: {detail}")))?;
        columns.insert("prompt".into(), prompt);
        Ok(())
    }

    /// Builds the prompt of a row.
    ///
    /// # Errors
    /// If the row's columns don't fit a chat template.
    pub fn prompt(&self, mut row: PromptRow) -> Result<PromptRow> {
        if self.apply_to(&mut row.prompt) {
            row.extras = TemplateVariables::from_columns(&row.columns).map_err(|detail| row.place.row_error(detail))?;
        }
        Ok(row)
    }

    /// Builds the prompt of a pair.
    ///
    /// # Errors
    /// If the row's columns don't fit a chat template.
    pub fn pair(&self, mut row: PreferenceRow) -> Result<PreferenceRow> {
        if self.apply_to(&mut row.prompt) {
            row.extras = TemplateVariables::from_columns(&row.columns).map_err(|detail| row.place.row_error(detail))?;
            [&mut row.chosen, &mut row.rejected].into_iter().for_each(answers);
        }
        Ok(row)
    }

    /// Builds the prompt of a completion, or adds the system message to a conversation without a prompt.
    ///
    /// # Errors
    /// If there is nothing to put a system message before, or the row's columns don't fit a chat template.
    pub fn completion(&self, mut row: CompletionRow) -> Result<CompletionRow> {
        let is_whole = row.prompt.is_none();
        if is_whole && (row.tokens.is_some() || matches!(row.completion, TextOrChat::Text(_))) {
            let name = if row.tokens.is_some() { "input_ids" } else { "text" };
            let key = if self.template.is_some() { "prompt_template" } else { "system_prompt" };
            let detail = format!("{key} has no effect on a column {name:?}, which is learned as it is; leave it out");
            return Err(row.place.row_error(detail));
        }
        match &mut row.prompt {
            None if self.template.is_some() => {
                let detail = "prompt_template builds a prompt, but this conversation has its own; leave it out";
                return Err(row.place.row_error(detail));
            }
            None => drop(self.apply_to(&mut row.completion)),
            Some(prompt) => {
                if self.apply_to(prompt) {
                    row.extras = TemplateVariables::from_columns(&row.columns).map_err(|detail| row.place.row_error(detail))?;
                    answers(&mut row.completion);
                }
            }
        }
        Ok(row)
    }

    /// Applies the settings to a prompt. Returns whether a plain text became a conversation.
    fn apply_to(&self, prompt: &mut TextOrChat) -> bool {
        let system = self.system.as_deref();
        match prompt {
            TextOrChat::Chat(messages) => {
                let has_own = messages.first().is_some_and(|first| first.role == "system");
                let own = system.filter(|_| !has_own).map(|text| said("system", text));
                messages.splice(0..0, own);
                false
            }
            TextOrChat::Text(text) if self.chat => {
                let system = system.map(|text| said("system", text));
                *prompt = TextOrChat::Chat(system.into_iter().chain([said("user", text)]).collect());
                true
            }
            TextOrChat::Text(text) => {
                if let Some(system) = system {
                    *text = format!("{system}\n\n{text}");
                }
                false
            }
        }
    }
}

fn said(role: &str, text: &str) -> ChatMessage {
    ChatMessage { role: role.into(), content: text.into(), ..ChatMessage::default() }
}

/// Converts a plain answer to an assistant message.
fn answers(answer: &mut TextOrChat) {
    if let TextOrChat::Text(text) = answer {
        *answer = TextOrChat::Chat(vec![said("assistant", text)]);
    }
}

/// Returns a built prompt in the form of the row's answers: a user message if they are messages.
fn prompt_value(text: String, columns: &RowColumns, answers: &[&str]) -> PromptFormResult<Value> {
    for name in answers {
        let Some(answer) = columns.get(*name).filter(|answer| !answer.is_null()) else { continue };
        if let TextOrChat::Chat(messages) = text_or_chat(name, answer.clone())? {
            return match messages.first() {
                Some(first) if first.role == "assistant" => Ok(json!([{"role": "user", "content": text}])),
                _ => Err(format!("builds a prompt, but column {name:?} is a conversation with its own; leave it out")),
            };
        }
    }
    Ok(text.into())
}

/// Returns the text of a column, or at a path of keys and indices in it.
pub(super) fn text_of(columns: &RowColumns, name: &str) -> PromptFormResult<String> {
    let shown = printable(name, SHOWN);
    let found = columns.get(name).or_else(|| within(columns, name)).ok_or_else(|| {
        let has = super::rows::names(columns);
        format!("there is no column {shown:?}; the row has {has}{}", did_you_mean(name, columns.keys().map(String::as_str)))
    })?;
    if matches!(text_or_chat(name, found.clone()), Ok(TextOrChat::Chat(_))) {
        return Err(format!("column {shown:?} is a conversation, which is asked as it is; leave prompt_template out"));
    }
    let is = match found {
        Value::String(text) => return Ok(text.clone()),
        Value::Number(_) | Value::Bool(_) => return Ok(found.to_string()),
        Value::Null => return Err(format!("column {shown:?} is null, or has bytes that are not text")),
        Value::Array(items) if !items.is_empty() => format!("a list; {{{shown}.0}} is its first part"),
        Value::Array(_) => "an empty list".to_owned(),
        Value::Object(parts) => match parts.keys().next() {
            Some(first) => format!("an object; {{{shown}.{}}} is one of its parts", printable(first, SHOWN)),
            None => "an empty object".to_owned(),
        },
    };
    Err(format!("column {shown:?} is not text but {is}"))
}

fn within<'a>(columns: &'a RowColumns, name: &str) -> Option<&'a Value> {
    let mut path = name.split('.');
    let first = columns.get(path.next()?)?;
    path.try_fold(first, |value, part| match value {
        Value::Object(parts) => parts.get(part),
        Value::Array(items) => items.get(part.parse::<usize>().ok()?),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn form(template: Option<&str>, system: Option<&str>, chat: bool) -> PromptForm {
        let [prompt_template, system_prompt] = [template, system].map(|text| text.map(str::to_owned));
        PromptForm::from_config(&RunConfig { prompt_template, system_prompt, ..RunConfig::default() }, chat).unwrap()
    }

    fn columns(row: Value) -> RowColumns {
        let Value::Object(columns) = row else { panic!("a test gives an object") };
        columns
    }

    fn asked(form: &PromptForm, row: Value) -> std::result::Result<TextOrChat, String> {
        let (place, mut columns) = (Location::first(), columns(row));
        let read = form.fill(&place, &mut columns, &[]).and_then(|()| PromptRow::from_columns(0, &place, columns));
        read.and_then(|row| form.prompt(row)).map(|row| row.prompt).map_err(|e| e.to_string())
    }

    fn learned(form: &PromptForm, row: Value) -> std::result::Result<CompletionRow, String> {
        let (place, mut columns) = (Location::first(), columns(row));
        let read =
            form.fill(&place, &mut columns, &["completion"]).and_then(|()| CompletionRow::from_columns(0, &place, columns));
        read.and_then(|row| form.completion(row)).map_err(|e| e.to_string())
    }

    #[test]
    fn a_prompt_is_built_from_columns_and_becomes_a_conversation_where_there_is_a_chat_template() {
        let row = json!({"question": "2+2?", "n": 3, "choices": ["4", "5"], "meta": {"level": true}});
        let built = form(Some("{question} ({n}, {choices.1}, {meta.level})"), Some("Think."), true);
        let want = TextOrChat::Chat(vec![said("system", "Think."), said("user", "2+2? (3, 5, true)")]);
        assert_eq!(asked(&built, row.clone()).unwrap(), want);
        let plain = form(Some("{question}"), Some("Think."), false);
        assert_eq!(asked(&plain, row.clone()).unwrap(), TextOrChat::Text("Think.\n\n2+2?".into()));
        // The columns are kept for rewards.
        let (place, mut columns) = (Location::first(), columns(row));
        plain.fill(&place, &mut columns, &[]).unwrap();
        let read = plain.prompt(PromptRow::from_columns(0, &place, columns).unwrap()).unwrap();
        assert_eq!(read.columns.keys().collect::<Vec<_>>(), ["question", "n", "choices", "meta"]);
        assert_eq!(plain.settings(), "[\"{question}\",\"Think.\"]");
    }

    #[test]
    fn a_system_message_comes_before_plain_prompts_and_conversations_without_one() {
        let system = form(None, Some("Be brief."), true);
        let user = said("user", "q");
        let want = TextOrChat::Chat(vec![said("system", "Be brief."), user.clone()]);
        assert_eq!(asked(&system, json!({"prompt": "q"})).unwrap(), want);
        assert_eq!(asked(&system, json!({"prompt": [{"role": "user", "content": "q"}]})).unwrap(), want);
        let own = json!({"prompt": [{"role": "system", "content": "own"}, {"role": "user", "content": "q"}]});
        assert_eq!(asked(&system, own).unwrap(), TextOrChat::Chat(vec![said("system", "own"), user]));
    }

    #[test]
    fn answers_become_messages_with_their_prompts() {
        let built = form(Some("{question}"), None, true);
        let row = learned(&built, json!({"question": "q", "completion": "a"})).unwrap();
        assert_eq!(row.prompt, Some(TextOrChat::Chat(vec![said("user", "q")])));
        assert_eq!(row.completion, TextOrChat::Chat(vec![said("assistant", "a")]));
        let messages = json!({"question": "q", "completion": [{"role": "assistant", "content": "a"}]});
        assert_eq!(learned(&built, messages).unwrap().prompt, row.prompt);
        let system = form(None, Some("s"), true);
        let talk = learned(&system, json!({"messages": [{"role": "user", "content": "q"}]})).unwrap();
        assert_eq!(talk.completion, TextOrChat::Chat(vec![said("system", "s"), said("user", "q")]));
        let (place, pair) = (Location::first(), columns(json!({"prompt": "q", "chosen": "a", "rejected": "b"})));
        let pair = system.pair(PreferenceRow::from_columns(0, &place, pair).unwrap()).unwrap();
        assert_eq!(pair.rejected, TextOrChat::Chat(vec![said("assistant", "b")]));
        assert!(matches!(pair.prompt, TextOrChat::Chat(messages) if messages.len() == 2));
    }

    #[test]
    fn a_row_that_does_not_fit_the_settings_says_why() {
        let built = form(Some("{qestion}"), None, true);
        let said = asked(&built, json!({"question": "q", "answer": "a"})).unwrap_err();
        let words = "prompt_template: there is no column \"qestion\"; the row has question, answer; did you mean \"question\"?";
        assert!(said.contains(words), "{said}");
        let of = |template: &str, row: Value| asked(&form(Some(template), None, true), row).unwrap_err();
        assert!(of("{a}", json!({"a": null})).contains("is null"));
        assert!(of("{a}", json!({"a": ["x"]})).contains("not text but a list; {a.0} is its first part"));
        let talk = json!([{"role": "user", "content": "q"}]);
        for talk in [talk.clone(), talk.to_string().into()] {
            assert!(of("{prompt}", json!({"prompt": talk})).contains("is a conversation, which is asked as it is"));
        }
        assert!(of("{a}", json!({"a": {"b": 1}})).contains("{a.b} is one of its parts"));
        assert!(of("{a.7}", json!({"a": []})).contains("no column \"a.7\""));
        assert!(of("{a}", json!({"a": ""})).contains("column \"prompt\" is empty"));
        let question = form(Some("{question}"), None, true);
        let whole = json!({"question": "q", "completion": [{"role": "user", "content": "q"}]});
        assert!(learned(&question, whole).unwrap_err().contains("a conversation with its own"));
        let talk = json!({"question": "q", "messages": [{"role": "user", "content": "q"}]});
        assert!(learned(&question, talk).unwrap_err().contains("this conversation has its own"));
        let text = learned(&form(None, Some("s"), true), json!({"text": "t"})).unwrap_err();
        assert!(text.contains("system_prompt has no effect on a column \"text\""), "{text}");
        let tokens = learned(&form(None, Some("s"), true), json!({"input_ids": [1, 2]})).unwrap_err();
        assert!(tokens.contains("system_prompt has no effect on a column \"input_ids\""), "{tokens}");
    }
}
