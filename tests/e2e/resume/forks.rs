//! Forks with other settings: what of a checkpoint's state they take over, and what they leave.

use rlhost_tests::{CommandOutcome, TestFolder, tiny};

const GRPO: [&str; 4] = ["--algorithm", "grpo", "--plugin", "tldr_length_reward.wasm"];

/// A run of GRPO that ended while the completions of a generation still waited.
fn parent(more: &[&str]) -> TestFolder {
    let place = TestFolder::with_answers();
    let waits = ["--max-steps", "2", "--steps-per-generation", "4", "--max-completion-length", "8"];
    place.train("parent", &[&waits[..], more].concat()).succeeded();
    place
}

fn fork(place: &TestFolder, to: &str, more: &[&str]) -> CommandOutcome {
    let forks = ["--resume-from-checkpoint", "parent", "--output-dir", to, "--max-steps", "4", "--logging-steps", "1"];
    place.run(&[&["train"], &forks[..], more].concat())
}

#[test]
fn an_algorithm_does_not_train_on_what_another_has_prepared() {
    let place = parent(&[]);
    let reward = ["--plugin", "tldr_length_reward.wasm"];
    for algorithm in ["ppo", "rloo", "online_dpo"] {
        let outcome = fork(&place, algorithm, &[&["--algorithm", algorithm], &reward[..]].concat());
        outcome.succeeded();
        assert!(outcome.stderr.contains("that grpo had prepared and not yet trained on"), "{}", outcome.stderr);
        assert_eq!(place.figure(algorithm, "step"), [3.0, 4.0]);
    }
    // Of rloo's first step nothing is left of the parent's generation: neither its completions nor its figures.
    let own = place.lines("rloo/completions.jsonl");
    assert!(own.iter().all(|line| line["step"].as_u64() >= Some(2)), "{own:?}");
    let same = fork(&place, "same", &[]);
    assert!(!same.succeeded().stderr.contains("had prepared"), "{}", same.stderr);
}

#[test]
fn a_fork_that_would_take_no_step_is_refused() {
    let place = parent(&[]);
    for steps in ["1", "2"] {
        let from = ["train", "--resume-from-checkpoint", "parent", "--output-dir", "none", "--max-steps", steps];
        let refused = place.run(&from);
        let said = format!("max_steps: is {steps}, so no step would follow parent/checkpoint-2; the steps before it count");
        assert!(refused.code == Some(2) && refused.error().contains(&said), "{}", refused.stderr);
        assert!(!place.path("none").exists());
    }
    // An evaluation takes none anyway.
    let evaluated = place.run(&["eval", "parent", "--max-steps", "1"]);
    let said = &evaluated.succeeded().stderr;
    assert!(said.contains("evaluation of parent/checkpoint-2") && said.contains("nothing is trained"), "{said}");
    for training in ["steps:", "folder:", "memory:", "WARN"] {
        assert!(!said.contains(training), "{training}: {said}");
    }
    let lines: Vec<&str> = evaluated.stdout.lines().collect();
    assert!(lines.len() < 8 && lines[0].starts_with("eval_reward ") && lines[1].contains("(95%)"), "{lines:?}");
    let all = place.run(&["eval", "parent", "--all"]).succeeded().stdout.clone();
    let json: serde_json::Value = serde_json::from_str(&place.run(&["eval", "parent", "--json"]).succeeded().stdout).unwrap();
    assert_eq!(all.lines().count(), json.as_object().unwrap().len());
    assert!(said.contains(&format!("{} more metrics: --all", all.lines().count() - lines.len())), "{said}");
}

#[test]
fn a_fork_to_another_algorithm_may_have_any_number_of_threads() {
    let place = TestFolder::with_answers();
    let sft = ["sft", "--model", tiny(), "--dataset", "answers.jsonl", "--max-steps", "1", "--output-dir", "parent"];
    place.run(&[&sft[..], &["--num-threads", "1"]].concat()).succeeded();
    place.write("prompts.jsonl", "{\"prompt\": \"a\"}\n{\"prompt\": \"b\"}\n");
    let grpo = [&GRPO[..], &["--dataset", "prompts.jsonl", "--max-steps", "2", "--max-completion-length", "4"]].concat();
    fork(&place, "same", &grpo).succeeded();
    fork(&place, "two", &[&grpo[..], &["--num-threads", "2"]].concat()).succeeded();
}

#[test]
fn parameters_that_the_parent_did_not_train_start_without_moments() {
    let place = parent(&[]);
    let pairs = ["--algorithm", "reward_model", "--learn-from", "dataset", "--dataset", "pairs.jsonl"];
    let outcome = fork(&place, "reward", &pairs);
    assert!(outcome.succeeded().stderr.contains("starts without moments"), "{}", outcome.stderr);
    // Of a run that may not change, a missing moment is damage.
    let resumed = place.run(&["resume", "parent", "--max-steps", "3"]);
    assert!(!resumed.succeeded().stderr.contains("without moments"), "{}", resumed.stderr);
}

#[test]
fn an_optimizer_does_not_take_the_moments_of_another() {
    let place = TestFolder::with_answers();
    let sft = ["sft", "--model", tiny(), "--dataset", "answers.jsonl", "--max-steps", "2", "--output-dir", "parent"];
    place.run(&sft).succeeded();
    let fixed = ["--optim", "rmsprop", "--learning-rate", "1e-3", "--lr-scheduler-type", "constant"];
    let outcome = fork(&place, "rms", &fixed);
    assert!(outcome.succeeded().stderr.contains("optim was adamw_torch and is rmsprop"), "{}", outcome.stderr);
    let outcome = fork(&place, "bits", &["--optim", "adamw_8bit"]);
    assert!(outcome.succeeded().stderr.contains("optim was adamw_torch and is adamw_8bit"), "{}", outcome.stderr);
    // From second moments of zero, the first update of each value is the rate divided by the root of 1 - alpha: 10 times.
    let (before, after) = (place.tensors("parent/checkpoint-2/model.safetensors"), "rms/checkpoint-3/model.safetensors");
    let outcome = fork(&place, "first", &[&fixed[..], &["--max-steps", "3", "--weight-decay", "0"]].concat());
    outcome.succeeded();
    let after = place.tensors(&after.replace("rms", "first"));
    let values = |bytes: &[u8]| bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect::<Vec<_>>();
    let norm = "model.norm.weight";
    let moved: Vec<f32> = values(&after[norm]).iter().zip(values(&before[norm])).map(|(a, b)| (a - b).abs()).collect();
    assert!(moved.iter().all(|by| (by - 1e-2).abs() < 1e-3), "{moved:?}");
}

#[test]
fn a_run_that_ends_with_its_best_checkpoint_can_change_its_algorithm() {
    let best = ["--load-best-model-at-end", "true", "--save-steps", "1", "--metric-for-best-model", "reward"];
    let place = parent(&best);
    let given = ["--algorithm", "sft", "--learn-from", "dataset", "--dataset", "answers.jsonl"];
    let outcome = fork(&place, "given", &given);
    outcome.succeeded();
    let config = std::fs::read_to_string(place.path("given/config.toml")).unwrap();
    assert!(config.contains("metric_for_best_model = \"loss\""), "{config}");
    let evaluated = [&given[..], &["--eval-dataset", "answers.jsonl", "--eval-steps", "1"]].concat();
    fork(&place, "evaluated", &evaluated).succeeded();
    let config = std::fs::read_to_string(place.path("evaluated/config.toml")).unwrap();
    assert!(config.contains("metric_for_best_model = \"eval_loss\""), "{config}");
    // And back, by a metric of which the parent's best value says nothing.
    let back = ["--resume-from-checkpoint", "given", "--output-dir", "back", "--max-steps", "6", "--dataset", "pairs.jsonl"];
    place.run(&[&["train"], &back[..], &GRPO].concat()).succeeded();
}

#[test]
fn a_fork_from_fine_tuning_is_compared_with_the_fine_tuned_model() {
    let place = TestFolder::with_answers();
    let sft = ["sft", "--model", tiny(), "--dataset", "answers.jsonl", "--max-steps", "3", "--learning-rate", "0.01"];
    place.run(&[&sft[..], &["--output-dir", "parent"]].concat()).succeeded();
    let dpo = ["dpo", "--dataset", "pairs.jsonl", "--logging-steps", "1", "--per-device-train-batch-size", "2"];
    let from = ["--resume-from-checkpoint", "parent", "--max-steps", "5"];
    let forked = place.run(&[&dpo[..], &from, &["--output-dir", "forked", "--save-steps", "1"]].concat());
    assert!(forked.succeeded().stderr.contains("the reference model is"), "{}", forked.stderr);
    // As long as the policy is its reference, each pair's loss is ln 2.
    assert!((place.figure("forked", "loss")[0] - std::f64::consts::LN_2).abs() < 1e-6, "{:?}", place.figure("forked", "loss"));
    place.copy("forked", "again");
    place.run(&["resume", "again", "--step", "4"]).succeeded();
    place.assert_same_end("again", "forked", 5, "model.safetensors");
    // As it was, for who asks for it.
    place.run(&[&dpo[..], &from, &["--output-dir", "named", "--ref-model", tiny()]].concat()).succeeded();
    assert!((place.figure("named", "loss")[0] - std::f64::consts::LN_2).abs() > 1e-3);
    let adapted = place.run(&[&sft[..], &["--lora-r", "4", "--output-dir", "adapter"]].concat());
    adapted.succeeded();
    let from = ["--resume-from-checkpoint", "adapter", "--max-steps", "4", "--output-dir", "on"];
    let forked = place.run(&[&dpo[..], &from].concat());
    assert!(forked.succeeded().stderr.contains("the one without the adapter"), "{}", forked.stderr);
}

#[test]
fn a_key_is_the_same_by_flag_and_by_set_however_it_is_spelled() {
    let place = parent(&[]);
    let before = place.lines("parent/metrics.jsonl");
    for (to, set) in [("a", "output-dir=a"), ("b", " output_dir = b"), ("c", "output_dir='c'")] {
        let set = set.replace("= ", "=");
        let outcome = place.run(&["train", "--resume-from-checkpoint", "parent", "--set", &set, "--set", "max-steps=3"]);
        assert!(outcome.succeeded().stdout.contains("forking"), "{}", outcome.stdout);
        assert_eq!(place.figure(to, "step").last(), Some(&3.0), "{set}");
    }
    assert_eq!(place.lines("parent/metrics.jsonl"), before);
    let other = ["--set", "output-dir=rloo", "--set", "algorithm=rloo", "--set", "max_steps=3"];
    let outcome = place.run(&[&["train", "--resume-from-checkpoint", "parent"], &other[..]].concat());
    assert!(outcome.succeeded().stderr.contains("dropped the settings of grpo"), "{}", outcome.stderr);
    // An evaluation leaves nothing behind, and a command trains with its own algorithm.
    place.run(&["eval", "parent", "--eval-dataset", "answers.jsonl", "--set", "output-dir=evaluated"]).succeeded();
    assert!(!place.path("evaluated").exists());
    let refused = place.run(&["rloo", "--set", "algorithm=grpo"]);
    assert!(refused.error().contains("use `rlhost train --algorithm grpo`"), "{}", refused.stderr);
    let nothing = place.run(&["train", "--set", "seed"]);
    assert!(nothing.error().contains("--set seed: expected KEY=VALUE"), "{}", nothing.stderr);
}

#[test]
fn what_is_no_algorithm_is_refused_by_what_it_is() {
    let place = TestFolder::with_answers();
    let train = ["train", "--model", tiny(), "--dataset", "answers.jsonl", "--algorithm", "tldr_length_reward.wasm"];
    let refused = place.run(&train);
    assert!(refused.error().contains("it is a reward"), "{}", refused.stderr);
    let bench = place.run(&["bench", "--algorithm", "tldr_length_reward.wasm"]);
    assert!(bench.error().contains("it is a reward"), "{}", bench.stderr);
}
