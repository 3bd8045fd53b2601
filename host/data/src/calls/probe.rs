//! Checks whether the calls that a chat template writes can be parsed: renders a call and looks for it.

use super::ToolCallFormat;
use crate::chat::RenderError;
use crate::{ChatMessage, ChatTemplate, TemplateVariables};
use serde_json::{Map, Value, json};

/// Name of the tool in the rendered call.
const TOOL: &str = "probe_of_calls";

/// Support for tools in a chat template.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ToolSupport {
    /// The template describes tools, and its calls can be parsed, or it writes none.
    Written,
    /// The template leaves tools out.
    LeftOut,
    /// The template's calls can't be parsed; this is one.
    Unreadable(String),
}

/// Renders a conversation with a call, and tries to parse it.
pub(crate) fn tools(chat: &ChatTemplate) -> std::result::Result<ToolSupport, RenderError> {
    let text = |result: std::result::Result<String, RenderError>| match result {
        Ok(text) => Ok(Some(text)),
        Err(RenderError::Refused(_)) => Ok(None),
        Err(unbounded) => Err(unbounded),
    };
    let parameters = json!({"type": "object", "properties": {"x": {"type": "string", "description": "x"}}, "required": ["x"]});
    let tool = json!({"type": "function", "function": {"name": TOOL, "description": "d", "parameters": parameters}});
    let extras = TemplateVariables { tools: json!([tool]), kwargs: Map::new() };
    let question = ChatMessage { role: "user".into(), content: "q".into(), ..ChatMessage::default() };
    let render = |messages: &[ChatMessage], generate: bool| text(chat.render(messages, generate, &extras));
    let asked = render(std::slice::from_ref(&question), true)?;
    if asked.as_ref().is_some_and(|text| !text.contains(TOOL)) {
        return Ok(ToolSupport::LeftOut);
    }
    let arguments = json!({"x": "a b"});
    let mut unread = None;
    for (arguments, content) in [
        (arguments.clone(), json!("")),
        (arguments.to_string().into(), json!("")),
        (arguments.clone(), Value::Null),
        (arguments.to_string().into(), Value::Null),
    ] {
        let function = json!({"name": TOOL, "arguments": arguments});
        let call = json!({"id": "call00000", "type": "function", "function": function});
        let turn = json!({"role": "assistant", "content": content, "tool_calls": [call]});
        let Ok(turn) = serde_json::from_value(turn) else { continue };
        let Some(answered) = render(&[question.clone(), turn], false)? else { continue };
        let turn = behind(&answered, asked.as_deref().unwrap_or_default());
        if reads(chat.calls(true), &answered, turn, &extras.tools) {
            return Ok(ToolSupport::Written);
        }
        if turn.contains(TOOL) {
            unread.get_or_insert_with(|| turn.to_owned());
        }
    }
    Ok(unread.map_or(ToolSupport::Written, ToolSupport::Unreadable))
}

/// Returns the part of a conversation after the text that asks for it or, if that is not a prefix, from the line on where the two differ.
fn behind<'a>(answered: &'a str, asked: &str) -> &'a str {
    if let Some(turn) = answered.strip_prefix(asked) {
        return turn;
    }
    let common = answered.char_indices().zip(asked.chars()).find(|((_, a), b)| a != b).map_or(0, |((at, _), _)| at);
    &answered[answered[..common].rfind('\n').map_or(0, |line| line + 1)..]
}

/// Returns whether the call is found in the text.
fn reads(calls: ToolCallFormat, whole: &str, turn: &str, tools: &Value) -> bool {
    let is_probe = |(name, arguments): &(String, String)| {
        name == TOOL && serde_json::from_str::<Value>(arguments).is_ok_and(|arguments| arguments["x"] == "a b")
    };
    [turn, whole].into_iter().any(|text| calls.found("", text, tools).iter().any(is_probe))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tool_support(calls: &str) -> ToolSupport {
        let source = format!(
            "{{% for tool in tools %}}{{{{ tool | tojson }}}}\n{{% endfor %}}{{% for m in messages %}}<{{{{ m.role }}}}>{{{{ m.content }}}}{{% for c in m.tool_calls %}}{calls}{{% endfor %}}<end>\n{{% endfor %}}{{% if add_generation_prompt %}}<assistant>{{% endif %}}"
        );
        tools(&ChatTemplate::new(source, String::new(), String::new()).unwrap()).unwrap()
    }

    #[test]
    fn calls_that_can_be_read_are_known_by_reading_one() {
        for calls in [
            "<tool_call>\n{{ c.function | tojson }}\n</tool_call>",
            "<tool_call>{\"name\": \"{{ c.function.name }}\", \"arguments\": {{ c.function.arguments | tojson }}}</tool_call>",
            "<tool_call>\n<function={{ c.function.name }}>\n{% for k, v in c.function.arguments.items() %}<parameter={{ k }}>\n{{ v }}\n</parameter>\n{% endfor %}</function>\n</tool_call>",
            "<tool_call>{{ c.function.name }}\n{% for k, v in c.function.arguments.items() %}<arg_key>{{ k }}</arg_key>\n<arg_value>{{ v }}</arg_value>\n{% endfor %}</tool_call>",
            "[TOOL_CALLS][{{ c.function | tojson }}]",
            "<|python_tag|>{\"name\": \"{{ c.function.name }}\", \"parameters\": {{ c.function.arguments | tojson }}}",
            "{{ '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' + c.function.name + '<｜tool▁sep｜>' + c.function.arguments + '<｜tool▁call▁end｜>' }}",
            " to=functions.{{ c.function.name }}<|channel|>commentary json<|message|>{{ c.function.arguments | tojson }}<|call|>",
        ] {
            assert_eq!(tool_support(calls), ToolSupport::Written, "{calls}");
        }
        for calls in [
            "<|tool_call>call:{{ c.function.name }}{x:<|\"|>a b<|\"|>}<tool_call|>",
            "<|tool_call_start|>[{{ c.function.name }}(x='a b')]<|tool_call_end|>",
        ] {
            assert!(matches!(tool_support(calls), ToolSupport::Unreadable(call) if call.contains(TOOL)), "{calls}");
        }
        // One template writes no calls, and one leaves tools out.
        assert_eq!(tool_support(""), ToolSupport::Written);
        let plain = "{% for m in messages %}{{ m.content }}{% endfor %}".to_owned();
        assert_eq!(tools(&ChatTemplate::new(plain, String::new(), String::new()).unwrap()).unwrap(), ToolSupport::LeftOut);
    }
}
