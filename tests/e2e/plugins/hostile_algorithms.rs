//! Misdeeds of algorithms and of environments, in the places that `hostile_runs.rs` has for those of rewards: the start of a run, a step,
//! an evaluation, and a swap into a run under way.

use rlhost_tests::monitor::{MonitoredRun, assert_ended, assert_finite, assert_ordinary, run_monitored};
use rlhost_tests::{CONTRARY, CONTRARY_PAIRS, CommandOutcome, STORIES, TestFolder, UNRULY, contrary, small, tiny};
use std::fs;

/// What is said of a call that takes too long.
const TOO_LONG: &str = "longer than its limit of 0.5 s";

/// What the algorithm calls so, in which of its functions, and a part of what is said of it.
type MisdeedCases = &'static [(&'static str, &'static str, &'static str)];

const OF_POLICY: MisdeedCases = &[
    ("endless_estimate", "estimate", TOO_LONG),
    ("trap_in_estimate", "estimate", "no estimate of mine"),
    ("no_advantages", "estimate", "returned no column \"advantage\""),
    ("few_advantages", "estimate", "values of advantage for"),
    ("nan_advantages", "estimate", "NaN in values of advantage at token 0"),
    ("long_mask", "estimate", "returned a mask of"),
    ("odd_mask", "estimate", "entries other than 0 and 1"),
    ("take_score", "estimate", "is reserved for the run"),
    ("endless_loss", "loss", TOO_LONG),
    ("trap_in_loss", "loss", "no loss of mine"),
    ("nan_loss", "loss", "a loss of NaN"),
    ("huge_loss", "loss", "a loss of 1.7e308; the limit is 1e100 either way"),
    ("many_gradients", "loss", "d_logp for"),
    ("infinite_gradient", "loss", "inf in d_logp at token 0"),
    ("take_loss", "loss", "\"loss\" is reserved for the run"),
    ("huge_figure", "loss", "value 1.7e308 and weight 1.0"),
];

const OF_PAIRS: MisdeedCases = &[
    ("endless_choice", "choose", TOO_LONG),
    ("trap_in_choice", "choose", "no choice of mine"),
    ("twice", "choose", "twice"),
    ("out_of_range", "choose", "4294967295"),
    ("with_itself", "choose", "rows 0 and 0"),
    ("of_two_prompts", "choose", "have the same prompt"),
    ("many_pairs", "choose", "pair"),
    ("endless_loss", "loss", TOO_LONG),
    ("nan_loss", "loss", "a loss of NaN"),
    ("huge_loss", "loss", "a loss of 1.7e308; the limit is 1e100 either way"),
    ("few_gradients", "loss", "d_logp for"),
    ("nan_gradient", "loss", "NaN in d_logp at token 0"),
];

/// Both algorithms: name, file, misdeeds.
const ALGORITHMS: [(&str, &str, MisdeedCases); 2] =
    [("contrary", CONTRARY, OF_POLICY), ("contrary_pairs", CONTRARY_PAIRS, OF_PAIRS)];

/// Arguments of a run with an algorithm.
fn with(algorithm: &str) -> Vec<String> {
    let of_run = ["--plugin", "tldr_length_reward.wasm", "--max-completion-length", "8", "--logging-steps", "1"];
    let limit = ["--set", "loss_limits.call_timeout_s=0.5", "--algorithm"];
    [&small()[..], &of_run, &limit, &[algorithm]].concat().into_iter().map(str::to_owned).collect()
}

/// Runs three steps with a misdeed from a step on.
fn three_steps(file: &str, misdeed: &str, from: u64, more: &[&str]) -> (TestFolder, CommandOutcome) {
    let place = TestFolder::new();
    let prompts = fs::read_to_string(STORIES).unwrap();
    place.write("prompts.jsonl", prompts.lines().take(8).map(|line| format!("{line}\n")).collect::<String>());
    let mut arguments = with(file);
    arguments.extend(["--max-steps", "3", "--output-dir", "run"].map(str::to_owned));
    for setting in [format!("misdeed={misdeed:?}"), format!("from_step={from}")] {
        arguments.extend(["--set".to_owned(), format!("loss.{setting}")]);
    }
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).chain(more.iter().copied()).collect();
    let outcome = run_monitored(&place, &arguments).outcome;
    (place, outcome)
}

#[test]
fn at_the_start_each_is_refused_before_the_run_has_a_folder() {
    for (name, file, misdeeds) in ALGORITHMS {
        for (misdeed, function, says) in misdeeds {
            let (place, outcome) = three_steps(file, misdeed, 0, &[]);
            assert_eq!(outcome.code, Some(2), "{misdeed}: {}", outcome.stderr);
            let call = format!("plugin {name}, {function} in step 1");
            assert!(outcome.error().contains(&call) && outcome.error().contains(says), "{misdeed}: {}", outcome.error());
            assert!(!place.path("run").exists(), "{misdeed}");
        }
    }
}

#[test]
fn in_a_step_each_ends_the_run_after_a_checkpoint() {
    for (name, file, misdeeds) in ALGORITHMS {
        for (misdeed, function, says) in misdeeds {
            let (place, outcome) = three_steps(file, misdeed, 1, &[]);
            assert_ended(misdeed, says, &place, &outcome);
            let call = format!("plugin {name}, {function} in step 2");
            assert!(outcome.error().contains(&call), "{misdeed}: {}", outcome.error());
            assert_ordinary(&place, misdeed);
        }
    }
    // Of which each is a number.
    let (place, outcome) = three_steps(CONTRARY, "huge_gradient", 1, &[]);
    assert_ended("huge_gradient", "step 2", &place, &outcome);
}

#[test]
fn one_that_is_not_stateless_as_it_says_is_found_out() {
    for (file, misdeed, differs) in [
        (CONTRARY, "count_estimates", "the advantages differ"),
        (CONTRARY, "count_losses", "the loss differs"),
        (CONTRARY_PAIRS, "count_losses", "the loss differs"),
    ] {
        let (place, outcome) = three_steps(file, misdeed, 0, &[]);
        let says = format!("it declares stateless: true, but answers the same call differently after other calls: {differs}");
        assert!(outcome.code != Some(0) && outcome.error().contains(&says), "{misdeed}: {}", outcome.stderr);
        assert_ordinary(&place, misdeed);
    }
}

#[test]
fn in_an_evaluation_each_costs_nothing_of_what_was_learned() {
    for (name, file, misdeeds) in ALGORITHMS {
        for (misdeed, function, says) in misdeeds {
            let (place, outcome) = three_steps(file, misdeed, 3, &["--eval-dataset", "prompts.jsonl", "--eval-steps", "3"]);
            assert_ended(misdeed, says, &place, &outcome);
            let call = format!("plugin {name}, {function} in step 4");
            assert!(outcome.error().contains(&call), "{misdeed}: {}", outcome.error());
            assert_eq!((place.checkpoints("run"), place.figure("run", "loss").len()), (vec![3], 3), "{misdeed}");
        }
    }
}

/// A run under way with an algorithm that does nothing wrong.
fn running(name: &'static str, file: &str) -> MonitoredRun {
    let place = TestFolder::new();
    let own = format!("{name}.wasm");
    place.write(&own, fs::read(file).unwrap());
    let arguments = with(&own);
    MonitoredRun::start(place, name, &arguments.iter().map(String::as_str).collect::<Vec<_>>())
}

#[test]
fn as_a_swap_each_is_refused_in_its_trial() {
    for (name, file, misdeeds) in ALGORITHMS {
        let mut running = running(name, file);
        for (misdeed, _, says) in misdeeds {
            running.assert_refused(misdeed, &contrary(file, misdeed), says);
        }
        running.end(name);
    }
}

#[test]
fn as_a_swap_each_that_passed_its_trial_gives_its_place_back() {
    for (name, file, misdeeds) in ALGORITHMS {
        let mut running = running(name, file);
        for (misdeed, _, says) in misdeeds {
            running.assert_rolled_back(misdeed, &contrary(file, &format!("{misdeed}+")), says);
        }
        running.end(name);
    }
}

#[test]
fn completions_that_wait_get_the_columns_of_an_algorithm_that_is_swapped_in() {
    let place = TestFolder::new();
    place.write("contrary.wasm", fs::read(CONTRARY).unwrap());
    let arguments = with("contrary.wasm");
    // A generation serves four steps, so that there are completions without the column at most steps.
    let arguments = arguments.iter().map(String::as_str).chain(["--steps-per-generation", "4"]);
    let mut running = MonitoredRun::start(place, "contrary", &arguments.collect::<Vec<_>>());
    for _ in 0..3 {
        running.assert_swapped("own_column", &contrary(CONTRARY, "own_column"));
        running.assert_swapped("own_sequences", &contrary(CONTRARY, "own_sequences"));
        running.assert_swapped("none", &contrary(CONTRARY, "none"));
    }
    assert_eq!(running.events("plugin_rolled_back"), Vec::<serde_json::Value>::new());
    running.end("contrary");
}

#[test]
fn completions_that_wait_in_a_checkpoint_get_the_columns_of_the_algorithm_that_continues() {
    let place = TestFolder::new();
    place.write("contrary.wasm", fs::read(CONTRARY).unwrap());
    let arguments = with("contrary.wasm");
    let of_run: Vec<&str> = arguments.iter().map(String::as_str).chain(["--steps-per-generation", "4"]).collect();
    place.run(&[&of_run[..], &["--max-steps", "2", "--output-dir", "parent"]].concat()).succeeded();
    place.write("contrary.wasm", contrary(CONTRARY, "own_sequences"));
    let continues = ["--max-steps", "4", "--resume-from-checkpoint", "parent", "--output-dir", "fork"];
    place.run(&[&of_run[..], &continues].concat()).succeeded();
    assert_eq!(place.figure("fork", "step"), [3.0, 4.0]);
    // It trained on what the parent generated.
    assert_eq!(place.lines("fork/completions.jsonl"), Vec::<serde_json::Value>::new());
}

/// What the environment calls so, and a part of what is said of it.
const OF_ENVIRONMENT: [(&str, &str); 9] = [
    ("hang", TOO_LONG),
    ("trap", "the table is turned over"),
    ("refuse", "I won't"),
    ("few", "answers for"),
    ("nan", "the reward NaN"),
    ("huge", "the reward 3.4028235e38"),
    ("flood", "bytes"),
    ("assistant", "the model's own"),
    ("begin", "it can't begin"),
];

/// A place with a dataset for the environment, of which no row or every row is bad.
fn game(bad: bool) -> TestFolder {
    let place = TestFolder::new();
    let row = |i: u32| format!("{{\"prompt\": \"Play {i}.\", \"bad\": {bad}}}\n");
    place.write("rows.jsonl", (0..8).map(row).collect::<String>());
    place.write("evaluated.jsonl", (0..8).map(|i| row(i).replace("false", "true")).collect::<String>());
    place.write("unruly.wasm", fs::read(UNRULY).unwrap());
    place
}

/// Arguments of a run with the environment.
fn played() -> Vec<&'static str> {
    let run = ["--model", tiny(), "--environment", "unruly.wasm", "--dataset", "rows.jsonl", "--max-turns", "3"];
    let size = ["--num-generations", "4", "--per-device-train-batch-size", "4", "--max-completion-length", "5"];
    let limit = ["--set", "environment.unruly.limits.call_timeout_s=0.5"];
    [&run[..], &size, &limit].concat()
}

#[test]
fn an_environment_in_an_evaluation_costs_nothing_of_what_was_learned() {
    for (misdeed, says) in OF_ENVIRONMENT {
        let place = game(false);
        let set = format!("environment.unruly.config.misdeed={misdeed:?}");
        let run = ["--max-steps", "2", "--logging-steps", "1", "--output-dir", "run", "--set", &set];
        let evaluated = ["--eval-dataset", "evaluated.jsonl", "--eval-steps", "2"];
        let outcome = run_monitored(&place, &[&played()[..], &run, &evaluated].concat()).outcome;
        assert_ended(misdeed, says, &place, &outcome);
        assert!(outcome.error().contains("plugin unruly"), "{misdeed}: {}", outcome.error());
        assert_eq!((place.checkpoints("run"), place.figure("run", "loss").len()), (vec![2], 2), "{misdeed}");
        assert_finite(&place, misdeed);
        assert_ordinary(&place, misdeed);
    }
}

#[test]
fn an_environment_as_a_swap_is_refused_or_gives_its_place_back() {
    let place = game(false);
    let mut running = MonitoredRun::start(place, "unruly", &played());
    for (misdeed, says) in OF_ENVIRONMENT {
        running.assert_refused(misdeed, &rlhost_tests::unruly(misdeed), says);
    }
    for (misdeed, says) in OF_ENVIRONMENT {
        running.assert_rolled_back(misdeed, &rlhost_tests::unruly(&format!("{misdeed}+")), says);
    }
    running.end("unruly");
}
