//! `rlhost replay` scores recorded completions as the run did.

use rlhost_tests::judged::step_judge;
use rlhost_tests::{Place, tiny};
use serde_json::json;

/// Prompts that are longer than the runs here keep of them.
fn prompts(place: &Place) {
    let row = |i: usize| format!("{}\n", json!({"prompt": format!("a prompt of many letters, number {i}:")}));
    place.write("prompts.jsonl", (0..16).map(row).collect::<String>());
}

fn run(place: &Place, name: &str, more: &[&str]) {
    let run = ["grpo", "--model", tiny(), "--dataset", "prompts.jsonl", "--output-dir", name, "--max-steps", "2"];
    let size = ["--max-completion-length", "12", "--max-prompt-length", "9", "--log-completions", "all"];
    let batch = ["--per-device-train-batch-size", "8", "--num-generations", "4"];
    place.run(&[&run[..], &size, &batch, more].concat()).succeeded();
}

/// The greatest difference from the run's own scores of this name.
fn difference(place: &Place, run: &str, with: &str, more: &[&str]) -> f64 {
    let outcome = place.run(&[&["replay", run, "--with", with], more].concat());
    let table = outcome.succeeded().stdout.lines().find(|line| line.starts_with(with)).unwrap();
    assert!(!outcome.stdout.contains("scored by only one"), "{}", outcome.stdout);
    table.split_whitespace().nth(4).unwrap().parse().unwrap()
}

#[test]
fn a_reward_model_reads_the_tokens_that_the_run_had() {
    let place = step_judge();
    prompts(&place);
    run(&place, "asked", &["--reward-model", "rm"]);
    assert_eq!(difference(&place, "asked", "rm", &["--reward-model", "rm"]), 0.0);
    assert_eq!(place.run(&["replay", "asked", "--reward-model", "nowhere"]).code, Some(2));
    // In fewer bits it scores a little differently.
    let coarse = difference(&place, "asked", "rm", &["--reward-model", "rm", "--set", "plugin.rm.load_in_4bit=true"]);
    assert!(coarse > 0.0 && coarse < 1.0, "{coarse}");
    let refused = place.run(&["replay", "asked", "--reward-model", "rm", "--set", "target=3"]);
    assert!(refused.code == Some(2) && refused.error().contains("has no settings"), "{}", refused.stderr);
}

#[test]
fn answers_are_compared_with_each_other_as_in_the_run() {
    let place = step_judge();
    prompts(&place);
    run(&place, "asked", &["--reward-model", "rm", "--set", "plugin.rm.compare=others"]);
    // As in the run, and given anew under another name.
    assert_eq!(difference(&place, "asked", "rm", &["--reward-model", "rm"]), 0.0);
    let named = ["--reward-model", "again=rm", "--set", "plugin.again.compare=others"];
    assert_eq!(difference(&place, "asked", "rm", &named), 0.0);
    assert!(difference(&place, "asked", "rm", &["--reward-model", "again=rm"]) > 0.1, "without comparing it says something else");
}

#[test]
fn a_model_of_steps_scores_by_its_steps_and_plugins_see_them() {
    let place = step_judge();
    prompts(&place);
    let plugin = ["--plugin", "process_reward.wasm", "--set", "plugin.process_reward.config.combine=mean"];
    run(&place, "asked", &[&["--reward-model", "prm", "--set", "plugin.prm.step_separator=\"e\""], &plugin[..]].concat());
    assert_eq!(difference(&place, "asked", "prm", &["--reward-model", "prm"]), 0.0);
    let scored = ["--plugin", "process_reward.wasm", "--set", "combine=mean"];
    assert_eq!(difference(&place, "asked", "process_reward", &scored), 0.0);
    let least = ["--plugin", "process_reward.wasm", "--set", "combine=min"];
    assert_eq!(difference(&place, "asked", "prm", &least), 0.0);
}
