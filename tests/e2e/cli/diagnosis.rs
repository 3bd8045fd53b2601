//! Why a run does not learn: real runs of the built-in model with a fault, and without. `check_diagnosis.py` makes more of them.

use rlhost_tests::TestFolder;
use serde_json::Value;
use std::fs;

/// A short run of GRPO on the built-in prompts.
fn train(place: &TestFolder, run: &str, more: &[&str]) -> String {
    let mut all = vec!["grpo", "--plugin", "tldr_length_reward.wasm", "--max-completion-length", "48", "--max-steps", "30"];
    all.extend(["--per-device-train-batch-size", "16", "--logging-steps", "1", "--num-threads", "1", "--output-dir", run]);
    all.extend(more);
    place.run(&all).succeeded().stderr.clone()
}

/// The names of the findings in a run's folder.
fn found(place: &TestFolder, run: &str) -> Vec<String> {
    let said = place.run(&["diagnose", run, "--json"]).succeeded().stdout.clone();
    let said: Value = serde_json::from_str(&said).unwrap();
    let findings = said["findings"].as_array().unwrap();
    findings.iter().map(|finding| finding["name"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_fault_is_told_once_in_the_log_the_events_the_report_and_by_the_command() {
    let place = TestFolder::new();
    let repetition = ["--plugin", "repetition_reward.wasm"];
    let faults: [(&str, &[&str]); 4] = [
        ("rate_too_high", &["--learning-rate", "0.01"]),
        ("rate_too_low", &["--learning-rate", "1e-9"]),
        ("completions_cut_off", &["--max-completion-length", "12"]),
        ("reward_dominates", &repetition),
    ];
    for (name, more) in faults {
        let log = train(&place, name, more);
        let events = place.events(name, "finding");
        let told: Vec<&Value> = events.iter().filter(|event| event["finding"] == name).collect();
        assert_eq!(told.len(), 1, "{name}: {events:?}");
        let sentence = told[0]["text"].as_str().unwrap();
        assert_eq!(log.matches(sentence).count(), 1, "{name}: {log}");
        // The command reads what the run saw.
        let mut live: Vec<String> = events.iter().map(|event| event["finding"].as_str().unwrap().to_owned()).collect();
        let mut read = found(&place, name);
        live.sort();
        read.sort();
        assert_eq!(live, read);
        let said = place.run(&["diagnose", name]).succeeded().stdout.clone();
        assert!(said.contains(&format!("({name}, ")) && said.contains("    try  "), "{said}");
        let signs = &place.report(name)["of_runs"]["diagnosis"][name]["findings"];
        assert!(
            signs.as_array().unwrap().iter().any(|sign| sign["sentence"].as_str().unwrap().starts_with(&sentence[..30])),
            "{name}: {signs}"
        );
    }
}

#[test]
fn a_resumed_run_tells_nothing_twice_and_what_it_would_have_told() {
    let place = TestFolder::new();
    train(&place, "whole", &["--learning-rate", "1e-9", "--save-steps", "10"]);
    let told = |run: &str| {
        let events = place.events(run, "finding");
        events.iter().map(|e| (e["finding"].clone(), e["step"].clone(), e["text"].clone())).collect::<Vec<_>>()
    };
    let whole = told("whole");
    assert_eq!(whole.len(), 1, "{whole:?}");
    let step = whole[0].1.as_u64().unwrap();
    assert!(step > 20, "{step}");
    for from in [20, 30] {
        let run = format!("from-{from}");
        place.copy("whole", &run);
        place.run(&["resume", &run, "--step", &from.to_string(), "--max-steps", "32"]).succeeded();
        // From before the finding it is told again, and from after it is known.
        let expected = if from < step { [&whole[..], &whole[..]].concat() } else { whole.clone() };
        assert_eq!(told(&run), expected, "from {from}");
    }
}

#[test]
fn a_healthy_run_shows_no_sign() {
    let place = TestFolder::new();
    for seed in ["1", "2"] {
        train(&place, seed, &["--seed", seed, "--beta", "0.04"]);
        assert_eq!(found(&place, seed), [""; 0]);
        assert!(place.events(seed, "finding").is_empty());
        let said = place.run(&["diagnose", seed]).succeeded().stdout.clone();
        assert!(said.starts_with("no sign of trouble in 30 logged rows"), "{said}");
    }
}

#[test]
fn a_folder_that_is_no_run_or_has_no_metrics_is_named() {
    let place = TestFolder::new();
    let said = place.run(&["diagnose", "nowhere"]);
    assert!(said.code == Some(2) && said.error().contains("there is no such folder"), "{}", said.stderr);
    fs::create_dir(place.path("begun")).unwrap();
    place.write("begun/config.toml", "\u{1b}[2J");
    let said = place.run(&["diagnose", "begun"]);
    assert!(said.code == Some(2) && said.error().contains("no metrics have been logged yet"), "{}", said.stderr);
    assert!(!said.stderr.contains('\u{1b}'), "{}", said.stderr);
}
