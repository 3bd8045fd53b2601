//! Runs that are stopped and go on: the same to the bit as if nothing had happened.

use rlhost_tests::{HOSTILE, Place, binary};
use serde_json::Value;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const STEPS: u64 = 8;

/// Ten prompts of which a generation takes four: a pass is two generations, and two prompts of it
/// are left out.
fn prompts(place: &Place) {
    let lines: String = (0..10).map(|i| format!("{{\"prompt\": \"prompt {i} {}\"}}\n", "ab".repeat(i))).collect();
    place.write("prompts.jsonl", lines);
}

/// Each generation is trained on twice, in four steps of two micro-batches; figures are logged
/// every third step, so that checkpoints fall inside windows.
fn arguments(run: &str) -> Vec<&str> {
    let mut all = vec!["--plugin", "tldr_length_reward.wasm", "--dataset", "prompts.jsonl", "--output-dir", run];
    all.extend(["--max-completion-length", "12", "--max-steps", "8", "--save-steps", "1", "--logging-steps", "3"]);
    all.extend(["--steps-per-generation", "4", "--num-iterations", "2", "--gradient-accumulation-steps", "2"]);
    all.extend(["--beta", "0.1", "--learning-rate", "0.002", "--log-completions", "all"]);
    all
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(|e| e.unwrap()) {
        if entry.path().is_dir() {
            copy(&entry.path(), &to.join(entry.file_name()));
        } else {
            fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
        }
    }
}

/// A file of JSON lines without the times.
fn timeless(place: &Place, file: &str) -> Vec<Value> {
    let mut lines = place.lines(file);
    for line in &mut lines {
        line.as_object_mut().unwrap().retain(|name, _| name != "step_time" && !name.starts_with("time"));
    }
    lines
}

fn assert_same(place: &Place, got: &str, want: &str) {
    for file in ["model.safetensors", "optimizer.safetensors"] {
        let bytes = |run: &str| fs::read(place.path(run).join(format!("checkpoint-{STEPS}")).join(file)).unwrap();
        assert!(bytes(got) == bytes(want), "{got}: {file} differs");
    }
    for file in ["metrics.jsonl", "completions.jsonl"] {
        assert_eq!(timeless(place, &format!("{got}/{file}")), timeless(place, &format!("{want}/{file}")), "{got}: {file}");
    }
}

/// A folder with an uninterrupted run.
fn with_whole_run() -> Place {
    let place = Place::new();
    prompts(&place);
    place.run(&arguments("whole")).succeeded();
    place
}

/// The binary, started and not waited for.
fn start(place: &Place, arguments: &[&str]) -> Child {
    let mut command = Command::new(binary());
    command.current_dir(place.path("")).args(arguments).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().unwrap()
}

/// A copy of a run as it was after a step.
fn as_after(place: &Place, step: u64, name: &str) {
    copy(&place.path("whole"), &place.path(name));
    for later in step + 1..=STEPS {
        fs::remove_dir_all(place.path(name).join(format!("checkpoint-{later}"))).unwrap();
    }
}

#[test]
fn a_run_resumed_from_any_step_ends_as_the_uninterrupted_one() {
    let place = with_whole_run();
    for step in 1..STEPS {
        let name = format!("from-{step}");
        as_after(&place, step, &name);
        place.run(&["resume", &name]).succeeded();
        assert_same(&place, &name, "whole");
    }
}

#[test]
fn a_run_killed_at_any_moment_goes_on_and_ends_the_same() {
    let place = with_whole_run();
    let mut first = true;
    // Moments spread over start, steps and saves; a run that has no checkpoint yet starts anew.
    for milliseconds in [180, 260, 340, 300, 420, 380, 220, 460, 400, 350] {
        let go_on = place.path("killed").join("checkpoint-1").exists();
        if !go_on && !first {
            fs::remove_dir_all(place.path("killed")).unwrap_or_default();
        }
        first = false;
        let given = if go_on { vec!["resume", "killed"] } else { arguments("killed") };
        let mut child = start(&place, &given);
        std::thread::sleep(Duration::from_millis(milliseconds));
        child.kill().unwrap_or_default();
        child.wait().unwrap();
    }
    if !place.path("killed").join("checkpoint-1").exists() {
        fs::remove_dir_all(place.path("killed")).unwrap_or_default();
        place.run(&arguments("killed")).succeeded();
    }
    place.run(&["resume", "killed"]).succeeded();
    assert_same(&place, "killed", "whole");
}

#[test]
fn a_signal_saves_and_ends_with_a_code_of_its_own() {
    let place = with_whole_run();
    for signal in ["-INT", "-TERM"] {
        let run = format!("signalled{signal}");
        let mut given = arguments(&run);
        // Long enough to be caught on the way; the learning rate's schedule is the whole run's.
        let steps = given.iter().position(|a| *a == "--save-steps").unwrap() + 1;
        given[steps] = "1000";
        let mut child = start(&place, &given);
        while !place.path(&run).join("completions.jsonl").metadata().is_ok_and(|m| m.len() > 0) {
            std::thread::sleep(Duration::from_millis(1));
        }
        Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap();
        let code = child.wait().unwrap().code();
        // A run this short may have come to its end first.
        assert!(code == Some(3) || code == Some(0), "{code:?}");
        place.run(&["resume", &run]).succeeded();
        assert_same(&place, &run, "whole");
    }
}

#[test]
fn a_run_that_a_plugin_ended_goes_on_as_if_it_had_not() {
    let place = Place::new();
    prompts(&place);
    let hostile = |run: &'static str, misdeed: &str| {
        let mut all: Vec<String> = arguments(run).into_iter().map(String::from).collect();
        all.extend(["--plugin".into(), HOSTILE.into(), "--set".into(), format!("plugin.hostile.config.misdeed={misdeed:?}")]);
        all.extend(["--set".into(), "plugin.hostile.config.from_step=4".into()]);
        place.run(&all.iter().map(String::as_str).collect::<Vec<_>>())
    };
    hostile("whole", "none").succeeded();
    assert_eq!(hostile("failed", "trap").code, Some(1));
    assert!(place.path("failed/checkpoint-4").exists());
    let mended = ["resume", "failed", "--allow-changed", "--set", "plugin.hostile.config.misdeed=\"none\""];
    place.run(&mended).succeeded();
    assert_same(&place, "failed", "whole");
}

#[test]
fn a_damaged_checkpoint_is_named_and_passed_over() {
    let place = with_whole_run();
    as_after(&place, 5, "damaged");
    // A line that was cut off inside a character, as a full disk leaves it.
    let mut log = fs::OpenOptions::new().append(true).open(place.path("damaged/completions.jsonl")).unwrap();
    log.write_all(b"{\"step\": 7, \"prompt\": \"s\xc3").unwrap();
    let file = place.path("damaged/checkpoint-5/optimizer.safetensors");
    let mut bytes = fs::read(&file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&file, bytes).unwrap();
    let outcome = place.run(&["resume", "damaged"]);
    outcome.succeeded();
    assert!(outcome.stderr.contains("checkpoint-5") && outcome.stderr.contains("optimizer.safetensors"), "{}", outcome.stderr);
    assert!(outcome.stdout.contains("from step 4"), "{}", outcome.stdout);
    assert_same(&place, "damaged", "whole");
    let refused = place.run(&["resume", "damaged", "--step", "77"]);
    assert_eq!(refused.code, Some(2));
    assert!(refused.error().contains("checkpoint-77"));
}

#[test]
fn settings_that_change_the_past_are_refused_by_name() {
    let place = with_whole_run();
    let refused = place.run(&["resume", "whole", "--set", "temperature=0.5", "--set", "save_steps=2"]);
    assert_eq!(refused.code, Some(2));
    assert!(refused.error().contains("temperature would") && refused.error().contains("--allow-changed"), "{}", refused.error());
    place.run(&["resume", "whole", "--max-steps", "10", "--set", "save_steps=5"]).succeeded();
    let saved: Vec<Value> = place.lines("whole/events.jsonl").into_iter().filter(|e| e["event"] == "checkpoint_saved").collect();
    assert_eq!(saved.last().unwrap()["step"], 10);
    assert_eq!(place.run(&["resume", "nowhere"]).code, Some(2));
}
