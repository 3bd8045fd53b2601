//! What `rlhost serve` answers over HTTP.

use rlhost_tests::server::ServerProcess;
use rlhost_tests::{TestFolder, small};
use serde_json::{Value, json};

const CHATML: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}\
    {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

#[test]
fn the_built_in_model_writes_what_generate_writes() {
    let place = TestFolder::new();
    let server = ServerProcess::start(&place, &[]);
    assert_eq!(server.get("/v1/models").json()["data"][0]["id"], "rlhost");
    let prompt = "SUBREDDIT: r/cats TITLE: My cat POST: My cat sleeps all day. TL;DR:";
    let generated = place.run(&["generate", "--prompt", prompt, "--temperature", "0", "--max-new-tokens", "24"]);
    let body = json!({"model": "rlhost", "prompt": prompt, "temperature": 0, "max_tokens": 24});
    let answer = server.post("/v1/completions", &body);
    assert_eq!(answer.status, 200, "{}", answer.body);
    let text = answer.json()["choices"][0]["text"].as_str().unwrap().to_owned();
    assert_eq!(format!("{prompt}{text}\n"), generated.succeeded().stdout);
    let mut streamed = body;
    streamed["stream"] = true.into();
    let answer = server.post("/v1/completions", &streamed);
    assert!(answer.head.contains("content-type: text/event-stream"), "{}", answer.head);
    let pieces = answer.events();
    assert!(pieces.len() > 5, "{pieces:?}");
    assert_eq!(pieces.iter().map(|event| event["choices"][0]["text"].as_str().unwrap()).collect::<String>(), text);
}

#[test]
fn a_run_is_served_under_its_name_and_two_requests_share_their_prefix() {
    let place = TestFolder::new();
    place.train("run", &[&small()[..], &["--max-steps", "1"]].concat()).succeeded();
    place.write("chatml.jinja", CHATML);
    let server =
        ServerProcess::start(&place, &["--model", "run", "--served-model-name", "mine", "--chat-template", "chatml.jinja"]);
    let first = json!({"role": "user", "content": "Tell me of the sea, of ships and of the wind."});
    let ask = |messages: Value| {
        let body = json!({"model": "mine", "messages": messages, "seed": 1, "max_tokens": 8, "return_token_ids": true});
        let answer = server.post("/v1/chat/completions", &body);
        assert_eq!(answer.status, 200, "{}", answer.body);
        answer.json()
    };
    let answer = ask(json!([first]));
    assert_eq!(answer["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
    assert_eq!(answer["choices"][0]["token_ids"].as_array().unwrap().len(), 8);
    // The second turn has the first one's tokens, as the model has a token for each byte.
    let next = ask(json!([first, {"role": "assistant", "content": "Aye."}, {"role": "user", "content": "More."}]));
    let cached = next["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
    assert!(cached >= answer["usage"]["prompt_tokens"].as_u64().unwrap() - 1, "{next}");
    assert_eq!(ask(json!([first]))["choices"], answer["choices"]);
}

#[test]
fn what_was_mistaken_is_said_before_anything_is_loaded() {
    let place = TestFolder::new();
    place.write("keys", "short\n");
    place.write("empty", "# none\n");
    for (arguments, said) in [
        (&["--host", "0.0.0.0", "--port", "0"][..], "--api-key-file"),
        (&["--api-key-file", "keys"], "line 1"),
        (&["--api-key-file", "empty"], "no key"),
        (&["--api-key-file", "missing"], "missing"),
        (&["--max-model-len", "1000000"], "--max-model-len"),
        (&["--max-num-seqs", "0"], "--max-num-seqs"),
        (&["--model", "nowhere"], "nowhere"),
        (&["--chat-template", "nowhere"], "nowhere"),
    ] {
        let outcome = place.run(&[&["serve"], arguments].concat());
        assert!(outcome.code == Some(2) && outcome.stderr.contains(said), "{arguments:?}: {outcome:?}");
    }
    let server = ServerProcess::start(&place, &[]);
    let port = server.address.rsplit(':').next().unwrap();
    let outcome = place.run(&["serve", "--port", port]);
    assert!(outcome.code == Some(2) && outcome.stderr.contains("in use"), "{outcome:?}");
}
