//! The same reward and the same algorithm in many languages, from `examples/languages/`: identical
//! scores, identical runs. `examples/languages/build.sh` builds what is tested here.

#![allow(clippy::print_stdout)]

use rlhost_tests::{TestFolder, tiny};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Where the plugins lie, as the build script leaves them.
fn folder() -> PathBuf {
    let default = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/languages");
    std::env::var_os("RLHOST_LANGUAGES").map_or(default, PathBuf::from)
}

/// Names and files of the plugins that are built; those of losses end in `-loss`.
fn built(losses: bool) -> Vec<(String, PathBuf)> {
    let mut found: Vec<(String, PathBuf)> = std::fs::read_dir(folder())
        .into_iter()
        .flatten()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "wasm"))
        .map(|path| (path.file_stem().unwrap().to_string_lossy().into_owned(), path.canonicalize().unwrap()))
        .filter(|(name, _)| name.ends_with("-loss") == losses && !name.ends_with("-environment"))
        .collect();
    found.sort();
    if found.len() < 2 {
        println!("skipped: {} holds fewer than two; run examples/languages/build.sh", folder().display());
    }
    found
}

#[test]
fn a_reward_scores_the_same_in_every_language() {
    let plugins = built(false);
    if plugins.len() < 2 {
        return;
    }
    let place = TestFolder::new();
    // Targets of the rows' own, of the configuration, and what is no target.
    let rows: String = (0..16)
        .map(|i| {
            let target = ["3", "null", "\"7\"", "0"][i % 4];
            format!("{{\"prompt\": \"prompt {i} of  höflich words \", \"target\": {target}}}\n")
        })
        .collect();
    place.write("rows.jsonl", rows);
    let mut arguments: Vec<String> =
        "--dataset rows.jsonl --max-steps 4 --max-completion-length 40 --log-completions all --output-dir run --logging-steps 1"
            .split(' ')
            .map(String::from)
            .collect();
    arguments.extend(["--model".into(), tiny().into()]);
    for (name, path) in &plugins {
        arguments.extend([
            "--plugin".into(),
            path.display().to_string(),
            "--set".into(),
            format!("plugin.{name}.config.target=5"),
        ]);
    }
    place.run(&arguments.iter().map(String::as_str).collect::<Vec<_>>()).succeeded();
    let mut scores = BTreeSet::new();
    for line in place.lines("run/completions.jsonl") {
        let rewards = line["rewards"].as_object().unwrap();
        assert_eq!(rewards.len(), plugins.len());
        let first = rewards.values().next().unwrap();
        assert!(rewards.values().all(|reward| reward == first), "{line}");
        scores.insert(first.to_string());
    }
    assert!(scores.len() > 2, "all completions score alike: {scores:?}");
    println!("the same {} scores from {}", scores.len(), plugins.iter().map(|(n, _)| n.as_str()).collect::<Vec<_>>().join(", "));
}

#[test]
fn an_algorithm_trains_the_same_in_every_language() {
    let plugins = built(true);
    if plugins.len() < 2 {
        return;
    }
    let place = TestFolder::new();
    for (name, path) in &plugins {
        place.train(name, &["--algorithm", path.to_str().unwrap(), "--max-steps", "5"]).succeeded();
    }
    let weights = |name: &str| std::fs::read(place.path(name).join("checkpoint-5/model.safetensors")).unwrap();
    for (name, _) in &plugins {
        assert!(weights(name) == weights(&plugins[0].0), "{name} leads to other weights");
        assert_eq!(place.figure(name, "loss"), place.figure(&plugins[0].0, "loss"), "{name}");
    }
    assert!(place.figure(&plugins[0].0, "grad_norm").iter().any(|g| *g > 0.0));
}
