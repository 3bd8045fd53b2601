//! Components that were built for versions 0.1 and 0.2 of the contract train as those of 1.0 do, to the bit. The files are those of
//! `tests/fixtures/contract/`, compiled when these versions were the newest.

use rlhost_tests::{STORIES, TestFolder, tiny};
use std::path::Path;

/// Path of a component of an old version.
fn old(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/contract").join(format!("{name}.wasm")).display().to_string()
}

const ONLINE: [&str; 6] = ["--plugin", "tldr_length_reward.wasm", "--max-completion-length", "12", "--num-generations", "2"];

/// Trains two steps with an algorithm and returns what they come to: metrics, and the weights at the end.
fn trained(place: &TestFolder, name: &str, algorithm: &str, more: &[&str]) -> (Vec<Vec<(String, f64)>>, Vec<u8>) {
    let run = ["--model", tiny(), "--algorithm", algorithm, "--output-dir", name, "--logging-steps", "1", "--max-steps", "2"];
    let size = ["--per-device-train-batch-size", "4", "--learning-rate", "0.002", "--seed", "5"];
    place.run(&[&run[..], &size, more].concat()).succeeded();
    let weights = std::fs::read(place.path(name).join("checkpoint-2/model.safetensors")).unwrap();
    let mut metrics = place.figures(name);
    // What follows from the clock, and what newer versions derive from their metrics.
    metrics.iter_mut().for_each(|row| row.retain(|(name, _)| !["eps", "lr"].contains(&name.as_str())));
    (metrics, weights)
}

#[test]
fn algorithms_of_older_versions_train_as_those_of_today() {
    let place = TestFolder::with_answers();
    let stories = [&ONLINE[..], &["--dataset", STORIES]].concat();
    let answers = ["--learn-from", "dataset", "--dataset", "answers.jsonl"];
    let pairs = ["--dataset", "pairs.jsonl"];
    let with = |all: &[&'static str], more: &[&'static str]| [all, more].concat();
    let cases: Vec<(&str, Vec<&str>)> = vec![
        ("grpo", with(&stories, &["--beta", "0.1", "--num-iterations", "2", "--top-entropy-quantile", "0.5"])),
        ("rloo", with(&stories, &["--beta", "0.1"])),
        ("ppo", stories.clone()),
        ("online_dpo", stories.clone()),
        ("sft", answers.to_vec()),
        ("dpo", pairs.to_vec()),
        ("dpo", with(&pairs, &["--set", "loss.use_weighting=true"])),
        ("orpo", pairs.to_vec()),
        ("kto", pairs.to_vec()),
        ("reward_model", pairs.to_vec()),
    ];
    for (place_of, (name, more)) in cases.iter().enumerate() {
        let today = trained(&place, &format!("{place_of}-today"), name, more);
        let before = trained(&place, &format!("{place_of}-before"), &old(name), more);
        assert_eq!(before.0, today.0, "{name} {more:?}");
        assert!(before.1 == today.1, "{name} {more:?}: the weights differ");
    }
}

#[test]
fn rewards_and_environments_of_older_versions_score_as_those_of_today() {
    let place = TestFolder::new();
    let grpo = |name: &str, more: &[&str]| {
        let size = ["--max-completion-length", "12", "--num-generations", "2", "--dataset", STORIES];
        trained(&place, name, "grpo", &[&size[..], more].concat())
    };
    let reward = |name: &str, file: &str| grpo(name, &["--plugin", file]);
    assert!(reward("reward", &old("tldr_length_reward")) == reward("reward-today", "tldr_length_reward.wasm"));
    let acts =
        |name: &str, file: &str| grpo(name, &["--environment", file, "--plugin", "tldr_length_reward.wasm", "--max-turns", "2"]);
    assert!(acts("environment", &old("calculator_tool")) == acts("environment-today", "calculator_tool.wasm"));
}

#[test]
fn a_run_that_began_with_an_older_version_goes_on_with_it() {
    let place = TestFolder::new();
    let run = [&ONLINE[..], &["--dataset", STORIES, "--steps-per-generation", "2"]].concat();
    let whole = trained(&place, "whole", &old("grpo"), &run);
    let first = [&run[..], &["--save-steps", "1"]].concat();
    let saved = trained(&place, "saved", &old("grpo"), &first);
    assert!(whole.1 == saved.1);
    // Half of a generation waits in its first checkpoint.
    place.copy_as_after("saved", 1, "again");
    place.run(&["resume", "again"]).succeeded();
    let again = std::fs::read(place.path("again/checkpoint-2/model.safetensors")).unwrap();
    assert!(again == whole.1, "the weights differ");
    let inspected = place.run(&["plugin", "inspect", &old("grpo")]);
    assert!(inspected.succeeded().stdout.contains("rlhost:plugin/policy@0.1.0"), "{}", inspected.stdout);
}
