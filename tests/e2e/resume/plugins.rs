//! Runs that resume from a checkpoint whose plugin does not work, or whose plugin's file has changed.

use rlhost_tests::crafted::{NO_SCORES, core_reward};
use rlhost_tests::{TestFolder, small, version};
use std::fs;
use std::process::Command;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);

fn arguments<'a>(more: &[&'a str]) -> Vec<&'a str> {
    let own = ["--output-dir", "run", "--logging-steps", "1", "--max-completion-length", "12", "--learning-rate", "0"];
    [&small()[..], &own, more].concat()
}

/// A run in `run` that was stopped while it had a version of `made.wasm` that fails its trial at the start of a run only.
fn stuck() -> TestFolder {
    let place = TestFolder::new();
    place.write("made.wasm", core_reward("", NO_SCORES));
    let child = ["--plugin", "made.wasm", "--plugin", "tldr_length_reward.wasm", "--max-steps", "100000"];
    let mut child = place.start(&arguments(&child));
    place.wait("run", PATIENCE, || place.steps("run") > 1);
    let only_later = format!("(if (i64.eqz (local.get 0)) (then (unreachable))) {NO_SCORES}");
    place.write("new.wasm", core_reward("", &only_later));
    fs::rename(place.path("new.wasm"), place.path("made.wasm")).unwrap();
    let swapped = || fs::read_to_string(place.path("run/events.jsonl")).is_ok_and(|text| text.contains("plugin_swapped"));
    place.wait("run", PATIENCE, swapped);
    Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(3));
    place
}

#[test]
fn a_checkpoint_whose_plugin_fails_its_trial_is_no_dead_end() {
    let place = stuck();
    let last = *place.checkpoints("run").last().unwrap();
    let resume = |run: &str, more: &[&str]| {
        place.copy("run", run);
        place.run(&[&["resume", run, "--max-steps", &(last + 2).to_string()], more].concat())
    };
    let refused = resume("refused", &[]);
    assert_eq!(refused.code, Some(2), "{}", refused.stderr);
    for words in
        ["made, score", "fails its trial", "fix ", "made.wasm and resume", "--set plugin.made.path=FILE", "--allow-changed"]
    {
        assert!(refused.error().contains(words), "{words}: {}", refused.error());
    }
    let kept = resume("kept", &["--allow-changed"]);
    assert!(kept.succeeded().stderr.contains("going on with it (--allow-changed)"), "{}", kept.stderr);
    assert!(place.events("kept", "plugin_swapped").len() == 1, "it keeps its version");

    let other = core_reward("(global i32 (i32.const 7))", NO_SCORES);
    place.write("other.wasm", &other);
    let named = resume("named", &["--set", "plugin.made.path=other.wasm"]);
    named.succeeded();
    place.write("made.wasm", core_reward("(global i32 (i32.const 8))", NO_SCORES));
    let fixed = resume("fixed", &[]);
    assert!(fixed.succeeded().stderr.contains("the version that is now in"), "{}", fixed.stderr);
    for run in ["named", "fixed"] {
        let swaps = place.events(run, "plugin_swapped");
        assert_eq!((swaps.len(), swaps[1]["step"].as_u64()), (2, Some(last)), "before the first step: {swaps:?}");
    }
    let blind = resume("blind", &["--set", "hot_reload=false"]);
    assert!(blind.error().contains("--set hot_reload=true"), "{}", blind.error());
}

#[test]
fn a_file_that_is_named_is_taken_in_or_ends_the_run() {
    let place = TestFolder::new();
    place.write("versioned.wasm", version(1));
    let plus = ["--plugin", "versioned.wasm", "--set", "plugin.versioned.config.plus=0.5", "--max-steps", "2"];
    place.run(&arguments(&plus)).succeeded();
    place.write("other.wasm", core_reward("", NO_SCORES));
    place.write("second.wasm", version(2));
    place.write("none.wasm", "garbage");
    let path = |file: &str| format!("plugin.versioned.path={file}");
    let resume = |to: &str, file: &str, more: &[&str]| {
        place.copy("run", to);
        place.run(&[&["resume", to, "--max-steps", "4", "--set", &path(file)], more].concat())
    };
    let fork = |to: &str, file: &str| {
        let from = ["train", "--resume-from-checkpoint", "run", "--output-dir", to, "--max-steps", "4"];
        place.run(&[&from[..], &["--set", &path(file)]].concat())
    };
    for (file, reason) in
        [("other.wasm", "plus"), ("none.wasm", "not a WebAssembly component"), ("no/such.wasm", "there is no such file")]
    {
        for (how, outcome) in
            [("resumed", resume(&format!("r-{reason}"), file, &[])), ("forked", fork(&format!("f-{reason}"), file))]
        {
            assert_eq!(outcome.code, Some(2), "{how} with {file}: {}", outcome.stderr);
            let error = outcome.error();
            assert!(error.contains(file) && error.contains(reason), "{how} with {file}: {error}");
            assert_eq!(place.figure("run", "step"), [1.0, 2.0]);
        }
    }
    let blind = resume("blind", "second.wasm", &["--set", "hot_reload=false", "--allow-changed"]);
    assert!(blind.code == Some(2) && blind.error().contains("second.wasm has another version"), "{}", blind.stderr);
    resume("taken", "second.wasm", &[]).succeeded();
    assert_eq!(place.figure("taken", "rewards/versioned/mean"), [1.5, 1.5, 2.5, 2.5]);
    fork("forked", "second.wasm").succeeded();
    assert_eq!(place.figure("forked", "rewards/versioned/mean"), [2.5, 2.5]);
    // The same command again names the file too.
    let again = ["--resume-from-checkpoint", "latest", "--plugin", "versioned.wasm", "--max-steps", "3"];
    place.run(&arguments(&again)).succeeded();
    assert_eq!(place.figure("run", "rewards/versioned/mean"), [1.5, 1.5, 1.5]);
}

#[test]
fn a_checkpoint_whose_plugin_does_not_load_is_no_dead_end() {
    let place = TestFolder::new();
    place.write("versioned.wasm", version(1));
    place.run(&arguments(&["--plugin", "versioned.wasm", "--max-steps", "2"])).succeeded();
    // As one of an older contract.
    place.write("run/checkpoint-2/trainer/plugins/versioned.wasm", "garbage");
    rlhost_tests::seal(&place.path("run/checkpoint-2"), &[]);
    let resume = |to: &str, more: &[&str]| {
        place.copy("run", to);
        place.run(&[&["resume", to, "--max-steps", "3"], more].concat())
    };
    let own = resume("own", &[]);
    assert!(own.succeeded().stderr.contains("does not load, so the version that is now in"), "{}", own.stderr);
    assert_eq!(place.figure("own", "step"), [1.0, 2.0, 3.0]);
    place.write("second.wasm", version(2));
    std::fs::remove_file(place.path("versioned.wasm")).unwrap();
    let refused = resume("refused", &[]);
    assert_eq!(refused.code, Some(2), "{}", refused.stderr);
    let advice = "name another file: rlhost resume refused --set plugin.versioned.path=FILE";
    assert!(refused.error().contains("versioned does not load") && refused.error().contains(advice), "{}", refused.error());
    resume("named", &["--set", "plugin.versioned.path=second.wasm"]).succeeded();
    assert_eq!(place.figure("named", "rewards/versioned/mean"), [1.0, 1.0, 2.0]);
}

#[test]
fn a_run_that_a_reward_ended_goes_on_with_the_fixed_file() {
    let place = TestFolder::new();
    place.write("versioned.wasm", version(1));
    let trap = ["--plugin", "versioned.wasm", "--set", "plugin.versioned.config.trap_at=3", "--max-steps", "6"];
    let ended = place.run(&arguments(&trap));
    assert_eq!(ended.code, Some(1), "{}", ended.stderr);
    assert!(ended.error().contains("version 1 on real data"), "{}", ended.error());
    let failed = place.lines("run/failed.jsonl");
    assert!(!failed.is_empty());
    let again = place.run(&["resume", "run"]);
    assert_eq!(again.code, Some(1), "it was not fixed: {}", again.stderr);
    assert_eq!(place.lines("run/failed.jsonl"), failed, "each completion is there once");
    place.write("versioned.wasm", version(2));
    place.run(&["resume", "run"]).succeeded();
    assert!(!place.path("run/failed.jsonl").exists(), "the repeated step did not fail");
    assert_eq!(place.figure("run", "rewards/versioned/mean"), [1.0, 1.0, 1.0, 2.0, 2.0, 2.0]);
}

#[test]
fn an_evaluation_and_a_fork_of_a_live_run_leave_its_port_alone() {
    let place = TestFolder::new();
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
    let saves = ["--max-steps", "100000", "--save-steps", "5", "--save-total-limit", "2000"];
    let endless = [&["--plugin", "tldr_length_reward.wasm", "--metrics-port", &port], &saves[..]].concat();
    let mut child = place.start(&arguments(&endless));
    place.wait("run", PATIENCE, || place.path("run/checkpoint-5").exists());
    let evaluated = place.run(&["eval", "run", "--json"]);
    let fork = ["--resume-from-checkpoint", "run/checkpoint-5", "--output-dir", "fork", "--max-steps", "7"];
    let forked = place.run(&fork);
    let own = place.run(&["eval", "run", "--metrics-port", "1"]);
    assert!(child.try_wait().unwrap().is_none(), "the run goes on");
    child.kill().unwrap();
    assert!(!evaluated.succeeded().stderr.contains("metrics_port"), "{}", evaluated.stderr);
    assert!(forked.succeeded().stderr.contains("this fork serves no metrics"), "{}", forked.stderr);
    assert!(own.succeeded().stderr.contains("metrics_port has no effect"), "{}", own.stderr);
}
