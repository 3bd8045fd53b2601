use super::choice::CompletionChoice;
use super::reply::ReplyContent;
use super::*;
use crate::data::{Tokenizer, TokenizerOverrides};
use crate::engine::{EngineEvent, EngineOptions, FinishReason, InferenceEngine, ScoredToken, TokenStream};
use crate::model::{FrozenModel, ModelFolder, WeightStorage, builtin};
use crate::text::{TextStream, TextStreamRules};
use serde_json::{Value, json};
use std::future::poll_fn;
use std::path::PathBuf;
use std::sync::Arc;

pub(crate) const CHATML: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}\
    {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/// Template that describes tools and writes calls as Qwen does.
pub(crate) const WITH_TOOLS: &str = "{% if tools %}{{ tools | tojson }}\n{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}\n\
    {{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}<|im_end|>\n{% endfor %}\
    {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

pub(super) fn tokenizer(template: Option<&str>) -> (Tokenizer, ModelFolder, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    builtin::write(folder.path()).unwrap();
    let template = template.map(|source| (PathBuf::from("template"), source.to_owned()));
    let tokenizer =
        Tokenizer::open_with(folder.path(), &TokenizerOverrides { template, ..TokenizerOverrides::default() }).unwrap();
    (tokenizer, ModelFolder::open(folder.path()).unwrap(), folder)
}

pub(crate) fn app(template: Option<&str>) -> Arc<App> {
    let (tokenizer, folder, _kept) = tokenizer(template);
    let ends = tokenizer.eos_ids(&folder.architecture().eos_token_ids);
    let decoding = FrozenModel::new(folder.with_weight_storage(WeightStorage::AS_STORED).decoder().unwrap()).decoding().unwrap();
    let options =
        EngineOptions { max_model_len: 512, max_num_seqs: 8, max_waiting: 64, cache_bytes: 64 << 20, favours_throughput: false };
    let card = ModelCard { names: vec!["rlhost".into(), "other".into()], ends, version: "1.2.3".into(), dtype: None };
    Arc::new(App::new(InferenceEngine::start(decoding, 5, options).unwrap(), tokenizer, card))
}

/// Returns a completion of these words, as the engine would send it.
pub(super) fn said(app: &App, words: &str) -> CompletionChoice {
    let ids = app.tokenizer.encode(words, false).unwrap();
    let token = |id| EngineEvent::Token(ScoredToken { id, logp: -1.0, rank: 0, top: Vec::new(), version: 0 });
    let mut events = vec![EngineEvent::Prompt { scored: Vec::new(), cached: 0 }];
    events.extend(ids.into_iter().map(token));
    events.push(EngineEvent::Finished(FinishReason::End));
    CompletionChoice::new(
        0,
        TokenStream::from_events(events),
        TextStream::new(app.tokenizer.clone(), TextStreamRules::default(), &[]),
    )
}

/// Returns the data of a source's events.
pub(super) async fn events_of(source: &mut dyn EventSource) -> Value {
    let mut all = String::new();
    while let Some(events) = poll_fn(|context| source.poll_next(context)).await {
        all += &events;
    }
    let events = all.split_terminator("\n\n").map(|event| event.split_once("data: ").unwrap().1);
    events.map(|event| serde_json::from_str::<Value>(event).unwrap_or_else(|_| event.into())).collect()
}

/// Returns status and body of a response; the body of a streamed one is a list of its events.
pub(super) fn ask(app: &Arc<App>, method: &str, path: &str, body: &[u8]) -> (u16, Value) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async {
        let reply = match InferenceRoute::find(method, path) {
            Ok(route) => route.answer(Arc::clone(app), body.to_vec()).await,
            Err(error) => Err(error),
        };
        let reply = reply.unwrap_or_else(|error| Reply::error(&error, path));
        let content = match reply.content {
            ReplyContent::Json(value) => value,
            ReplyContent::Text(text) => text.into(),
            ReplyContent::Events(mut source) => events_of(source.as_mut()).await,
        };
        (reply.status, content)
    })
}

pub(crate) fn post(app: &Arc<App>, path: &str, body: &Value) -> Value {
    let (status, answer) = ask(app, "POST", path, body.to_string().as_bytes());
    assert_eq!(status, 200, "{answer}");
    answer
}

/// Returns status, field and message of a rejected request.
pub(crate) fn refused(app: &Arc<App>, path: &str, body: &Value) -> (u16, Value, String) {
    let (status, answer) = ask(app, "POST", path, body.to_string().as_bytes());
    let error = &answer["error"];
    (status, error["param"].clone(), error["message"].as_str().unwrap_or_default().to_owned())
}

#[test]
fn a_streamed_completion_says_what_a_whole_one_says() {
    let app = app(None);
    let body = json!({"model": "rlhost", "prompt": "SUBREDDIT: r/cats TITLE:", "max_tokens": 24, "seed": 4, "n": 2, "logprobs": 1,
        "return_token_ids": true});
    let whole = post(&app, "/v1/completions", &body);
    let mut streamed = body.clone();
    (streamed["stream"], streamed["stream_options"]) = (true.into(), json!({"include_usage": true}));
    let events = post(&app, "/v1/completions", &streamed);
    let events = events.as_array().unwrap();
    assert_eq!(events.last().unwrap(), "[DONE]");
    assert_eq!(events[events.len() - 2]["usage"]["completion_tokens"], whole["usage"]["completion_tokens"]);
    for (i, choice) in whole["choices"].as_array().unwrap().iter().enumerate() {
        let own = events.iter().flat_map(|event| event["choices"].as_array().into_iter().flatten());
        let own: Vec<&Value> = own.filter(|chunk| chunk["index"] == i).collect();
        let text: String = own.iter().map(|chunk| chunk["text"].as_str().unwrap()).collect();
        let list = |of: &dyn Fn(&Value) -> Value| -> Value {
            own.iter().flat_map(|chunk| of(chunk).as_array().cloned().unwrap_or_default()).collect()
        };
        assert_eq!(text, choice["text"]);
        assert_eq!(list(&|chunk| chunk["token_ids"].clone()), choice["token_ids"]);
        assert_eq!(list(&|chunk| chunk["logprobs"]["token_logprobs"].clone()), choice["logprobs"]["token_logprobs"]);
        assert_eq!(own.last().unwrap()["finish_reason"], choice["finish_reason"]);
        let count = choice["token_ids"].as_array().unwrap().len();
        assert_eq!(choice["weight_versions"], json!([{"version": "5", "start": 0, "end": count}]));
        assert_eq!(own[0]["prompt_token_ids"], choice["prompt_token_ids"]);
    }
    assert_ne!(whole["choices"][0]["text"], whole["choices"][1]["text"]);
    assert_eq!(post(&app, "/v1/completions", &body)["choices"], whole["choices"]);
}

#[test]
fn ids_are_continued_as_they_are_and_echo_scores_the_prompt() {
    let app = app(None);
    let tokens = post(&app, "/tokenize", &json!({"prompt": "A text to score."}))["tokens"].clone();
    let body = json!({"prompt": [tokens, "A text to score."], "max_tokens": 0, "echo": true, "logprobs": 1});
    let scored = post(&app, "/v1/completions", &body);
    let (first, second) = (&scored["choices"][0], &scored["choices"][1]);
    assert_eq!((&first["logprobs"], &first["text"]), (&second["logprobs"], &json!("A text to score.")));
    let logps = first["logprobs"]["token_logprobs"].as_array().unwrap();
    assert!(logps[0].is_null() && logps[1..].iter().all(|logp| logp.as_f64().unwrap() < 0.0), "{logps:?}");
    assert_eq!(logps.len(), tokens.as_array().unwrap().len());
    let generated = json!({"token_ids": tokens, "sampling_params": {"max_tokens": 3, "temperature": 0, "logprobs": 1}});
    let generated = post(&app, "/inference/v1/generate", &generated);
    let completed = json!({"prompt": tokens, "max_tokens": 3, "temperature": 0, "return_token_ids": true, "logprobs": 0});
    let completed = &post(&app, "/v1/completions", &completed)["choices"][0];
    assert_eq!(generated["choices"][0]["token_ids"], completed["token_ids"]);
    let logprob = |i: usize| &generated["choices"][0]["logprobs"]["content"][i]["logprob"];
    assert!((0..3).all(|i| *logprob(i) == completed["logprobs"]["token_logprobs"][i]), "{generated} {completed}");
    assert_eq!(generated["prompt_token_ids"], tokens);
}

#[test]
fn stop_texts_end_a_completion_before_them() {
    let app = app(None);
    let body = json!({"prompt": "SUBREDDIT: r/cats TITLE:", "max_tokens": 40, "temperature": 0, "ignore_eos": true});
    let whole = post(&app, "/v1/completions", &body)["choices"][0]["text"].as_str().unwrap().to_owned();
    // Some letters within the text, across tokens.
    let (at, _) = whole.char_indices().nth(whole.chars().count() / 2).unwrap();
    let stop: String = whole[at..].chars().take(5).collect();
    let begin = &whole[..whole.find(&stop).unwrap()];
    for stream in [false, true] {
        let mut stopping = body.clone();
        (stopping["stop"], stopping["stream"]) = (json!([stop]), stream.into());
        let answer = post(&app, "/v1/completions", &stopping);
        let chunks = if stream { answer.as_array().unwrap().clone() } else { vec![answer] };
        let texts = chunks.iter().filter_map(|chunk| chunk["choices"][0]["text"].as_str());
        assert_eq!(texts.collect::<String>(), begin);
        assert!(chunks.iter().any(|chunk| chunk["choices"][0]["stop_reason"] == stop.as_str()), "{chunks:?}");
    }
}

#[test]
fn a_conversation_is_rendered_by_the_template_and_answered() {
    let app = app(Some(CHATML));
    let messages = json!([{"role": "user", "content": [{"type": "text", "text": "Hello"}]}]);
    let rendered = "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n";
    let tokens = post(&app, "/tokenize", &json!({"messages": messages}))["tokens"].clone();
    assert_eq!(post(&app, "/detokenize", &json!({"tokens": tokens}))["prompt"], rendered);
    let body = json!({"model": "other", "messages": messages, "max_completion_tokens": 12, "seed": 1, "logprobs": true,
        "top_logprobs": 2, "return_token_ids": true});
    let whole = post(&app, "/v1/chat/completions", &body);
    assert_eq!((&whole["prompt_token_ids"], &whole["model"]), (&tokens, &json!("other")));
    let choice = &whole["choices"][0];
    assert_eq!(choice["logprobs"]["content"].as_array().unwrap().len(), choice["token_ids"].as_array().unwrap().len());
    assert_eq!(choice["logprobs"]["content"][0]["top_logprobs"].as_array().unwrap().len(), 2);
    let mut streamed = body;
    streamed["stream"] = true.into();
    let events = post(&app, "/v1/chat/completions", &streamed);
    let deltas: Vec<&Value> = events.as_array().unwrap().iter().map(|event| &event["choices"][0]["delta"]).collect();
    assert_eq!(deltas[0]["role"], "assistant");
    let text: String = deltas.iter().filter_map(|delta| delta["content"].as_str()).collect();
    assert_eq!(text, choice["message"]["content"]);
    let without = app_error(None, &messages);
    assert!(without.contains("no chat template") && without.contains("--chat-template"), "{without}");
}

#[test]
fn the_last_message_is_continued_as_the_template_wrote_it() {
    let trims = CHATML.replace("m.content", "m.content | trim");
    let messages = json!([{"role": "user", "content": "Hello"}, {"role": "assistant", "content": " The sea is "}]);
    let rendered = |template: &str, body: Value| {
        let app = app(Some(template));
        let tokens = post(&app, "/tokenize", &body)["tokens"].clone();
        post(&app, "/detokenize", &json!({"tokens": tokens}))["prompt"].as_str().unwrap().to_owned()
    };
    let body = json!({"messages": messages, "continue_final_message": true});
    assert!(rendered(CHATML, body.clone()).ends_with("<|im_start|>assistant\n The sea is "));
    assert!(rendered(&trims, body.clone()).ends_with("<|im_start|>assistant\nThe sea is"));
    let app = app(Some(CHATML));
    let mut asked = body.clone();
    (asked["max_tokens"], asked["ignore_eos"], asked["return_token_ids"]) = (3.into(), true.into(), true.into());
    let answer = post(&app, "/v1/chat/completions", &asked);
    assert_eq!(answer["prompt_token_ids"], post(&app, "/tokenize", &body)["tokens"]);
    let calls = json!([{"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}]);
    for (body, field) in [
        (json!({"messages": messages, "continue_final_message": true, "add_generation_prompt": true}), "add_generation_prompt"),
        (json!({"messages": calls, "continue_final_message": true}), "continue_final_message"),
        (json!({"messages": messages, "continue_final_message": 1}), "continue_final_message"),
    ] {
        assert_eq!(refused(&app, "/v1/chat/completions", &body).1, field);
    }
}

fn app_error(template: Option<&str>, messages: &Value) -> String {
    refused(&app(template), "/v1/chat/completions", &json!({"messages": messages})).2
}

#[test]
fn tools_are_described_to_the_model_and_no_call_can_be_forced() {
    let app = app(Some(WITH_TOOLS));
    let tools = json!([{"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}]);
    let call = json!({"id": "1", "type": "function", "function": {"name": "add", "arguments": "{\"a\": 1}"}});
    let messages = json!([{"role": "user", "content": "q"}, {"role": "assistant", "content": "", "tool_calls": [call]}]);
    let tokens = post(&app, "/tokenize", &json!({"messages": messages, "tools": tools}))["tokens"].clone();
    let text = post(&app, "/detokenize", &json!({"tokens": tokens}))["prompt"].as_str().unwrap().to_owned();
    // Clients send arguments as text, and templates write them as objects.
    assert!(
        text.starts_with("[{") && text.contains("<tool_call>{\"name\": \"add\", \"arguments\": {\"a\": 1}}</tool_call>"),
        "{text}"
    );
    let body =
        |choice: &str| json!({"messages": messages, "tools": tools, "tool_choice": choice, "max_tokens": 4, "ignore_eos": true});
    assert_eq!(post(&app, "/v1/chat/completions", &body("auto"))["choices"][0]["finish_reason"], "length");
    let described = post(&app, "/v1/chat/completions", &body("auto"))["usage"]["prompt_tokens"].as_u64();
    assert!(described > post(&app, "/v1/chat/completions", &body("none"))["usage"]["prompt_tokens"].as_u64());
    let (status, field, _) = refused(&app, "/v1/chat/completions", &body("required"));
    assert_eq!((status, field), (400, json!("tool_choice")));
}

#[test]
fn fields_that_would_change_the_answer_are_refused_by_name() {
    let app = app(Some(CHATML));
    let messages = json!([{"role": "user", "content": "q"}]);
    for (field, value) in [
        ("frequency_penalty", json!(0.5)),
        ("presence_penalty", json!(-1)),
        ("response_format", json!({"type": "json_object"})),
        ("best_of", json!(3)),
        ("temperature", json!("warm")),
        ("temperature", json!(-0.1)),
        ("temperature", json!(0.00001)),
        ("top_p", json!(0)),
        ("top_k", json!(1.5)),
        ("n", json!(0)),
        ("n", json!(1_000_000)),
        ("stop", json!([""])),
        ("stop", json!([1])),
        ("logit_bias", json!({"a": 1})),
        ("logit_bias", json!({"1": 1000})),
        ("guided_json", json!({})),
        ("max_tokens", json!(-1)),
        ("seed", json!("x")),
        ("stream_options", json!(1)),
    ] {
        for (path, mut body) in
            [("/v1/completions", json!({"prompt": "a"})), ("/v1/chat/completions", json!({"messages": messages}))]
        {
            body[field] = value.clone();
            let (status, named, message) = refused(&app, path, &body);
            assert!(status == 400 && named == field && message.starts_with(field), "{path} {body}: {status} {named} {message}");
        }
    }
    for (field, value) in [("frequency_penalty", json!(0.0)), ("response_format", json!({"type": "text"})), ("user", json!("me"))]
    {
        let mut body = json!({"prompt": "a", "max_tokens": 1});
        body[field] = value;
        post(&app, "/v1/completions", &body);
    }
    let (status, field, message) = refused(&app, "/v1/completions", &json!({"prompt": "a", "model": "gpt-9"}));
    assert!(status == 404 && field == "model" && message.contains("rlhost, other"), "{message}");
    let (status, _, message) = refused(&app, "/v1/completions", &json!({"prompt": "a", "max_tokens": 1000}));
    assert!(status == 400 && message.contains("context is 512 tokens"), "{message}");
    let (status, _, message) = refused(&app, "/v1/completions", &json!({"prompt": [1 << 30]}));
    assert!(status == 400 && message.contains("unknown"), "{message}");
}

#[test]
fn bodies_of_any_bytes_are_refused_with_an_error() {
    let app = app(Some(CHATML));
    let deep = "[".repeat(100_000);
    let mut state = 9u64;
    let mut noise = |length: usize| -> Vec<u8> {
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        };
        (0..length).map(|_| next()).collect()
    };
    let mut bodies: Vec<Vec<u8>> = (0..50).map(|i| noise(i * 3)).collect();
    bodies.extend(
        ["", "{", "[]", "null", "{\"a\":1,\"a\":2}", &format!("{{\"messages\": {deep}")].map(|text| text.as_bytes().to_vec()),
    );
    bodies.push(
        format!("{{\"messages\": [{{\"role\": \"user\", \"content\": {}}}]}}", json!([{"type": "image_url"}])).into_bytes(),
    );
    for path in [
        "/v1/completions",
        "/v1/chat/completions",
        "/v1/messages",
        "/v1/messages/count_tokens",
        "/v1/responses",
        "/tokenize",
        "/detokenize",
        "/inference/v1/generate",
    ] {
        for body in &bodies {
            let (status, answer) = ask(&app, "POST", path, body);
            assert!(status == 400 && answer["error"]["message"].is_string(), "{path} {body:?}: {status} {answer}");
        }
    }
    assert_eq!(ask(&app, "GET", "/health", b"").0, 200);
}

#[test]
fn the_other_routes_describe_the_server() {
    let app = app(None);
    let get = |path: &str| ask(&app, "GET", path, b"");
    let (_, models) = get("/v1/models");
    let names: Value = models["data"].as_array().unwrap().iter().map(|model| model["id"].clone()).collect();
    assert_eq!((names, &models["data"][0]["max_model_len"]), (json!(["rlhost", "other"]), &json!(512)));
    assert_eq!(get("/version").1, json!({"version": "1.2.3"}));
    post(&app, "/v1/completions", &json!({"prompt": [1, 2, 3], "max_tokens": 2, "ignore_eos": true}));
    // The counters of a round are updated after its events are sent.
    let counted = || get("/metrics").1.as_str().unwrap().to_owned();
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
    while !counted().contains("rlhost_serve_sampled_tokens_total 2\n") && std::time::Instant::now() < deadline {
        std::thread::yield_now();
    }
    let metrics = counted();
    for line in ["rlhost_serve_sampled_tokens_total 2", "rlhost_serve_prompt_tokens_total 3", "rlhost_serve_weight_version 5"] {
        assert!(metrics.lines().any(|own| own == line), "{line} in {metrics}");
    }
    assert_eq!(ask(&app, "GET", "/v1/completions", b"").0, 405);
    assert_eq!(get("/nothing").0, 404);
    assert!(ask(&app, "POST", "/v1/embeddings", b"{}").1["error"]["message"].as_str().unwrap().contains("embeddings"));
}

#[test]
fn text_comes_when_it_is_certain_and_without_what_ends_it() {
    let (tokenizer, _, _kept) = tokenizer(None);
    let whole = "Größe \u{1f600} and more, and more.";
    let ids = tokenizer.encode(whole, false).unwrap();
    for (stops, wanted) in [(vec![], whole), (vec!["and mores".to_owned(), "re, a".to_owned()], "Größe \u{1f600} and mo")] {
        let rules = TextStreamRules { stops, ..TextStreamRules::default() };
        let mut stream = TextStream::new(tokenizer.clone(), rules, &[]);
        let mut text = String::new();
        for &id in &ids {
            let new = stream.push(id).unwrap();
            assert!(!new.contains('\u{fffd}'), "{new:?}");
            text += &new;
            assert!(wanted.starts_with(&text), "{text:?}");
        }
        assert_eq!(text + &stream.finish().unwrap(), wanted);
    }
}
