use super::super::tests::{CHATML, app as generator, ask, post, refused, tokenizer};
use super::super::*;
use crate::model::{FrozenModel, ValueHeadInit, WeightStorage};
use crate::ops::Forest;
use crate::scorer::RewardModelScorer;
use serde_json::{Value, json};
use std::sync::Arc;

/// Returns a server of a reward model with a random head, and the model.
pub(in super::super) fn app() -> (Arc<App>, FrozenModel) {
    let (tokenizer, folder, _kept) = tokenizer(Some(CHATML));
    let folder = folder.with_weight_storage(WeightStorage::AS_STORED);
    let model = FrozenModel::new(folder.value_model_over(folder.trunk().unwrap(), ValueHeadInit::Drawn(3)).unwrap());
    let card = ModelCard { names: vec!["judge".into()], ends: Vec::new(), version: "1".into(), dtype: None };
    let scorer = RewardModelScorer::new(model.clone(), Some(0), 128, 4);
    (Arc::new(App::from_scorer(scorer, tokenizer, card)), model)
}

/// Returns the model's value at one token of a text that is computed alone.
fn value(model: &FrozenModel, tokens: &[u32], at: usize) -> f64 {
    let mut forest = Forest::new();
    forest.push(tokens, None);
    f64::from(model.values(&forest, &[at]).unwrap().unwrap()[0])
}

#[test]
fn texts_have_the_values_that_the_model_gives_them_alone() {
    let (app, model) = app();
    let ids = |text: &str| app.tokenizer.encode(text, false).unwrap();
    let (a, b) = (ids("My cat sleeps."), ids("A dog barks, and barks."));
    let body = json!({"input": ["My cat sleeps.", "A dog barks, and barks."], "use_activation": false});
    let answer = post(&app, "/classify", &body);
    let raw = |i: usize| answer["data"][i]["probs"][0].as_f64().unwrap();
    assert!((raw(0) - value(&model, &a, a.len() - 1)).abs() < 1e-5 && (raw(1) - value(&model, &b, b.len() - 1)).abs() < 1e-5);
    assert_eq!((&answer["data"][1]["num_classes"], &answer["usage"]["prompt_tokens"]), (&json!(1), &json!(a.len() + b.len())));
    // Trailing padding does not count, and the logistic function is the default.
    let padded: Vec<u32> = a.iter().copied().chain([0, 0]).collect();
    let activated = post(&app, "/classify", &json!({"input": padded}))["data"][0]["probs"][0].as_f64().unwrap();
    assert!((activated - 1.0 / (1.0 + (-raw(0)).exp())).abs() < 1e-5);

    let both: Vec<u32> = a.iter().chain(&b).copied().collect();
    let body = json!({"text_1": "My cat sleeps.", "text_2": ["A dog barks, and barks.", "x"], "use_activation": false});
    for path in ["/score", "/v1/score"] {
        let scored = post(&app, path, &body);
        let score = scored["data"][0]["score"].as_f64().unwrap();
        assert!((score - value(&model, &both, both.len() - 1)).abs() < 1e-5 && scored["data"].as_array().unwrap().len() == 2);
    }
    let turns = ids("<|im_start|>user\nq<|im_end|>\n");
    let chat = post(&app, "/classify", &json!({"messages": [{"role": "user", "content": "q"}], "use_activation": false}));
    assert!((chat["data"][0]["probs"][0].as_f64().unwrap() - value(&model, &turns, turns.len() - 1)).abs() < 1e-5);
    assert!(ask(&app, "GET", "/metrics", b"").1.as_str().unwrap().contains("rlhost_serve_scored_texts_total 8\n"));
}

#[test]
fn what_can_not_be_scored_is_refused() {
    let (app, _) = app();
    for (path, body, field) in [
        ("/classify", json!({}), "input"),
        ("/classify", json!({"input": []}), "input"),
        ("/classify", json!({"input": ""}), "input"),
        ("/classify", json!({"input": [[]]}), "input"),
        ("/classify", json!({"input": {"a": 1}}), "input"),
        ("/classify", json!({"input": [1 << 30]}), "input"),
        ("/classify", json!({"input": "word ".repeat(400)}), "input"),
        ("/classify", json!({"input": "a", "temperature": 1}), "temperature"),
        ("/classify", json!({"input": "a", "truncate_prompt_tokens": 8}), "truncate_prompt_tokens"),
        ("/score", json!({"text_1": "a"}), "text_2"),
        ("/score", json!({"text_2": "a"}), "text_1"),
        ("/score", json!({"text_1": ["a", "b"], "text_2": "a"}), "text_1"),
        ("/score", json!({"text_1": "a", "text_2": [1]}), "text_2"),
    ] {
        let (status, named, message) = refused(&app, path, &body);
        assert!(status == 400 && named == field, "{path} {body}: {status} {named} {message}");
    }
    // A reward model generates nothing, and other models score nothing.
    for (path, body) in [
        ("/v1/completions", json!({"prompt": "a"})),
        ("/v1/chat/completions", json!({"messages": [{"role": "user", "content": "q"}]})),
        ("/inference/v1/generate", json!({"token_ids": [1], "sampling_params": {}})),
    ] {
        let (status, _, message) = refused(&app, path, &body);
        assert!(status == 400 && message.contains("reward model"), "{path}: {status} {message}");
    }
    let (status, _, message) = refused(&generator(None), "/classify", &json!({"input": "a"}));
    assert!(status == 400 && message.contains("reward model"), "{message}");
    assert_eq!(ask(&app, "GET", "/health", b"").0, 200);
    assert_eq!(ask(&app, "GET", "/v1/models", b"").1["data"][0]["max_model_len"], Value::from(128));
}
