//! Every algorithm through the binary: the same run however a step is cut up, however it is
//! interrupted, and learning what it should.

use rlhost_tests::{CommandOutcome, STORIES, TestFolder, assert_near, tiny};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;

/// Those that learn from their own completions, with what they need beside their defaults.
const ONLINE: [(&str, &[&str]); 5] =
    [("grpo", &["--beta", "0.1", "--epsilon", "0.1"]), ("rloo", &[]), ("ppo", &[]), ("reinforce_pp", &[]), ("online_dpo", &[])];

/// Those that learn from given pairs, or from given answers.
const OFFLINE: [(&str, &[&str]); 9] = [
    ("sft", &["--learn-from", "dataset", "--dataset", "answers.jsonl"]),
    ("sft", &["--learn-from", "dataset", "--dataset", "answers.jsonl", "--loss-type", "dft"]),
    ("dpo", &[]),
    ("dpo", &["--loss-type", "ipo"]),
    ("dpo", &["--loss-type", "sft"]),
    ("cpo", &["--loss-type", "sigmoid"]),
    ("cpo", &["--loss-type", "simpo"]),
    ("orpo", &[]),
    ("kto", &["--loss-type", "apo_zero_unpaired"]),
];

fn run(place: &TestFolder, name: &str, algorithm: &str, online: bool, more: &[&str]) -> CommandOutcome {
    run_by_default(place, name, algorithm, online, &[&["--learning-rate", "0.002"], more].concat())
}

/// Runs an algorithm at its own learning rate.
fn run_by_default(place: &TestFolder, name: &str, algorithm: &str, online: bool, more: &[&str]) -> CommandOutcome {
    let mut arguments = vec!["--model", tiny(), "--algorithm", algorithm, "--output-dir", name, "--logging-steps", "1"];
    if online {
        arguments.extend(["--plugin", "tldr_length_reward.wasm", "--max-completion-length", "12", "--num-generations", "2"]);
        arguments.extend(["--dataset", STORIES]);
    } else {
        arguments.extend(["--dataset", "pairs.jsonl"]);
    }
    arguments.extend(more);
    place.run(&arguments)
}

/// What the binary prints.
fn printed(arguments: &[&str]) -> String {
    let outcome = TestFolder::new().run(arguments);
    outcome.succeeded();
    outcome.stdout.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn help_and_guide_name_the_learning_rates_that_the_algorithms_have() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let plugins = fs::read_dir(root.join("plugins")).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    let others = plugins.filter(|name| !name.ends_with("_reward") && !name.contains('.'));
    // An environment has none.
    let rate = |name: String| {
        let about = printed(&["plugin", "inspect", &format!("{name}.wasm")]);
        let rate = about.split("rate: ").nth(1)?.split(',').next()?.to_owned();
        Some((name, rate))
    };
    let all: Vec<(String, String)> = others.filter_map(rate).collect();
    assert!(all.len() >= 11 && all.contains(&("grpo".to_owned(), "1e-6".to_owned())), "{all:?}");
    let special: Vec<_> = all.iter().filter(|(_, rate)| rate != "1e-6").collect();

    let help = printed(&["train", "--help"]);
    let said = help.split("Peak learning rate [default: ").nth(1).and_then(|rest| rest.split(']').next()).unwrap();
    let guide = fs::read_to_string(root.join("host/docs/algorithms.md")).unwrap();
    let section = guide.split("## Learning rates").nth(1).unwrap();
    let table = section.split("\n\n").find(|part| part.starts_with("| algorithm")).unwrap();
    let table: Vec<&str> = table.lines().filter(|line| line.starts_with("| ")).collect();
    for (name, rate) in &special {
        assert!(said.contains(&format!("{rate} for {name}")), "{name} has {rate}: {said}");
        assert!(table.contains(&format!("| `{name}` | {rate} |").as_str()), "{name} has {rate}: {table:?}");
    }
    assert!(said.contains("1e-6 for the other algorithms") && table.contains(&"| all others | 1e-6 |"), "{said} {table:?}");
    assert_eq!((table.len(), said.matches("e-").count()), (special.len() + 2, special.len() + 1), "{said} {table:?}");
    let (_, sft) = all.iter().find(|(name, _)| name == "sft").unwrap();
    assert!(printed(&["sft", "--help"]).contains(&format!("The default learning rate is {sft},")));
}

#[test]
fn a_run_without_a_learning_rate_takes_its_algorithms() {
    let place = TestFolder::with_answers();
    let rate = |algorithm: &str, online: bool, more: &[&str]| {
        let size = ["--max-steps", "1", "--per-device-train-batch-size", "2"];
        run_by_default(&place, algorithm, algorithm, online, &[&size[..], more].concat()).succeeded();
        let settings = fs::read_to_string(place.path(algorithm).join("config.toml")).unwrap();
        let line = settings.lines().find_map(|line| line.strip_prefix("learning_rate = ")).unwrap();
        line.parse::<f64>().unwrap()
    };
    let near = |rate: f64, other: f64, times: f64| {
        // A critic's head is a few parameters more.
        assert!((rate / other / times - 1.0).abs() < 0.01, "{rate} is not {times} times {other}");
    };
    let (dpo, grpo) = (rate("dpo", false, &[]), rate("grpo", true, &[]));
    near(grpo, dpo * dpo / 1e-6, 1.0);
    near(rate("sft", false, &["--learn-from", "dataset", "--dataset", "answers.jsonl"]), dpo, 20.0);
    near(rate("online_dpo", true, &[]), dpo, 0.5);
    near(rate("ppo", true, &[]), grpo, 3.0);
}

#[test]
fn a_step_is_the_same_however_it_is_cut_into_micro_batches() {
    let place = TestFolder::with_answers();
    let all = ONLINE.iter().map(|a| (a, true)).chain(OFFLINE.iter().map(|a| (a, false)));
    for (i, ((algorithm, more), online)) in all.enumerate() {
        let mut wanted: Option<Vec<Vec<(String, f64)>>> = None;
        for (size, accumulation) in [("8", "1"), ("4", "2"), ("2", "4"), ("1", "8")] {
            let name = format!("{i}-{size}");
            let cut = ["--per-device-train-batch-size", size, "--gradient-accumulation-steps", accumulation, "--max-steps", "3"];
            // A rate at which rounding does not grow from step to step.
            let slow = ["--learning-rate", "0.0003"];
            run(&place, &name, algorithm, online, &[more, &cut[..], &slow].concat()).succeeded();
            let got = place.figures(&name);
            let want = wanted.get_or_insert_with(|| got.clone());
            assert_near(&got, want, &format!("{algorithm} {more:?}, {size} x {accumulation}"));
        }
    }
}

#[test]
fn a_step_is_the_same_parted_by_tokens_and_its_layers_run_again_change_no_bit() {
    let place = TestFolder::with_answers();
    let all = ONLINE.iter().map(|a| (a, true)).chain(OFFLINE.iter().map(|a| (a, false)));
    for (i, ((algorithm, more), online)) in all.enumerate() {
        let go = |name: &str, given: &[&str]| {
            let mut arguments = vec!["--max-steps", "3", "--learning-rate", "0.0003"];
            arguments.extend(["--per-device-train-batch-size", "4", "--gradient-accumulation-steps", "2"]);
            if !online {
                arguments.extend(["--eval-dataset", if *algorithm == "sft" { "answers.jsonl" } else { "pairs.jsonl" }]);
            }
            run(&place, name, algorithm, online, &[more, &arguments[..], given].concat()).succeeded();
            place.figures(name)
        };
        let want = go(&format!("{i}"), &[]);
        for most in ["1", "60", "100000"] {
            let got = go(&format!("{i}-{most}"), &["--max-tokens-per-microbatch", most]);
            assert_near(&got, &want, &format!("{algorithm} {more:?} by {most} tokens"));
        }
        assert_eq!(go(&format!("{i}-again"), &["--gradient-checkpointing"]), want, "{algorithm} {more:?}");
    }
}

#[test]
fn a_loss_that_compares_the_rows_of_a_micro_batch_is_not_parted_by_tokens() {
    let place = TestFolder::with_answers();
    let parted = ["--max-tokens-per-microbatch", "100", "--max-steps", "1"];
    for (algorithm, online, more) in [("dpo", false, ["--loss-type", "aot"]), ("grpo", true, ["--top-entropy-quantile", "0.5"])] {
        let refused = run(&place, "refused", algorithm, online, &[&parted[..], &more].concat());
        assert!(refused.code == Some(2) && refused.error().contains("max_tokens_per_microbatch"), "{}", refused.stderr);
        run(&place, algorithm, algorithm, online, &[&more[..], &parted[2..]].concat()).succeeded();
    }
}

/// Six steps that leave a checkpoint each.
const SEVERAL: [&str; 6] = ["--max-steps", "6", "--save-steps", "1", "--per-device-train-batch-size", "4"];

/// A generation serves two steps, twice, so that what it holds waits in checkpoints.
const ROUNDS: [&str; 4] = ["--steps-per-generation", "2", "--num-iterations", "2"];

/// Resumes copies of a run of [`SEVERAL`] steps from each, and compares their ends with its own.
fn resumes_to_the_bit(place: &TestFolder, whole: &str, further: Option<&str>) {
    for step in 1..6 {
        let name = format!("{whole}-{step}");
        place.copy(whole, &name);
        place.run(&["resume", &name, "--step", &step.to_string()]).succeeded();
        let mut files = vec!["model.safetensors", "trainer/optimizer.safetensors"];
        files.extend(further);
        for file in files {
            let bytes = |run: &str| fs::read(place.path(run).join("checkpoint-6").join(file)).unwrap();
            assert!(bytes(&name) == bytes(whole), "{name}: {file} differs");
        }
        assert_eq!(place.figures(&name), place.figures(whole), "{name}");
    }
}

#[test]
fn a_run_with_a_critic_or_with_pairs_resumes_to_the_bit() {
    let place = TestFolder::with_answers();
    let shared = &["--value-model", "shared", "--critic-learning-rate", "0.01"][..];
    for (whole, algorithm, own, file) in [
        ("ppo", "ppo", &[][..], Some("trainer/value_model/model.safetensors")),
        ("shared", "ppo", shared, Some("trainer/critic.safetensors")),
        ("online_dpo", "online_dpo", &[], None),
        ("dpo", "dpo", &[], None),
    ] {
        let online = algorithm != "dpo";
        let more = if online { [&SEVERAL[..], &ROUNDS, own].concat() } else { SEVERAL.to_vec() };
        run(&place, whole, algorithm, online, &more).succeeded();
        resumes_to_the_bit(&place, whole, file);
    }
}

#[test]
fn settings_of_ppo_from_other_programs_change_a_run_and_resume_to_the_bit() {
    let place = TestFolder::with_answers();
    let start =
        |name: &str, own: &[&str]| run(&place, name, "ppo", true, &[&SEVERAL[..], &ROUNDS, own].concat()).succeeded().code;
    start("plain", &[]);
    let weights = |run: &str| fs::read(place.path(run).join("checkpoint-6/model.safetensors")).unwrap();
    for (name, own, metric) in [
        ("dual", &["--clip-ratio-c", "1.001"][..], "policy/clipfrac_lower_avg"),
        ("entropy", &["--entropy-coef", "0.5"], "policy/entropy_avg"),
        ("normalized", &["--normalize-reward"], "objective/score_std"),
    ] {
        start(name, own);
        assert!(weights(name) != weights("plain"), "{name} changes nothing");
        let lines = place.lines(&format!("{name}/metrics.jsonl"));
        assert!(lines.iter().filter_map(|line| line[metric].as_f64()).any(|value| value > 0.0), "{name}: {lines:?}");
        resumes_to_the_bit(&place, name, Some("trainer/value_model/model.safetensors"));
    }
    // Of the scores of all generations: there are two of eight completions.
    let state = |step: u64| -> Value {
        let file = place.path("normalized").join(format!("checkpoint-{step}/trainer/plugins/ppo.state"));
        serde_json::from_slice(&fs::read(file).unwrap()).unwrap()
    };
    assert_eq!([1, 4, 5].map(|step| state(step)["scores"]["count"].as_f64()), [Some(8.0), Some(8.0), Some(16.0)]);
}

#[test]
fn a_run_with_weighted_pairs_resumes_to_the_bit() {
    let place = TestFolder::with_answers();
    run(&place, "plain", "dpo", false, &SEVERAL).succeeded();
    run(&place, "weighted", "dpo", false, &[&SEVERAL[..], &["--use-weighting"]].concat()).succeeded();
    assert_ne!(place.figure("weighted", "loss"), place.figure("plain", "loss"));
    resumes_to_the_bit(&place, "weighted", None);
}

#[test]
fn a_batch_of_online_dpo_counts_prompts_and_one_of_grpo_completions() {
    let place = TestFolder::new();
    let size = ["--max-steps", "2", "--per-device-train-batch-size", "4", "--gradient-accumulation-steps", "2"];
    for (algorithm, prompts) in [("grpo", 4), ("online_dpo", 8)] {
        run(&place, algorithm, algorithm, true, &[&size[..], &["--log-completions", "all"]].concat()).succeeded();
        let written = place.lines(&format!("{algorithm}/completions.jsonl"));
        let (step, other): (Vec<_>, Vec<_>) = written.iter().partition(|line| line["step"] == written[0]["step"]);
        let asked: BTreeSet<String> = step.iter().map(|line| line["prompt"].to_string()).collect();
        assert_eq!((asked.len(), step.len(), other.len()), (prompts, 2 * prompts, 2 * prompts), "{algorithm}");
    }
    // A number of completions that no number of pairs makes is refused only where completions are counted.
    let odd = ["--max-steps", "1", "--per-device-train-batch-size", "3"];
    run(&place, "pairs", "online_dpo", true, &odd).succeeded();
    assert_eq!(run(&place, "single", "grpo", true, &odd).code, Some(2));
}

/// As TRL's trainer, which takes a plain dataset.
#[test]
fn an_epoch_of_online_dpo_ends_with_what_is_left_of_it() {
    let place = TestFolder::new();
    place.write("nine.jsonl", (0..9).map(|i| format!("{{\"prompt\": \"{i}, once\"}}\n")).collect::<String>());
    let train = |name: &str, generation: &str, epochs: &str, more: &[&str]| {
        let base = ["--dataset", "nine.jsonl", "--log-completions", "all", "--per-device-train-batch-size", "2"];
        let size = ["--steps-per-generation", generation, "--num-train-epochs", epochs, "--save-steps", "1"];
        run(&place, name, "online_dpo", true, &[&base[..], &size, more].concat())
    };
    // Generations for 6 and 3 prompts: three updates on two prompts each, then one on two and one on one.
    train("run", "3", "2", &["--save-total-limit", "10"]).succeeded();
    let mut asked = std::collections::BTreeMap::<String, usize>::new();
    place.lines("run/completions.jsonl").iter().for_each(|line| *asked.entry(line["prompt"].to_string()).or_default() += 1);
    assert!(asked.len() == 9 && asked.values().all(|times| *times == 4), "{asked:?}");
    let epochs = place.figure("run", "epoch");
    assert!(epochs.len() == 10 && (epochs[4], epochs[9]) == (1.0, 2.0), "{epochs:?}");
    for step in ["3", "4", "5"] {
        let name = format!("from-{step}");
        place.copy("run", &name);
        place.run(&["resume", &name, "--step", step]).succeeded();
        assert_eq!(
            place.lines_without_times("run/metrics.jsonl"),
            place.lines_without_times(&format!("{name}/metrics.jsonl")),
            "{step}"
        );
    }
    // An update takes the rest, however few there are.
    train("accumulated", "2", "1", &["--gradient-accumulation-steps", "2"]).succeeded();
    assert_eq!(place.figure("accumulated", "epoch"), [4.0 / 5.0 / 2.0, 4.0 / 5.0, 1.0]);
    train("all", "16", "1", &["--gradient-accumulation-steps", "16"]).succeeded();
    assert_eq!(place.figure("all", "loss").len(), 1);
    train("dropped", "3", "1", &["--dataloader-drop-last"]).succeeded();
    assert_eq!(place.figure("dropped", "loss").len(), 3);
}

#[test]
fn dpo_begins_at_ln_2_and_learns_the_pairs() {
    let place = TestFolder::with_answers();
    run(&place, "dpo", "dpo", false, &["--max-steps", "24", "--learning-rate", "0.001", "--lr-scheduler-type", "constant"])
        .succeeded();
    let (loss, accuracy) = (place.figure("dpo", "loss"), place.figure("dpo", "rewards/accuracies"));
    assert!((loss[0] - std::f64::consts::LN_2).abs() < 1e-6, "{loss:?}");
    // Nothing is better than the reference yet.
    assert_eq!((accuracy[0], place.figure("dpo", "rewards/margins")[0]), (0.0, 0.0));
    assert!(loss[23] < 0.3 && accuracy[23] == 1.0, "{loss:?} {accuracy:?}");
}

#[test]
fn fine_tuning_learns_its_answers_and_begins_where_the_model_knows_nothing() {
    let place = TestFolder::with_answers();
    let long = ["--max-steps", "40", "--learning-rate", "0.01", "--logging-steps", "1", "--output-dir", "run"];
    place.run(&[&["sft", "--model", tiny(), "--dataset", "answers.jsonl"], &long[..]].concat()).succeeded();
    let loss = place.figure("run", "loss");
    // A random model gives each of its 256 tokens about the same probability.
    assert!((loss[0] - 256f64.ln()).abs() < 0.2, "{loss:?}");
    assert!(loss[39] < 1.0, "{loss:?}");
    let wrong = place.run(&["sft", "--model", tiny(), "--dataset", "pairs.jsonl"]);
    assert_eq!(wrong.code, Some(2));
    assert!(wrong.error().contains("pairs.jsonl:1") && wrong.error().contains("prompt, chosen, rejected"), "{}", wrong.error());
}

#[test]
fn cpo_changes_every_parameter() {
    let place = TestFolder::with_answers();
    run(&place, "cpo", "cpo", false, &["--max-steps", "1"]).succeeded();
    let (before, after) =
        (place.tensors(&format!("{}/model.safetensors", tiny())), place.tensors("cpo/checkpoint-1/model.safetensors"));
    assert!(before.len() > 10);
    for (name, before) in before {
        assert!(before != after[&name], "{name} has not changed");
    }
}

#[test]
fn ppo_learns_a_length_and_its_critic_what_it_is_worth() {
    let place = TestFolder::new();
    let more = ["--max-steps", "60", "--per-device-train-batch-size", "16", "--learning-rate", "0.02"];
    let short = ["--max-completion-length", "24", "--set", "plugin.tldr_length_reward.config.target=4"];
    run(&place, "ppo", "ppo", true, &[&more[..], &short].concat()).succeeded();
    let (reward, critic) = (place.figure("ppo", "objective/scores"), place.figure("ppo", "loss/value_avg"));
    let mean = |all: &[f64]| all.iter().sum::<f64>() / all.len() as f64;
    assert!(mean(&reward[50..]) > mean(&reward[..10]) + 1.0, "{reward:?}");
    assert!(mean(&critic[50..]) < mean(&critic[..10]), "{critic:?}");
}

#[test]
fn ppo_logs_its_episodes_as_trl_does() {
    let place = TestFolder::new();
    let size = ["--max-steps", "3", "--save-steps", "2", "--per-device-train-batch-size", "4"];
    run(&place, "ppo", "ppo", true, &[&size[..], &["--eval-dataset", STORIES]].concat()).succeeded();
    let steps = || -> Vec<serde_json::Value> {
        place.lines("ppo/metrics.jsonl").into_iter().filter(|line| line.get("eval_loss").is_none()).collect()
    };
    let figure = |name: &str| -> Vec<f64> { steps().iter().map(|line| line[name].as_f64().unwrap()).collect() };
    // An evaluation's completions are none of training's.
    assert_eq!(figure("episode"), [4.0, 8.0, 12.0]);
    assert_eq!(figure("lr"), figure("learning_rate"));
    let (rates, times) = (figure("eps"), figure("time"));
    assert_eq!(rates[2], (12.0 / times[2]).floor(), "{rates:?} {times:?}");
    place.run(&["resume", "ppo", "--step", "2"]).succeeded();
    assert_eq!(figure("episode"), [4.0, 8.0, 12.0]);

    run(&place, "grpo", "grpo", true, &size).succeeded();
    assert!(place.lines("grpo/metrics.jsonl").iter().all(|line| line.get("lr").is_none() && line.get("eps").is_none()));
}

#[test]
fn algorithms_that_compare_no_completions_learn_from_one_of_each_prompt() {
    let place = TestFolder::new();
    let size = ["--max-steps", "40", "--per-device-train-batch-size", "16", "--learning-rate", "0.02"];
    let one = [
        "--num-generations",
        "1",
        "--log-completions",
        "all",
        "--max-completion-length",
        "24",
        "--set",
        "plugin.tldr_length_reward.config.target=4",
    ];
    for algorithm in ["ppo", "reinforce_pp"] {
        run(&place, algorithm, algorithm, true, &[&size[..], &one].concat()).succeeded();
        let reward = place.figure(algorithm, "reward");
        let mean = |all: &[f64]| all.iter().sum::<f64>() / all.len() as f64;
        assert!(mean(&reward[30..]) > mean(&reward[..10]) + 1.0, "{algorithm}: {reward:?}");
        let written = place.lines(&format!("{algorithm}/completions.jsonl"));
        let prompts: BTreeSet<String> = written[..16].iter().map(|line| line["prompt"].to_string()).collect();
        assert_eq!(prompts.len(), 16, "{algorithm}");
    }
}

#[test]
fn a_reward_is_refused_where_nothing_is_scored_and_stays_behind_in_a_fork() {
    let place = TestFolder::with_answers();
    let reward = ["--plugin", "tldr_length_reward.wasm"];
    for (algorithm, more, given) in [
        ("dpo", &[][..], "pairs"),
        ("sft", &["--learn-from", "dataset", "--dataset", "answers.jsonl"], "completions"),
        ("grpo", &["--learn-from", "dataset", "--dataset", "answers.jsonl"], "completions"),
    ] {
        let refused = run(&place, "refused", algorithm, false, &[more, &reward].concat());
        let said = format!("plugin: {algorithm} learns from the dataset's {given} and has nothing scored");
        assert!(refused.code == Some(2) && refused.error().contains(&said), "{}", refused.stderr);
        assert!(refused.error().ends_with("leave out tldr_length_reward.wasm") && !place.path("refused").exists());
    }
    run(&place, "grpo", "grpo", true, &["--max-steps", "1"]).succeeded();
    let fork = ["--resume-from-checkpoint", "grpo", "--algorithm", "dpo", "--dataset", "pairs.jsonl", "--max-steps", "2"];
    let forked = place.run(&[&fork[..], &["--output-dir", "fork"]].concat());
    forked.succeeded();
    assert_eq!(forked.stderr.matches("rewards of the run that this one forks from stay behind").count(), 1, "{}", forked.stderr);
    let refused = place.run(&[&fork[..], &reward, &["--output-dir", "refused"]].concat());
    assert!(refused.code == Some(2) && refused.error().contains("has nothing scored"), "{}", refused.stderr);
}

#[test]
fn mistakes_in_pairs_are_named() {
    let place = TestFolder::with_answers();
    place.write(
        "half.jsonl",
        "{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": \"c\"}\n{\"prompt\": \"a\", \"chosen\": \"b\"}\n",
    );
    place.write("mixed.json", "[{\"chosen\": \"b\", \"rejected\": [{\"role\": \"user\", \"content\": \"x\"}]}]");
    let say = |arguments: &[&str]| {
        let outcome = place.run(&[&["--model", tiny(), "--algorithm", "dpo", "--output-dir", "run"], arguments].concat());
        assert_eq!(outcome.code, Some(2), "{}", outcome.stderr);
        assert!(!place.path("run").exists());
        outcome.error().to_owned()
    };
    assert!(say(&[]).contains("chosen"));
    let half = say(&["--dataset", "half.jsonl", "--strict-data"]);
    assert!(half.contains("half.jsonl:2") && half.contains("rejected") && half.contains("prompt, chosen"), "{half}");
    assert!(say(&["--dataset", "mixed.json"]).contains("must be both strings"));
    let long = say(&["--dataset", "pairs.jsonl", "--max-length", "2"]);
    assert!(long.contains("(max_length); a larger --max-length makes room"), "{long}");
    assert!(say(&["--dataset", "pairs.jsonl", "--loss-type", "sigmoyd"]).contains("loss_type"));
}

#[test]
fn a_divergence_in_the_figures_is_none_while_nothing_is_learned_whatever_the_temperature() {
    let place = TestFolder::new();
    let still = ["--temperature", "0.6", "--learning-rate", "1e-12", "--max-steps", "3"];
    for (algorithm, more) in [("online_dpo", &[][..]), ("rloo", &["--beta", "0.1"]), ("grpo", &["--beta", "0.1"])] {
        run(&place, algorithm, algorithm, true, &[&still[..], more].concat()).succeeded();
        let figure = if algorithm == "online_dpo" { "objective/kl" } else { "kl" };
        for kl in place.figure(algorithm, figure) {
            assert!(kl.abs() < 1e-4, "{algorithm}: {kl}");
        }
    }
}
