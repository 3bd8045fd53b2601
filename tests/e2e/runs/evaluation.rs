//! Evaluation.

use rlhost_tests::{REMEMBERING, TestFolder, seal, tiny};
use serde_json::Value;
use std::fs;
use std::io::Read;

fn is_evaluation(line: &Value) -> bool {
    line.as_object().unwrap().keys().any(|name| name.starts_with("eval_"))
}

/// A run of GRPO with a reward whose scores depend on all that it has seen.
fn arguments(run: &str) -> Vec<&str> {
    let mut all = vec!["--model", tiny(), "--plugin", REMEMBERING, "--plugin", "tldr_length_reward.wasm", "--output-dir", run];
    all.extend(["--dataset", "prompts.jsonl", "--max-completion-length", "12", "--max-steps", "6", "--save-steps", "1"]);
    all.extend(["--logging-steps", "1", "--steps-per-generation", "2", "--beta", "0.1", "--learning-rate", "0.002"]);
    all
}

fn place() -> TestFolder {
    let place = TestFolder::with_answers();
    let prompts = |range: std::ops::Range<usize>| range.map(|i| format!("{{\"prompt\": \"prompt {i}\"}}\n")).collect::<String>();
    place.write("prompts.jsonl", prompts(0..8));
    place.write("held_out.jsonl", prompts(8..13));
    place
}

#[test]
fn training_is_the_same_with_evaluations_in_between_and_each_is_what_eval_says() {
    let place = place();
    place.run(&arguments("plain")).succeeded();
    let evaluated = ["--eval-dataset", "held_out.jsonl", "--eval-steps", "2", "--eval-on-start"];
    place.run(&[&arguments("evaluated")[..], &evaluated].concat()).succeeded();
    let (evaluations, steps): (Vec<Value>, Vec<Value>) =
        place.lines_without_times("evaluated/metrics.jsonl").into_iter().partition(is_evaluation);
    assert_eq!(steps, place.lines_without_times("plain/metrics.jsonl"));
    let model = |run: &str| fs::read(place.path(run).join("checkpoint-6/model.safetensors")).unwrap();
    assert!(model("plain") == model("evaluated"));

    let at: Vec<u64> = evaluations.iter().map(|line| line["step"].as_u64().unwrap()).collect();
    assert_eq!(at, [0, 2, 4, 6]);
    for (step, line) in at.iter().zip(&evaluations).skip(1) {
        let from = format!("evaluated/checkpoint-{step}");
        let said = place.run(&["eval", &from, "--json"]).succeeded().stdout.clone();
        let said: Value = serde_json::from_str(&said).unwrap();
        for (name, value) in line.as_object().unwrap().iter().filter(|(name, _)| name.starts_with("eval_")) {
            assert_eq!(&said[name], value, "{name} at step {step}");
        }
    }

    for step in [1, 2, 3] {
        place.assert_resumes("evaluated", step, 6, "model.safetensors");
    }
}

#[test]
fn evaluations_wait_for_their_delay_in_steps_or_epochs() {
    let place = place();
    let at = |run: &str, more: &[&str]| -> Vec<u64> {
        place.run(&[&arguments(run)[..], &["--eval-dataset", "held_out.jsonl"], more].concat()).succeeded();
        let lines = place.lines_without_times(&format!("{run}/metrics.jsonl"));
        lines.iter().filter(|line| is_evaluation(line)).map(|line| line["step"].as_u64().unwrap()).collect()
    };
    assert_eq!(at("steps", &["--eval-steps", "1", "--eval_delay", "3"]), [3, 4, 5, 6]);
    // The last one is never left out.
    assert_eq!(at("late", &["--eval-steps", "2", "--eval-delay", "100", "--eval-on-start"]), [0, 6]);
    // Eight prompts, of which a generation for two steps takes two: an epoch has eight steps.
    assert_eq!(at("epochs", &["--eval-strategy", "epoch", "--eval-delay", "2", "--max-steps", "24"]), [16, 24]);
    let refused = place.run(&[&arguments("no")[..], &["--eval-dataset", "held_out.jsonl", "--eval-delay", "-1"]].concat());
    assert!(
        refused.code == Some(2) && refused.error().contains("eval_delay: is -1; it must be 0 or greater"),
        "{}",
        refused.stderr
    );
}

#[test]
fn an_evaluation_is_the_same_however_it_is_cut_and_has_the_loss_of_training() {
    let place = place();
    for (algorithm, data) in [("sft", "answers.jsonl"), ("dpo", "pairs.jsonl"), ("orpo", "pairs.jsonl")] {
        let mut base = vec!["--model", tiny(), "--algorithm", algorithm, "--dataset", data];
        base.extend((algorithm == "sft").then_some(["--learn-from", "dataset"]).into_iter().flatten());
        // One step over all rows, whose loss is that of the weights before it.
        let step = ["--max-steps", "1", "--per-device-train-batch-size", "32", "--learning-rate", "0", "--output-dir", algorithm];
        place.run(&[&base[..], &step].concat()).succeeded();
        let trained = &place.lines(&format!("{algorithm}/metrics.jsonl"))[0];
        for size in ["1", "5", "32"] {
            let cut = ["--per-device-eval-batch-size", size, "--json"];
            let said = place.run(&[&["eval"], &base[..], &cut].concat()).succeeded().stdout.clone();
            let said: Value = serde_json::from_str(&said).unwrap();
            for name in ["loss", "entropy", "mean_token_accuracy"] {
                let (got, want) = (said[format!("eval_{name}")].as_f64().unwrap(), trained[name].as_f64().unwrap());
                assert!((got - want).abs() < 1e-6 * want.abs().max(1.0), "{algorithm} by {size}: {name} is {got}, not {want}");
            }
        }
    }
    assert!(!place.entries().iter().any(|name| name.starts_with("runs")), "an evaluation leaves nothing");
}

#[test]
fn the_best_checkpoint_is_the_one_that_evaluates_best() {
    let place = place();
    let evaluated = ["--eval-dataset", "held_out.jsonl", "--metric-for-best-model", "eval_rewards/tldr_length_reward/mean"];
    let best = ["--load-best-model-at-end", "--save-total-limit", "1", "--eval-steps", "1"];
    let outcome = place.run(&[&arguments("run")[..], &evaluated, &best].concat());
    let figure = "eval_rewards/tldr_length_reward/mean";
    let lines = place.lines("run/metrics.jsonl");
    let values: Vec<(u64, f64)> = lines.iter().filter_map(|l| Some((l["step"].as_u64()?, l[figure].as_f64()?))).collect();
    let (step, _) = values.iter().copied().reduce(|a, b| if b.1 > a.1 { b } else { a }).unwrap();
    assert_eq!(values.len(), 6);
    assert!(outcome.succeeded().stdout.contains(&format!("checkpoint-{step}\n")), "{step}: {}", outcome.stdout);
    assert!(place.checkpoints("run").contains(&step));

    // A name without the prefix is the evaluation's, as in transformers.
    let short = ["--eval-dataset", "held_out.jsonl", "--metric-for-best-model", &figure["eval_".len()..]];
    let outcome = place.run(&[&arguments("short")[..], &short, &best].concat());
    assert!(outcome.succeeded().stdout.contains(&format!("checkpoint-{step}\n")), "{step}: {}", outcome.stdout);
    let config = fs::read_to_string(place.path("short/config.toml")).unwrap();
    assert!(config.contains(&format!("metric_for_best_model = \"{figure}\"")), "{config}");
    // A run of an older version, which meant the training figure, keeps it.
    place.copy("short", "old");
    for file in [".config.toml", "config.toml", "checkpoint-6/trainer/config.toml"] {
        // Older versions left the second one.
        let text = fs::read_to_string(place.path(&format!("old/{}", file.trim_start_matches('.')))).unwrap();
        fs::write(place.path(&format!("old/{file}")), text.replace(figure, &figure["eval_".len()..])).unwrap();
    }
    seal(&place.path("old/checkpoint-6"), &[]);
    place.run(&["resume", "old", "--max-steps", "7"]).succeeded();
    let config = fs::read_to_string(place.path("old/checkpoint-7/trainer/config.toml")).unwrap();
    assert!(config.contains(&format!("metric_for_best_model = \"{}\"", &figure["eval_".len()..])), "{config}");

    let no_data = place.run(&[&arguments("wrong")[..], &evaluated[2..]].concat());
    assert!(no_data.code == Some(2) && no_data.error().contains("eval_dataset"), "{}", no_data.stderr);
    let misspelt = ["--eval-dataset", "held_out.jsonl", "--eval-steps", "6", "--metric-for-best-model", "eval_rewrd"];
    let misspelt = place.run(&[&arguments("misspelt")[..], &misspelt].concat());
    assert!(misspelt.error().contains("eval_reward"), "{}", misspelt.stderr);
    assert_eq!(place.checkpoints("misspelt"), [1], "refused after the first step, long before the first evaluation");
}

/// Runs that report differently, of plugins that ship with the host.
const REPORTING: [(&str, &[&str]); 16] = [
    ("sft", &["--learn-from", "dataset", "--dataset", "answers.jsonl"]),
    ("dpo", &[]),
    ("dpo", &["--loss-type", "sft", "sigmoid", "--loss-weights", "0.5", "1"]),
    ("cpo", &[]),
    ("orpo", &[]),
    ("kto", &[]),
    ("kto", &["--loss-type", "apo_zero_unpaired"]),
    ("reward_model", &[]),
    ("grpo", &["--beta", "0.1", "--top-entropy-quantile", "0.5"]),
    ("grpo", &["--loss-type", "cispo", "--importance-sampling-correction", "true", "--old-logp", "recompute"]),
    ("grpo", &["--loss-type", "vespo"]),
    ("rloo", &["--beta", "0.1"]),
    ("ppo", &[]),
    ("ppo", &["--value-model", "shared", "--critic-learning-rate", "0.001"]),
    ("reinforce_pp", &[]),
    ("online_dpo", &[]),
];

#[test]
fn a_metric_that_a_run_will_not_have_is_refused_before_it_begins_with_those_that_it_will() {
    let place = place();
    for (i, (algorithm, more)) in REPORTING.into_iter().enumerate() {
        let generated = ["--dataset", "prompts.jsonl", "--plugin", "tldr_length_reward.wasm", "--max-completion-length", "12"];
        let data: &[&str] = match algorithm {
            "grpo" | "rloo" | "ppo" | "reinforce_pp" | "online_dpo" => &generated,
            "sft" => &[],
            _ => &["--dataset", "pairs.jsonl"],
        };
        let run = format!("run-{i}");
        let base = ["--model", tiny(), "--algorithm", algorithm, "--max-steps", "2", "--logging-steps", "1", "--output-dir"];
        place.run(&[&base[..], &[&run], data, more].concat()).succeeded();
        let refused = place.run(&[&base[..], &["refused"], data, more, &["--metric-for-best-model", "qqqqq"]].concat());
        assert!(refused.code == Some(2) && !place.path("refused").exists(), "{algorithm}: {}", refused.stderr);
        let (_, known) = refused.error().split_once("the metrics are ").unwrap_or_else(|| panic!("{}", refused.stderr));
        let known: Vec<&str> = known.split(", ").collect();
        let beside = |name: &str| {
            ["step", "epoch", "time", "step_time", "eps", "lr", "versions"].contains(&name)
                || ["time/", "perf/", "plugins/", "sampling/"].iter().any(|group| name.starts_with(group))
        };
        for line in place.lines(&format!("{run}/metrics.jsonl")) {
            let unknown: Vec<&String> =
                line.as_object().unwrap().keys().filter(|name| !beside(name) && !known.contains(&name.as_str())).collect();
            assert!(unknown.is_empty(), "{algorithm} {more:?}: {unknown:?} are not among {known:?}");
        }
    }
    let sft = ["sft", "--model", tiny(), "--dataset", "answers.jsonl", "--eval-dataset", "answers.jsonl", "--max-steps", "1"];
    let named = |name: &str| place.run(&[&sft[..], &["--output-dir", "sft", "--metric-for-best-model", name]].concat());
    for (name, said) in
        [("eval_los", "eval_loss"), ("eval_grad_norm", "no metric"), ("reward", "no metric is named \"eval_reward\"")]
    {
        let refused = named(name);
        assert!(refused.code == Some(2) && refused.error().contains(said), "{name}: {}", refused.stderr);
    }
    assert!(!place.path("sft").exists());
    named("eval_runtime").succeeded();
}

/// Sends a signal to a run as soon as `ready`, and gives its exit code.
fn stopped(mut child: std::process::Child, signal: &str, ready: impl Fn() -> bool) -> Option<i32> {
    while !ready() && child.try_wait().unwrap().is_none() {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    std::process::Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap();
    child.wait().unwrap().code()
}

#[test]
fn an_evaluation_that_a_signal_interrupts_is_made_when_the_run_resumes() {
    let place = place();
    let many: String = (0..400).map(|i| format!("{{\"prompt\": \"prompt {i}\"}}\n")).collect();
    place.write("many.jsonl", many);
    let more =
        ["--eval-dataset", "many.jsonl", "--eval-steps", "2", "--metric-for-best-model", "eval_reward", "--max-steps", "4"];
    let given = |run| [&arguments(run)[..], &more, &["--save-steps", "2", "--save-total-limit", "9"]].concat();
    place.run(&given("whole")).succeeded();
    let lines = |run: &str| {
        let text = fs::read_to_string(place.path(run).join("metrics.jsonl")).unwrap_or_default();
        text.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    // In the evaluation after step 2: its training line is there, and its own is not.
    let code = stopped(place.start(&given("cut")), "-TERM", || lines("cut").len() == 2);
    assert_eq!(code, Some(3));
    assert_eq!((lines("cut").len(), place.checkpoints("cut")), (2, vec![2]));
    place.copy("cut", "added");
    place.run(&["resume", "cut"]).succeeded();
    assert_eq!(place.lines_without_times("cut/metrics.jsonl"), place.lines_without_times("whole/metrics.jsonl"));
    // With somebody else's file, the checkpoint stays as it was instead of being saved again.
    place.write("added/checkpoint-2/README.md", "# Mine\n");
    let resumed = place.run(&["resume", "added"]);
    assert!(resumed.succeeded().stderr.contains("is left as it was instead of being saved again"), "{}", resumed.stderr);
    assert_eq!(place.lines_without_times("added/metrics.jsonl"), place.lines_without_times("whole/metrics.jsonl"));
    assert!(place.checkpoints("added") == [2, 4] && place.path("added/checkpoint-2/README.md").exists());
    let best = |run: &str| {
        let state = fs::read(place.path(run).join("checkpoint-4/trainer/trainer_state.json")).unwrap();
        let state: Value = serde_json::from_slice(&state).unwrap();
        (state["best_global_step"].clone(), state["best_metric"].clone())
    };
    assert_eq!(best("cut"), best("whole"));
}

#[test]
fn an_interrupted_evaluation_is_made_once_however_often_the_run_ends() {
    let place = place();
    place.write("many.jsonl", (0..400).map(|i| format!("{{\"prompt\": \"prompt {i}\"}}\n")).collect::<String>());
    let more =
        ["--eval-dataset", "many.jsonl", "--eval-steps", "2", "--metric-for-best-model", "eval_reward", "--max-steps", "4"];
    let given = |run| [&arguments(run)[..], &more, &["--save-steps", "1"]].concat();
    let lines = |run: &str| fs::read_to_string(place.path(run).join("metrics.jsonl")).unwrap_or_default().lines().count();
    let owes = |run: &str, step: u64| {
        let file = place.path(run).join(format!("checkpoint-{step}/trainer/snapshot.json"));
        serde_json::from_slice::<Value>(&fs::read(file).unwrap()).unwrap()["state"]["owes_evaluation"].clone()
    };
    let same = |run: &str| {
        assert_eq!(
            place.lines_without_times(&format!("{run}/metrics.jsonl")),
            place.lines_without_times("whole/metrics.jsonl"),
            "{run}"
        );
        for step in 1..=4 {
            let state =
                |run: &str| fs::read_to_string(place.path(run).join(format!("checkpoint-{step}/trainer/trainer_state.json")));
            assert_eq!(state(run).unwrap().replace(run, "whole"), state("whole").unwrap(), "{run}: {step}");
            assert_eq!(owes(run, step), false, "{run}: {step}");
        }
        // What only shows edits of a run that goes on is not left.
        assert!(!place.path(run).join(".config.toml").exists(), "{run}");
    };
    place.run(&given("whole")).succeeded();
    same("whole");
    // In the evaluation after step 2, and then in the one after the last.
    assert_eq!(stopped(place.start(&given("cut")), "-TERM", || lines("cut") == 2), Some(3));
    assert_eq!((place.checkpoints("cut"), owes("cut", 2)), (vec![1, 2], true.into()));
    place.copy("cut", "killed");
    // As soon as it is made: before or in the next step.
    assert_eq!(stopped(place.start(&["resume", "cut"]), "-TERM", || lines("cut") == 3), Some(3));
    let last = place.checkpoints("cut").pop().unwrap();
    assert_eq!(owes("cut", 2), false);
    assert_eq!(stopped(place.start(&["resume", "cut"]), "-TERM", || lines("cut") == 5), Some(3), "from {last}");
    assert_eq!(owes("cut", 4), true);
    for _ in 0..2 {
        place.run(&["resume", "cut"]).succeeded();
        same("cut");
    }
    // Killed after the evaluation was logged, before its checkpoint was saved again.
    let whole = fs::read_to_string(place.path("whole/metrics.jsonl")).unwrap();
    let logged: String = whole.lines().take(3).map(|line| format!("{line}\n")).collect();
    place.write("killed/metrics.jsonl", logged);
    place.run(&["resume", "killed"]).succeeded();
    same("killed");
}

#[test]
fn a_signal_before_the_first_step_is_answered_and_leaves_nothing_to_resume() {
    let place = place();
    let many: String = (0..4000).map(|i| format!("{{\"prompt\": \"prompt {i}\"}}\n")).collect();
    place.write("many.jsonl", many);
    for signal in ["-INT", "-TERM"] {
        let run = format!("early{signal}");
        let given = [&arguments(&run)[..], &["--eval-dataset", "many.jsonl", "--eval-on-start"]].concat();
        let mut child = place.start_piped(&given);
        let (mut errors, mut output) = (child.stderr.take().unwrap(), child.stdout.take().unwrap());
        let code = stopped(child, signal, || place.path(&run).join("events.jsonl").exists());
        let mut said = String::new();
        errors.read_to_string(&mut said).unwrap();
        // There once the run has begun, with its first evaluation.
        output.read_to_string(&mut said).unwrap();
        assert_eq!(code, Some(3), "{said}");
        assert!(said.contains("stopped before the first step"), "{said}");
        assert!(place.checkpoints(&run).is_empty());
    }
}

#[test]
fn a_checkpoint_that_a_signal_asked_for_is_no_candidate_for_the_best() {
    let place = place();
    let more = ["--save-steps", "3", "--metric-for-best-model", "reward", "--max-completion-length", "24"];
    let given = |run| [&arguments(run)[..], &more].concat();
    place.run(&given("whole")).succeeded();
    let lines = |run: &str| fs::read_to_string(place.path(run).join("metrics.jsonl")).unwrap_or_default().lines().count();
    let cut = (0..50).any(|_| {
        let _ = fs::remove_dir_all(place.path("cut"));
        stopped(place.start(&given("cut")), "-TERM", || lines("cut") == 1);
        !place.checkpoints("cut").contains(&3)
    });
    assert!(cut, "never stopped before the first planned checkpoint");
    place.run(&["resume", "cut"]).succeeded();
    for step in [3, 6] {
        let state = |run: &str| {
            fs::read_to_string(place.path(run).join(format!("checkpoint-{step}/trainer/trainer_state.json"))).unwrap()
        };
        assert_eq!(state("cut").replace("cut/", "whole/"), state("whole"));
    }
}

#[test]
fn statistics_of_an_evaluation_are_of_all_its_rows() {
    let place = place();
    let base = ["eval", "--model", tiny(), "--plugin", "tldr_length_reward.wasm", "--dataset", "held_out.jsonl", "--json"];
    let evaluated = |size: &str| {
        let more = ["--num-generations", "4", "--max-completion-length", "24", "--per-device-eval-batch-size", size];
        let said: Value = serde_json::from_str(&place.run(&[&base[..], &more].concat()).succeeded().stdout).unwrap();
        said.as_object().unwrap().clone()
    };
    let whole = evaluated("20");
    assert!(whole["eval_reward_std"].as_f64().unwrap() > 0.0, "{whole:?}");
    for size in ["4", "8"] {
        for (name, value) in evaluated(size).iter().filter(|(name, _)| !name.contains("runtime") && !name.contains("per_second"))
        {
            let (got, want) = (value.as_f64().unwrap(), whole[name].as_f64().unwrap());
            assert!((got - want).abs() < 1e-5 * want.abs().max(1.0), "{name} by {size}: {got}, not {want}");
        }
    }
}

#[test]
fn an_evaluation_may_have_one_completion_of_a_prompt_where_training_compares_several() {
    let place = place();
    let base = ["eval", "--model", tiny(), "--plugin", "tldr_length_reward.wasm", "--dataset", "held_out.jsonl", "--json"];
    for algorithm in [&["grpo"][..], &["rloo"], &["reinforce_pp", "--baseline", "group"]] {
        let more = ["--num-generations-eval", "1", "--max-completion-length", "24", "--algorithm"];
        let said: Value = serde_json::from_str(&place.run(&[&base[..], &more, algorithm].concat()).succeeded().stdout).unwrap();
        // As in TRL, there is nothing to compare it with: it has no advantage, and no deviation.
        assert_eq!((&said["eval_reward_std"], &said["eval_loss"]), (&0.0.into(), &0.0.into()), "{algorithm:?}: {said}");
        assert!(said["eval_reward"].as_f64().unwrap() < 0.0, "{algorithm:?}: {said}");
    }
    let said: Value = serde_json::from_str(&place.run(&[&base[..], &["--num-generations-eval", "1"]].concat()).stdout).unwrap();
    assert_eq!(said["eval_frac_reward_zero_std"], 1.0);
}

#[test]
fn an_evaluation_has_its_own_sampling_rewards_and_pass_at_k_and_changes_no_training() {
    let place = place();
    place.run(&arguments("plain")).succeeded();
    let protocol =
        ["--eval-dataset", "held_out.jsonl", "--eval-steps", "3", "--num-generations-eval", "6", "--eval-temperature", "0.5"];
    let among = ["--eval-top-p", "0.95", "--eval-top-k", "200", "--eval-min-p", "0.001"];
    let alone = ["--plugin", "repetition_reward.wasm", "--set", "plugin.repetition_reward.eval_only=true"];
    let solved = ["--eval-pass-threshold", "-9", "--eval-pass-reward", "tldr_length_reward", "--eval-pass-k", "1", "3", "6"];
    place.run(&[&arguments("evaluated")[..], &protocol, &among, &alone, &solved].concat()).succeeded();
    let (evaluations, steps): (Vec<Value>, Vec<Value>) =
        place.lines_without_times("evaluated/metrics.jsonl").into_iter().partition(is_evaluation);
    let without_count = |lines: Vec<Value>| -> Vec<Value> {
        let less = |mut line: Value| {
            line.as_object_mut().unwrap().retain(|name, _| !name.starts_with("plugins/repetition_reward"));
            line
        };
        lines.into_iter().map(less).collect()
    };
    assert_eq!(without_count(steps), place.lines_without_times("plain/metrics.jsonl"), "training does not see the other reward");
    let model = |run: &str| fs::read(place.path(run).join("checkpoint-6/model.safetensors")).unwrap();
    assert!(model("plain") == model("evaluated"));
    assert_eq!(evaluations.len(), 2);
    for line in &evaluations {
        let value = |name: &str| line[name].as_f64().unwrap_or_else(|| panic!("{name}: {line}"));
        assert!(value("eval_rewards/repetition_reward/mean") <= 0.0);
        let pass = [1, 3, 6].map(|k| value(&format!("eval_pass@{k}")));
        assert!(pass[0] <= pass[1] && pass[1] <= pass[2] && pass.iter().all(|p| (0.0..=1.0).contains(p)), "{pass:?}");
        // Multiples of a completion, and of a prompt.
        assert!((pass[0] * 30.0).fract().min(1.0 - (pass[0] * 30.0).fract()) < 1e-9, "{pass:?}");
        assert!((pass[2] * 5.0).fract().min(1.0 - (pass[2] * 5.0).fract()) < 1e-9, "{pass:?}");
        assert!((0.0..=1.0).contains(&value("eval_maj@3")) && value("eval_pass@3/stderr") >= 0.0);
        assert!(line.get("eval_maj@1").is_none());
    }
    let told = &place.report("evaluated")["of_runs"]["story"]["evaluated"]["evaluations"];
    let pass = told.as_array().unwrap().iter().find(|row| row["name"] == "eval_pass@3").unwrap_or_else(|| panic!("{told}"));
    assert!(pass["last"].as_str().unwrap().contains(" \u{b1} "), "{pass}");
    // As much as there is to say of it, `eval` says too.
    let said = place.run(&["eval", "evaluated/checkpoint-6", "--json"]).succeeded().stdout.clone();
    let said: Value = serde_json::from_str(&said).unwrap();
    for name in ["eval_pass@1", "eval_maj@6", "eval_rewards/repetition_reward/mean"] {
        assert_eq!(said[name], evaluations[1][name], "{name}");
    }
    let greedy = place.run(&["eval", "evaluated/checkpoint-6", "--json", "--eval-temperature", "0"]).succeeded().stdout.clone();
    let greedy: Value = serde_json::from_str(&greedy).unwrap();
    // All completions of a prompt are the same.
    assert_eq!((&greedy["eval_pass@1"], &greedy["eval_pass@6"]), (&greedy["eval_maj@6"], &greedy["eval_pass@3"]));
    // Each of these leaves only the likeliest token.
    let sampled = |given: &[&str]| -> Vec<Value> {
        let said = place.run(&[&["eval", "evaluated/checkpoint-6", "--json"], given].concat()).succeeded().stdout.clone();
        let said: Value = serde_json::from_str(&said).unwrap();
        ["eval_reward", "eval_reward_std", "eval_rewards/repetition_reward/mean", "eval_pass@1"]
            .map(|name| said[name].clone())
            .into()
    };
    let likeliest = sampled(&["--eval-temperature", "0"]);
    assert_ne!(sampled(&[]), likeliest);
    for one in [["--eval-top-k", "1"], ["--eval-top-p", "0.000001"], ["--eval-min-p", "1"]] {
        assert_eq!(sampled(&one), likeliest, "{one:?}");
    }
    let shown = place.run(&["eval", "evaluated/checkpoint-6"]).succeeded().stdout.clone();
    assert!(shown.lines().any(|line| line.starts_with("eval_pass@3 ") && line.contains("(95%)")), "{shown}");
}

#[test]
fn an_evaluation_of_which_nothing_can_be_scored_is_not_compared_and_ends_nothing() {
    let place = place();
    let row = |solution: &str| format!("{{\"prompt\": \"1+2=\", \"solution\": \"{solution}\"}}\n");
    place.write("sums.jsonl", row("$3$").repeat(8));
    // Which no completion can be compared with.
    place.write("words.jsonl", row("who knows"));
    let reward = ["mode=formula", "column=solution"].map(|set| format!("plugin.answer_reward.config.{set}"));
    let mut all = vec!["--model", tiny(), "--plugin", "answer_reward.wasm", "--set", &reward[0], "--set", &reward[1]];
    all.extend(["--dataset", "sums.jsonl", "--eval-dataset", "words.jsonl", "--eval-steps", "1", "--max-completion-length", "6"]);
    all.extend(["--metric-for-best-model", "reward", "--lr-scheduler-type", "reduce_lr_on_plateau", "--max-steps", "3"]);
    let run = place.run(&[&all[..], &["--output-dir", "run"]].concat());
    let said = run.succeeded().stderr.matches("the evaluation at step 2 has nothing to compare").count();
    assert_eq!(said, 1, "{}", run.stderr);
    assert!(place.lines("run/metrics.jsonl").iter().all(|line| line.get("eval_reward").is_none()));
    // One of which something can be scored is compared, whatever the algorithm says of its rewards.
    let more =
        ["--algorithm", "online_dpo", "--metric-for-best-model", "rewards/answer_reward/mean", "--eval-dataset", "sums.jsonl"];
    let pairs = place.run(&[&all[..], &more, &["--lr-scheduler-type", "linear", "--output-dir", "pairs"]].concat());
    assert!(!pairs.succeeded().stderr.contains("nothing to compare"), "{}", pairs.stderr);
    let state: Value =
        serde_json::from_slice(&fs::read(place.path("pairs/checkpoint-3/trainer/trainer_state.json")).unwrap()).unwrap();
    assert!(state["best_metric"].is_number(), "{}", state["best_metric"]);
    let alone = place.run(&["eval", "run", "--json"]);
    assert!(!alone.succeeded().stdout.contains("eval_reward\""), "{}", alone.stdout);
    // A metric that evaluations never have is refused as soon as it can be known.
    let refused = place.run(&[&all[..], &["--metric-for-best-model", "eval_grad_norm", "--output-dir", "none"]].concat());
    assert!(refused.code == Some(2) && refused.error().contains("no metric is named"), "{refused:?}");
    assert!(!refused.error().contains("eval_learning_rate"), "{}", refused.error());
}

#[test]
fn a_protocol_that_does_not_fit_is_refused_before_anything_is_written() {
    let place = place();
    let dpo = ["--model", tiny(), "--algorithm", "dpo", "--dataset", "pairs.jsonl", "--num-generations-eval", "4"];
    let said = place.run(&dpo);
    assert!(said.code == Some(2) && said.error().contains("num_generations_eval"), "{}", said.stderr);
    let alone = ["--set", "plugin.tldr_length_reward.eval_only=true", "--set", "plugin.remembering.eval_only=true"];
    let said = place.run(&[&arguments("alone")[..], &alone].concat());
    assert!(said.code == Some(2) && said.error().contains("name at least one reward"), "{}", said.stderr);
    let said = place.run(&[&arguments("k")[..], &["--eval-pass-threshold", "0", "--eval-pass-k", "9"]].concat());
    assert!(said.code == Some(2) && said.error().contains("more than the 8 completions"), "{}", said.stderr);
    assert!(!place.entries().iter().any(|name| ["alone", "k", "runs"].contains(&name.as_str())));
}

#[test]
fn a_run_stops_early_where_its_evaluations_say_so_also_if_it_was_resumed() {
    let place = place();
    // Evaluations hardly move at this rate, so none improves on the best by so much.
    let early = ["--eval-dataset", "held_out.jsonl", "--eval-steps", "1", "--metric-for-best-model", "eval_reward"];
    let patience = ["--early-stopping-patience", "3", "--early-stopping-threshold", "1000", "--learning-rate", "1e-6"];
    let outcome = place.run(&[&arguments("whole")[..], &early, &patience].concat());
    outcome.succeeded();
    assert!(outcome.stderr.contains("3 evaluations in a row have not improved eval_reward"), "{}", outcome.stderr);
    // The first sets the best, and three do not improve on it.
    let ends = |run: &str| -> Vec<(Value, Value)> {
        let events = ["stopped_early", "finished"].map(|kind| place.events(run, kind));
        events.concat().iter().map(|event| (event["event"].clone(), event["step"].clone())).collect()
    };
    assert_eq!(ends("whole"), [("stopped_early".into(), 4.into()), ("finished".into(), 4.into())]);
    assert_eq!(place.checkpoints("whole"), [1, 2, 3, 4]);
    for step in [1, 3] {
        let name = format!("again-{step}");
        place.copy("whole", &name);
        place.run(&["resume", &name, "--step", &step.to_string()]).succeeded();
        assert_eq!(
            place.lines_without_times(&format!("{name}/metrics.jsonl")),
            place.lines_without_times("whole/metrics.jsonl"),
            "from {step}"
        );
        assert_eq!(ends(&name)[1], ends("whole")[0], "from {step}");
        let state = |run: &str| fs::read_to_string(place.path(run).join("checkpoint-4/trainer/trainer_state.json")).unwrap();
        assert_eq!(state(&name).replace(&name, "whole"), state("whole"));
    }
    // One that has stopped stays stopped, and goes on with more patience.
    place.run(&["resume", "whole"]).succeeded();
    assert_eq!(place.checkpoints("whole"), [1, 2, 3, 4]);
    let more = ["--early-stopping-patience", "9", "--resume-from-checkpoint", "whole"];
    place.run(&[&arguments("whole")[..], &early, &patience[2..], &more].concat()).succeeded();
    assert_eq!(place.checkpoints("whole"), [1, 2, 3, 4, 5, 6]);
    for (wrong, named) in [(&early[2..], "set eval_dataset"), (&early[..4], "metric_for_best_model")] {
        let said = place.run(&[&arguments("wrong")[..], wrong, &patience[..2]].concat());
        assert!(said.code == Some(2) && said.error().contains(named), "{}", said.stderr);
    }
    let of_training = [&arguments("grad")[..], &early[..4], &patience[..2], &["--metric-for-best-model", "grad_norm"]].concat();
    assert!(place.run(&of_training).error().contains("eval_grad_norm"));
}

#[test]
fn a_last_batch_that_is_not_full_is_left_out_of_evaluations_too_where_that_is_asked_for() {
    let place = TestFolder::new();
    let row = |i: usize| format!("{{\"prompt\": \"prompt {i}\", \"completion\": \" {}\"}}\n", "ab".repeat(i % 4 + 1));
    let rows = |range: std::ops::Range<usize>| range.map(row).collect::<String>();
    place.write("rows.jsonl", rows(0..8));
    place.write("ten.jsonl", rows(8..18));
    place.write("eight.jsonl", rows(8..16));
    let loss = |run: &str, dataset: &str, more: &[&str]| {
        let mut all = vec!["sft", "--model", tiny(), "--dataset", "rows.jsonl", "--eval-dataset", dataset, "--output-dir", run];
        all.extend(["--max-steps", "1", "--per-device-train-batch-size", "4", "--eval-strategy", "steps"]);
        place.run(&[&all[..], more].concat()).succeeded();
        place.lines(&format!("{run}/metrics.jsonl")).iter().find_map(|line| line["eval_loss"].as_f64()).unwrap()
    };
    let eight = loss("eight", "eight.jsonl", &[]);
    assert_eq!(loss("left-out", "ten.jsonl", &["--dataloader-drop-last", "true"]), eight);
    assert_ne!(loss("all", "ten.jsonl", &[]), eight);
    // If none is full, nothing would be left.
    place.write("three.jsonl", rows(8..11));
    let three = loss("three", "three.jsonl", &[]);
    assert_eq!(loss("only", "three.jsonl", &["--dataloader-drop-last", "true"]), three);
    let packs = ["--eval-packing", "true", "--max-length", "64", "--dataloader-drop-last", "true"];
    // Ten rows are fewer packs than a batch, so they stay.
    assert_eq!(loss("packs", "ten.jsonl", &packs), loss("all-packs", "ten.jsonl", &packs[..4]));
}

#[test]
fn mismatched_completions_of_an_evaluation_are_the_same_whichever_batches_it_leaves_out() {
    let place = TestFolder::new();
    let row = |i: usize| {
        let (more, good) = ("ab".repeat(i % 4 + 1), !i.is_multiple_of(3));
        format!("{{\"prompt\": \"prompt {i}\", \"completion\": \" {more}\", \"label\": {good}}}\n")
    };
    place.write("rows.jsonl", (0..8).map(row).collect::<String>());
    place.write("ten.jsonl", (8..18).map(row).collect::<String>());
    let figures = |run: &str, more: &[&str]| {
        let mut all =
            vec!["kto", "--model", tiny(), "--dataset", "rows.jsonl", "--eval-dataset", "ten.jsonl", "--output-dir", run];
        all.extend(["--max-steps", "2", "--per-device-train-batch-size", "4", "--per-device-eval-batch-size", "3"]);
        all.extend(["--dataloader-drop-last", "true", "--learning-rate", "0.001", "--eval-on-start"]);
        place.run(&[&all[..], more].concat()).succeeded();
        let lines = place.lines_without_times(&format!("{run}/metrics.jsonl"));
        lines.into_iter().filter(is_evaluation).collect::<Vec<Value>>()
    };
    let plain = figures("plain", &[]);
    assert_eq!(plain.len(), 2);
    assert_eq!(figures("precomputed", &["--precompute-ref-log-probs", "true"]), plain);
}
