//! What a checkpoint has at its top level, and checkpoints of older versions, which had more there.

use rlhost_tests::{STORIES, TestFolder, flatten, seal, tiny};
use std::fs;

/// A kind of run, its weights file, and what else of it must resume to the bit.
type LayoutCase = (&'static str, &'static [&'static str], &'static str, &'static str);

const SHORT: [&str; 4] = ["--num-generations", "2", "--max-completion-length", "8"];

const KINDS: [LayoutCase; 6] = [
    ("whole", &["--algorithm", "grpo", "--plugin", "tldr_length_reward.wasm", "--beta", "0.1"], "model.safetensors", ""),
    (
        "adapter",
        &["--algorithm", "grpo", "--plugin", "tldr_length_reward.wasm", "--lora-r", "2"],
        "adapter_model.safetensors",
        "",
    ),
    (
        "critic",
        &["--algorithm", "ppo", "--plugin", "tldr_length_reward.wasm"],
        "model.safetensors",
        "trainer/value_model/model.safetensors",
    ),
    (
        "head",
        &["--algorithm", "ppo", "--plugin", "tldr_length_reward.wasm", "--value-model", "shared", "--lora-r", "2"],
        "adapter_model.safetensors",
        "trainer/critic.safetensors",
    ),
    (
        "reference",
        &["--algorithm", "dpo", "--dataset", "pairs.jsonl", "--sync-ref-model", "--ref-model-sync-steps", "1"],
        "model.safetensors",
        "trainer/reference.safetensors",
    ),
    ("reward", &["--algorithm", "reward_model", "--dataset", "pairs.jsonl"], "model.safetensors", ""),
];

/// Trains for four steps with a checkpoint after each.
fn train(place: &TestFolder, (name, settings, ..): &LayoutCase) {
    let mut all = vec!["--model", tiny(), "--dataset", STORIES, "--output-dir", name, "--learning-rate", "0.002"];
    all.extend(["--max-steps", "4", "--save-steps", "1", "--logging-steps", "3", "--per-device-train-batch-size", "4"]);
    if settings.contains(&"--plugin") {
        all.extend(SHORT);
    }
    all.extend(*settings);
    place.run(&all).succeeded();
}

/// Moves a run's own files among those of its models, in all checkpoints.
fn flatten_all(place: &TestFolder, run: &str) {
    place.checkpoints(run).iter().for_each(|step| flatten(&place.path(run).join(format!("checkpoint-{step}"))));
}

#[test]
fn a_checkpoint_is_the_folder_of_a_model_and_one_folder_more() {
    let place = TestFolder::with_answers();
    let tokenizer = ["generation_config.json", "tokenizer.json", "tokenizer_config.json"];
    for kind in &KINDS {
        train(&place, kind);
        let (name, _, weights, further) = kind;
        let config = if *weights == "model.safetensors" { "config.json" } else { "adapter_config.json" };
        let mut entries = place.entries_of(&format!("{name}/checkpoint-4"));
        entries.retain(|entry| !tokenizer.contains(&entry.as_str()));
        assert_eq!(entries, [config, weights, "trainer"], "{name}");
        assert!(place.path(&format!("{name}/checkpoint-4/trainer/optimizer.safetensors")).is_file(), "{name}");
        assert!(place.path(&format!("{name}/checkpoint-4/{further}")).exists(), "{name}: {further}");
        // What is made from it has no other weights either, at its top level.
        let out = format!("{name}-out");
        let command = if config == "config.json" { "export" } else { "merge" };
        place.run(&[command, &format!("{name}/checkpoint-4"), &out]).succeeded();
        let tensors: Vec<String> = place.entries_of(&out).into_iter().filter(|entry| entry.ends_with(".safetensors")).collect();
        assert_eq!(tensors, ["model.safetensors"], "{name}");
    }
    // A head that was trained goes with the merged model.
    let head = "trainer/critic.safetensors";
    assert!(place.tensors(&format!("head-out/{head}")) == place.tensors(&format!("head/checkpoint-4/{head}")));
    let from = ["--algorithm", "ppo", "--plugin", "tldr_length_reward.wasm", "--value-model", "shared", "--dataset", STORIES];
    let begun = ["--model", "head-out", "--output-dir", "begun", "--max-steps", "1", "--critic-learning-rate", "0"];
    place.run(&[&from[..], &begun, &SHORT].concat()).succeeded();
    assert!(place.tensors(&format!("begun/checkpoint-1/{head}")) == place.tensors(&format!("head-out/{head}")));
    // A reward model is what it was, whichever version wrote it.
    let scores = place.score("reward", "pairs.jsonl");
    flatten_all(&place, "reward");
    assert_eq!(place.score("reward", "pairs.jsonl"), scores);
}

#[test]
fn a_run_of_an_older_version_resumes_to_the_bit() {
    let place = TestFolder::with_answers();
    for kind in &KINDS {
        let (name, _, weights, further) = kind;
        train(&place, kind);
        for step in [1, 3] {
            let old = format!("{name}-from-{step}");
            place.copy(name, &old);
            flatten_all(&place, &old);
            assert!(!place.path(&format!("{old}/checkpoint-{step}/trainer")).exists());
            place.run(&["resume", &old, "--step", &step.to_string()]).succeeded();
            place.assert_same_end(&old, name, 4, weights);
            if !further.is_empty() {
                place.assert_same_end(&old, name, 4, further);
            }
        }
    }
}

#[test]
fn waiting_completions_of_an_older_version_are_trained_on_to_the_bit() {
    let place = TestFolder::new();
    let generation = ["--steps-per-generation", "4", "--gradient-accumulation-steps", "1", "--num-generations", "2"];
    let steps = ["--max-steps", "6", "--save-steps", "1", "--learning-rate", "0.01"];
    place.train("whole", &[&generation[..], &steps].concat()).succeeded();
    place.copy_as_after("whole", 2, "old");
    let file = place.path("old/checkpoint-2/trainer/snapshot.json");
    let mut state: serde_json::Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    let experiences = state["experiences"].as_array_mut().unwrap();
    assert!(!experiences.is_empty());
    for experience in experiences {
        // One version was written for all of them.
        experience["generated_at"] = 0.into();
        for rollout in experience["rollouts"].as_array_mut().unwrap() {
            assert_eq!(rollout.as_object_mut().unwrap().remove("policy_version"), Some(0.into()));
        }
    }
    fs::write(&file, state.to_string()).unwrap();
    seal(&place.path("old/checkpoint-2"), &[]);
    place.run(&["resume", "old"]).succeeded();
    place.assert_same_end("old", "whole", 6, "model.safetensors");
    // One of a policy that there has not been yet is refused.
    place.copy_as_after("whole", 2, "future");
    let file = place.path("future/checkpoint-2/trainer/snapshot.json");
    let mut state: serde_json::Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    state["experiences"][0]["rollouts"][0]["policy_version"] = 3.into();
    fs::write(&file, state.to_string()).unwrap();
    seal(&place.path("future/checkpoint-2"), &[]);
    let refused = place.run(&["resume", "future"]);
    assert!(refused.error().contains("policy of version 3"), "{}", refused.error());
}

#[test]
fn checkpoints_of_an_older_version_are_verified_listed_forked_exported_and_removed() {
    let place = TestFolder::new();
    let settings = ["--max-steps", "4", "--save-steps", "1"];
    place.train("run", &settings).succeeded();
    place.run(&["export", "run", "exported"]).succeeded();
    let said = |arguments: &[&str]| place.run(arguments).succeeded().stdout.clone();
    let generate = ["generate", "--model", "run", "--prompt", "Once", "--max-new-tokens", "4", "--temperature", "0"];
    let (listed, generated) = (said(&["checkpoint", "list", "run"]), said(&generate));
    flatten_all(&place, "run");
    let sizes = |list: &str| {
        list.lines().map(|line| line.split_whitespace().take(3).map(str::to_owned).collect()).collect::<Vec<Vec<_>>>()
    };
    assert_eq!(sizes(&said(&["checkpoint", "list", "run"])), sizes(&listed));
    assert_eq!(said(&["checkpoint", "verify", "run"]).matches(": intact, ").count(), 4);
    assert_eq!(said(&generate), generated);
    place.run(&["export", "run", "again"]).succeeded();
    let exported = |folder: &str| fs::read(place.path(folder).join("model.safetensors")).unwrap();
    assert!(exported("again") == exported("exported") && place.entries_of("again") == place.entries_of("exported"));
    place.run(&["--resume-from-checkpoint", "run/checkpoint-2", "--output-dir", "twin"]).succeeded();
    let model = |run: &str| fs::read(place.path(run).join("checkpoint-4/model.safetensors")).unwrap();
    assert!(model("twin") == model("run"));
    let within = place.train("run/checkpoint-2/inner", &settings);
    assert!(within.code == Some(2) && within.error().contains("which is a checkpoint"), "{}", within.stderr);
    let report = place.run(&["report", "run/checkpoint-2"]);
    assert!(report.error().contains("is a checkpoint; give its run's folder"), "{}", report.error());
    // A flipped byte is found, and the newest that is intact is taken.
    let file = place.path("run/checkpoint-4/optimizer.safetensors");
    let mut bytes = fs::read(&file).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&file, bytes).unwrap();
    assert_eq!(place.run(&["checkpoint", "verify", "run/checkpoint-4"]).code, Some(1));
    let resumed = place.run(&["resume", "run", "--max-steps", "6", "--set", "save_total_limit=2"]);
    assert!(resumed.succeeded().stdout.contains("from step 3"), "{}", resumed.stdout);
    assert_eq!(place.checkpoints("run"), [5, 6]);
    assert!(place.path("run/checkpoint-6/trainer/manifest.json").is_file());
}
