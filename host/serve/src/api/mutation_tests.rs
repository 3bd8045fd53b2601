//! Request bodies with each of their values replaced: the server answers or rejects each, and never panics.

use super::tests::{WITH_TOOLS, app, ask};
use super::{scores, weights};
use serde_json::{Value, json};

fn bodies() -> Vec<(&'static str, Value)> {
    let function = json!({"name": "add", "description": "Adds.", "parameters": {"type": "object", "properties": {"a": {}}}});
    let call = json!({"id": "c", "type": "function", "function": {"name": "add", "arguments": "{\"a\": 1}"}});
    let schema = json!({"type": "object", "properties": {"a": {"type": "number"}}});
    vec![
        (
            "/v1/chat/completions",
            json!({"messages": [{"role": "user", "content": [{"type": "text", "text": "q"}]},
                {"role": "assistant", "content": null, "tool_calls": [call]}, {"role": "tool", "tool_call_id": "c", "content": "2"}],
                "tools": [{"type": "function", "function": function}], "tool_choice": "auto", "max_tokens": 1, "stop": ["x"],
                "logit_bias": {"5": 1}, "chat_template_kwargs": {"a": 1}, "stream": true, "stream_options": {"include_usage": true}}),
        ),
        (
            "/v1/messages",
            json!({"max_tokens": 1, "system": [{"type": "text", "text": "s"}], "messages": [{"role": "user", "content": "q"},
                {"role": "assistant", "content": [{"type": "thinking", "thinking": "t"}, {"type": "text", "text": "a"},
                    {"type": "tool_use", "id": "c", "name": "add", "input": {"a": 1}}]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": [{"type": "text", "text": "2"}],
                    "is_error": false}]}, {"role": "assistant", "content": "So"}],
                "tools": [{"name": "add", "description": "Adds.", "input_schema": schema}], "tool_choice": {"type": "auto"},
                "stop_sequences": ["x"], "stream": true, "thinking": {"type": "disabled"}}),
        ),
        (
            "/v1/responses",
            json!({"max_output_tokens": 1, "instructions": "s", "input": [{"role": "user", "content": [{"type": "input_text", "text": "q"}]},
                {"type": "function_call", "call_id": "c", "name": "add", "arguments": "{\"a\": 1}"},
                {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "2"}]}],
                "tools": [{"type": "function", "name": "add", "description": "Adds.", "parameters": schema}], "tool_choice": "auto",
                "text": {"format": {"type": "text"}}, "reasoning": {"effort": "low"}, "metadata": {"a": "b"}, "include": [], "stream": true}),
        ),
        ("/classify", json!({"input": ["a", [1, 2]], "use_activation": true})),
        ("/collective_rpc", json!({"method": "reload_weights", "kwargs": {"weights_path": "x"}})),
        ("/v1/load_lora_adapter", json!({"lora_name": "a", "lora_path": "/x", "load_inplace": true})),
    ]
}

/// Returns JSON pointers to all values within a value.
fn places(value: &Value, at: &str, found: &mut Vec<String>) {
    found.push(at.to_owned());
    match value {
        Value::Object(map) => map.iter().for_each(|(name, own)| places(own, &format!("{at}/{name}"), found)),
        Value::Array(all) => (0..).zip(all).for_each(|(i, own)| places(own, &format!("{at}/{i}"), found)),
        _ => {}
    }
}

#[test]
fn whatever_stands_in_a_body_is_answered_or_refused() {
    let (generator, (updatable, _kept), (judge, _)) = (app(Some(WITH_TOOLS)), weights::tests::app(true), scores::tests::app());
    let deep = (0..60).fold(json!(1), |inner, _| json!([inner]));
    let odd = [Value::Null, json!(false), json!(-1), json!(1e300), json!(""), json!("\u{0}{{ x }}"), json!([]), json!({}), deep];
    for (path, body) in bodies() {
        let app = match path {
            "/classify" => &judge,
            "/collective_rpc" | "/v1/load_lora_adapter" => &updatable,
            _ => &generator,
        };
        let mut found = Vec::new();
        places(&body, "", &mut found);
        for place in found {
            for value in &odd {
                let mut mutated = body.clone();
                *mutated.pointer_mut(&place).unwrap() = value.clone();
                let (status, answer) = ask(app, "POST", path, mutated.to_string().as_bytes());
                assert!(status == 200 || (400..500).contains(&status), "{path} {place} {value}: {status} {answer}");
            }
        }
    }
}
