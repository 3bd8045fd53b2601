//! Plugins that misbehave: contained, named, and what was learned is kept.

use rlhost_tests::{HOSTILE, Outcome, Place};

fn hostile(place: &Place, misdeed: &str, more: &[&str]) -> Outcome {
    let misdeed = format!("plugin.hostile.config.misdeed={misdeed:?}");
    let limits = ["--set", "plugin.hostile.limits.memory_mb=32", "--set", "plugin.hostile.limits.call_timeout_s=0.3"];
    let arguments =
        ["--plugin", HOSTILE, "--max-completion-length", "8", "--max-steps", "3", "--output-dir", "run", "--set", &misdeed];
    place.run(&[&arguments[..], &limits[..], more].concat())
}

#[test]
fn each_misdeed_ends_the_run_with_a_line_that_names_it() {
    for (misdeed, expected) in [
        ("endless_loop", "longer than its limit of 0.3 s"),
        ("memory_bomb", "more than its 32 MiB"),
        ("recursion", ""),
        ("wrong_length", "7 rewards for 8 completions"),
        ("nan", "NaN for row 1"),
        ("infinity", "inf for row 1"),
        ("trap", "the plugin panicked on purpose"),
        ("exit", ""),
        ("read_file", "reading a file gave Err"),
        ("read_environment", "(0, 0)"),
        ("refuse", "no such batch for me"),
    ] {
        let place = Place::new();
        let outcome = hostile(&place, misdeed, &["--set", "plugin.hostile.config.from_step=1"]);
        assert_eq!(outcome.code, Some(1), "{misdeed}: {}", outcome.stderr);
        let error = outcome.error();
        assert!(error.contains("plugin hostile, score at step 1") && error.contains(expected), "{misdeed}: {error}");
        assert!(place.path("run/checkpoint-1/model.safetensors").exists(), "{misdeed}: what was learned is saved");
        let events = place.lines("run/events.jsonl");
        assert!(events.iter().any(|e| e["event"] == "failed" && e["step"] == 1), "{misdeed}");
    }
}

#[test]
fn a_flood_of_output_is_bounded_and_harmless() {
    let place = Place::new();
    hostile(&place, "flood", &["--set", "plugin.hostile.limits.call_timeout_s=20"]).succeeded();
}
