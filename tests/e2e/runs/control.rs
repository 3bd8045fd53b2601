//! What people request of a running run: it pauses, goes on, saves, evaluates and stops, and its results stay the same.

use rlhost_tests::{CommandOutcome, STORIES, TestFolder, small};
use std::process::Child;
use std::time::Duration;

/// Longest that anything here is waited for.
const PATIENCE: Duration = Duration::from_secs(120);

/// Arguments of a run that takes long enough to be spoken to.
fn arguments<'a>(run: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let reward = ["--plugin", "tldr_length_reward.wasm", "--max-completion-length", "16", "--logging-steps", "1"];
    [&small()[..], &reward, &["--num-generations", "2", "--per-device-train-batch-size", "4", "--output-dir", run], more].concat()
}

fn control(place: &TestFolder, run: &str, action: &str) -> CommandOutcome {
    place.run(&["control", run, action])
}

fn exit_code(mut child: Child) -> Option<i32> {
    child.wait().unwrap().code()
}

#[test]
fn a_run_that_was_paused_saved_and_evaluated_ends_like_an_undisturbed_one() {
    let place = TestFolder::new();
    let more = ["--max-steps", "30", "--eval-dataset", STORIES, "--eval-steps", "30", "--eval-strategy", "steps"];
    place.run(&arguments("whole", &more)).succeeded();
    let child = place.start_piped(&arguments("asked", &more));
    place.wait("asked", PATIENCE, || place.steps("asked") >= 1);
    let paused = control(&place, "asked", "pause");
    assert!(paused.succeeded().stdout.contains("paused after step"), "{paused:?}");
    let unsaved = place.run(&["export", "asked", "none"]);
    let parts = ["asked has no checkpoint yet; `rlhost control ", "asked save` makes one"];
    assert!(parts.iter().all(|part| unsaved.error().contains(part)), "{unsaved:?}");
    let resumed = place.run(&["resume", "asked"]);
    assert!(resumed.error().ends_with("another rlhost process is running this run"), "{resumed:?}");
    let at = place.steps("asked");
    std::thread::sleep(Duration::from_millis(700));
    assert_eq!(place.steps("asked"), at, "it goes on");
    let again = control(&place, "asked", "pause");
    assert!(again.code == Some(1) && again.error().contains("the run is already paused"), "{again:?}");
    control(&place, "asked", "save").succeeded();
    place.wait("asked", PATIENCE, || !place.checkpoints("asked").is_empty());
    control(&place, "asked", "evaluate").succeeded();
    let is_evaluated = || place.finished_lines("asked/metrics.jsonl").iter().any(|row| row["eval_reward"].is_number());
    place.wait("asked", PATIENCE, is_evaluated);
    assert!(control(&place, "asked", "continue").succeeded().stdout.contains("goes on after step"));
    let ended = CommandOutcome::new(child.wait_with_output().unwrap());
    assert!(ended.succeeded().stderr.contains("`rlhost control asked continue` goes on"), "{}", ended.stderr);

    let weights = |run: &str| place.tensors(&format!("{run}/checkpoint-30/model.safetensors"));
    assert_eq!(weights("asked"), weights("whole"));
    let trained = |run: &str| {
        let rows = place.lines_without_times(&format!("{run}/metrics.jsonl")).into_iter();
        rows.filter(|row| row["loss"].is_number()).collect::<Vec<_>>()
    };
    assert_eq!(trained("asked"), trained("whole"));
    let saved = place.checkpoints("asked")[0];
    assert!(saved < 30, "{saved}");
    place.copy("asked", "resumed");
    place.run(&["resume", "resumed", "--step", &saved.to_string()]).succeeded();
    assert_eq!(weights("resumed"), weights("whole"));
    let requested = place.events("asked", "requested");
    let actions: Vec<&str> = requested.iter().filter_map(|event| event["action"].as_str()).collect();
    assert_eq!(actions, ["pause", "pause", "save", "evaluate", "continue"]);
    assert!(requested.iter().all(|event| event["by"].is_string() && event["step"].is_number()));
}

#[test]
fn a_run_stops_when_that_is_requested_also_while_it_is_paused() {
    let place = TestFolder::new();
    for first in [None, Some("pause")] {
        let run = first.unwrap_or("running");
        let child = place.start(&arguments(run, &["--max-steps", "1000"]));
        place.wait(run, PATIENCE, || place.steps(run) >= 1);
        if let Some(action) = first {
            control(&place, run, action).succeeded();
        }
        control(&place, run, "stop").succeeded();
        assert_eq!(exit_code(child), Some(3), "{run}");
        let last = place.checkpoints(run).pop().unwrap();
        assert_eq!(place.events(run, "stopped")[0]["step"], last);
        place.run(&["resume", run, "--max-steps", &(last + 1).to_string()]).succeeded();
    }
}

#[test]
fn what_can_not_be_done_is_refused_with_the_reason() {
    let place = TestFolder::new();
    place.run(&arguments("done", &["--max-steps", "1"])).succeeded();
    for (run, reason) in [("done", "no rlhost process is running this run"), ("none", "is not the folder of a run")] {
        let refused = control(&place, run, "pause");
        assert!(refused.code == Some(2) && refused.error().contains(reason), "{refused:?}");
    }
    let unknown = control(&place, "done", "fly");
    assert!(unknown.code == Some(2) && unknown.stderr.contains("pause, continue, save, evaluate, stop"), "{unknown:?}");
    let child = place.start(&arguments("blind", &["--max-steps", "1000"]));
    place.wait("blind", PATIENCE, || place.steps("blind") >= 1);
    let refused = control(&place, "blind", "evaluate");
    assert!(refused.code == Some(1) && refused.error().contains("the run has no evaluation dataset"), "{refused:?}");
    let refused = control(&place, "blind", "continue");
    assert!(refused.code == Some(1) && refused.error().contains("the run is not paused"), "{refused:?}");
    control(&place, "blind", "stop").succeeded();
    assert_eq!(exit_code(child), Some(3));
}
