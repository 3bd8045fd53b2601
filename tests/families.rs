//! Small models of a family, and runs that train them.

use crate::TestFolder;
use crate::server::ServerProcess;
use serde_json::{Value, json};

/// Returns a folder with a small model as `model`, rows as `rows.jsonl`, and a reward as `letters.py`. The model's configuration is that of
/// the family, with the keys of `sizes` that it does not set.
///
/// # Panics
/// If a configuration is no object, or the model can't be made.
#[must_use]
pub fn small_model(family: &Value, sizes: &Value) -> TestFolder {
    let place = TestFolder::new();
    let rows = (0..12).map(|i| json!({"prompt": format!("question {i}"), "completion": format!(" {}", "ab".repeat(i % 5 + 1))}));
    place.write("rows.jsonl", rows.map(|row| format!("{row}\n")).collect::<String>());
    let mut config = json!({"hidden_size": 32, "num_attention_heads": 4, "max_position_embeddings": 256});
    for more in [sizes, family] {
        config.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    }
    place.write("config.json", config.to_string());
    place.write("letters.py", "def letters(completion):\n    return float(len(set(completion)))\n");
    let new = ["new-model", "model", "--config", "config.json", "--corpus", "rows.jsonl", "--vocab-size", "280"];
    place.run(&new).succeeded();
    place
}

/// Trains the model of [`small_model`] with a reward that prefers many different letters, four completions for each prompt.
///
/// # Panics
/// If the run fails.
pub fn grpo(place: &TestFolder, run: &str, more: &[&str]) {
    let base = ["--plugin", "letters.py", "--dataset", "rows.jsonl", "--model", "model", "--output-dir", run];
    let sizes = ["--per-device-train-batch-size", "8", "--num-generations", "4", "--max-completion-length", "12"];
    let steps = ["--max-steps", "3", "--save-steps", "1", "--logging-steps", "1", "--learning-rate", "0.01"];
    place.run(&[&base[..], &sizes, &steps, more].concat()).succeeded();
}

/// Returns what a model of the folder writes after a question, always taking the likeliest token.
///
/// # Panics
/// If it can't be generated with.
#[must_use]
pub fn greedy_text(place: &TestFolder, model: &str) -> String {
    let greedy = ["--prompt", "question", "--temperature", "0", "--max-new-tokens", "16"];
    place.run(&[&["generate", "--model", model], &greedy[..]].concat()).succeeded().stdout.clone()
}

/// Trains the model of [`small_model`] on completions of a server and in episodes of several turns, and checks that what its cache gives each
/// token is what a forward pass gives it.
///
/// # Panics
/// If a run fails, or log-probabilities differ.
pub fn assert_cache_is_cut_and_shared(place: &TestFolder) {
    let server = ServerProcess::start(place, &["--model", "model", "--allow-weight-updates"]);
    grpo(place, "served", &["--rollout-server", &format!("http://{}", server.address), "--old-logp", "recompute"]);
    server.terminate();
    assert_eq!(server.wait(), Some(0));
    let row = |i: u32| json!({"prompt": format!("Guess number {i}."), "secret": 1 + 13 * i});
    place.write("numbers.jsonl", (0..4).map(|i| format!("{}\n", row(i))).collect::<String>());
    let base = ["train", "--model", "model", "--environment", "guess_number.wasm", "--dataset", "numbers.jsonl"];
    let sizes =
        ["--num-generations", "4", "--per-device-train-batch-size", "4", "--max-completion-length", "5", "--max-turns", "3"];
    let steps = ["--output-dir", "played", "--max-steps", "2", "--logging-steps", "1", "--learning-rate", "0.002"];
    place.run(&[&base[..], &sizes, &steps, &["--old-logp", "recompute"]].concat()).succeeded();
    for run in ["served", "played"] {
        let differences = place.figure(run, "sampling/sampling_logp_difference/max");
        assert!(!differences.is_empty() && differences.iter().all(|difference| *difference < 1e-4), "{run}: {differences:?}");
    }
}
