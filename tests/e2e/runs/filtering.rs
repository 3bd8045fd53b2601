//! Dynamic sampling: steps of prompts whose completions' rewards differ, and the same run however it is stopped or divided.

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rlhost_tests::{REMEMBERING, TestFolder, tiny};
use std::time::Duration;

const STEPS: u64 = 8;

/// Some completions have one of these, and many have none.
const LETTERS: &str = "plugin.keyword_reward.config.allowlist=[\"a\", \"7\", \"k\", \"x\", \"?\", \"w\", \"e\", \"3\"]";

fn prompts(place: &TestFolder) {
    let line = |i: usize| format!("{{\"prompt\": \"prompt {i} {}\"}}\n", "ab".repeat(i));
    place.write("prompts.jsonl", (0..10).map(line).collect::<String>());
}

fn arguments(run: &str) -> Vec<&str> {
    let mut all = vec!["grpo", "--model", tiny(), "--plugin", "keyword_reward.wasm", "--plugin", REMEMBERING];
    all.extend(["--dataset", "prompts.jsonl", "--output-dir", run, "--filter-groups"]);
    all.extend(["--filter-groups-metric", "keyword_reward", "--max-num-gen-batches", "200"]);
    all.extend([
        "--set",
        LETTERS,
        "--set",
        "plugin.keyword_reward.config.whole_words=false",
        "--per-device-train-batch-size",
        "8",
    ]);
    all.extend(["--num-generations", "4", "--max-completion-length", "6", "--max-steps", "8", "--save-steps", "1"]);
    all.extend(["--logging-steps", "3", "--num-iterations", "2", "--steps-per-generation", "2", "--beta", "0.1"]);
    all.extend(["--gradient-accumulation-steps", "2", "--learning-rate", "0.002", "--log-completions", "all"]);
    all
}

#[test]
fn every_step_learns_from_whole_groups_whose_rewards_differ() {
    let place = TestFolder::new();
    prompts(&place);
    place.run(&arguments("whole")).succeeded();
    let lines = place.lines("whole/completions.jsonl");
    assert_eq!(lines.len(), 4 * 16, "four generations of sixteen completions");
    let reward = |line: &serde_json::Value| line["rewards"]["keyword_reward"].as_f64().unwrap();
    for group in lines.chunks(4) {
        assert!(group.iter().all(|line| line["prompt"] == group[0]["prompt"]), "{group:?}");
        assert!(group.iter().any(|line| reward(line) != reward(&group[0])), "a group without a spread: {group:?}");
    }
    let last = place.lines("whole/metrics.jsonl").pop().unwrap();
    let (kept, batches) = (last["filter_groups/kept_ratio"].as_f64(), last["filter_groups/num_gen_batches"].as_f64());
    assert!(kept.is_some_and(|kept| kept < 1.0) && batches.is_some_and(|batches| batches > 1.0), "{last}");
    assert!(last["epoch"].as_f64().unwrap() > 1.0, "prompts that are passed over count in epochs: {last}");

    for step in 1..STEPS {
        place.assert_resumes("whole", step, STEPS, "model.safetensors");
    }
    let mut random = ChaCha8Rng::seed_from_u64(5);
    let killed = [&arguments("killed")[..], &["--resume-from-checkpoint"]].concat();
    place.kill_after_each(&killed, (0..12).map(|_| Duration::from_millis(random.random_range(20..600))));
    place.run(&killed).succeeded();
    place.assert_same_end("killed", "whole", STEPS, "model.safetensors");
}

#[test]
fn a_dataset_without_any_spread_ends_with_one_line_at_the_limit() {
    let place = TestFolder::new();
    prompts(&place);
    let constant = |more: &[&str]| {
        let of = ["--set", "plugin.keyword_reward.config.allowlist=[\"no completion has this\"]", "--max-num-gen-batches", "3"];
        place.run(&[&arguments("constant")[..], &of, more].concat())
    };
    let ended = constant(&[]);
    assert_eq!(ended.code, Some(1), "{}", ended.stderr);
    let said = "filter_groups: in 3 generations (max_num_gen_batches) only 0 of the 4 prompts that a step needs";
    assert!(ended.error().contains(said), "{}", ended.stderr);
}

#[test]
fn what_can_not_be_filtered_is_said_at_the_start() {
    let place = TestFolder::with_answers();
    prompts(&place);
    let given = ["sft", "--model", tiny(), "--dataset", "answers.jsonl", "--filter-groups"];
    for (all, expected) in [
        (given.to_vec(), "filter_groups: this algorithm learns from given answers"),
        ([&arguments("x")[..], &["--filter-groups-metric", "keyword_rewrd"]].concat(), "did you mean \"keyword_reward\"?"),
        ([&arguments("x")[..], &["--max-num-gen-batches", "0"]].concat(), "max_num_gen_batches: must be at least 1"),
        ([&arguments("x")[..], &["--num-generations", "1"]].concat(), "num_generations must be at least 2"),
        ([&given[..5], &["--skip-groups", "0.5"]].concat(), "skip_groups: this algorithm learns from given answers"),
        (skipping("x", &["--skip-groups", "1.5"]), "skip_groups: is 1.5; it is a probability"),
        (skipping("x", &["--skip-groups", "0.5", "--num-generations", "1"]), "num_generations must be at least 2"),
        (skipping("x", &[]), "filter_groups_metric: needs filter_groups or skip_groups"),
    ] {
        let refused = place.run(&all);
        assert!(refused.code == Some(2) && refused.error().contains(expected), "{}", refused.stderr);
    }
}

/// Arguments of a run that skips prompts instead of filtering them.
fn skipping<'a>(run: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let all = arguments(run);
    let at = |key: &str| all.iter().position(|given| *given == key).unwrap();
    let (filter, batches) = (at("--filter-groups"), at("--max-num-gen-batches"));
    let left = all.iter().enumerate().filter(|(i, _)| ![filter, batches, batches + 1].contains(i)).map(|(_, given)| *given);
    left.chain(more.iter().copied()).collect()
}

#[test]
fn prompts_whose_rewards_do_not_differ_are_skipped_and_the_run_resumes_exactly() {
    let place = TestFolder::new();
    prompts(&place);
    // Each generation has four of ten prompts, and each of them is skipped once its rewards have not differed.
    let always = ["--skip-groups", "1", "--skip-groups-after", "1"];
    place.run(&skipping("always", &[&always[..], &["--num-iterations", "1", "--max-steps", "20"]].concat())).succeeded();
    let lines = place.lines("always/completions.jsonl");
    let mut out: Vec<String> = Vec::new();
    let (mut seldom, mut filled) = (0, 0);
    for generation in lines.chunks(16) {
        let waiting = 10 - out.len();
        for group in generation.chunks(4) {
            let name = group[0]["prompt"].as_str().unwrap().to_owned();
            // Only where a pass has too few others.
            assert!(!out.contains(&name) || waiting < 4, "{name} with {waiting} others");
            filled += usize::from(out.contains(&name));
        }
        for group in generation.chunks(4) {
            let reward = |line: &serde_json::Value| line["rewards"]["keyword_reward"].as_f64().unwrap();
            let name = group[0]["prompt"].as_str().unwrap().to_owned();
            out.retain(|other| *other != name);
            if group.iter().all(|line| reward(line) == reward(&group[0])) {
                out.push(name);
                seldom += 1;
            }
        }
    }
    assert!(seldom > 3 && lines.len() == 20 * 16, "{seldom} {filled}");
    let last = place.lines("always/metrics.jsonl").pop().unwrap();
    assert!(last["skip_groups/skipped_ratio"].as_f64().is_some_and(|share| (0.0..1.0).contains(&share)), "{last}");
    assert!(last["epoch"].as_f64().unwrap() > 10.0, "prompts that are skipped count in epochs: {last}");

    for (run, more) in [("half", &["--skip-groups", "0.5"][..]), ("both", &["--skip-groups", "0.5", "--filter-groups"])] {
        place.run(&skipping(run, &[more, &["--skip-groups-after", "1"]].concat())).succeeded();
        assert!(
            place
                .lines(&format!("{run}/metrics.jsonl"))
                .iter()
                .any(|line| line["skip_groups/skipped_ratio"].as_f64() > Some(0.0))
        );
        for step in 1..STEPS {
            place.assert_resumes(run, step, STEPS, "model.safetensors");
        }
    }
}
