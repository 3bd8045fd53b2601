//! Finds out what a chat template omits from a conversation: messages with unknown roles, reasoning, tool calls, tools.
//!
//! Templates modify what they write: they trim contents, drop the reasoning of earlier turns, and write calls in their own format. So a
//! message counts as omitted only if changing it does not change the output, and reasoning only if that holds in the last turn, too.

use super::chat::{RenderError, Template, TemplateVariables};
use super::message::{ChatMessage, REASONING};
use crate::config::printable;
use serde_json::Value;

/// Minimum length in bytes of a content that is unlikely to occur in the text by chance.
const SHORT: usize = 16;

/// Maximum number of messages that are checked.
const MOST: usize = 64;

/// Replacement for a message's content or reasoning, to see whether the output changes.
const PROBE: &str = "\u{F1234}probe";

/// Returns the messages that a text may lack: those whose contents or calls don't occur in it in order, and the last one with reasoning, if
/// that does not occur in it. If `thorough`, also those with a short content or reasoning, or with calls.
pub(super) fn suspects(messages: &[ChatMessage], text: &str, thorough: bool) -> Vec<usize> {
    let mut at = 0;
    let last_thought = last_thought(messages);
    let is_unwritten = |thought: &str| thorough && thought.len() < SHORT || !text.contains(thought);
    let mut is_suspect = |i: usize, message: &ChatMessage| {
        let content = message.content.trim();
        let found = text[at..].find(content);
        at += found.map_or(0, |found| found + content.len());
        let is_short = thorough && !content.is_empty() && content.len() < SHORT;
        let names = || calls(message).iter().all(|call| name(call).is_some_and(|name| text[at..].contains(name)));
        let hides_thought = last_thought == Some(i) && reasoning(message).is_some_and(is_unwritten);
        found.is_none() || is_short || hides_thought || !calls(message).is_empty() && (thorough || !names())
    };
    messages.iter().enumerate().filter(|(i, message)| is_suspect(*i, message)).map(|(i, _)| i).take(MOST).collect()
}

/// Returns the index of the last message with reasoning.
fn last_thought(messages: &[ChatMessage]) -> Option<usize> {
    messages.iter().rposition(|message| reasoning(message).is_some())
}

/// Returns a message's reasoning, if it has any.
fn reasoning(message: &ChatMessage) -> Option<&str> {
    let texts = REASONING.into_iter().filter_map(|name| message.rest.get(name)?.as_str());
    texts.map(str::trim).find(|text| !text.is_empty())
}

/// Replaces a message's reasoning by the probe.
fn probe_reasoning(message: &mut ChatMessage) {
    for name in REASONING {
        if let Some(Value::String(text)) = message.rest.get_mut(name) {
            PROBE.clone_into(text);
        }
    }
}

fn calls(message: &ChatMessage) -> &[Value] {
    message.rest.get("tool_calls").and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn name(call: &Value) -> Option<&str> {
    call.get("function").unwrap_or(call).get("name")?.as_str()
}

/// Describes the first omission of the template, if any: the tools, or the content, calls or reasoning of a suspect.
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
        // The template reads what it rejects.
        Err(RenderError::Refused(_)) => Ok(false),
        Err(unbounded) => Err(unbounded),
    };
    if extras.has_tools() && is_same(messages, &TemplateVariables { tools: Value::Null, ..extras.clone() })? {
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
        // Another turn's reasoning may be dropped, but not that of a conversation's last one.
        if last_thought(messages) == Some(*i) && drops_reasoning(template, &messages[..=*i], extras)? && with(&probe_reasoning)? {
            return Ok(Some(format!("the chat template leaves out the reasoning of turn {} (role {role:?})", i + 1)));
        }
    }
    Ok(None)
}

/// Returns whether a conversation is rendered alike whatever the reasoning of its last message.
fn drops_reasoning(template: &Template, messages: &[ChatMessage], extras: &TemplateVariables) -> Result<bool, RenderError> {
    let mut probed = messages.to_vec();
    probed.last_mut().into_iter().for_each(probe_reasoning);
    match (template.render(messages, false, extras, None), template.render(&probed, false, extras, None)) {
        (Ok(text), Ok(other)) => Ok(text == other),
        (Err(RenderError::Refused(_)), _) | (_, Err(RenderError::Refused(_))) => Ok(false),
        (Err(unbounded), _) | (_, Err(unbounded)) => Err(unbounded),
    }
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

    /// Template that knows three roles, drops the reasoning of earlier turns, and trims contents.
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
            // A short content may occur in the text by chance.
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
    fn reasoning_that_is_not_even_in_a_last_turn_is_named() {
        let plain = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}";
        let last = format!(
            "{plain}{{% if messages[-1].reasoning_content %}}{{{{ messages[-1].reasoning_content | upper }}}}{{% endif %}}"
        );
        let thought = "a thought that is not in the text by chance";
        for (name, next) in [("reasoning_content", json!([])), ("thinking", json!([{"role": "user", "content": "q"}]))] {
            let talk = |thought: &str| {
                let mut turns =
                    vec![json!({"role": "user", "content": "q"}), json!({"role": "assistant", "content": "a", name: thought})];
                turns.extend(next.as_array().unwrap().clone());
                Value::from(turns)
            };
            for thorough in [true, false] {
                let said = left_out(plain, &talk(thought), Value::Null, thorough).unwrap();
                assert_eq!(said, "the chat template leaves out the reasoning of turn 2 (role \"assistant\")");
                assert_eq!(left_out(&last, &talk(thought), Value::Null, thorough), None);
                assert_eq!(left_out(plain, &talk(" "), Value::Null, thorough), None);
                // A short thought may occur in the text by chance.
                assert_eq!(left_out(plain, &talk("user"), Value::Null, thorough).is_some(), thorough);
            }
        }
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
        // A template may reject the probe.
        let strict = KNOWN.replace("<u>", "{{ raise_exception('no') if 'probe' in m.content }}<u>");
        assert_eq!(left_out(&strict, &messages, Value::Null, true), None);
    }
}
