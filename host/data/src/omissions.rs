//! Finds what a chat template leaves out of a conversation: turns with a role that it does not know, tool calls, tools.
//!
//! A template may change what it writes: it trims contents, drops the reasoning of earlier turns, writes calls in its own format. So a
//! turn is left out only if the text stays the same whatever the turn says.

use super::chat::Template;
use super::chat::{RenderError, TemplateVariables};
use super::message::ChatMessage;
use crate::config::printable;
use serde_json::Value;

/// A content of fewer bytes may be in a text by chance.
const SHORT: usize = 16;

/// Maximum number of turns of a conversation that are tried.
const MOST: usize = 64;

/// What a turn says instead, to see whether the text changes.
const PROBE: &str = "\u{F1234}probe";

/// Returns the turns that a text may lack: those whose content or calls are not in it one after another. If `thorough`, also those whose
/// content is short or that have calls.
pub(super) fn suspects(messages: &[ChatMessage], text: &str, thorough: bool) -> Vec<usize> {
    let mut at = 0;
    let mut is_suspect = |message: &ChatMessage| {
        let content = message.content.trim();
        let found = text[at..].find(content);
        at += found.map_or(0, |found| found + content.len());
        let is_short = thorough && !content.is_empty() && content.len() < SHORT;
        let names = || calls(message).iter().all(|call| name(call).is_some_and(|name| text[at..].contains(name)));
        found.is_none() || is_short || !calls(message).is_empty() && (thorough || !names())
    };
    messages.iter().enumerate().filter(|(_, message)| is_suspect(message)).map(|(i, _)| i).take(MOST).collect()
}

fn calls(message: &ChatMessage) -> &[Value] {
    message.rest.get("tool_calls").and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn name(call: &Value) -> Option<&str> {
    call.get("function").unwrap_or(call).get("name")?.as_str()
}

/// Describes what the template leaves out of a conversation first, if anything: its tools, or the content or the calls of a suspect.
pub(super) fn first(
    template: &Template,
    messages: &[ChatMessage],
    generate: bool,
    suspects: &[usize],
    extras: &TemplateVariables,
) -> Result<Option<String>, RenderError> {
    let text = template.render(messages, generate, extras, None)?;
    let is_same = |messages: &[ChatMessage], extras: &TemplateVariables| match template.render(messages, generate, extras, None) {
        Ok(other) => Ok(other == text),
        // It reads what it refuses.
        Err(RenderError::Refused(_)) => Ok(false),
        Err(unbounded) => Err(unbounded),
    };
    if !extras.tools.is_null() && is_same(messages, &TemplateVariables { tools: Value::Null, ..extras.clone() })? {
        return Ok(Some("the chat template leaves out its \"tools\"".to_owned()));
    }
    for i in suspects {
        let message = &messages[*i];
        let with = |change: &dyn Fn(&mut ChatMessage)| {
            let mut messages = messages.to_vec();
            change(&mut messages[*i]);
            is_same(&messages, extras)
        };
        let role = printable(&message.role, 64);
        if !message.content.trim().is_empty() && with(&|message| message.content = PROBE.into())? {
            return Ok(Some(format!("the chat template leaves out turn {}, whose role is {role:?}", i + 1)));
        }
        if !calls(message).is_empty() && with(&|message| drop(message.rest.shift_remove("tool_calls")))? {
            return Ok(Some(format!("the chat template leaves out the tool calls of turn {} (role {role:?})", i + 1)));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use crate::{ChatMessage, ChatTemplate, TemplateVariables};
    use serde_json::{Value, json};

    fn left_out(source: &str, messages: &Value, tools: Value, thorough: bool) -> Option<String> {
        let messages: Vec<ChatMessage> = serde_json::from_value(messages.clone()).unwrap();
        let extras = TemplateVariables { tools, ..TemplateVariables::default() };
        let chat = ChatTemplate::new(source.into(), String::new(), String::new()).unwrap();
        let text = chat.render(&messages, false, &extras).unwrap();
        chat.find_omission((&messages, false), &text, thorough, &extras).unwrap()
    }

    /// A template that knows three roles, drops the reasoning of earlier turns and trims what it writes.
    const KNOWN: &str = "{% for m in messages %}\
        {% if m.role == 'user' %}<u>{{ m.content | trim }}{% endif %}\
        {% if m.role == 'assistant' %}<a>{{ m.content if loop.last else m.content.split('</think>')[-1] | trim }}{% for c in m.tool_calls %}[{{ c.function.name }}]{% endfor %}{% endif %}\
        {% if m.role == 'tool' %}<t>{{ m.content | upper }}{% endif %}\
        {% endfor %}";

    #[test]
    fn turns_that_the_text_does_not_depend_on_are_named() {
        let long = "a content that is not in the text by chance";
        for content in [long, "u"] {
            let messages = json!([{"role": "critic", "content": content}, {"role": "user", "content": "question"}]);
            let said = left_out(KNOWN, &messages, Value::Null, true).unwrap();
            assert_eq!(said, "the chat template leaves out turn 1, whose role is \"critic\"");
            // A short content may be in the text by chance.
            assert_eq!(left_out(KNOWN, &messages, Value::Null, false).is_some(), content == long);
        }
        let plain = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}";
        let call =
            json!([{"role": "user", "content": "q"}, {"from": "function_call", "value": "{\"name\": \"f\", \"arguments\": {}}"}]);
        let said = left_out(plain, &call, Value::Null, false).unwrap();
        assert_eq!(said, "the chat template leaves out the tool calls of turn 2 (role \"assistant\")");
        assert_eq!(left_out(KNOWN, &call, Value::Null, true), None);
        let talk = json!([{"role": "user", "content": "q"}]);
        assert_eq!(left_out(plain, &talk, json!([{"name": "f"}]), true).unwrap(), "the chat template leaves out its \"tools\"");
        assert_eq!(left_out(&format!("{plain}{{{{ tools }}}}"), &talk, json!([{"name": "f"}]), true), None);
    }

    #[test]
    fn what_a_template_changes_is_not_left_out() {
        let messages = json!([
            {"role": "user", "content": "  a question with space around it \n"},
            {"role": "assistant", "content": "<think>a long thought that is dropped</think>\n\nan answer"},
            {"role": "tool", "content": "a result in small letters"},
            {"role": "assistant", "content": "<think>only a thought that is dropped</think>"},
            {"role": "user", "content": ""}, {"role": "critic", "content": ""},
            {"role": "assistant", "content": "<think>kept</think>"},
        ]);
        assert_eq!((left_out(KNOWN, &messages, Value::Null, true), left_out(KNOWN, &messages, Value::Null, false)), (None, None));
        // A template may refuse what is tried.
        let strict = KNOWN.replace("<u>", "{{ raise_exception('no') if 'probe' in m.content }}<u>");
        assert_eq!(left_out(&strict, &messages, Value::Null, true), None);
    }
}
