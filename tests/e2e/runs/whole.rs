//! Whole runs through the binary, most of them on a tiny model.

#![allow(clippy::print_stdout)]

use rlhost_tests::{TestFolder, tiny};
use serde_json::{Value, json};

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

#[test]
fn a_length_reward_moves_the_mean_length_to_its_target() {
    let place = TestFolder::new();
    let target = ["--set", "plugin.tldr_length_reward.config.target=6", "--max-steps", "150", "--max-completion-length", "48"];
    place.train("run", &target).succeeded();
    let lengths = place.figure("run", "completions/mean_length");
    let (first, last) = (mean(&lengths[..5]), mean(&lengths[135..]));
    assert!(first > 25.0 && (last - 6.0).abs() < 3.0, "from {first} to {last}");
}

#[test]
fn a_run_leaves_its_files_and_every_figure() {
    let place = TestFolder::new();
    let more = ["--max-steps", "5", "--save-steps", "2", "--beta", "0.1", "--log-completions", "all", "--logging-steps", "2"];
    place.train("run", &more).succeeded();
    let steps: Vec<u64> = place.lines("run/metrics.jsonl").iter().map(|l| l["step"].as_u64().unwrap()).collect();
    assert_eq!(steps, [2, 4, 5]);
    for figure in [
        "epoch",
        "loss",
        "grad_norm",
        "learning_rate",
        "reward",
        "reward_std",
        "frac_reward_zero_std",
        "kl",
        "entropy",
        "num_tokens",
        "step_time",
        "rewards/tldr_length_reward/mean",
        "rewards/tldr_length_reward/std",
        "completions/mean_length",
        "completions/min_length",
        "completions/max_length",
        "completions/clipped_ratio",
        "clip_ratio/low_mean",
        "clip_ratio/low_min",
        "clip_ratio/high_mean",
        "clip_ratio/high_max",
        "clip_ratio/region_mean",
    ] {
        assert_eq!(place.figure("run", figure).len(), 3, "{figure}");
    }
    let saved: Vec<u64> = place
        .lines("run/events.jsonl")
        .iter()
        .filter(|e| e["event"] == "checkpoint_saved")
        .map(|e| e["step"].as_u64().unwrap())
        .collect();
    assert_eq!(saved, [2, 4, 5], "one checkpoint each save_steps and one at the end");
    for file in ["config.json", "model.safetensors", "tokenizer.json", "trainer/trainer_state.json"] {
        assert!(place.path("run/checkpoint-5").join(file).exists(), "{file}");
    }
    let loaded: Vec<Value> = place.lines("run/events.jsonl").into_iter().filter(|e| e["event"] == "plugin_loaded").collect();
    assert_eq!(loaded.len(), 2);
    for event in loaded {
        let (name, hash) = (event["plugin"].as_str().unwrap(), event["hash"].as_str().unwrap());
        assert!(place.path(&format!("run/plugins/{name}-{}.wasm", &hash[..16])).exists());
    }
    let completions = place.lines("run/completions.jsonl");
    assert_eq!(completions.len(), 5 * 8);
    for line in &completions {
        let tokens = line["completion_ids"].as_array().unwrap().len() as f64;
        assert_eq!(line["rewards"]["tldr_length_reward"].as_f64().unwrap(), -(tokens - 20.0).abs());
    }
    place.run(&["--config", "run/config.toml", "--output-dir", "again", "--max-steps", "1"]).succeeded();
    place.run(&["generate", "--model", "run/checkpoint-5", "--prompt", "Once"]).succeeded();
}

#[test]
fn the_same_seed_gives_the_same_run_to_the_bit_and_another_does_not() {
    let place = TestFolder::new();
    let more = ["--max-steps", "4", "--beta", "0.1", "--num-iterations", "2"];
    place.train("a", &more).succeeded();
    place.train("b", &more).succeeded();
    place.train("c", &[&more[..], &["--seed", "7"]].concat()).succeeded();
    let weights = |run: &str| std::fs::read(place.path(run).join("checkpoint-4/model.safetensors")).unwrap();
    assert_eq!(place.lines_without_times("a/metrics.jsonl"), place.lines_without_times("b/metrics.jsonl"));
    assert_eq!(weights("a"), weights("b"));
    assert_ne!(weights("a"), weights("c"));
}

#[test]
fn accumulation_changes_no_figure() {
    for loss_type in ["grpo", "bnpo", "dr_grpo", "dapo"] {
        let place = TestFolder::new();
        // In 4 x 4 each prompt's group is split over two micro-batches.
        for (run, batch, accumulation) in [("one", "16", "1"), ("two", "8", "2"), ("four", "4", "4")] {
            let size = ["--per-device-train-batch-size", batch, "--gradient-accumulation-steps", accumulation];
            let rest = ["--max-steps", "2", "--beta", "0.2", "--loss-type", loss_type, "--learning-rate", "1e-3"];
            place.train(run, &[&size[..], &rest[..]].concat()).succeeded();
        }
        let whole = place.lines_without_times("one/metrics.jsonl");
        for run in ["two", "four"] {
            for (a, b) in whole.iter().zip(place.lines_without_times(&format!("{run}/metrics.jsonl"))) {
                assert_eq!(b["versions"], a["versions"]);
                for (name, want) in a.as_object().unwrap().iter().filter(|(name, _)| *name != "versions") {
                    let (got, want) = (b[name].as_f64().unwrap(), want.as_f64().unwrap());
                    assert!(
                        (got - want).abs() <= 1e-5 * want.abs().max(1.0),
                        "{loss_type}, {run}: {name} is {got}, whole {want}"
                    );
                }
            }
        }
    }
}

#[test]
fn several_updates_a_generation_reuse_it_and_count_one_step_each() {
    let place = TestFolder::new();
    let more = ["--max-steps", "8", "--steps-per-generation", "4", "--num-iterations", "2", "--gradient-accumulation-steps", "2"];
    place.train("run", &[&more[..], &["--log-completions", "all", "--learning-rate", "0.003"]].concat()).succeeded();
    let generated: Vec<u64> = place.lines("run/completions.jsonl").iter().map(|l| l["step"].as_u64().unwrap()).collect();
    // Four micro-batches of eight, twice over, are four steps of two.
    assert_eq!(generated, [vec![0; 32], vec![4; 32]].concat());
    assert_eq!(place.figure("run", "step"), (1..=8).map(f64::from).collect::<Vec<_>>());
    let clipped: f64 = place.figure("run", "clip_ratio/region_mean").iter().sum();
    assert!(clipped > 0.0, "later updates leave the old policy");
    let first = place.lines("run/metrics.jsonl")[0]["clip_ratio/region_mean"].as_f64();
    assert_eq!(first, Some(0.0), "the first update's ratios are one");
}

#[test]
fn truncated_completions_can_be_left_out_of_the_loss() {
    let place = TestFolder::new();
    // Two tokens are hardly ever enough for the random model to end.
    let more = ["--max-completion-length", "2", "--max-steps", "1", "--mask-truncated-completions", "true"];
    place.train("run", &more).succeeded();
    assert_eq!(place.figure("run", "completions/clipped_ratio"), [1.0]);
    assert_eq!((place.figure("run", "loss"), place.figure("run", "grad_norm")), (vec![0.0], vec![0.0]));
    let weights = |path: &str| std::fs::read(place.path(path).join("model.safetensors")).unwrap();
    assert_eq!(weights(tiny()), weights("run/checkpoint-1"), "nothing counted, nothing moved");
}

#[test]
fn a_stop_string_ends_a_completion_and_counts_as_finished() {
    let place = TestFolder::new();
    // Each byte is a token of this model: most completions of 64 meet one of these.
    let stops = ["--stop", "e", "--stop", "a", "--stop", "-", "--stop", "\u{7f}"];
    place
        .train("run", &[&["--max-steps", "1", "--max-completion-length", "400", "--log-completions", "all"], &stops[..]].concat())
        .succeeded();
    let lines = place.lines("run/completions.jsonl");
    let stopped =
        lines.iter().filter(|l| l["completion"].as_str().unwrap().ends_with(['e', 'a', '-', '\u{7f}'])).collect::<Vec<_>>();
    assert!(!stopped.is_empty());
    assert!(stopped.iter().all(|l| l["finished"] == true));
    for line in &lines {
        let text = line["completion"].as_str().unwrap();
        let early = text.char_indices().rev().skip(1).any(|(_, c)| ['e', 'a', '-', '\u{7f}'].contains(&c));
        assert!(!early, "goes on after a stop string: {text:?}");
    }
}

#[test]
fn results_do_not_depend_on_how_many_sequences_run_side_by_side() {
    let place = TestFolder::new();
    let more = ["--max-steps", "1", "--per-device-train-batch-size", "16", "--log-completions", "all"];
    place.train("many", &more).succeeded();
    place.train("few", &[&more[..], &["--max-num-seqs", "3"]].concat()).succeeded();
    let ids = |run: &str| {
        place.lines(&format!("{run}/completions.jsonl")).into_iter().map(|l| l["completion_ids"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(ids("many"), ids("few"));
}

#[test]
fn a_known_text_is_decoded_greedily() {
    let model = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/data/models/stories260K");
    if !model.exists() {
        println!("skipped: {} is not there", model.display());
        return;
    }
    let outcome =
        TestFolder::new().run(&["generate", "--model", &model.display().to_string(), "--prompt", "Zoo", "--temperature", "0"]);
    let known = "Zoo was a little girl named Lily. She loved to play outside in the park. One day, she saw a big, red ball. She wanted to play with it, but she didn't want to play with";
    assert!(outcome.succeeded().stdout.starts_with(known), "{}", outcome.stdout);
}

#[test]
fn rows_that_no_reward_has_anything_to_say_of_cost_a_run_nothing() {
    let place = TestFolder::new();
    let rows = |answers: &dyn Fn(usize) -> &'static str| -> String {
        (0..8).map(|i| format!("{{\"prompt\": \"p{i}\", \"answer\": {}}}\n", answers(i))).collect()
    };
    let run = |name: &str, steps: &str| {
        let arguments =
            ["--model", tiny(), "--plugin", "answer_reward.wasm", "--dataset", "rows.jsonl", "--max-completion-length", "4"];
        place.run(&[&arguments[..], &["--output-dir", name, "--max-steps", steps, "--logging-steps", "1"]].concat())
    };
    // A generation is of one prompt, and every other has no answer to compare with.
    place.write("rows.jsonl", rows(&|i| if i % 2 == 0 { "\"7\"" } else { "null" }));
    run("gaps", "16").succeeded();
    place.write("rows.jsonl", rows(&|_| "null"));
    let ended = run("nothing", "40");
    assert_eq!(ended.code, Some(1));
    assert!(ended.error().contains("16 generations in a row"), "{}", ended.error());
    assert_eq!(place.checkpoints("nothing"), [15]);
}

#[test]
fn a_run_that_names_nothing_has_a_model_prompts_and_settings_of_its_own() {
    let place = TestFolder::new();
    let outcome =
        place.run(&["--plugin", "tldr_length_reward.wasm", "--max-steps", "2", "--logging-steps", "1", "--output-dir", "run"]);
    let said = &outcome.succeeded().stdout;
    assert!(said.contains("TL;DR:") && said.contains("after 0 steps") && said.contains("after 2 steps"), "{said}");
    // A trained model: far from the 4,096 tokens that a random one takes for equally likely.
    assert!(place.figure("run", "entropy").iter().all(|h| *h < 6.0));
    let config = std::fs::read_to_string(place.path("run/config.toml")).unwrap();
    assert!(config.contains("max_completion_length = 64") && config.contains("max_steps = 2"), "{config}");
    // With a model of one's own the defaults are TRL's.
    place
        .run(&[
            "--plugin",
            "tldr_length_reward.wasm",
            "--model",
            "run/model",
            "--max-steps",
            "1",
            "--set",
            "max_completion_length=4",
            "--output-dir",
            "own",
        ])
        .succeeded();
    let config = std::fs::read_to_string(place.path("own/config.toml")).unwrap();
    assert!(config.contains("temperature = 1.0") && config.contains("per_device_train_batch_size = 8"), "{config}");
    assert!(place.run(&["generate", "--prompt", "Zoo", "--max-new-tokens", "3"]).succeeded().stdout.starts_with("Zoo"));
    place.run(&["resume", "run", "--max-steps", "3"]).succeeded();
    assert_eq!(place.checkpoints("run"), [2, 3]);
}

#[test]
fn a_quiet_run_says_nothing_and_every_run_has_a_report() {
    let place = TestFolder::new();
    let quiet = place.train("quiet", &["--max-steps", "2", "-q"]);
    quiet.succeeded();
    assert_eq!((quiet.stdout.as_str(), quiet.stderr.as_str()), ("", ""));
    let page = std::fs::read_to_string(place.path("quiet/report.html")).unwrap();
    assert!(!page.contains("http-equiv=\"refresh\""));
    let answers = place.report("quiet");
    assert_eq!(answers["of_runs"]["story"]["quiet"]["rewards"], json!([["tldr_length_reward", "1"]]));
    assert_eq!(answers["runs"]["runs"][0]["state"], "finished");
    let loud = place.train("loud", &["--max-steps", "2"]);
    assert!(loud.succeeded().stdout.contains("report:     loud/report.html"), "{}", loud.stdout);
    let nothing = place.run(&["report", "nowhere"]);
    assert!(nothing.code == Some(2) && nothing.error().contains("nowhere"), "{}", nothing.stderr);
}

/// Python with the package `tensorboard`, where RLHOST_TENSORBOARD_PYTHON or the path has one.
#[test]
fn tensorboard_reads_every_figure_of_a_run_and_of_one_that_went_on() {
    let python = std::env::var("RLHOST_TENSORBOARD_PYTHON").unwrap_or_else(|_| "python3".into());
    let there = std::process::Command::new(&python).args(["-c", "import tensorboard"]).output().is_ok_and(|o| o.status.success());
    if !there {
        println!("skipped: {python} has no package tensorboard (RLHOST_TENSORBOARD_PYTHON names another)");
        return;
    }
    let place = TestFolder::new();
    place
        .train("run", &["--max-steps", "6", "--save-steps", "2", "--eval-dataset", rlhost_tests::STORIES, "--eval-steps", "3"])
        .succeeded();
    place.run(&["resume", "run", "--step", "2"]).succeeded();
    let check = concat!(env!("CARGO_MANIFEST_DIR"), "/parity/check_tensorboard.py");
    let read = std::process::Command::new(&python).arg(check).arg(place.path("run")).output().unwrap();
    assert!(read.status.success(), "{}{}", String::from_utf8_lossy(&read.stdout), String::from_utf8_lossy(&read.stderr));
}

#[test]
fn algorithms_on_the_built_in_model_have_their_own_number_of_completions() {
    let place = TestFolder::new();
    for (algorithm, wanted) in [("online-dpo", 2), ("rloo", 2), ("grpo", 8)] {
        let run = [
            "--plugin",
            "tldr_length_reward.wasm",
            "--max-steps",
            "1",
            "--max-completion-length",
            "2",
            "--output-dir",
            algorithm,
        ];
        place.run(&[&[algorithm], &run[..]].concat()).succeeded();
        let config = std::fs::read_to_string(place.path(&format!("{algorithm}/config.toml"))).unwrap();
        assert!(config.contains(&format!("num_generations = {wanted}\n")), "{algorithm}: {config}");
    }
}
