//! `rlhost replay` scores recorded completions as the run did.

use rlhost_tests::judge::step_judge;
use rlhost_tests::{TestFolder, tiny, version};
use serde_json::json;

/// Prompts that are longer than the runs here keep of them.
fn prompts(place: &TestFolder) {
    let row = |i: usize| format!("{}\n", json!({"prompt": format!("a prompt of many letters, number {i}:")}));
    place.write("prompts.jsonl", (0..16).map(row).collect::<String>());
}

fn run(place: &TestFolder, name: &str, more: &[&str]) {
    let run = ["grpo", "--model", tiny(), "--dataset", "prompts.jsonl", "--output-dir", name, "--max-steps", "2"];
    let size = ["--max-completion-length", "12", "--max-prompt-length", "9", "--log-completions", "all"];
    let batch = ["--per-device-train-batch-size", "8", "--num-generations", "4"];
    place.run(&[&run[..], &size, &batch, more].concat()).succeeded();
}

/// The greatest difference from the run's own scores of this name.
fn difference(place: &TestFolder, run: &str, with: &str, more: &[&str]) -> f64 {
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
    for wrong in ["nowhere", "rm=nowhere", "other/rm"] {
        let refused = place.run(&["replay", "asked", "--reward-model", wrong]);
        assert!(refused.code == Some(2), "{wrong}: {} {}", refused.stdout, refused.stderr);
    }
    // In fewer bits it scores a little differently.
    let coarse = difference(&place, "asked", "rm", &["--reward-model", "rm", "--set", "plugin.rm.load_in_4bit=true"]);
    assert!(coarse > 0.0 && coarse < 1.0, "{coarse}");
    let refused = place.run(&["replay", "asked", "--reward-model", "rm", "--set", "target=3"]);
    assert!(refused.code == Some(2) && refused.error().contains("has no settings"), "{}", refused.stderr);
}

#[test]
fn a_name_of_the_run_is_not_a_folder_of_that_name() {
    let place = step_judge();
    prompts(&place);
    place.train_reward_model("second", &["--seed", "5"]);
    run(&place, "asked", &["--reward-model", "rm=second"]);
    assert_eq!(difference(&place, "asked", "rm", &["--reward-model", "rm"]), 0.0);
    assert!(difference(&place, "asked", "rm", &["--reward-model", "./rm"]) > 0.0);
    let said = place.run(&["replay", "asked", "--reward-model", "rm"]);
    assert!(!said.stderr.contains("have changed"), "{}", said.stderr);
    let file = "second/checkpoint-2/config.json";
    let config = std::fs::read_to_string(place.path(file)).unwrap();
    place.write(file, format!("{config}\n"));
    let said = place.run(&["replay", "asked", "--reward-model", "rm"]);
    assert!(said.stderr.contains("have changed since the run scored with them"), "{}", said.stderr);
}

#[test]
fn episodes_of_a_row_are_compared_with_each_other() {
    let place = step_judge();
    prompts(&place);
    let compare = ["--reward-model", "rm", "--set", "plugin.rm.compare=others", "--environment", "guess_number.wasm"];
    let short = ["--max-turns", "2", "--max-completion-length", "4", "--max-prompt-length", "64"];
    run(&place, "asked", &[&compare[..], &short].concat());
    run(
        &place,
        "plain",
        &[&["--reward-model", "rm", "--environment", "guess_number.wasm"], &short[..], &["--max-steps", "1"]].concat(),
    );
    let scores = |run: &str| -> Vec<f64> {
        let rows = place.lines(&format!("{run}/completions.jsonl")).into_iter().filter(|row| row["step"] == 0);
        rows.map(|row| row["rewards"]["rm"].as_f64().unwrap()).collect()
    };
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    for (values, wins) in scores("plain").chunks(4).zip(scores("asked").chunks(4)) {
        for (at, win) in wins.iter().enumerate() {
            let others = values.iter().enumerate().filter(|(other, _)| *other != at);
            let want = others.map(|(_, other)| sigmoid(values[at] - other)).sum::<f64>() / 3.0;
            assert!((win - want).abs() < 1e-5, "{values:?} {wins:?}");
        }
    }
    assert_eq!(difference(&place, "asked", "rm", &["--reward-model", "rm"]), 0.0);
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

#[test]
fn a_reward_that_was_swapped_is_compared_version_by_version() {
    let place = TestFolder::new();
    prompts(&place);
    place.write("versioned.wasm", version(1));
    run(&place, "swapped", &["--plugin", "versioned.wasm"]);
    place.write("versioned.wasm", version(2));
    place.run(&["resume", "swapped", "--max-steps", "4"]).succeeded();
    let hash = |kind: &str, key: &str| {
        let event = place.events("swapped", kind).into_iter().find(|event| event["plugin"] == "versioned").unwrap();
        event[key].as_str().unwrap()[..12].to_owned()
    };
    let (first, second) = (hash("plugin_loaded", "hash"), hash("plugin_swapped", "to"));
    place.write("third.wasm", version(3));
    let replay = |with: &[&str]| place.run(&[&["replay", "swapped", "--plugin", "third.wasm"], with].concat());
    let said = replay(&[]).succeeded().stdout.clone();
    let line =
        |name: &str| said.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{name}: {said}")).to_owned();
    let cells = |line: String| line.split_whitespace().skip(1).take(4).map(str::to_owned).collect::<Vec<_>>();
    let made = |hash: &str| {
        let rows = place.lines("swapped/completions.jsonl").into_iter();
        rows.filter(|row| row["plugins"]["versioned"].as_str().unwrap().starts_with(hash)).count().to_string()
    };
    assert_eq!(cells(line(&format!("versioned@{first}"))), [&made(&first), "1.0000", "3.0000", "2.0000"]);
    assert_eq!(cells(line(&format!("versioned@{second}"))), [&made(&second), "2.0000", "3.0000", "1.0000"]);
    let one = replay(&["--with", &format!("versioned@{}", &second[..4])]).succeeded().stdout.clone();
    assert!(one.contains(&second) && !one.contains(&first), "{one}");
    let unknown = replay(&["--with", "versioned@0123456789abcdef"]);
    assert!(unknown.error().contains("its versions are ") && unknown.error().contains(&first), "{}", unknown.stderr);
}
