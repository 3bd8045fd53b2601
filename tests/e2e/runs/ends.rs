//! What a run says when it ends, and what it keeps: whatever the end was, it says how to go on.

use rlhost_tests::crafted::{NO_SCORES, core_reward};
use rlhost_tests::{CommandOutcome, TestFolder, small, version};
use std::process::{Child, Command};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);

fn arguments<'a>(more: &[&'a str]) -> Vec<&'a str> {
    let own = ["--output-dir", "run", "--logging-steps", "1", "--max-completion-length", "12", "--learning-rate", "0"];
    [&small()[..], &own, more].concat()
}

fn signal(child: &Child, name: &str) {
    Command::new("kill").args([name, &child.id().to_string()]).status().unwrap();
}

#[test]
fn a_run_that_a_reward_ended_says_how_to_go_on_and_keeps_what_broke_it() {
    let place = TestFolder::new();
    place.write("versioned.wasm", version(1));
    let reward = ["--plugin", "versioned.wasm", "--max-steps", "4", "--set"];
    let ended = place.run(&arguments(&[&reward[..], &["plugin.versioned.config.trap_at=2"]].concat()));
    assert_eq!(ended.code, Some(1), "{}", ended.stderr);
    let advice = "; step 2 is saved; fix versioned.wasm, then resume with: rlhost resume run";
    assert!(ended.error().ends_with(advice), "{}", ended.error());
    assert!(!place.path("run/.config.toml").exists(), "its last checkpoint has the same");
    assert!(ended.stderr.contains("rlhost replay run --failed --plugin FILE"), "{}", ended.stderr);
    let kept = place.lines("run/failed.jsonl");
    assert!(!kept.is_empty() && kept.iter().all(|line| line["step"] == 2 && line["completion"].is_string()), "{kept:?}");
    assert!(kept[0]["error"].as_str().unwrap().contains("version 1 on real data"), "{}", kept[0]);
    let replayed = place.run(&["replay", "run", "--failed", "--plugin", "versioned.wasm"]);
    let said = format!("{} completions, scored by versioned", kept.len());
    assert!(replayed.succeeded().stdout.starts_with(&said), "{}", replayed.stdout);

    place.write("versioned.wasm", version(2));
    let resumed = place.run(&["resume", "run"]);
    assert!(resumed.succeeded().stdout.contains("train on:   rlhost resume run --max-steps 8"), "{}", resumed.stdout);
    let longer = place.run(&["resume", "run", "--max-steps", "8"]);
    assert!(longer.succeeded().stdout.contains("done: 8 steps, the last 4 in "), "{}", longer.stdout);
}

#[test]
fn a_run_that_fails_in_its_first_step_starts_over() {
    let place = TestFolder::new();
    // The trial has four completions, and a call of the first step sixteen or more.
    let few = format!("(if (i32.gt_u (local.get 7) (i32.const 8)) (then (unreachable))) {NO_SCORES}");
    place.write("made.wasm", core_reward("", &few));
    let rewards = ["--plugin", "made.wasm", "--plugin", "tldr_length_reward.wasm", "--max-steps", "1"];
    let all = [&rewards[..], &["--num-generations", "2", "--per-device-train-batch-size", "64"]].concat();
    let all = arguments(&all);
    let ended = place.run(&all);
    assert_eq!(ended.code, Some(1), "{}", ended.stderr);
    assert!(ended.error().contains("nothing was saved; fix made.wasm, then start the run over"), "{}", ended.error());
    assert_eq!(place.lines("run/failed.jsonl").len(), 64, "no completion fails on its own");
    place.write("made.wasm", core_reward("", NO_SCORES));
    place.run(&[&all[..], &["--resume-from-checkpoint", "latest"]].concat()).succeeded();
    assert!(!place.path("run/failed.jsonl").exists(), "what failed before is not what this run does");
}

#[test]
fn a_second_signal_says_what_is_lost() {
    for (saves, lost) in [("100000", "as nothing was saved yet"), ("1", "resume with: rlhost resume run")] {
        let place = TestFolder::new();
        place.write("versioned.wasm", version(2));
        let long = "plugin.versioned.config.additions=400000000";
        let endless = ["--plugin", "versioned.wasm", "--max-steps", "100000", "--save-steps", saves, "--set", long];
        let mut child = place.start_piped(&arguments(&endless));
        place.wait("run", PATIENCE, || place.steps("run") > 0);
        signal(&child, "-INT");
        std::thread::sleep(Duration::from_millis(200));
        assert!(child.try_wait().unwrap().is_none(), "a step takes longer");
        signal(&child, "-INT");
        let outcome = CommandOutcome::new(child.wait_with_output().unwrap());
        assert_eq!(outcome.code, Some(130), "{}", outcome.stderr);
        assert!(outcome.stderr.contains("stopped at once: step") && outcome.stderr.contains(lost), "{}", outcome.stderr);
        assert_eq!(outcome.stderr.contains("lost, as nothing"), saves != "1", "{}", outcome.stderr);
    }
}

#[test]
fn a_run_that_keeps_only_models_does_not_offer_to_resume() {
    let place = TestFolder::new();
    let reward = ["--plugin", "tldr_length_reward.wasm", "--save-only-model", "--max-steps"];
    let child = place.start_piped(&arguments(&[&reward[..], &["100000"]].concat()));
    place.wait("run", PATIENCE, || place.steps("run") > 0);
    signal(&child, "-TERM");
    let outcome = CommandOutcome::new(child.wait_with_output().unwrap());
    assert_eq!(outcome.code, Some(3), "{}", outcome.stderr);
    assert!(outcome.stdout.contains("start another run with --model run/checkpoint-"), "{}", outcome.stdout);
    assert!(!outcome.stdout.contains("rlhost resume"), "{}", outcome.stdout);
}
