use super::super::chat::ChatResponseForm;
use super::super::tests::{WITH_TOOLS, app, events_of, post, refused, said};
use super::*;
use serde_json::json;

#[test]
fn items_are_translated_into_the_turns_that_the_model_wrote() {
    let function =
        |id: &str| json!({"type": "function_call", "id": "fc_1", "call_id": id, "name": "add", "arguments": "{\"a\": 1}"});
    let body = json!({
        "model": "m", "instructions": "Be brief.", "max_output_tokens": 5, "reasoning": {"effort": "low"},
        "input": [
            {"role": "developer", "content": "Add."},
            {"role": "user", "content": [{"type": "input_text", "text": "1 and 1"}]},
            {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
                "content": [{"type": "output_text", "text": "I add.", "annotations": [], "logprobs": []}]},
            function("c1"), function("c2"),
            {"type": "function_call_output", "call_id": "c1", "output": "2"},
            {"type": "function_call_output", "call_id": "c9", "output": [{"type": "input_text", "text": "3"}]},
            function("c3")],
        "tools": [{"type": "function", "name": "add", "description": "Adds.", "parameters": {"type": "object"}, "strict": true}],
    });
    let call = |id: &str| json!({"id": id, "type": "function", "function": {"name": "add", "arguments": "{\"a\": 1}"}});
    let text = |text: &str| json!([{"type": "text", "text": text}]);
    let wanted = json!({
        "model": "m", "max_tokens": 5, "reasoning_effort": "low",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "system", "content": "Add."},
            {"role": "user", "content": text("1 and 1")},
            {"role": "assistant", "content": text("I add."), "tool_calls": [call("c1"), call("c2")]},
            {"role": "tool", "tool_call_id": "c1", "content": "2", "name": "add"},
            {"role": "tool", "tool_call_id": "c9", "content": text("3")},
            {"role": "assistant", "content": null, "tool_calls": [call("c3")]}],
        "tools": [{"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": {"type": "object"}}}],
    });
    let mut fields = Fields::parse(body.to_string().as_bytes()).unwrap();
    assert_eq!(Value::Object(request::chat(&mut fields).unwrap()), wanted);
}

#[test]
fn what_is_stored_elsewhere_or_not_supported_is_refused_by_name() {
    let app = app(Some(WITH_TOOLS));
    for (field, value, named) in [
        ("input", json!([]), "input"),
        ("input", json!(1), "input"),
        ("input", json!([1]), "input[0]"),
        ("input", json!([{"type": "item_reference", "id": "msg_1"}]), "input[0]"),
        ("input", json!([{"role": "robot", "content": "q"}]), "input[0]"),
        ("input", json!([{"role": "user", "content": [{"type": "input_image"}]}]), "input[0].content[0]"),
        ("input", json!([{"type": "function_call", "call_id": "c", "name": "f"}]), "input[0].arguments"),
        ("previous_response_id", json!("resp_1"), "previous_response_id"),
        ("conversation", json!("conv_1"), "conversation"),
        ("store", json!(true), "store"),
        ("background", json!(true), "background"),
        ("include", json!(["message.output_text.logprobs"]), "include"),
        ("text", json!({"format": {"type": "json_object"}}), "text.format"),
        ("reasoning", json!({"summary": "auto"}), "reasoning.summary"),
        ("tools", json!([{"type": "web_search"}]), "tools[0].type"),
        ("tool_choice", json!("required"), "tool_choice"),
        ("n", json!(2), "n"),
        ("messages", json!([]), "messages"),
        ("max_output_tokens", json!(-1), "max_tokens"),
    ] {
        let mut body = json!({"input": "q"});
        body[field] = value;
        let (status, param, message) = refused(&app, "/v1/responses", &body);
        assert!(status == 400 && param == named, "{body}: {status} {param} {message}");
    }
}

#[test]
fn a_streamed_response_ends_with_the_whole_one() {
    let app = app(Some(WITH_TOOLS));
    let mut body = json!({"input": "Hello", "max_output_tokens": 12, "seed": 1, "ignore_eos": true, "metadata": {"a": "b"}});
    let mut whole = post(&app, "/v1/responses", &body);
    assert_eq!((&whole["status"], &whole["incomplete_details"]["reason"]), (&json!("incomplete"), &json!("max_output_tokens")));
    assert_eq!((&whole["metadata"], &whole["usage"]["output_tokens"]), (&json!({"a": "b"}), &json!(12)));
    body["stream"] = true.into();
    let events = post(&app, "/v1/responses", &body);
    let events = events.as_array().unwrap();
    assert!((0..).zip(events).all(|(i, event)| event["sequence_number"] == i));
    assert_eq!(
        (&events[0]["type"], &events[events.len() - 1]["type"]),
        (&json!("response.created"), &json!("response.incomplete"))
    );
    let text: String = events.iter().filter_map(|event| event["delta"].as_str()).collect();
    assert_eq!(text, whole["output"][0]["content"][0]["text"]);
    let mut last = events[events.len() - 1]["response"].clone();
    for name in ["id", "created_at", "usage"] {
        (whole[name], last[name]) = Default::default();
    }
    (whole["output"][0]["id"], last["output"][0]["id"]) = Default::default();
    assert_eq!(last, whole);
}

#[test]
fn calls_are_items_with_events_of_their_own() {
    let app = app(Some(WITH_TOOLS));
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let tools = json!([{"type": "function", "function": {"name": "add", "parameters": {}}}]);
    let call = "<tool_call>{\"name\": \"add\", \"arguments\": {\"a\": 1}}</tool_call>";
    for (words, text, first) in [(format!("Let me see.\n{call}{call}"), "Let me see.", 1), (format!("{call}{call}"), "", 0)] {
        let form = ChatResponseForm::with_tools(tools.clone());
        let head = ResponseHead::new(&form, Map::new());
        let mut source = TypedEvents::new(Arc::clone(&app), form, said(&app, &words), Box::new(ResponsesEventWriter::new(head)));
        let events = runtime.block_on(events_of(&mut source));
        let events = events.as_array().unwrap();
        let of = |kind: &str| -> Vec<&Value> { events.iter().filter(|event| event["type"] == kind).collect() };
        assert_eq!(of("response.output_text.delta").iter().filter_map(|event| event["delta"].as_str()).collect::<String>(), text);
        let done = of("response.function_call_arguments.done");
        assert!(done.len() == 2 && done.iter().all(|event| event["arguments"] == "{\"a\":1}" && event["name"] == "add"));
        assert_eq!(done[0]["output_index"], first);
        let output = events.last().unwrap()["response"]["output"].as_array().unwrap();
        let items: Vec<&Value> = of("response.output_item.done").iter().map(|event| &event["item"]).collect();
        assert_eq!(output.iter().collect::<Vec<_>>(), items);
        assert!(output[first].get("call_id").is_some() && output.len() == first + 2);
    }
}
