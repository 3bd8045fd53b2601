use super::super::chat::ChatResponseForm;
use super::super::tests::{WITH_TOOLS, app, events_of, post, refused, said};
use super::*;
use serde_json::Value;

fn translated(body: &Value) -> Result<Value> {
    request::chat(Fields::parse(body.to_string().as_bytes())?).map(Value::Object)
}

#[test]
fn a_request_is_translated_into_one_of_openais_form() {
    let text = |text: &str| json!([{"type": "text", "text": text}]);
    let body = json!({
        "model": "m", "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
        "messages": [
            {"role": "user", "content": "Add."},
            {"role": "assistant", "content": [{"type": "thinking", "thinking": "Hm.", "signature": "x"},
                {"type": "text", "text": "I add."}, {"type": "tool_use", "id": "c1", "name": "add", "input": {"a": 1}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": text("2"), "is_error": true},
                {"type": "text", "text": "And?"}]},
            {"role": "assistant", "content": "It is"}],
        "tools": [{"name": "add", "description": "Adds.", "input_schema": {"type": "object"}}],
        "tool_choice": {"type": "auto"}, "stop_sequences": ["."], "top_k": 3, "metadata": {"user_id": "u"},
        "thinking": {"type": "disabled"},
    });
    let call = json!({"id": "c1", "type": "function", "function": {"name": "add", "arguments": {"a": 1}}});
    let wanted = json!({
        "model": "m", "top_k": 3, "stop": ["."], "continue_final_message": true, "tool_choice": "auto",
        "messages": [
            {"role": "system", "content": text("Be brief.")},
            {"role": "user", "content": text("Add.")},
            {"role": "assistant", "content": text("I add."), "tool_calls": [call], "reasoning_content": "Hm."},
            {"role": "tool", "tool_call_id": "c1", "content": text("2"), "name": "add", "is_error": true},
            {"role": "user", "content": text("And?")},
            {"role": "assistant", "content": text("It is")}],
        "tools": [{"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": {"type": "object"}}}],
    });
    assert_eq!(translated(&body).unwrap(), wanted);
}

#[test]
fn what_is_not_supported_is_refused_by_name_in_anthropics_form() {
    let app = app(Some(WITH_TOOLS));
    let user = |content: Value| json!([{"role": "user", "content": content}]);
    let plain = || json!({"messages": user("q".into()), "max_tokens": 2});
    for (field, value, named) in [
        ("messages", json!([]), "messages"),
        ("messages", json!("q"), "messages"),
        ("messages", json!([1]), "messages[0]"),
        ("messages", json!([{"role": "robot", "content": "q"}]), "messages[0]"),
        ("messages", user(json!([])), "messages[0].content"),
        ("messages", user(json!([{"type": "image", "source": {}}])), "messages[0].content[0]"),
        ("messages", user(json!([{"type": "tool_result"}])), "messages[0].content[0].tool_use_id"),
        ("max_tokens", Value::Null, "max_tokens"),
        ("max_tokens", json!(-1), "max_tokens"),
        ("stop_sequences", json!("x"), "stop_sequences"),
        ("tools", json!([{"type": "web_search_20250305", "name": "web_search"}]), "tools[0].type"),
        ("tool_choice", json!({"type": "any"}), "tool_choice"),
        ("tool_choice", json!({"type": "auto", "disable_parallel_tool_use": true}), "tool_choice.disable_parallel_tool_use"),
        ("thinking", json!({"type": "enabled", "budget_tokens": 1024}), "thinking"),
        ("n", json!(2), "n"),
        ("container", json!("c"), "container"),
        ("thread", json!({"type": "create"}), "thread"),
    ] {
        let mut body = plain();
        body[field] = value;
        let (status, _, message) = refused(&app, "/v1/messages", &body);
        assert!(status == 400 && message.starts_with(&format!("{named}: ")), "{body}: {status} {message}");
    }
    let mut other = plain();
    other["model"] = "gpt-9".into();
    let unknown = ApiError::field("model", "x").with_status(404);
    assert_eq!(ApiError::field("thread", "x").to_anthropic()["error"]["details"]["error_code"], "thread_unsupported_request");
    assert_eq!(refused(&app, "/v1/messages", &other).0, 404);
    assert_eq!(unknown.to_anthropic(), json!({"type": "error", "error": {"type": "not_found_error", "message": "model: x"}}));
}

#[test]
fn a_streamed_message_says_what_a_whole_one_says() {
    let app = app(Some(WITH_TOOLS));
    let mut body = json!({"model": "rlhost", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 12, "seed": 1,
        "ignore_eos": true, "system": "Be brief."});
    let whole = post(&app, "/v1/messages", &body);
    assert_eq!(
        (&whole["type"], &whole["role"], &whole["stop_reason"]),
        (&json!("message"), &json!("assistant"), &json!("max_tokens"))
    );
    let text = whole["content"][0]["text"].as_str().unwrap().to_owned();
    let count = json!({"messages": body["messages"], "system": "Be brief."});
    assert_eq!(post(&app, "/v1/messages/count_tokens", &count)["input_tokens"], whole["usage"]["input_tokens"]);

    body["stream"] = true.into();
    let events = post(&app, "/v1/messages", &body);
    let events = events.as_array().unwrap();
    let kinds: Vec<&str> = events.iter().filter_map(|event| event["type"].as_str()).collect();
    assert_eq!(kinds[..2], ["message_start", "content_block_start"]);
    assert_eq!(kinds[kinds.len() - 3..], ["content_block_stop", "message_delta", "message_stop"]);
    assert_eq!(events.iter().filter_map(|event| event["delta"]["text"].as_str()).collect::<String>(), text);
    let end = &events[events.len() - 2];
    assert_eq!((&end["delta"]["stop_reason"], &end["usage"]["output_tokens"]), (&json!("max_tokens"), &json!(12)));
    // The second request finds the prompt in the cache, except its last token.
    let start = &events[0]["message"]["usage"];
    assert_eq!(
        start["input_tokens"].as_u64().unwrap() + start["cache_read_input_tokens"].as_u64().unwrap(),
        whole["usage"]["input_tokens"]
    );

    let stop: String = text.chars().skip(2).take(2).collect();
    (body["stream"], body["stop_sequences"]) = (false.into(), json!([stop]));
    let stopped = post(&app, "/v1/messages", &body);
    assert_eq!((&stopped["stop_reason"], &stopped["stop_sequence"]), (&json!("stop_sequence"), &json!(stop)));
}

#[test]
fn calls_are_blocks_of_a_message_and_of_a_stream() {
    let app = app(Some(WITH_TOOLS));
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let tools = json!([{"type": "function", "function": {"name": "add", "parameters": {}}}]);
    let call = "<tool_call>{\"name\": \"add\", \"arguments\": {\"a\": 1}}</tool_call>";
    let words = format!("Let me see.\n{call}{call}");
    let mut choice = said(&app, &words);
    runtime.block_on(choice.complete()).unwrap();
    let turn = ChatResponseForm::with_tools(tools.clone()).turn(&app, &choice).unwrap();
    let blocks = content(&turn);
    assert_eq!(blocks[0], json!({"type": "text", "text": "Let me see."}));
    assert!(blocks.len() == 3 && blocks[1..].iter().all(|block| block["input"] == json!({"a": 1}) && block["name"] == "add"));
    assert_eq!(stop_reason(&turn, &choice).0, "tool_use");

    let events = MessagesEventWriter::new("msg".into(), "m".into(), 0);
    let mut source =
        TypedEvents::new(Arc::clone(&app), ChatResponseForm::with_tools(tools), said(&app, &words), Box::new(events));
    let events = runtime.block_on(events_of(&mut source));
    let started: Vec<&Value> = events.as_array().unwrap().iter().filter(|event| event["type"] == "content_block_start").collect();
    assert_eq!(started.iter().map(|event| event["index"].as_u64().unwrap()).collect::<Vec<_>>(), [0, 1, 2]);
    let arguments = events.as_array().unwrap().iter().filter_map(|event| event["delta"]["partial_json"].as_str());
    assert_eq!(arguments.collect::<String>(), "{\"a\":1}{\"a\":1}");
    let end = events.as_array().unwrap().iter().find(|event| event["type"] == "message_delta").unwrap();
    assert_eq!(end["delta"]["stop_reason"], "tool_use");
}
