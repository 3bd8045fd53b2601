use super::super::tests::{ask, post, refused, tokenizer};
use super::super::*;
use crate::engine::tests::change_weights;
use crate::engine::{EngineOptions, InferenceEngine};
use crate::model::{WeightStorage, builtin};
use crate::weights::WeightLoader;
use rlhost_config::RolloutDtype;
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;

/// Returns a server whose weights can be replaced, and the folder that holds them.
pub(in super::super) fn app(updates: bool) -> (Arc<App>, tempfile::TempDir) {
    let (tokenizer, folder, kept) = tokenizer(None);
    let (loader, decoding) =
        WeightLoader::open(folder.with_weight_storage(WeightStorage::AS_STORED), RolloutDtype::Auto).unwrap();
    let options =
        EngineOptions { max_model_len: 512, max_num_seqs: 8, max_waiting: 64, cache_bytes: 64 << 20, favours_throughput: false };
    let card = ModelCard { names: vec!["rlhost".into()], ends: Vec::new(), version: "1".into(), dtype: None };
    let app = App::new(InferenceEngine::start(decoding, 0, options).unwrap(), tokenizer, card);
    (Arc::new(app.with_weights(ServedWeights::new(loader, updates))), kept)
}

/// Returns another checkpoint of the model.
fn checkpoint() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    builtin::write(folder.path()).unwrap();
    change_weights(folder.path());
    folder
}

/// Writes an adapter of rank 1 on the first layer's output, with values of this size.
fn write_adapter(folder: &Path, value: f32) {
    let config =
        json!({"peft_type": "LORA", "r": 1, "lora_alpha": 1, "target_modules": ["o_proj"], "base_model_name_or_path": "."});
    std::fs::write(folder.join("adapter_config.json"), config.to_string()).unwrap();
    let name = |part: &str| format!("base_model.model.model.layers.0.self_attn.o_proj.{part}.weight");
    let bytes = 192 * 4;
    let header = json!({
        name("lora_A"): {"dtype": "F32", "shape": [1, 192], "data_offsets": [0, bytes]},
        name("lora_B"): {"dtype": "F32", "shape": [192, 1], "data_offsets": [bytes, 2 * bytes]},
    });
    let header = header.to_string();
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    (0..2 * 192).for_each(|i| file.extend((value * (i % 7 - 3) as f32).to_le_bytes()));
    std::fs::write(folder.join("adapter_model.safetensors"), file).unwrap();
}

/// Returns the text of a greedy completion, and the version of its weights.
fn written(app: &Arc<App>, model: &str) -> (String, String) {
    let body = json!({"model": model, "prompt": "SUBREDDIT: r/cats TITLE: My cat sleeps all day", "max_tokens": 24,
        "temperature": 0, "ignore_eos": true});
    let choice = &post(app, "/v1/completions", &body)["choices"][0];
    let version = choice["weight_versions"][0]["version"].as_str().unwrap().to_owned();
    (choice["text"].as_str().unwrap().to_owned(), version)
}

#[test]
fn weights_are_read_from_another_folder_and_checked() {
    let (app, _kept) = app(true);
    let other = checkpoint();
    let (before, version) = written(&app, "rlhost");
    assert_eq!(version, "0");
    let baseline = post(&app, "/weight_checker", &json!({"action": "checksum"}))["checksums"].clone();
    let compared = || post(&app, "/weight_checker", &json!({"action": "compare", "baseline": baseline}));
    assert_eq!(compared(), json!({"match": true, "mismatches": []}));
    let reload = |path: &Path| json!({"method": "reload_weights", "kwargs": {"weights_path": path}});
    assert_eq!(post(&app, "/collective_rpc", &reload(other.path())), json!({"results": [null]}));
    let (after, version) = written(&app, "rlhost");
    assert!(after != before && version == "1", "{before} {after} {version}");
    assert!(compared()["match"] == false && !compared()["mismatches"].as_array().unwrap().is_empty());
    assert_eq!(ask(&app, "GET", "/weight_info", b"").1["weight_version"], "1");
    // Weights that can't be read change nothing.
    let nowhere = tempfile::tempdir().unwrap();
    let (status, field, message) = refused(&app, "/collective_rpc", &reload(nowhere.path()));
    assert!(status == 400 && field == "kwargs.weights_path" && message.contains("stay"), "{message}");
    assert_eq!(written(&app, "rlhost"), (after, "1".to_owned()));
    assert_eq!(post(&app, "/collective_rpc", &json!({"method": "reload_weights"})), json!({"results": [null]}));
    assert_eq!(written(&app, "rlhost"), (before, "2".to_owned()));
    for (path, body, named) in [
        ("/collective_rpc", json!({"method": "reset_weights"}), "method"),
        ("/collective_rpc", json!({"method": "reload_weights", "kwargs": {"weights_path": 1}}), "kwargs.weights_path"),
        ("/collective_rpc", json!({"method": "reload_weights", "kwargs": {"x": 1}}), "kwargs.x"),
        ("/weight_checker", json!({"action": "reset"}), "action"),
        ("/weight_checker", json!({"action": "compare"}), "baseline"),
    ] {
        let (status, field, _) = refused(&app, path, &body);
        assert!(status == 400 && field == named, "{path} {body}: {status} {field}");
    }
}

#[test]
fn adapters_are_loaded_named_replaced_and_unloaded() {
    let (app, _kept) = app(true);
    let folder = tempfile::tempdir().unwrap();
    write_adapter(folder.path(), 0.3);
    let (base, _) = written(&app, "rlhost");
    let load = |more: Value| {
        let mut body = json!({"lora_name": "poet", "lora_path": folder.path()});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    post(&app, "/v1/load_lora_adapter", &load(json!({})));
    let (first, version) = written(&app, "poet");
    assert!(first != base && version == "1", "{first} {version}");
    assert_eq!(written(&app, "rlhost"), (base, "0".to_owned()));
    let models = ask(&app, "GET", "/v1/models", b"").1;
    assert_eq!((&models["data"][1]["id"], &models["data"][1]["parent"]), (&json!("poet"), &json!("rlhost")));

    assert_eq!(refused(&app, "/v1/load_lora_adapter", &load(json!({}))).1, "lora_name");
    assert_eq!(refused(&app, "/collective_rpc", &json!({"method": "reload_weights"})).0, 409);
    write_adapter(folder.path(), -0.4);
    post(&app, "/v1/load_lora_adapter", &load(json!({"load_inplace": true})));
    let (second, version) = written(&app, "poet");
    assert!(second != first && version == "2", "{second} {version}");
    assert_eq!(ask(&app, "GET", "/weight_info", b"").1, json!({"weight_version": "0", "adapters": {"poet": "2"}}));

    for (body, named) in [
        (json!({"lora_name": "rlhost", "lora_path": "x"}), "lora_name"),
        (json!({"lora_name": "", "lora_path": "x"}), "lora_name"),
        (json!({"lora_name": "x"}), "lora_path"),
        (json!({"lora_name": "x", "lora_path": "/nowhere"}), "lora_path"),
    ] {
        let (status, field, _) = refused(&app, "/v1/load_lora_adapter", &body);
        assert!(status == 400 && field == named, "{body}: {status} {field}");
    }
    post(&app, "/v1/unload_lora_adapter", &json!({"lora_name": "poet"}));
    assert_eq!(refused(&app, "/v1/unload_lora_adapter", &json!({"lora_name": "poet"})).0, 404);
    assert_eq!(refused(&app, "/v1/completions", &json!({"model": "poet", "prompt": "a"})).0, 404);
}

#[test]
fn a_pause_is_ended_by_resume() {
    let (app, _kept) = app(true);
    let paused = || ask(&app, "GET", "/is_paused", b"").1["is_paused"].clone();
    for mode in ["mode=abort", "mode=wait", "mode=keep&clear_cache=true", ""] {
        assert_eq!(ask(&app, "POST", "/pause", mode.as_bytes()), (200, json!({"status": "paused"})));
        assert_eq!(paused(), true);
        assert_eq!(ask(&app, "POST", "/resume", b""), (200, json!({"status": "resumed"})));
        assert_eq!(paused(), false);
    }
    assert_eq!(ask(&app, "POST", "/pause", b"mode=later").0, 400);
    assert_eq!(ask(&app, "POST", "/reset_prefix_cache", b"").0, 200);
}

#[test]
fn nothing_changes_without_permission() {
    let (app, _kept) = app(false);
    for path in
        ["/pause", "/resume", "/reset_prefix_cache", "/collective_rpc", "/v1/load_lora_adapter", "/v1/unload_lora_adapter"]
    {
        let (status, answer) = ask(&app, "POST", path, b"{}");
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(status == 403 && message.contains("--allow-weight-updates"), "{path}: {status} {message}");
    }
}
