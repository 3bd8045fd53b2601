//! What people bring along from TRL: its defaults, its layouts of data, its habits on the command line.

use rlhost_tests::{TestFolder, seal, tiny};
use serde_json::{Value, json};
use std::fs;

fn config(place: &TestFolder, run: &str) -> String {
    fs::read_to_string(place.path(&format!("{run}/config.toml"))).unwrap()
}

fn rows(range: std::ops::Range<usize>) -> String {
    range.map(|i| format!("{}\n", json!({"prompt": format!("q {i}"), "completion": format!(" a{i}")}))).collect()
}

/// The loss of the model as it is on a dataset.
fn loss(place: &TestFolder, more: &[&str]) -> f64 {
    let base = ["eval", "--model", tiny(), "--algorithm", "sft", "--learn-from", "dataset", "--json"];
    let said: Value = serde_json::from_str(&place.run(&[&base[..], more].concat()).succeeded().stdout).unwrap();
    said["eval_loss"].as_f64().unwrap()
}

#[test]
fn rloo_and_online_dpo_have_trls_defaults_and_a_fork_leaves_them_behind() {
    let place = TestFolder::with_answers();
    let base = ["--model", tiny(), "--dataset", "pairs.jsonl", "--plugin", "tldr_length_reward.wasm"];
    let to = |steps: &str, name: &str, more: &[&str]| {
        place.run(&[more, &base[..], &["--max-steps", steps, "--output-dir", name]].concat())
    };
    let run = |name: &str, more: &[&str]| to("1", name, more);
    run("rloo", &["rloo", "--max-completion-length", "8"]).succeeded();
    assert!(config(&place, "rloo").contains("\nnum_generations = 2\n"), "{}", config(&place, "rloo"));
    run("online", &["online_dpo"]).succeeded();
    for set in ["num_generations = 2", "temperature = 0.9", "max_completion_length = 64"] {
        assert!(config(&place, "online").contains(&format!("\n{set}\n")), "{set}: {}", config(&place, "online"));
    }
    run("chosen", &["online_dpo", "--temperature", "1", "--set", "max_completion_length=12"]).succeeded();
    for set in ["temperature = 1.0", "max_completion_length = 12"] {
        assert!(config(&place, "chosen").contains(&format!("\n{set}\n")), "{set}: {}", config(&place, "chosen"));
    }
    // Defaults of the parent's algorithm are none of its fork's; what was chosen is.
    for (parent, set) in [
        ("online", ["temperature = 1.0", "max_completion_length = 512"]),
        ("chosen", ["temperature = 1.0", "max_completion_length = 12"]),
    ] {
        let fork = format!("{parent}-fork");
        to("2", &fork, &["grpo", "--resume-from-checkpoint", parent, "--per-device-train-batch-size", "8"]).succeeded();
        for set in set {
            assert!(config(&place, &fork).contains(&format!("\n{set}\n")), "{parent} {set}: {}", config(&place, &fork));
        }
    }
    // A run that began with other defaults keeps them.
    place.copy("online", "old");
    for file in [".config.toml", "config.toml", "checkpoint-1/trainer/config.toml"] {
        // Older versions left the first one.
        let text = fs::read_to_string(place.path(&format!("old/{}", file.trim_start_matches('.')))).unwrap();
        let text = text.replace("temperature = 0.9", "temperature = 1.0");
        fs::write(place.path(&format!("old/{file}")), text.replace("max_completion_length = 64", "max_completion_length = 16"))
            .unwrap();
    }
    seal(&place.path("old/checkpoint-1"), &[]);
    place.run(&["resume", "old", "--max-steps", "2"]).succeeded();
    let kept = fs::read_to_string(place.path("old/checkpoint-2/trainer/config.toml")).unwrap();
    assert!(kept.contains("\ntemperature = 1.0\n") && kept.contains("\nmax_completion_length = 16\n"), "{kept}");
}

#[test]
fn evaluations_come_with_the_log_where_their_strategy_is_given_as_in_transformers() {
    let place = TestFolder::with_answers();
    let base = ["sft", "--model", tiny(), "--dataset", "answers.jsonl", "--eval-dataset", "answers.jsonl", "--max-steps", "4"];
    let at = |run: &str, more: &[&str]| -> Vec<u64> {
        place.run(&[&base[..], &["--logging-steps", "2", "--output-dir", run], more].concat()).succeeded();
        let lines = place.lines(&format!("{run}/metrics.jsonl"));
        lines.iter().filter(|line| line["eval_loss"].is_number()).map(|line| line["step"].as_u64().unwrap()).collect()
    };
    assert_eq!(at("given", &["--eval-strategy", "steps"]), [2, 4]);
    assert_eq!(at("left", &["--save-steps", "3"]), [3, 4]);
    assert_eq!(at("both", &["--eval-strategy", "steps", "--eval-steps", "1"]), [1, 2, 3, 4]);
    // An older run of this strategy evaluated with its checkpoints, and goes on to.
    place.copy("given", "old");
    for file in [".config.toml", "config.toml", "checkpoint-4/trainer/config.toml"] {
        let text = fs::read_to_string(place.path(&format!("old/{}", file.trim_start_matches('.')))).unwrap();
        fs::write(place.path(&format!("old/{file}")), text.replace("eval_steps = 2\n", "")).unwrap();
    }
    seal(&place.path("old/checkpoint-4"), &[]);
    place.run(&["resume", "old", "--max-steps", "7"]).succeeded();
    let lines = place.lines("old/metrics.jsonl");
    let later = lines.iter().filter(|line| line["eval_loss"].is_number() && line["step"].as_u64() > Some(4)).count();
    assert_eq!(later, 1, "at the end: {lines:?}");
}

#[test]
fn a_local_folder_has_its_splits_as_on_the_hub() {
    let place = TestFolder::new();
    place.write("train.jsonl", rows(0..6));
    place.write("test.jsonl", rows(6..9));
    fs::create_dir_all(place.path("hub/data")).unwrap();
    fs::create_dir_all(place.path("flat")).unwrap();
    for (split, file) in [("train", "train.jsonl"), ("test", "test.jsonl")] {
        let bytes = fs::read(place.path(file)).unwrap();
        place.write(&format!("hub/data/{split}-00000-of-00001.jsonl"), &bytes);
        place.write(&format!("flat/{file}"), &bytes);
    }
    place.write("hub/README.md", "a dataset");
    let (train, test) = (loss(&place, &["--dataset", "train.jsonl"]), loss(&place, &["--dataset", "test.jsonl"]));
    assert!((train - test).abs() > 1e-6);
    for folder in ["hub", "flat"] {
        assert_eq!(loss(&place, &["--dataset", folder]), train, "{folder}");
        assert_eq!(loss(&place, &["--dataset", folder, "--dataset-train-split", "test"]), test, "{folder}");
        let sft = ["sft", "--model", tiny(), "--dataset_name", folder, "--max-steps", "1", "--output-dir"];
        let wrong = place.run(&[&sft[..], &["wrong", "--dataset-train-split", "other"]].concat());
        assert!(wrong.code == Some(2) && wrong.error().contains("it has test, train"), "{}", wrong.stderr);
        // As in TRL's scripts, a strategy for evaluations is enough where there is a test split.
        place.run(&[&sft[..], &[folder_run(folder), "--eval_strategy", "steps"]].concat()).succeeded();
        let line = place.lines(&format!("{}/metrics.jsonl", folder_run(folder))).pop().unwrap();
        let own = ["eval", folder_run(folder), "--eval-dataset", "test.jsonl", "--json"];
        let said: Value = serde_json::from_str(&place.run(&own).succeeded().stdout).unwrap();
        assert_eq!(line["eval_loss"], said["eval_loss"]);
    }
    // A file has no splits.
    let sft = ["sft", "--model", tiny(), "--dataset", "train.jsonl", "--max-steps", "1"];
    let whole = place.run(&[&sft[..], &["--output-dir", "file", "--dataset-train-split", "other"]].concat());
    assert!(whole.succeeded().stderr.contains("read whole: it has no split \"other\""), "{}", whole.stderr);
    let none = place.run(&[&sft[..], &["--output-dir", "none", "--eval-strategy", "steps"]].concat());
    assert!(none.succeeded().stderr.contains("training is not interrupted by evaluations"), "{}", none.stderr);
}

fn folder_run(folder: &str) -> &'static str {
    if folder == "hub" { "of-hub" } else { "of-flat" }
}

#[test]
fn what_turns_say_may_be_in_parts() {
    let place = TestFolder::new();
    place.copy(tiny(), "chatty");
    let template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}";
    place.write("chatty/tokenizer_config.json", json!({"eos_token": "<|endoftext|>", "chat_template": template}).to_string());
    let row = |content: &dyn Fn(&str) -> Value| {
        let turn = |role: &str, text: &str| json!({"role": role, "content": content(text)});
        format!("{}\n", json!({"messages": [turn("user", "how so"), turn("assistant", "like this")]}))
    };
    place.write("plain.jsonl", row(&|text| text.into()));
    place.write("parts.jsonl", row(&|text| json!([{"type": "text", "text": text}])));
    place.write("image.jsonl", row(&|text| json!([{"type": "image"}, {"type": "text", "text": text}])));
    let eval = |dataset: &str| {
        place.run(&["eval", "--model", "chatty", "--algorithm", "sft", "--learn-from", "dataset", "--json", "--dataset", dataset])
    };
    let loss = |dataset: &str| serde_json::from_str::<Value>(&eval(dataset).succeeded().stdout).unwrap()["eval_loss"].clone();
    assert_eq!(loss("parts.jsonl"), loss("plain.jsonl"));
    let refused = eval("image.jsonl");
    assert!(refused.code == Some(2) && refused.error().contains("{\"type\":\"image\"}"), "{}", refused.stderr);
    // The template's own file is named where it fails on a conversation.
    place.write("chatty/chat_template.jinja", "{{ raise_exception('not like this') }}");
    let failed = eval("plain.jsonl");
    assert!(
        failed.error().contains("chatty/chat_template.jinja") && failed.error().contains("not like this"),
        "{}",
        failed.stderr
    );
}

#[test]
fn a_configuration_of_another_algorithm_is_refused_in_one_line_and_replaced_rewards_are_named() {
    let place = TestFolder::with_answers();
    let sft = ["sft", "--model", tiny(), "--dataset", "answers.jsonl", "--max-steps", "1", "--output-dir", "sft"];
    place.run(&sft).succeeded();
    let grpo = ["grpo", "--config", "sft/config.toml", "--plugin", "tldr_length_reward.wasm", "--output-dir", "other"];
    let refused = place.run(&grpo);
    assert!(refused.code == Some(2), "{}", refused.stderr);
    for part in ["sft/config.toml:", "the file is for sft, not for grpo", "rlhost train --config"] {
        assert!(refused.error().contains(part), "{part}: {}", refused.stderr);
    }
    place.write("grpo.yaml", "algorithm: grpo\nbeta: 0.1\nreward_funcs: think_format_reward\n");
    let refused = place.run(&["sft", "--config", "grpo.yaml", "--dataset", "answers.jsonl", "--output-dir", "other"]);
    assert!(refused.error().contains("grpo.yaml:1: algorithm: the file is for grpo, not for sft"), "{}", refused.stderr);
    assert!(!place.path("other").exists());

    let replaced = ["--config", "grpo.yaml", "--plugin", "tldr_length_reward.wasm", "--max-completion-length", "8"];
    let more = ["--model", tiny(), "--dataset", "pairs.jsonl", "--max-steps", "1", "--output-dir", "replaced"];
    let said = place.run(&[&["grpo"], &replaced[..], &more].concat());
    let line = "the command line's rewards replace the configuration's: think_format_reward";
    assert!(said.succeeded().stderr.contains(line), "{}", said.stderr);
    assert!(!config(&place, "replaced").contains("format_reward"));
    // Another algorithm for a run is one key, not one for each of its settings.
    let other = ["train", "--algorithm", "rloo", "--resume-from-checkpoint", "replaced", "--output-dir", "replaced"];
    let refused = place.run(&other);
    assert!(refused.error().contains("algorithm") && !refused.error().contains("loss."), "{}", refused.stderr);
}

#[test]
fn names_of_older_versions_and_of_people_are_answered() {
    let place = TestFolder::with_answers();
    let ppo = "--model_name_or_path nowhere --sft_model_path MODEL --dataset_name pairs.jsonl --reward_funcs think_format_reward \
               --response_length 8 --local_rollout_forward_batch_size 4 --num_sample_generations 0 --exp_name x --max_steps 1 \
               --num_generations 1 --output_dir ppo";
    let ppo: Vec<&str> = ppo.split_whitespace().map(|word| if word == "MODEL" { tiny() } else { word }).collect();
    place.run(&[&["ppo"], &ppo[..]].concat()).succeeded();
    let cases: [(&[&str], &[&str]); 9] = [
        (&["ppo", "--total_episodes", "100"], &["--total_episodes", "--max-steps"]),
        (&["sft", "--lr", "1"], &["'--lr'", "'--learning-rate'"]),
        (&["sft", "--batch_size", "1"], &["--batch_size: ", "use --per-device-train-batch-size"]),
        (&["sft", "--optim", "galore_adamw"], &["galore_adamw", "LoRA"]),
        (&["sft", "--save_strategy", "best"], &["best", "--save-total-limit 1"]),
        (&["sft", "--model", ""], &["model: is empty; name a model"]),
        (&["sft", "--dataset", ""], &["dataset: is empty; name a dataset"]),
        (&["grpo", "--reward_weights", "1", "2", "--plugin", "tldr_length_reward.wasm"], &["must be one number"]),
        (&["sft", "--packing=maybe"], &["packing", "maybe"]),
    ];
    for (arguments, parts) in cases {
        let refused = place.run(arguments);
        assert_eq!(refused.code, Some(2), "{arguments:?}: {}", refused.stderr);
        for part in parts {
            assert!(refused.error().contains(part), "{arguments:?}: {part}: {}", refused.stderr);
        }
    }
    let sft = ["sft", "--model", tiny(), "--dataset", "answers.jsonl", "--max-steps", "1", "--output-dir"];
    for (run, switch, is) in [("t", "t", true), ("y", "Y", true), ("f", "f", false), ("n", "n", false)] {
        place.run(&[&sft[..], &[run, "--packing", switch, "--loss_type", "chunked_nll"]].concat()).succeeded();
        assert!(config(&place, run).contains(&format!("\npacking = {is}\n")), "{run}");
    }
    let plain = place.run(&["sft", "--model", tiny(), "--dataset", "answers.jsonl", "--max-steps", "1", "--output-dir", "nll"]);
    plain.succeeded();
    assert_eq!(place.figure("f", "loss"), place.figure("nll", "loss"));
    let quiet = place.run(&["-q"]);
    assert!(quiet.code == Some(2) && quiet.stderr.contains("Usage: rlhost"), "{}", quiet.stderr);
}

#[test]
fn the_first_unusable_row_is_named_wherever_it_is_found() {
    let place = TestFolder::new();
    let long = json!({"prompt": "k".repeat(300), "completion": "x"});
    place.write("rows.jsonl", format!("{long}\n{}{}\n", rows(0..2), json!({"question": "?"})));
    for more in [&[][..], &["--packing"]] {
        let base = ["sft", "--model", tiny(), "--dataset", "rows.jsonl", "--strict-data", "--output-dir", "strict"];
        let refused = place.run(&[&base[..], more].concat());
        assert!(refused.code == Some(2) && refused.error().contains("rows.jsonl:1: "), "{more:?}: {}", refused.stderr);
    }
}
