//! Which version of a plugin made which number: logging windows end where a plugin or its weight changes, and rows name versions.

use rlhost_tests::{KilledOnDrop, TestFolder, small, version};
use serde_json::{Value, json};
use std::fs;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);

/// Arguments of a run in `run` that logs every `every` steps; its reward is the version of `versioned.wasm`.
fn arguments(steps: &str, every: &str) -> Vec<String> {
    let own = ["--plugin", "versioned.wasm", "--output-dir", "run", "--max-steps", steps, "--logging-steps", every];
    let size = ["--max-completion-length", "12", "--per-device-train-batch-size", "16", "--learning-rate", "0"];
    [&small()[..], &own, &size].concat().into_iter().map(str::to_owned).collect()
}

fn place() -> TestFolder {
    let place = TestFolder::new();
    place.write("versioned.wasm", version(1));
    place
}

/// The rows of a run's training: step, mean of the reward with its weight, and version.
fn rows(place: &TestFolder, run: &str) -> Vec<(u64, f64, String)> {
    let rows = place.lines(&format!("{run}/metrics.jsonl")).into_iter().filter(|row| row.get("eval_runtime").is_none());
    let text = |row: &Value| row["versions"]["versioned"].as_str().expect("a row names versions").to_owned();
    rows.map(|row| (row["step"].as_u64().unwrap(), row["reward"].as_f64().unwrap(), text(&row))).collect()
}

/// The versions of `versioned`: the beginnings of their hashes, with the digests of their settings.
fn versions(place: &TestFolder, run: &str) -> Vec<String> {
    let of = |kind: &str, hash: &str, settings: &str| {
        let events = place.events(run, kind).into_iter().filter(|event| event["plugin"] == "versioned");
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        events.map(|event| format!("{}+{}", &text(&event[hash])[..12], text(&event[settings]))).collect::<Vec<_>>()
    };
    let loaded = of("plugin_loaded", "hash", "settings").into_iter().take(1);
    loaded.chain(of("plugin_swapped", "to", "to_settings")).collect()
}

struct WindowRun(KilledOnDrop);

impl WindowRun {
    fn start(place: &TestFolder, arguments: &[String]) -> Self {
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        Self(KilledOnDrop(place.start(&arguments)))
    }

    fn stop(mut self) {
        self.0.signal("TERM");
        assert_eq!(self.0.wait().unwrap().code(), Some(3));
    }
}

#[test]
fn windows_end_at_a_swap_and_at_a_changed_weight() {
    let place = place();
    let live = WindowRun::start(&place, &[arguments("1000000", "7"), vec!["--eval-strategy".into(), "no".into()]].concat());
    let wait = |done: &dyn Fn() -> bool| place.wait("run", PATIENCE, done);
    wait(&|| place.steps("run") > 1);
    place.write("new.wasm", version(2));
    fs::rename(place.path("new.wasm"), place.path("versioned.wasm")).unwrap();
    wait(&|| fs::read_to_string(place.path("run/events.jsonl")).unwrap().contains("plugin_swapped"));
    let rows_now = place.steps("run");
    wait(&|| place.steps("run") > rows_now + 1);
    let file = place.path("run/config.toml");
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, text.replacen("weight = 1.0", "weight = 3.0", 1)).unwrap();
    wait(&|| fs::read_to_string(place.path("run/events.jsonl")).unwrap().contains("settings_changed"));
    let rows_now = place.steps("run");
    wait(&|| place.steps("run") > rows_now + 1);
    live.stop();

    let at = |kind: &str| place.events("run", kind)[0]["step"].as_u64().unwrap();
    let (swapped, weighted, versions) = (at("plugin_swapped"), at("settings_changed"), versions(&place, "run"));
    let rows = rows(&place, "run");
    // Both windows end where the change is, whether or not that is a multiple of seven.
    assert!([swapped, weighted].iter().all(|step| rows.iter().filter(|row| row.0 == *step).count() == 1), "{rows:?}");
    for (step, reward, version) in &rows {
        let expected = if *step <= swapped { (1.0, &versions[0]) } else { (2.0, &versions[1]) };
        let expected = (if *step <= weighted { expected.0 } else { 3.0 * expected.0 }, expected.1);
        assert_eq!((*reward, version), expected, "step {step} of {rows:?}");
    }
    let row = &place.lines("run/metrics.jsonl")[0];
    assert_eq!(row["versions"].as_object().unwrap().keys().collect::<Vec<_>>(), ["grpo", "versioned"], "{row}");
}

#[test]
fn settings_make_another_version() {
    let place = place();
    let live = WindowRun::start(&place, &[arguments("1000000", "7"), vec!["--eval-strategy".into(), "no".into()]].concat());
    let wait = |done: &dyn Fn() -> bool| place.wait("run", PATIENCE, done);
    wait(&|| place.steps("run") > 1);
    let file = place.path("run/config.toml");
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, text.replacen("plus = 0.0", "plus = 0.25", 1)).unwrap();
    wait(&|| fs::read_to_string(place.path("run/events.jsonl")).unwrap().contains("plugin_swapped"));
    let rows_now = place.steps("run");
    wait(&|| place.steps("run") > rows_now + 1);
    live.stop();

    let versions = versions(&place, "run");
    let [first, second] = &versions[..] else { panic!("{versions:?}") };
    assert!(first != second && first[..12] == second[..12], "{versions:?}");
    let swapped = place.events("run", "plugin_swapped")[0]["step"].as_u64().unwrap();
    for (step, reward, version) in rows(&place, "run") {
        assert_eq!((reward, &version), if step <= swapped { (1.0, first) } else { (1.25, second) }, "step {step}");
    }
    for line in place.lines("run/completions.jsonl") {
        let whole = line["plugins"]["versioned"].as_str().unwrap();
        let (hash, settings) = whole.split_once('+').unwrap();
        let is_first = line["step"].as_u64().unwrap() < swapped;
        assert_eq!((hash.len(), format!("{}+{settings}", &hash[..12])), (64, if is_first { first } else { second }.clone()));
    }
    place.write("third.wasm", version(3));
    let said = place.run(&["replay", "run", "--plugin", "third.wasm"]).succeeded().stdout.clone();
    for (version, mean) in [(first, "1.0000"), (second, "1.2500")] {
        let line = said.lines().find(|line| line.starts_with(&format!("versioned@{version} ")));
        assert_eq!(line.and_then(|line| line.split_whitespace().nth(2)), Some(mean), "{said}");
    }
    let digest = second.split_once('+').unwrap().1;
    let chosen = ["rollouts", "run", "--step", "..", "--json", "--version", &format!("versioned={}+{digest}", &second[..4])];
    let scores: Vec<Value> =
        place.run(&chosen).succeeded().stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(!scores.is_empty() && scores.iter().all(|line| line["rewards"]["versioned"] == 1.25), "{scores:?}");
}

#[test]
fn a_window_whose_run_was_stopped_ends_where_the_run_resumes_with_another_weight_or_plugin() {
    let place = place();
    let all = [arguments("12", "4"), ["--save-steps", "1"].map(str::to_owned).to_vec()].concat();
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    place.run(&all).succeeded();
    let first = versions(&place, "run")[0].clone();
    let row = |step: u64, reward: f64| (step, reward, first.clone());
    assert_eq!(rows(&place, "run"), [row(4, 1.0), row(8, 1.0), row(12, 1.0)]);

    // In the middle of a window, with nothing changed: as if it had not been stopped.
    place.copy_as_after("run", 6, "same");
    place.run(&["resume", "same"]).succeeded();
    assert_eq!(place.lines_without_times("same/metrics.jsonl"), place.lines_without_times("run/metrics.jsonl"));

    let heavier = ["--set", "plugin.versioned.weight=3", "--allow-changed"];
    let expected = [row(4, 1.0), row(6, 1.0), row(8, 3.0), row(12, 3.0)];
    place.copy_as_after("run", 6, "heavier");
    place.run(&[&["resume", "heavier"][..], &heavier].concat()).succeeded();
    assert_eq!(rows(&place, "heavier"), expected);
    // That run died before its next checkpoint, and resumes once more.
    place.copy_as_after("heavier", 6, "again");
    place.run(&[&["resume", "again"][..], &heavier].concat()).succeeded();
    assert_eq!(place.lines_without_times("again/metrics.jsonl"), place.lines_without_times("heavier/metrics.jsonl"));

    // A fork begins with its parent's open window, which is the parent's version's.
    fs::create_dir(place.path("other")).unwrap();
    place.write("other/versioned.wasm", version(2));
    let fork = ["--resume-from-checkpoint", "run/checkpoint-6", "--output-dir", "fork", "--plugin", "other/versioned.wasm"];
    place.run(&fork).succeeded();
    let second = versions(&place, "fork")[0].clone();
    assert_ne!(first, second);
    // It is not swapped for itself: what the parent's file held is not what this one held.
    assert!(place.events("fork", "plugin_swapped").is_empty());
    assert_eq!(rows(&place, "fork"), [row(6, 1.0), (8, 2.0, second.clone()), (12, 2.0, second)]);
}

#[test]
fn evaluations_name_versions_and_other_readers_take_no_metric_for_one() {
    let place = place();
    let more = ["--eval-strategy", "steps", "--eval-steps", "2", "--report-to", "tensorboard", "--save-strategy", "no"];
    let all = [arguments("4", "1"), more.map(str::to_owned).to_vec()].concat();
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    let held_out = ["--eval-dataset", rlhost_tests::STORIES, "--num-generations-eval", "2"];
    place.run(&[&all[..], &held_out].concat()).succeeded();
    let lines = place.lines("run/metrics.jsonl");
    let evaluations: Vec<&Value> = lines.iter().filter(|line| line.get("eval_runtime").is_some()).collect();
    assert_eq!(evaluations.len(), 2);
    assert!(lines.iter().all(|line| line["versions"]["versioned"] == json!(versions(&place, "run")[0])), "{lines:?}");
    place.run(&["report", "run"]).succeeded();
    for format in ["mlflow", "wandb", "trackio"] {
        place.run(&["export-run", "run", "--format", format, "--output", "exported"]).succeeded();
    }
    let table = fs::read_to_string(place.path("exported").join("run-trackio.csv")).unwrap();
    assert!(!table.lines().next().unwrap().contains("versions"), "{table}");
    place.run(&["diagnose", "run"]).succeeded();
}
