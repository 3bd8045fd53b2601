//! `rlhost sweep`: a grid with seeds, interrupted, resumed, failed and looked at.

#![cfg(unix)]

use rlhost_tests::{STORIES, TestFolder, tiny};

use std::process::Command;
use std::time::Duration;

/// A sweep's file over two learning rates.
fn file(seeds: &str, steps: u32, more: &str) -> String {
    format!(
        "command = \"grpo\"\noutput_dir = \"sweep\"\nseeds = {seeds}\n\
         [settings]\nmodel = {:?}\ndataset = {STORIES:?}\nplugin = [{{ path = \"tldr_length_reward.wasm\" }}]\nmax_steps = {steps}\n\
         max_completion_length = 8\nlogging_steps = 1\nsave_steps = 1\nnum_threads = 1\n{more}\n[grid]\nlearning_rate = [1e-3, 1e-2]\n",
        tiny()
    )
}

fn last_reward(place: &TestFolder, run: &str) -> f64 {
    let lines = place.lines(&format!("sweep/{run}/metrics.jsonl"));
    lines.iter().rev().find_map(|line| line["reward"].as_f64()).unwrap()
}

#[test]
fn a_grid_runs_with_each_seed_once_and_ends_in_one_table() {
    let place = TestFolder::new();
    place.write("lr.toml", file("[1, 2]", 2, ""));
    let listed = place.run(&["sweep", "lr.toml", "--dry-run"]).succeeded().stdout.clone();
    assert!(listed.starts_with("4 runs in sweep: 4 new\nnew          learning_rate=0.001,seed=1\n"), "{listed}");
    assert!(listed.ends_with("4 new runs can begin; nothing was trained or written\n"), "{listed}");
    assert!(!place.path("sweep").exists());

    let first = place.run(&["sweep", "lr.toml", "--jobs", "2"]);
    let table: Vec<&str> = first.succeeded().stdout.lines().collect();
    assert_eq!(table.len(), 3, "{table:?}");
    assert_eq!(table[0].split_whitespace().collect::<Vec<_>>(), ["learning_rate", "runs", "reward"]);
    for (line, rate) in table[1..].iter().zip(["0.001", "0.01"]) {
        let cells: Vec<&str> = line.split_whitespace().collect();
        let values = [1, 2].map(|seed| last_reward(&place, &format!("learning_rate={rate},seed={seed}")));
        let (mean, shown): (f64, f64) = ((values[0] + values[1]) / 2.0, cells[2].parse().unwrap());
        assert_eq!((cells[0], cells[1], cells[3]), (rate, "2", "\u{b1}"), "{line}");
        assert!((mean - shown).abs() <= 1e-3 * mean.abs(), "{mean} {line}");
    }
    // Each run has the settings of its own.
    let config = std::fs::read_to_string(place.path("sweep/learning_rate=0.01,seed=2/config.toml")).unwrap();
    assert!(config.contains("learning_rate = 0.01") && config.contains("seed = 2"), "{config}");
    assert!(place.path("sweep/learning_rate=0.01,seed=2.log").is_file());

    // Again, nothing is left to do.
    let again = place.run(&["sweep", "lr.toml", "--metric", "completions/mean_length"]);
    assert!(again.succeeded().stderr.contains("4 of 4 runs are finished and skipped"), "{}", again.stderr);
    assert!(again.stdout.lines().next().unwrap().ends_with("completions/mean_length"), "{}", again.stdout);
    assert!(place.run(&["sweep", "lr.toml", "--metric", "rewart"]).succeeded().stderr.contains("did you mean \"reward\""));

    // A larger grid keeps what there is; other settings would not be what the finished runs had.
    place.write("lr.toml", file("[1, 2, 3]", 2, ""));
    assert!(place.run(&["sweep", "lr.toml", "--dry-run"]).succeeded().stdout.contains("4 finished, 2 new"));
    place.write("lr.toml", file("[1, 2]", 3, ""));
    let changed = place.run(&["sweep", "lr.toml"]);
    assert!(changed.code == Some(2) && changed.error().contains("made with other settings (max_steps)"), "{}", changed.stderr);
}

#[test]
fn an_interrupted_sweep_saves_its_run_and_resumes_it() {
    let place = TestFolder::new();
    place.write("lr.toml", file("[1]", 400, ""));
    let first = "sweep/learning_rate=0.001,seed=1";
    let child = place.start_piped(&["sweep", "lr.toml"]);
    place.wait(first, Duration::from_secs(120), || place.steps(first) > 2);
    assert!(place.run(&["sweep", "lr.toml"]).error().contains("another process"));
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    let out = rlhost_tests::CommandOutcome::new(child.wait_with_output().unwrap());
    assert_eq!(out.code, Some(3), "{}", out.stderr);
    assert!(out.stdout.contains("stopped with 2 of 2 runs to do; resume with: rlhost sweep lr.toml"), "{}", out.stdout);
    let steps = place.steps(first);
    assert!(steps < 400 && place.events(first, "stopped").len() == 1, "{steps}");
    assert!(!place.path("sweep/learning_rate=0.01,seed=1").exists());
    let listed = place.run(&["sweep", "lr.toml", "--dry-run"]).succeeded().stdout.clone();
    assert!(listed.contains("1 interrupted, 1 new"), "{listed}");
    // It goes on where it was.
    let child = place.start_piped(&["sweep", "lr.toml"]);
    place.wait(first, Duration::from_secs(120), || place.steps(first) > steps);
    assert!(Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap().success());
    assert_eq!(child.wait_with_output().unwrap().status.code(), Some(3));
    assert_eq!(place.events(first, "resumed").len(), 1);
    let rows: Vec<u64> = place.lines(&format!("{first}/metrics.jsonl")).iter().map(|row| row["step"].as_u64().unwrap()).collect();
    assert!(rows.windows(2).all(|pair| pair[0] + 1 == pair[1]), "{rows:?}");
}

#[test]
fn a_run_that_fails_does_not_end_the_sweep_unless_it_is_to() {
    let place = TestFolder::new();
    let text = file("[1]", 1, "").replace("[1e-3, 1e-2]", "[-1.0, 1e-2]");
    place.write("lr.toml", &text);
    // Which is known before anything runs, whether the key or a setting of a plugin is wrong.
    let tried = place.run(&["sweep", "lr.toml", "--dry-run"]);
    assert!(tried.code == Some(2) && tried.error().contains("1 of 2 new runs could not begin"), "{}", tried.stderr);
    assert!(tried.stderr.contains("learning_rate=-1.0,seed=1: ") && tried.stderr.contains("learning_rate: "), "{}", tried.stderr);
    assert!(!tried.stderr.contains("settings.toml"), "{}", tried.stderr);
    place.write("loss.toml", file("[1]", 1, "loss = { bata = 0.1 }"));
    let tried = place.run(&["sweep", "loss.toml", "--dry-run"]);
    assert!(tried.stderr.contains("bata") && tried.error().contains("2 of 2 new runs"), "{}", tried.stderr);
    assert!(!place.path("sweep").exists());
    let outcome = place.run(&["sweep", "lr.toml", "--fail-fast"]);
    assert_eq!(outcome.code, Some(1), "{}", outcome.stderr);
    assert!(
        outcome.stderr.contains("1 of 2 runs failed: learning_rate=-1.0,seed=1; to try again: rlhost sweep lr.toml"),
        "{}",
        outcome.stderr
    );
    assert!(!place.path("sweep/learning_rate=0.01,seed=1").exists());
    let outcome = place.run(&["sweep", "lr.toml"]);
    assert!(
        outcome.code == Some(1) && outcome.stderr.contains("learning_rate=-1.0,seed=1: failed with exit code 2"),
        "{}",
        outcome.stderr
    );
    assert!(
        outcome.stdout.contains("0 of 1  -") && place.events("sweep/learning_rate=0.01,seed=1", "finished").len() == 1,
        "{}",
        outcome.stdout
    );
}

#[test]
fn mistakes_in_a_sweep_are_named_before_anything_runs() {
    let place = TestFolder::new();
    let long = format!("seeds = [1]\n[settings]\nx = \"{}\"\n[grid]\ny = 1\n", "x".repeat(1 << 20));
    let cases = [
        ("seed = 1", "bad.toml: unknown key \"seed\"; did you mean \"seeds\"?"),
        ("[grid\n", "bad.toml:1:"),
        ("[grid]\nlearning_rate = 1\n", "expected a list of values"),
        (long.as_str(), "[grid] y: expected a list"),
        ("config = \"none.toml\"", "none.toml"),
    ];
    for (text, words) in cases {
        place.write("bad.toml", text);
        let outcome = place.run(&["sweep", "bad.toml"]);
        assert!(outcome.code == Some(2) && outcome.error().contains(words), "{words}: {}", outcome.stderr);
        assert!(outcome.stderr.len() < 2000, "{words}");
    }
    for (path, words) in [("none.toml", "none.toml"), (".", "a folder"), ("/dev/zero", "a device")] {
        let outcome = place.run(&["sweep", path]);
        assert!(outcome.code == Some(2) && outcome.error().contains(words), "{path}: {}", outcome.stderr);
    }
    // A folder that is something else.
    place.train("run", &["--max-steps", "1"]).succeeded();
    place.write("bad.toml", "output_dir = \"run\"\n");
    assert!(place.run(&["sweep", "bad.toml"]).error().contains("is the folder of a run"));
    // A run that the sweep has not made.
    std::fs::create_dir(place.path("sweep")).unwrap();
    place.copy("run", "sweep/learning_rate=0.001,seed=1");
    place.write("lr.toml", file("[1]", 1, ""));
    let outcome = place.run(&["sweep", "lr.toml"]);
    assert!(outcome.code == Some(2) && outcome.error().contains("is not of the sweep"), "{}", outcome.stderr);
}
