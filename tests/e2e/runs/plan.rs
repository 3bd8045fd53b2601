//! `rlhost plan`: what a run would take, by its settings and the sizes of a model that need not be there.

use rlhost_tests::{TestFolder, tiny};
use serde_json::{Value, json};

fn place() -> TestFolder {
    let place = TestFolder::new();
    let config = json!({
        "model_type": "qwen2", "hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28, "num_attention_heads": 12,
        "num_key_value_heads": 2, "vocab_size": 151_936, "tie_word_embeddings": true,
    });
    place.write("config.json", config.to_string());
    place
}

#[test]
fn a_plan_shows_what_each_stage_divides_of_a_model_that_is_not_there() {
    let place = place();
    let sizes = ["plan", "--model-config", "config.json", "--algorithm", "sft", "--learn-from", "dataset", "--ranks", "4"];
    let shown = place.run(&[&sizes[..], &["--memory", "24"]].concat());
    let text = shown.succeeded().stdout.clone();
    assert!(text.starts_with("1543.7M parameters, 1543.7M trained; 4 processes"), "{text}");
    let row = |name: &str| {
        let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{name}: {text}"));
        line[name.len()..].split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(row("zero_stage"), ["0", "1", "2", "3"]);
    assert_eq!(row("moments"), ["12.35", "3.09", "3.09", "3.09"]);
    assert_eq!(row("fits into 24 GB")[0], "no");
    let planned = place.run(&[&sizes[..], &["--json"]].concat());
    let planned: Value = serde_json::from_str(&planned.succeeded().stdout).unwrap();
    let peaks: Vec<f64> = planned.as_array().unwrap().iter().map(|stage| stage["peak"].as_f64().unwrap()).collect();
    assert!(peaks.len() == 4 && peaks.is_sorted_by(|a, b| a > b), "{peaks:?}");
    // A stage that is set is the only one.
    let one = place.run(&[&sizes[..], &["--json", "--zero-stage", "2"]].concat());
    let one: Value = serde_json::from_str(&one.succeeded().stdout).unwrap();
    assert_eq!(one["peak"].as_f64(), Some(peaks[2]));
}

#[test]
fn a_plan_says_what_is_wrong() {
    let place = place();
    for (arguments, words) in [
        (&["--ranks", "0"][..], "--ranks"),
        (&["--memory", "0"], "--memory"),
        (&["--memory", "nan"], "--memory"),
        (&["--model-config", "none.json"], "none.json"),
        (&["--model", tiny(), "--zero-stage", "7"], "zero_stage"),
        (&["--model", tiny(), "--algorithm", "no_such.wasm"], "no_such.wasm"),
    ] {
        let outcome = place.run(&[&["plan"], arguments].concat());
        assert_eq!(outcome.code, Some(2), "{outcome:?}");
        assert!(outcome.error().contains(words), "{words}: {}", outcome.error());
    }
}
