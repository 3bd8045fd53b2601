use super::*;
use crate::api::App;
use crate::api::tests::{CHATML, WITH_TOOLS, app, post, refused};
use crate::sessions::Sessions;
use serde_json::json;

const SAMPLING: Sampler = Sampler { temperature: 0.9, top_p: 1.0, top_k: 0, min_p: 0.0, repetition_penalty: 1.0 };
const RULES: SessionRules =
    SessionRules { sampling: SAMPLING, logp_temperature: 1.0, max_tokens: 12, max_calls: 6, max_text: 300 };
const CHAT: &str = "/v1/chat/completions";

/// Opens a session; returns also the server as the session's agent sees it.
fn opened(template: &str, rules: SessionRules) -> (Arc<Sessions>, Arc<AgentSession>, Arc<App>) {
    let (sessions, app) = (Arc::new(Sessions::default()), app(Some(template)));
    let session = sessions.open("key".into(), 3, rules);
    let app = app.for_session(Arc::clone(&session));
    (sessions, session, app)
}

fn message(role: &str, content: &str) -> Value {
    json!({"role": role, "content": content})
}

fn read(messages: &[Value]) -> Vec<ChatMessage> {
    messages.iter().map(|message| serde_json::from_value(message.clone()).unwrap()).collect()
}

#[test]
fn turns_are_continued_with_the_tokens_that_were_sampled() {
    let (sessions, _, app) = opened(CHATML, RULES);
    let mut messages = vec![message("system", "Be brief."), message("user", "Who?")];
    for turn in 0..3 {
        let said = post(&app, CHAT, &json!({"model": "whatever", "messages": messages, "max_tokens": 9 + turn}));
        let content = &said["choices"][0]["message"]["content"];
        // Clients add empty fields, and people strip surrounding spaces.
        let content = content.as_str().unwrap().trim();
        messages.push(json!({"role": "assistant", "content": content, "refusal": null, "annotations": []}));
        messages.push(message("user", "And then?"));
    }
    let record = sessions.close("key");
    assert_eq!((record.calls.len(), record.rewritten), (3, None));
    for (a, b) in record.calls.iter().zip(&record.calls[1..]) {
        let read = [&a.call.prompt[..], &a.call.tokens].concat();
        assert_eq!(b.call.prompt[..read.len()], read);
    }
    assert_eq!(record.calls[2].call.tokens.len(), 11);
    // The recorded log-probabilities are the model's own.
    for RecordedCall { call, .. } in &record.calls {
        let all = [&call.prompt[..], &call.tokens].concat();
        let other = crate::api::tests::app(Some(CHATML));
        let scored = post(&other, "/v1/completions", &json!({"prompt": all, "max_tokens": 0, "echo": true, "logprobs": 0}));
        let logps = scored["choices"][0]["logprobs"]["token_logprobs"].as_array().unwrap()[call.prompt.len()..].to_vec();
        for (logp, recorded) in logps.iter().zip(&call.logp) {
            assert!((logp.as_f64().unwrap() - f64::from(*recorded)).abs() < 1e-4, "{logp} {recorded}");
        }
    }
}

#[test]
fn the_run_says_how_tokens_are_sampled() {
    let sampled = |fields: Value| {
        let (sessions, _, app) = opened(CHATML, RULES);
        let mut body = json!({"messages": [message("user", "Hi")], "max_tokens": 8});
        fields.as_object().unwrap().iter().for_each(|(name, value)| body[name] = value.clone());
        post(&app, CHAT, &body);
        let record = sessions.close("key");
        (record.calls[0].call.clone(), record.overrode_sampling)
    };
    let (usual, otherwise) = sampled(json!({}));
    assert!(!otherwise);
    assert_eq!(sampled(json!({"seed": 9, "logprobs": true, "top_logprobs": 2, "stream": true})), (usual.clone(), false));
    assert_eq!(sampled(json!({"temperature": 0, "top_p": 0.5})), (usual, true));
}

#[test]
fn a_turn_that_comes_back_changed_is_context() {
    let (sessions, _, app) = opened(CHATML, RULES);
    let first = post(&app, CHAT, &json!({"messages": [message("user", "Who?")]}));
    let written = first["choices"][0]["message"]["content"].as_str().unwrap().to_owned();
    let after = |said: &str| json!({"messages": [message("user", "Who?"), message("assistant", said), message("user", "Why?")]});
    post(&app, CHAT, &after("something else"));
    post(&app, CHAT, &after(&written));
    let record = sessions.close("key");
    let [first, changed, kept] = &record.calls[..] else { panic!("{}", record.calls.len()) };
    let read = [&first.call.prompt[..], &first.call.tokens].concat();
    assert!(!changed.call.prompt.starts_with(&read) && kept.call.prompt.starts_with(&read));
    let (before, sent) = record.rewritten.unwrap();
    assert_eq!((before, sent.as_str()), (printable(written.trim(), SHOWN), "something else"));
    let mut tree = rlhost_models::rollout::Trajectory::default();
    record.calls.iter().for_each(|call| tree.add(&call.call));
    // The changed turn branches at its beginning; the last call continues the first one.
    assert_eq!(tree.branches().0, 2);
}

#[test]
fn calls_of_tools_come_back_in_any_spelling() {
    let (sessions, session, app) = opened(WITH_TOOLS, RULES);
    let tools = json!([{"type": "function", "function": {"name": "add", "parameters": {}}}]);
    let extras = TemplateVariables { tools, ..TemplateVariables::default() };
    let asked = ConversationPrompt { messages: read(&[message("user", "1 + 2?")]), extras: extras.clone() };
    let prompt = vec![5, 6, 7];
    let words = "Let me see. <tool_call>{\"name\": \"add\", \"arguments\": {\"a\": 1, \"b\": 2}}</tool_call>";
    let tokenizer = app.tokenizer();
    let token = |id: &u32| ScoredToken { id: *id, logp: -1.0, rank: 0, top: Vec::new(), version: 0 };
    let sampled: Vec<ScoredToken> = tokenizer.encode(words, false).unwrap().iter().map(token).collect();
    session.announce_prompt(&prompt, asked);
    let mut request = crate::engine::EngineRequest {
        tokens: prompt.clone().into(),
        sampling: SAMPLING,
        logit_bias: Arc::new([]),
        max_tokens: 99,
        random: crate::engine::RandomStream::from_seed(0),
        ends: Arc::new([]),
        stop: None,
        scoring: crate::engine::LogprobSettings::default(),
        salt: 0,
        adapter: None,
    };
    let recorder = session.begin(std::slice::from_mut(&mut request)).unwrap().remove(0);
    recorder.finish(&sampled, words, true);
    assert_eq!(request.max_tokens, 12);
    let call = |content: Value, arguments: Value| {
        json!({"role": "assistant", "content": content, "tool_calls": [
            {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": arguments}}]})
    };
    let result = json!({"role": "tool", "tool_call_id": "call_1", "content": "3"});
    let continued = |said: Value, extras: &TemplateVariables| {
        let messages = read(&[message("user", "1 + 2?"), said, result.clone()]);
        session.continuation_prompt(tokenizer, &ConversationPrompt { messages, extras: extras.clone() }).unwrap()
    };
    let ids: Vec<u32> = sampled.iter().map(|token| token.id).collect();
    let texts = [json!("Let me see."), json!(" Let me see.\n")];
    for said in texts
        .map(|text| call(text, json!("{ \"b\":2, \"a\":1 }")))
        .into_iter()
        .chain([call(json!("Let me see."), json!({"a": 1, "b": 2}))])
    {
        let found = continued(said, &extras).unwrap();
        assert!(found.starts_with(&[&prompt[..], &ids].concat()) && found.len() > prompt.len() + ids.len());
    }
    assert_eq!(continued(call(json!("Let me see."), json!({"a": 1, "b": 3})), &extras), None);
    assert_eq!(continued(call(Value::Null, json!({"a": 1, "b": 2})), &extras), None);
    // Other tools make another prompt.
    assert_eq!(continued(call(json!("Let me see."), json!({"a": 1, "b": 2})), &TemplateVariables::default()), None);
    let (written, sent) = sessions.close("key").rewritten.unwrap();
    assert_eq!((written.as_str(), sent.as_str()), ("Let me see. add({\"a\":1,\"b\":2})", "Let me see. add({\"a\":1,\"b\":3})"));
}

#[test]
fn a_session_has_limits_and_ends() {
    let (sessions, _, app) = opened(CHATML, SessionRules { max_calls: 2, ..RULES });
    let body = json!({"messages": [message("user", "Hi")], "n": 2, "max_tokens": 500});
    let both = post(&app, CHAT, &body);
    assert_eq!(both["usage"]["completion_tokens"], 24);
    assert_ne!(both["choices"][0]["message"], both["choices"][1]["message"]);
    let (status, _, detail) = refused(&app, CHAT, &body);
    assert!(status == 400 && detail.contains("0 of its 2 calls left"), "{detail}");
    assert_eq!(sessions.close("key").calls.len(), 2);
    assert!(refused(&app, CHAT, &body).2.contains("the episode has ended"));
    assert!(matches!(sessions.find(b"key"), crate::sessions::KeyOwner::Closed) && sessions.close("key").calls.is_empty());

    // Rejected requests use up no calls: too many at once, or too long for the context.
    let (sessions, _, app) = opened(CHATML, SessionRules { max_calls: 2, max_tokens: 600, max_text: 600, ..RULES });
    let many = json!({"messages": [message("user", "Hi")], "n": 3});
    assert!(refused(&app, CHAT, &many).2.contains("2 of its 2 calls left (max_turns); this takes 3"));
    assert_eq!(refused(&app, CHAT, &json!({"messages": [message("user", "Hi")], "n": 2, "max_tokens": 600})).0, 400);
    post(&app, CHAT, &json!({"messages": [message("user", "Hi")], "n": 2, "max_tokens": 5}));
    assert_eq!(sessions.close("key").calls.len(), 2);

    let (_, _, app) = opened(CHATML, SessionRules { max_text: 20, ..RULES });
    let prompt: Vec<u32> = (10..20).collect();
    let ask = |prompt: &[u32]| json!({"prompt": prompt, "max_tokens": 8, "ignore_eos": true});
    post(&app, "/v1/completions", &ask(&prompt));
    // 15 more tokens leave room for 5.
    let longer: Vec<u32> = (10..35).collect();
    let answer = post(&app, "/v1/completions", &ask(&longer));
    assert_eq!(answer["usage"]["completion_tokens"], 5);
    let all: Vec<u32> = (10..40).collect();
    assert!(refused(&app, "/v1/completions", &ask(&all)).2.contains("had its 20 tokens"));
    let biased = json!({"prompt": prompt, "max_tokens": 1, "logit_bias": {"5": 1}});
    assert!(refused(&app, "/v1/completions", &biased).2.contains("logit_bias"));
}

#[test]
fn what_an_agent_read_of_a_stream_that_it_left_is_its_call() {
    let (sessions, _, app) = opened(CHATML, RULES);
    let body = json!({"messages": [message("user", "Hi")], "stream": true}).to_string();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let read = |events: usize| {
        runtime.block_on(async {
            let reply =
                crate::api::InferenceRoute::find("POST", CHAT).unwrap().answer(Arc::clone(&app), body.clone().into_bytes()).await;
            let crate::api::ReplyContent::Events(mut source) = reply.unwrap().content else { panic!("no stream") };
            for _ in 0..events {
                std::future::poll_fn(|context| source.poll_next(context)).await.unwrap();
            }
        });
    };
    // One is left before anything was sampled.
    read(0);
    read(4);
    let record = sessions.close("key");
    let [call] = &record.calls[..] else { panic!("{:?}", record.calls) };
    assert!((1..12).contains(&call.call.tokens.len()) && !call.call.finished, "{call:?}");
}
