//! Weights that change while a server runs, adapters, and reward models.

use rlhost_tests::server::{ServerProcess, TestHttpResponse};
use rlhost_tests::{TestFolder, tiny};
use serde_json::{Value, json};
use std::io::Read;

const PROMPT: &str = "prompt 3";

/// What a model of the server writes, with the version of its weights.
fn written(server: &ServerProcess, model: &str) -> (String, String) {
    let body = json!({"model": model, "prompt": PROMPT, "max_tokens": 24, "temperature": 0});
    let answer = server.post("/v1/completions", &body);
    assert_eq!(answer.status, 200, "{}", answer.body);
    let choice = &answer.json()["choices"][0];
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    (text(&choice["text"]), text(&choice["weight_versions"][0]["version"]))
}

/// What `rlhost generate` writes.
fn generated(place: &TestFolder, model: &str) -> String {
    let greedy = ["--prompt", PROMPT, "--temperature", "0", "--max-new-tokens", "24"];
    let text = place.run(&[&["generate", "--model", model], &greedy[..]].concat()).succeeded().stdout.clone();
    text.strip_prefix(PROMPT).unwrap().strip_suffix('\n').unwrap().to_owned()
}

fn posted(server: &ServerProcess, path: &str, body: &Value) -> TestHttpResponse {
    let answer = server.post(path, body);
    assert_eq!(answer.status, 200, "{path} {body}: {}", answer.body);
    answer
}

fn trained(place: &TestFolder, run: &str, more: &[&str]) {
    let common = ["--max-steps", "2", "--learning-rate", "0.05", "--save-steps", "1"];
    place.train(run, &[&common, more].concat()).succeeded();
}

#[test]
fn an_adapter_is_served_beside_its_model_and_replaced_in_place() {
    let place = TestFolder::new();
    trained(&place, "run", &["--lora-r", "4"]);
    let server = ServerProcess::start(
        &place,
        &["--model", tiny(), "--served-model-name", "m", "--adapter", "poet=run", "--allow-weight-updates"],
    );
    let (base, poet) = (generated(&place, tiny()), generated(&place, "run/checkpoint-2"));
    assert_ne!(base, poet, "the adapter has learned nothing");
    assert_eq!(written(&server, "m"), (base, "0".into()));
    assert_eq!(written(&server, "poet"), (poet.clone(), "1".into()));
    let earlier = json!({"lora_name": "poet", "lora_path": place.path("run/checkpoint-1"), "load_inplace": true});
    posted(&server, "/v1/load_lora_adapter", &earlier);
    assert_eq!(written(&server, "poet"), (generated(&place, "run/checkpoint-1"), "2".into()));
    posted(&server, "/v1/unload_lora_adapter", &json!({"lora_name": "poet"}));
    assert_eq!(server.post("/v1/completions", &json!({"model": "poet", "prompt": "a"})).status, 404);
    // The whole weights may be an adapter's on its model.
    let whole = json!({"method": "reload_weights", "kwargs": {"weights_path": place.path("run/checkpoint-2")}});
    posted(&server, "/collective_rpc", &whole);
    assert_eq!(written(&server, "m"), (poet, "3".into()));
    let wrong = json!({"method": "reload_weights", "kwargs": {"weights_path": place.path("nowhere")}});
    let refused = server.post("/collective_rpc", &wrong);
    assert!(refused.status == 400 && refused.body.contains("nowhere"), "{}", refused.body);
    assert_eq!(written(&server, "m").1, "3");
    assert_eq!(server.metric("weight_version"), 3);
}

#[test]
fn a_pause_ends_what_is_under_way_and_web_pages_can_not_ask_for_it() {
    let server = ServerProcess::start(&TestFolder::new(), &["--allow-weight-updates"]);
    let act = |path: &str, headers: &str| TestHttpResponse::read(server.send(&format!("POST {path}"), headers, ""));
    assert_eq!(act("/pause?mode=abort", "Origin: http://evil.example\r\n").status, 403);
    let long = json!({"prompt": "TITLE:", "max_tokens": 400, "ignore_eos": true, "n": 8});
    let mut stream = server.begin("/v1/completions", &long);
    while server.metric("requests_running") < 8 {
        std::thread::yield_now();
    }
    assert_eq!(act("/pause?mode=abort", "").json()["status"], "paused");
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    assert!(text.contains("\"finish_reason\":\"abort\""), "{text}");
    assert_eq!(server.get("/is_paused").json()["is_paused"], true);
    // A request that comes meanwhile waits.
    let waiting = server.begin("/v1/completions", &json!({"prompt": "TITLE:", "max_tokens": 2}));
    assert_eq!(act("/resume", "").json()["status"], "resumed");
    assert_eq!(TestHttpResponse::read(waiting).status, 200);
    // Without the flag, nothing can be changed.
    let plain = ServerProcess::start(&TestFolder::new(), &[]);
    assert_eq!(TestHttpResponse::read(plain.send("POST /pause", "", "")).status, 403);
}

#[test]
fn a_reward_model_says_over_http_what_score_says() {
    let place = TestFolder::new();
    place.train_reward_model("rm", &[]);
    let server = ServerProcess::start(&place, &["--model", "rm", "--served-model-name", "judge"]);
    let texts: Vec<Value> = (0..4).map(|i| format!("a text of {i} words").into()).collect();
    place.write("texts.jsonl", texts.iter().map(|text| format!("{}\n", json!({"text": text}))).collect::<String>());
    let scored = place.score("rm", "texts.jsonl");
    let answer = server.post("/classify", &json!({"model": "judge", "input": texts, "use_activation": false}));
    assert_eq!(answer.status, 200, "{}", answer.body);
    let values: Vec<f64> = answer.json()["data"].as_array().unwrap().iter().map(|e| e["probs"][0].as_f64().unwrap()).collect();
    // `score` ends a text with the end token, which is the padding token too and has no value.
    for (value, scored) in values.iter().zip(&scored) {
        assert!((value - scored["score"].as_f64().unwrap()).abs() < 1e-5, "{value} {scored}");
    }
    assert_eq!(values.len(), scored.len());
    let pair = server.post("/score", &json!({"text_1": texts[0], "text_2": "", "use_activation": false}));
    assert_eq!(pair.status, 200, "{}", pair.body);
    assert!((pair.json()["data"][0]["score"].as_f64().unwrap() - values[0]).abs() < 1e-6);
    assert_eq!(server.post("/v1/completions", &json!({"prompt": "a"})).status, 400);
    assert!(server.metric("scored_texts_total") >= 5);
}
