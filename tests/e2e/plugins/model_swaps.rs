//! Reward models that change while the run goes on.

use rlhost_tests::{CommandOutcome, KilledOnDrop, STORIES, TestFolder, tiny};
use serde_json::{Value, json};
use std::fs;
use std::time::Duration;

/// Longest that anything here is waited for.
const PATIENCE: Duration = Duration::from_secs(60);

/// A folder with two reward models, `one` and `two`, that score texts differently.
fn place() -> TestFolder {
    let place = TestFolder::new();
    for (name, seed) in [("one", "1"), ("two", "2")] {
        place.train_reward_model(name, &["--seed", seed]);
    }
    place
}

fn arguments<'a>(run: &'a str, steps: &'a str) -> Vec<&'a str> {
    let mut all = vec!["grpo", "--model", tiny(), "--dataset", STORIES, "--output-dir", run, "--reward-model", "one"];
    all.extend(["--max-completion-length", "8", "--per-device-train-batch-size", "8", "--learning-rate", "0.001"]);
    all.extend(["--max-steps", steps, "--save-steps", "1", "--logging-steps", "1", "--log-completions", "all"]);
    all.extend(["--save-total-limit", "100000", "--lr-scheduler-type", "constant"]);
    all
}

/// A run whose process is ended with it.
struct ModelSwapRun<'a> {
    child: KilledOnDrop,
    place: &'a TestFolder,
}

impl<'a> ModelSwapRun<'a> {
    fn start(place: &'a TestFolder, more: &[&str]) -> Self {
        let child = KilledOnDrop(place.start(&[&arguments("run", "100000")[..], more].concat()));
        let this = Self { child, place };
        this.wait(|| this.steps() > 1);
        this
    }

    #[track_caller]
    fn wait(&self, done: impl Fn() -> bool) {
        self.place.wait("run", PATIENCE, done);
    }

    fn steps(&self) -> usize {
        self.place.steps("run")
    }

    fn wait_for_steps(&self, steps: usize) {
        let now = self.steps();
        self.wait(|| self.steps() >= now + steps);
    }

    fn swap(&self, what: &str) -> CommandOutcome {
        self.place.run(&["swap", "run", what])
    }

    fn stop(mut self) {
        self.child.signal("TERM");
        assert_eq!(self.child.wait().unwrap().code(), Some(3));
    }
}

fn hash_in(place: &TestFolder, checkpoint: u64) -> String {
    let config = fs::read_to_string(place.path(&format!("run/checkpoint-{checkpoint}/trainer/config.toml"))).unwrap();
    config.lines().find_map(|line| line.strip_prefix("hash = ")).unwrap().trim_matches('"').to_owned()
}

/// What the run's reward said of its completions in a step, and what a model says of them.
fn scores(place: &TestFolder, model: &str, step: u64) -> Vec<(f64, f64)> {
    let rows = place.lines("run/completions.jsonl").into_iter();
    let rows: Vec<Value> =
        rows.filter(|row| row["step"] == step && !row["completion"].as_str().unwrap().contains('\u{fffd}')).collect();
    let texts = rows.iter().filter(|row| row["finished"] == false);
    let lines = texts.clone().map(|row| format!("{}\n", json!({"prompt": row["prompt"], "completion": row["completion"]})));
    place.write("said.jsonl", lines.collect::<String>());
    let said = place.score(model, "said.jsonl");
    said.iter().zip(texts).map(|(line, row)| (row["rewards"]["one"].as_f64().unwrap(), line["score"].as_f64().unwrap())).collect()
}

#[test]
fn a_reward_model_is_swapped_between_two_steps_and_resumes_find_the_one_of_their_step() {
    let place = place();
    let running = ModelSwapRun::start(&place, &["--max-completion-length", "1"]);
    let outcome = running.swap("one=two");
    assert!(outcome.succeeded().stdout.contains("one was swapped at step"), "{}", outcome.stdout);
    assert!(outcome.stdout.contains("on the last 8 completions: mean"), "{}", outcome.stdout);
    running.wait_for_steps(3);
    running.stop();
    let [swap] = &place.events("run", "plugin_swapped")[..] else { panic!("one swap") };
    let step = swap["step"].as_u64().unwrap();
    assert_eq!((hash_in(&place, step), hash_in(&place, step + 1)), (text(&swap["from"]), text(&swap["to"])));
    assert!(swap["config"]["path"].as_str().unwrap().ends_with("two/checkpoint-2"), "{swap}");
    let far = |of: &[(f64, f64)]| of.iter().map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    let (before, after) = (scores(&place, "one", step - 1), scores(&place, "two", step));
    assert!(!before.is_empty() && far(&before) < 1e-4 && !after.is_empty() && far(&after) < 1e-4, "{before:?} {after:?}");
    assert!(far(&scores(&place, "one", step)) > 1e-4, "the two models differ");
    // Each checkpoint has the model of its step; one from before the swap goes on without it.
    let steps = place.checkpoints("run").into_iter().max().unwrap();
    for from in [step, step + 1] {
        let name = format!("from-{from}");
        place.copy("run", &name);
        place.run(&["resume", &name, "--step", &from.to_string(), "--max-steps", &(steps + 1).to_string()]).succeeded();
        let loaded = place.events(&name, "plugin_loaded");
        let loaded = loaded.iter().rfind(|event| event["plugin"] == "one").unwrap();
        assert_eq!(loaded["hash"], if from == step { swap["from"].clone() } else { swap["to"].clone() });
    }
    place.copy("run", "whole");
    place.run(&["resume", "whole", "--max-steps", &(steps + 1).to_string()]).succeeded();
    place.assert_same_end(&format!("from-{}", step + 1), "whole", steps + 1, "model.safetensors");
    place.run(&["report", "run"]).succeeded();
}

fn text(value: &Value) -> String {
    value.as_str().unwrap().to_owned()
}

#[test]
fn what_does_not_fit_is_refused_and_the_old_one_stays() {
    let place = place();
    let running = ModelSwapRun::start(&place, &[]);
    place.write("file", "no model");
    place.copy("two/checkpoint-2", "damaged");
    place.write("damaged/model.safetensors", "no tensors");
    // It reads four tokens at most.
    place.copy("two/checkpoint-2", "short");
    let config = fs::read_to_string(place.path("short/config.json")).unwrap();
    place.write("short/config.json", config.replace("\"max_position_embeddings\": 192", "\"max_position_embeddings\": 4"));
    for (given, words) in [
        ("one=file", "a model is a folder"),
        ("one=nowhere", "nowhere"),
        ("one=one", "has the files that it has already"),
        ("one=damaged", "model.safetensors"),
        ("one=short", "exceeds the model's context of 4"),
        (&format!("one={}", tiny()), "score.weight"),
        ("three=two", "this run has no plugin \"three\"; it has one, grpo"),
    ] {
        let outcome = running.swap(given);
        assert!(outcome.code != Some(0) && outcome.error().contains(words), "{given}: {}", outcome.stderr);
    }
    running.wait_for_steps(2);
    running.stop();
    assert!(place.events("run", "plugin_swapped").is_empty() && place.events("run", "plugin_rolled_back").is_empty());
    assert!(place.events("run", "plugin_refused").len() >= 4);
}

#[test]
fn a_model_that_fails_after_its_swap_is_rolled_back() {
    let place = place();
    // The stories begin with texts of some tens of bytes; one of them is longer than what the other model reads.
    let prompts = |length: usize| format!("{{\"prompt\": \"{}\"}}\n", "ab".repeat(length));
    place.write("mixed.jsonl", prompts(4).repeat(60) + &prompts(40).repeat(4));
    place.copy("two/checkpoint-2", "short");
    let config = fs::read_to_string(place.path("short/config.json")).unwrap();
    place.write("short/config.json", config.replace("\"max_position_embeddings\": 192", "\"max_position_embeddings\": 24"));
    let size =
        ["--num-generations", "8", "--set", "shuffle_dataset=false", "--dataset", "mixed.jsonl", "--max-completion-length", "8"];
    let mut running = None;
    // The swap comes within the eight steps before the long prompt, or the run begins again.
    for _ in 0..20 {
        drop(running.take());
        let _ = fs::remove_dir_all(place.path("run"));
        let now = ModelSwapRun::start(&place, &size);
        now.wait(|| now.steps() >= 53 || now.steps() % 64 >= 53);
        now.swap("one=short");
        now.wait_for_steps(12);
        if !place.events("run", "plugin_rolled_back").is_empty() {
            running = Some(now);
            break;
        }
    }
    let running = running.expect("a swap within its trial steps");
    running.stop();
    let [back] = &place.events("run", "plugin_rolled_back")[..] else { panic!("one roll-back") };
    let [swap] = &place.events("run", "plugin_swapped")[..] else { panic!("one swap") };
    assert_eq!((&back["from"], &back["to"]), (&swap["to"], &swap["from"]));
    assert!(back["reason"].as_str().unwrap().contains("exceeds the model's context of 24"), "{back}");
    let last = place.checkpoints("run").into_iter().max().unwrap();
    assert_eq!(hash_in(&place, last), text(&swap["from"]));
    // A run that resumes in between goes back too, although its process never had the model that was replaced.
    let [swapped, failed] = [swap, back].map(|event| event["step"].as_u64().unwrap());
    for from in [swapped + 1, failed] {
        assert_eq!(hash_in(&place, from), text(&swap["to"]));
        let name = format!("from-{from}");
        place.copy("run", &name);
        let end = (last + 1).to_string();
        place.run(&["resume", &name, "--step", &from.to_string(), "--max-steps", &end]).succeeded();
        let again = place.events(&name, "plugin_rolled_back");
        assert_eq!(again.iter().filter(|event| event["step"] == failed).count(), 2, "{again:?}");
    }
    place.copy("run", "whole");
    place.run(&["resume", "whole", "--max-steps", &(last + 1).to_string()]).succeeded();
    place.assert_same_end(&format!("from-{failed}"), "whole", last + 1, "model.safetensors");
    place.assert_same_end(&format!("from-{}", swapped + 1), "whole", last + 1, "model.safetensors");
}
