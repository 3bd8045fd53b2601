//! Anthropic's and OpenAI's newer interface over HTTP.

use rlhost_tests::TestFolder;
use rlhost_tests::server::{ServerProcess, TestHttpResponse};
use serde_json::{Value, json};

const CHATML: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}\
    {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

const KEY: &str = "a-key-of-many-letters";

fn served(more: &[&str]) -> (TestFolder, ServerProcess) {
    let place = TestFolder::new();
    place.write("chatml.jinja", CHATML);
    place.write("keys", format!("{KEY}\n"));
    let server = ServerProcess::start(&place, &[&["--chat-template", "chatml.jinja"], more].concat());
    (place, server)
}

/// The names and the data of a stream's events.
fn events(answer: &TestHttpResponse) -> Vec<(String, Value)> {
    let event = |text: &str| {
        let (name, data) = text.strip_prefix("event: ")?.split_once("\ndata: ")?;
        Some((name.to_owned(), serde_json::from_str(data).ok()?))
    };
    answer.body.split_terminator("\n\n").map(|text| event(text).unwrap_or_else(|| panic!("{text}"))).collect()
}

#[test]
fn all_interfaces_write_the_same_turn() {
    let (_place, server) = served(&[]);
    let ask = |path: &str, body: &Value| {
        let answer = server.post(path, body);
        assert_eq!(answer.status, 200, "{}", answer.body);
        answer
    };
    let turns = json!([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Tell me of the sea."}]);
    let mut common = json!({"temperature": 0, "ignore_eos": true});
    let mut with = |more: Value| {
        common.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        common.clone()
    };
    let chat = ask("/v1/chat/completions", &with(json!({"messages": turns, "max_tokens": 16}))).json();
    let text = chat["choices"][0]["message"]["content"].as_str().unwrap();

    let anthropic =
        json!({"system": "Be brief.", "messages": [turns[1]], "max_tokens": 16, "temperature": 0, "ignore_eos": true});
    let message = ask("/v1/messages", &anthropic).json();
    assert_eq!((&message["content"][0]["text"], &message["stop_reason"]), (&json!(text), &json!("max_tokens")));
    let mut streamed = anthropic;
    streamed["stream"] = true.into();
    let all = events(&ask("/v1/messages", &streamed));
    assert!(all.iter().all(|(name, data)| data["type"] == name.as_str()), "{all:?}");
    assert_eq!((all[0].0.as_str(), all[all.len() - 1].0.as_str()), ("message_start", "message_stop"));
    assert_eq!(all.iter().filter_map(|(_, data)| data["delta"]["text"].as_str()).collect::<String>(), text);

    let openai = json!({"instructions": "Be brief.", "input": "Tell me of the sea.", "max_output_tokens": 16, "temperature": 0,
        "ignore_eos": true});
    let response = ask("/v1/responses", &openai).json();
    assert_eq!((&response["output"][0]["content"][0]["text"], &response["status"]), (&json!(text), &json!("incomplete")));
    let mut streamed = openai;
    streamed["stream"] = true.into();
    let all = events(&ask("/v1/responses", &streamed));
    assert_eq!((all[0].0.as_str(), all[all.len() - 1].0.as_str()), ("response.created", "response.incomplete"));
    assert_eq!(all.iter().filter_map(|(_, data)| data["delta"].as_str()).collect::<String>(), text);
}

#[test]
fn errors_have_the_form_of_their_interface() {
    let (_place, server) = served(&["--api-key-file", "keys"]);
    let body = json!({"max_tokens": 4, "messages": [{"role": "user", "content": "q"}]}).to_string();
    let ask = |path: &str, headers: &str| TestHttpResponse::read(server.send(&format!("POST {path}"), headers, &body));
    let kind = "Content-Type: application/json\r\n";
    let missing = ask("/v1/messages", kind);
    assert_eq!((missing.status, &missing.json()["error"]["type"]), (401, &json!("authentication_error")));
    assert_eq!(missing.json()["type"], "error");
    assert_eq!(ask("/v1/messages", &format!("{kind}x-api-key: {KEY}\r\n")).status, 200);
    assert_eq!(ask("/v1/messages/count_tokens", &format!("x-api-key: {KEY}\r\n")).json()["type"], "error");
    assert_eq!(ask("/v1/messages/batches", &format!("{kind}x-api-key: {KEY}\r\n")).json()["error"]["type"], "not_found_error");
    let other = ask("/v1/responses", kind);
    assert_eq!((other.status, &other.json()["error"]["code"]), (401, &json!("invalid_api_key")));
}
