//! Settings of TRL and transformers that change training: each does what it says, and a run that has them resumes exactly.

use rlhost_tests::{TestFolder, assert_near, tiny};
use std::fs;

/// A run of SFT that logs and saves every step.
fn sft(run: &str) -> Vec<&str> {
    let mut all = vec!["sft", "--model", tiny(), "--dataset", "answers.jsonl", "--output-dir", run, "--max-steps", "6"];
    all.extend(["--logging-steps", "1", "--save-steps", "1", "--learning-rate", "0.002", "--per-device-train-batch-size", "4"]);
    all
}

/// Resumes copies of a run from each step and compares their ends with its own.
fn resumes_exactly(place: &TestFolder, run: &str, steps: u64) {
    for step in 1..steps {
        let name = format!("{run}-from-{step}");
        place.copy_as_after(run, step, &name);
        place.run(&["resume", &name]).succeeded();
        place.assert_same_end(&name, run, steps, "model.safetensors");
    }
}

#[test]
fn a_rate_that_follows_evaluations_falls_when_they_stop_improving_and_resumes() {
    let place = TestFolder::with_answers();
    // No evaluation improves on the first by half, so that every second one is a plateau.
    let kwargs = r#"{"patience": 1, "factor": 0.5, "threshold": 0.5, "min_lr": 6e-4}"#;
    let plateau = ["--lr-scheduler-type", "reduce_lr_on_plateau", "--lr-scheduler-kwargs", kwargs, "--eval-dataset"];
    let evaluated = ["answers.jsonl", "--eval-steps", "1", "--eval-on-start"];
    place.run(&[&sft("run")[..], &plateau, &evaluated].concat()).succeeded();
    let lines = place.lines("run/metrics.jsonl");
    let rates: Vec<f64> = lines.iter().filter_map(|line| line["learning_rate"].as_f64()).collect();
    assert_eq!(rates, [0.002, 0.002, 0.002, 0.001, 0.001, 6e-4]);
    resumes_exactly(&place, "run", 6);

    let alone = place.run(&[&sft("alone")[..], &plateau[..4]].concat());
    assert!(alone.code == Some(2) && alone.error().contains("set eval_dataset"), "{}", alone.stderr);
    let unknown = place.run(&[&sft("unknown")[..], &plateau, &evaluated, &["--metric-for-best-model", "eval_los"]].concat());
    assert!(unknown.error().contains("eval_loss"), "{}", unknown.stderr);
}

#[test]
fn a_schedule_takes_its_settings_from_a_flag_a_set_or_a_file_and_refuses_others() {
    let place = TestFolder::with_answers();
    let minimum = ["--lr-scheduler-type", "cosine_with_min_lr", "--lr-scheduler-kwargs", "{\"min_lr_rate\": 0.5}"];
    place.run(&[&sft("flag")[..], &minimum].concat()).succeeded();
    let want: Vec<f64> = (0..6).map(|i| 0.002 * (0.75 + 0.25 * (std::f64::consts::PI * f64::from(i) / 6.0).cos())).collect();
    for (got, want) in place.figure("flag", "learning_rate").iter().zip(&want) {
        assert!((got - want).abs() < 1e-12, "{got} {want}");
    }
    let set = ["--lr-scheduler-type", "cosine_with_min_lr", "--set", "lr_scheduler_kwargs.min_lr_rate=0.5"];
    place.run(&[&sft("set")[..], &set].concat()).succeeded();
    place.write("run.toml", "lr_scheduler_type = 'cosine_with_min_lr'\nlr_scheduler_kwargs = { min_lr_rate = 0.5 }\n");
    place.run(&[&sft("file")[..], &["--config", "run.toml"]].concat()).succeeded();
    for run in ["set", "file"] {
        place.assert_same_end(run, "flag", 6, "model.safetensors");
    }
    let wrong = place.run(&[&sft("wrong")[..], &["--lr-scheduler-kwargs", "{\"num_cycles\": 2}"]].concat());
    assert!(wrong.code == Some(2) && wrong.error().contains("linear has no settings"), "{}", wrong.stderr);
    let rising = ["--lr-scheduler-type", "polynomial", "--lr-scheduler-kwargs", "{\"lr_end\": 0.01}"];
    let rising = place.run(&[&sft("rising")[..], &rising].concat());
    assert!(rising.code == Some(2) && rising.error().contains("lr_end is 1e-2"), "{}", rising.stderr);
}

const OPTIMIZERS: [&[&str]; 8] = [
    &["--optim", "sgd", "--optim-args", "momentum=0.9, nesterov=True", "--learning-rate", "0.5"],
    &["--optim", "sgd", "--learning-rate", "0.5"],
    &["--optim", "lion_32bit", "--learning-rate", "0.001"],
    &["--optim", "adafactor", "--optim-args", "{\"beta1\": 0.9}", "--learning-rate", "0.005"],
    &["--optim", "adafactor", "--learning-rate", "0.005"],
    &["--optim", "muon", "--learning-rate", "0.01", "--weight-decay", "0.1"],
    &["--optim", "rmsprop", "--optim-args", "momentum=0.9", "--learning-rate", "0.0003"],
    &["--optim", "adamw_8bit", "--learning-rate", "0.005", "--weight-decay", "0.1"],
];

#[test]
fn every_optimizer_learns_and_resumes() {
    let place = TestFolder::with_answers();
    for (i, optimizer) in OPTIMIZERS.iter().enumerate() {
        let run = format!("run-{i}");
        place.run(&[&sft(&run)[..], optimizer, &["--per-device-train-batch-size", "32"]].concat()).succeeded();
        let losses = place.figure(&run, "loss");
        assert!(losses[5] < losses[0] - 0.05, "{optimizer:?}: {losses:?}");
        resumes_exactly(&place, &run, 6);
    }
    let names: Vec<String> = place.tensors("run-4/checkpoint-6/trainer/optimizer.safetensors").into_keys().collect();
    assert!(names.iter().any(|name| name.ends_with("q_proj.weight.rows")) && !names.iter().any(|name| name.ends_with(".m")));
    let moments = place.tensors("run-7/checkpoint-6/trainer/optimizer.safetensors");
    let size = |name: &str| moments.get(&format!("model.{name}")).map(Vec::len);
    // 64 by 64 in bytes, in 16 blocks; but 4 bytes for a value of fewer, or of a table of 257 by 64.
    let q_proj = ["m", "m_scales", "v", "v_scales"].map(|part| size(&format!("layers.0.self_attn.q_proj.weight.{part}")));
    assert_eq!(q_proj, [Some(4096), Some(64), Some(4096), Some(64)]);
    assert_eq!((size("layers.0.self_attn.k_proj.weight.m"), size("embed_tokens.weight.v")), (Some(4 * 2048), Some(4 * 16448)));
    let other = ["resume", "run-0", "--optim", "lion_32bit"];
    let other = place.run(&other);
    assert!(other.code == Some(2) && other.error().contains("optim"), "{}", other.stderr);
}

#[test]
fn a_critic_is_trained_by_the_same_optimizer_and_resumes() {
    let place = TestFolder::with_answers();
    for (kind, optim) in [("policy", "muon"), ("shared", "adafactor"), ("policy", "sgd"), ("policy", "adamw_8bit")] {
        let run = format!("{kind}-{optim}");
        let mut ppo = vec!["ppo", "--model", tiny(), "--dataset", "answers.jsonl", "--plugin", "tldr_length_reward.wasm"];
        ppo.extend([
            "--output-dir",
            &run,
            "--value-model",
            kind,
            "--optim",
            optim,
            "--learning-rate",
            "0.002",
            "--max-steps",
            "4",
        ]);
        ppo.extend(["--max-completion-length", "8", "--save-steps", "1", "--logging-steps", "1", "--num-ppo-epochs", "2"]);
        place.run(&ppo).succeeded();
        resumes_exactly(&place, &run, 4);
    }
}

#[test]
fn an_optimizer_takes_no_key_of_another() {
    let place = TestFolder::with_answers();
    for (given, expected) in [
        (&["--optim", "sgd", "--adam-beta1", "0.8"][..], "adam_beta1: is not a setting of sgd"),
        (&["--optim", "lion_8bit"], "\"lion_8bit\" is not one of adamw, adamw_apex_fused"),
        (&["--optim", "adamw_8bit", "--optim-args", "momentum=0.9"], "adamw_8bit is set by --adam-beta1"),
        (&["--optim-args", "momentum=0.9"], "adamw_torch is set by --adam-beta1"),
        (&["--optim", "sgd", "--optim-args", "momentum=0.9,nesterov"], "expected a table"),
        (&["--optim", "sgd", "--optim-args", "warmth=1"], "unknown key `warmth`; it can be momentum, dampening, nesterov"),
    ] {
        let refused = place.run(&[&sft("refused")[..], given].concat());
        assert!(refused.code == Some(2) && refused.error().contains(expected), "{given:?}: {}", refused.stderr);
    }
    // Names of one optimizer.
    place.run(&[&sft("fused")[..], &["--optim", "adamw_torch_fused"]].concat()).succeeded();
    place.run(&sft("plain")).succeeded();
    place.assert_same_end("fused", "plain", 6, "model.safetensors");
    place.run(&[&sft("paged")[..], &["--optim", "paged_adamw_8bit"]].concat()).succeeded();
    place.run(&[&sft("8bit")[..], &["--optim", "adamw_bnb_8bit"]].concat()).succeeded();
    place.assert_same_end("paged", "8bit", 6, "model.safetensors");
}

/// A run with an adapter that drops much of its input.
fn dropout_arguments<'a>(run: &'a str, algorithm: &'a str) -> Vec<&'a str> {
    let mut all = vec![algorithm, "--model", tiny(), "--output-dir", run, "--max-steps", "4", "--save-steps", "1"];
    all.extend(["--logging-steps", "1", "--learning-rate", "0.01", "--lora-r", "4", "--lora-dropout", "0.3"]);
    all.extend(match algorithm {
        "sft" => &["--dataset", "answers.jsonl", "--per-device-train-batch-size", "8", "--eval-dataset", "answers.jsonl"][..],
        "dpo" => &["--dataset", "pairs.jsonl", "--per-device-train-batch-size", "8"],
        "ppo" => &["--critic-learning-rate", "0.001"],
        _ => &["--beta", "0.1"],
    });
    if ["ppo", "grpo"].contains(&algorithm) {
        all.extend(["--dataset", "pairs.jsonl", "--plugin", "tldr_length_reward.wasm", "--max-completion-length", "8"]);
    }
    all
}

#[test]
fn an_adapters_dropout_resumes_and_is_the_same_however_a_step_is_cut() {
    let place = TestFolder::with_answers();
    for algorithm in ["sft", "dpo", "grpo", "ppo"] {
        let run = format!("{algorithm}-whole");
        let given = dropout_arguments(&run, algorithm);
        place.run(&given).succeeded();
        for step in 1..4 {
            place.assert_resumes(&run, step, 4, "adapter_model.safetensors");
        }
        let again = |name: &str, more: &[&str]| {
            let name = format!("{algorithm}-{name}");
            let mut all = given.clone();
            let at = all.iter().position(|a| *a == "--output-dir").unwrap();
            all[at + 1] = &name;
            place.run(&[&all[..], more].concat()).succeeded();
            name
        };
        let checkpointed = again("checkpointed", &["--gradient-checkpointing"]);
        place.assert_same_end(&checkpointed, &run, 4, "adapter_model.safetensors");
        let accumulated = ["--per-device-train-batch-size", "2", "--gradient-accumulation-steps", "4"];
        let accumulated = again("accumulated", &accumulated);
        assert_near(&place.figures(&accumulated), &place.figures(&run), algorithm);
    }
    let config = std::fs::read_to_string(place.path("sft-whole/checkpoint-4/adapter_config.json")).unwrap();
    assert!(config.contains("\"lora_dropout\": 0.3"), "{config}");
    // Evaluations drop nothing.
    let lines = place.lines("sft-whole/metrics.jsonl");
    let evaluated: Vec<f64> = lines.iter().filter_map(|line| line["eval_loss"].as_f64()).collect();
    let base = ["eval", "sft-whole/checkpoint-4", "--json", "--lora-dropout", "0", "--allow-changed"];
    let said: serde_json::Value = serde_json::from_str(&place.run(&base).succeeded().stdout).unwrap();
    assert_eq!(said["eval_loss"].as_f64(), evaluated.last().copied());
}

#[test]
fn an_adapters_dropout_is_trls_by_default_and_that_of_a_folder_that_training_goes_on_with() {
    let place = TestFolder::with_answers();
    let dropout = |run: &str| {
        let text = fs::read_to_string(place.path(run).join("config.toml")).unwrap();
        text.lines().find_map(|line| line.strip_prefix("lora_dropout = ").map(str::to_owned))
    };
    place.run(&[&sft("new")[..], &["--lora-r", "2", "--max-steps", "1"]].concat()).succeeded();
    assert_eq!(dropout("new").as_deref(), Some("0.05"));
    place.run(&[&sft("own")[..], &["--lora-r", "2", "--max-steps", "1", "--lora-dropout", "0.25"]].concat()).succeeded();
    place.run(&[&sft("on")[..], &["--model", "own/checkpoint-1", "--max-steps", "1"]].concat()).succeeded();
    assert_eq!(dropout("on").as_deref(), Some("0.25"));
    let without = place.run(&[&sft("none")[..], &["--lora-dropout", "0.1"]].concat());
    assert!(without.code == Some(2) && without.error().contains("lora_dropout: needs an adapter"), "{}", without.stderr);
}

/// A run whose embeddings have noise in training.
fn noisy<'a>(run: &'a str, algorithm: &'a str) -> Vec<&'a str> {
    let data = if algorithm == "sft" { "answers.jsonl" } else { "pairs.jsonl" };
    let mut all = vec![algorithm, "--model", tiny(), "--dataset", data, "--output-dir", run, "--max-steps", "4"];
    all.extend(["--save-steps", "1", "--logging-steps", "1", "--learning-rate", "0.002", "--per-device-train-batch-size", "8"]);
    all.extend(["--neftune-noise-alpha", "5"]);
    all
}

#[test]
fn noise_on_embeddings_resumes_is_the_same_however_a_step_is_cut_and_is_in_training_alone() {
    let place = TestFolder::with_answers();
    for algorithm in ["sft", "dpo", "reward"] {
        let run = format!("{algorithm}-whole");
        place.run(&noisy(&run, algorithm)).succeeded();
        resumes_exactly(&place, &run, 4);
        let again = |name: &str, more: &[&str]| {
            let name = format!("{algorithm}-{name}");
            place.run(&[&noisy(&name, algorithm)[..], more].concat()).succeeded();
            name
        };
        let checkpointed = again("checkpointed", &["--gradient-checkpointing"]);
        place.assert_same_end(&checkpointed, &run, 4, "model.safetensors");
        let accumulated = again("accumulated", &["--per-device-train-batch-size", "2", "--gradient-accumulation-steps", "4"]);
        assert_near(&place.figures(&accumulated), &place.figures(&run), algorithm);
        let plain = again("plain", &["--neftune-noise-alpha", "0"]);
        let first = |run: &str| place.figure(run, "loss")[0];
        assert!((first(&plain) - first(&run)).abs() > 1e-4, "{algorithm}: {} and {}", first(&plain), first(&run));
    }
    // Of weights that stay as they are, evaluations are the same, and those of training differ by the noise.
    let evaluated = |run: &str, more: &[&str]| {
        let still = ["--eval-dataset", "answers.jsonl", "--eval-steps", "2", "--learning-rate", "0", "--eval-on-start"];
        place.run(&[&noisy(run, "sft")[..], &still, more].concat()).succeeded();
        let lines = place.lines(&format!("{run}/metrics.jsonl"));
        let of = |name: &str| lines.iter().filter_map(|line| line[name].as_f64()).collect::<Vec<_>>();
        (of("eval_loss"), of("loss"))
    };
    let (noised, plain) = (evaluated("still", &[]), evaluated("quiet", &["--neftune-noise-alpha", "0"]));
    assert!(noised.0.len() == 3 && noised.0 == plain.0, "{noised:?} {plain:?}");
    assert!(noised.1.iter().zip(&plain.1).all(|(noised, plain)| noised != plain), "{noised:?} {plain:?}");
}

#[test]
fn noise_on_embeddings_is_for_given_texts() {
    let place = TestFolder::with_answers();
    let grpo = ["--plugin", "tldr_length_reward.wasm", "--dataset", "pairs.jsonl", "--output-dir", "refused"];
    let sft = ["sft", "--dataset", "answers.jsonl", "--output-dir", "refused"];
    for (given, alpha, said) in [(&grpo[..], "5", "generates its own"), (&sft, "-1", "0 or greater")] {
        let refused = place.run(&[given, &["--model", tiny(), "--neftune-noise-alpha", alpha]].concat());
        assert!(refused.code == Some(2) && refused.error().contains("neftune_noise_alpha"), "{}", refused.stderr);
        assert!(refused.error().contains(said), "{}", refused.stderr);
    }
    assert!(!place.path("refused").exists());
}
