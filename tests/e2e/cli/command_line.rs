//! Command lines and files as people who come from TRL write them.

use rlhost_tests::{CommandOutcome, STORIES, TestFolder, tiny};
use std::process::Command;

const PAIRS: &[&str] = &["--dataset", "pairs.jsonl", "--max_steps", "1", "--per_device_train_batch_size", "2"];

fn dpo(place: &TestFolder, run: &str, more: &[&str]) -> CommandOutcome {
    place.run(&[&["dpo", "--model_name_or_path", tiny()], PAIRS, &["--output_dir", run], more].concat())
}

fn refused(place: &TestFolder, more: &[&str], words: &str) {
    let outcome = dpo(place, "refused", more);
    assert!(outcome.code == Some(2) && outcome.error().contains(words), "{more:?}: {}", outcome.stderr);
    assert!(!place.path("refused").exists());
}

fn config(place: &TestFolder, run: &str) -> String {
    std::fs::read_to_string(place.path(run).join("config.toml")).unwrap()
}

#[test]
fn settings_of_the_algorithm_are_flags_with_one_value_or_several() {
    let place = TestFolder::with_answers();
    dpo(&place, "two", &["--loss_type", "sigmoid", "hinge", "--loss_weights", "1.0", "-0.5", "--beta", "0.2"]).succeeded();
    let text = config(&place, "two");
    assert!(text.contains("\"sigmoid\"") && text.contains("\"hinge\"") && text.contains("-0.5"), "{text}");
    dpo(&place, "whole", &["--loss_type=sigmoid", "--loss_type", "hinge", "--loss_weights", "[1.0, -0.5]"]).succeeded();
    dpo(&place, "set", &["--set", "beta=0.3"]).succeeded();
    assert!(config(&place, "set").contains("beta = 0.3"));
    refused(&place, &["--set", "betta=0.3"], "did you mean \"beta\"?");
    refused(&place, &["--loss_type", "sigmod"], "did you mean \"sigmoid\"?");
}

#[test]
fn what_the_built_in_run_sets_is_not_what_the_user_set() {
    let place = TestFolder::new();
    let flags = ["--max-steps", "1", "--max-completion-length", "4", "--per-device-train-batch-size", "8", "--output-dir", "run"];
    place.run(&[&["train", "--plugin", "tldr_length_reward.wasm"], &flags[..]].concat()).succeeded();
    let set = &place.events("run", "started")[0]["set"];
    let own = ["max_completion_length", "max_steps", "output_dir", "per_device_train_batch_size", "plugin"];
    assert_eq!(*set, serde_json::json!(own));
    assert!(config(&place, "run").contains("temperature = 0.7"));
}

#[test]
fn another_mistake_is_not_blamed_on_a_setting() {
    let place = TestFolder::with_answers();
    for (more, words) in [
        (&["--deepspeed", "x.json"][..], "x.json: it can't be read"),
        (&["--eval_strategy", "sometimes"], "eval_strategy"),
        (&["--config", "none.yaml"], "none.yaml"),
        (&["--max_steps"], "--max-steps"),
        (&["--optim", "ademamix"], "is not one of adamw"),
        (&["--packing_strategy", "first"], "packing_strategy"),
        (&["--algorithm", "cpo"], "rlhost train --algorithm cpo"),
    ] {
        refused(&place, &[&["--beta", "0.1"], more].concat(), words);
    }
}

#[test]
fn switches_lists_and_names_are_spelled_as_in_python() {
    let place = TestFolder::with_answers();
    let switches = ["--no_shuffle_dataset", "--bf16", "False", "--gradient_checkpointing", "True", "--no_remove_unused_columns"];
    dpo(&place, "flags", &[&switches[..], &["--report_to", "wandb", "--log_completions", "True"]].concat()).succeeded();
    let text = config(&place, "flags");
    for line in ["shuffle_dataset = false", "bf16 = false", "gradient_checkpointing = true", "log_completions = \"all\""] {
        assert!(text.contains(line), "{line}: {text}");
    }
    let file = "log_completions: true\nreport_to: [wandb, tensorboard]\nbf16: no\nlora_r: 2\nlora_target_modules: all-linear\nfsdp: []\n\
                gradient_checkpointing: yes\nfp16: true\nmodel_revision: main\nmax_length: null\nbeta: 0.4\n";
    place.write("file.yaml", file);
    dpo(&place, "file", &["--config", "file.yaml", "--fp16", "false"]).succeeded();
    let text = config(&place, "file");
    for line in ["report_to = [\"wandb\", \"tensorboard\"]", "bf16 = false", "max_length = \"none\"", "beta = 0.4"] {
        assert!(text.contains(line), "{line}: {text}");
    }
    refused(&place, &["--config", "file.yaml"], "file.yaml:8: fp16");
    for (bad, words) in [
        ("learning_rate: .nan\n", "bad.yaml:1: learning_rate: is NaN"),
        ("seed: 1\nlearning_rate: fast\n", "bad.yaml:2: learning_rate: "),
        ("resume_from_checkpoint: true\n", "is a flag only"),
        ("seed: 1\n\"bogus\": 1\n", "bad.yaml:2: unknown key"),
    ] {
        place.write("bad.yaml", bad);
        refused(&place, &["--config", "bad.yaml"], words);
    }
}

#[test]
fn what_trls_commands_and_files_say_means_here_what_it_does_there() {
    let place = TestFolder::new();
    let grpo = |run: &str, more: &[&str]| -> String {
        let all = ["grpo", "--model", tiny(), "--max-steps", "1", "--max-completion-length", "4", "--output-dir", run];
        place.run(&[&all[..], &["--dataset", STORIES], more].concat()).succeeded();
        config(&place, run)
    };
    let reward = ["--plugin", "tldr_length_reward.wasm"];
    let python = ["--mask_truncated_completions", "True", "--scale_rewards", "False", "--epsilon_high", "None", "--beta", ".04"];
    let said = grpo("python", &[&reward[..], &python, &["--learning_rate", ".01", "--temperature", "1."]].concat());
    let words = ["mask_truncated_completions = true", "scale_rewards = false", "beta = 0.04", "learning_rate = 0.01"];
    assert!(words.iter().all(|word| said.contains(word)) && !said.contains("epsilon_high"), "{said}");
    // A rank alone asks for an adapter, but not against what is said.
    for (run, off) in [("off", &["--use_peft", "false"][..]), ("no", &["--no_use_peft"])] {
        grpo(run, &[&reward[..], &["--lora_r", "4"], off].concat());
        assert!(!place.path(run).join("checkpoint-1/adapter_config.json").exists(), "{run}");
    }
    place.write("off.yaml", "use_peft: false\nlora_r: 4\nlearning_rate: \"1e-5\"\nresume_from_checkpoint: false\nenv:\n  A: b\n");
    grpo("file", &[&reward[..], &["--config", "off.yaml"]].concat());
    grpo("again", &[&reward[..], &["--config", "off.yaml", "--use_peft"]].concat());
    assert!(!place.path("file/checkpoint-1/adapter_config.json").exists());
    let off = ["--no_disable_dropout", "--no_average_tokens_across_devices", "--no_log_on_each_node"];
    let several = ["--train_sampling_strategy", "Random", "--label_names", "a", "b"];
    assert!(grpo("order", &[&reward[..], &off, &several].concat()).contains("shuffle_dataset = true"));
    // Rewards of both kinds of flags, and TRL's order of weights.
    place.train_reward_model("scorer", &[]);
    let both = grpo("both", &[&reward[..], &["--reward_funcs", "think_format_reward"]].concat());
    assert_eq!(both.matches("[[plugin]]").count(), 2, "{both}");
    place.write("trl.yaml", "reward_funcs: [think_format_reward]\nreward_model_name_or_path: scorer\nreward_weights: [1, 5]\n");
    let weighted = grpo("weighted", &["--config", "trl.yaml"]);
    let weights: Vec<&str> = weighted.lines().filter(|line| line.starts_with("weight = ")).collect();
    assert!(
        weighted.find("scorer") < weighted.find("format_reward") && weights == ["weight = 1.0", "weight = 5.0"],
        "{weighted}"
    );
    let refused = place.run(&[&["grpo", "--model_init_kwargs", "{\"revision\": \"abc\"}"], &reward[..]].concat());
    assert!(refused.code == Some(2) && refused.error().contains("--model OWNER/NAME@REVISION"), "{}", refused.stderr);
}

#[test]
fn yaml_may_come_from_a_pipe_and_a_switch_takes_no_folder_for_its_value() {
    let place = TestFolder::with_answers();
    let shell = |script: String| {
        let mut command = Command::new("bash");
        command.args(["-c", &script]).current_dir(place.path(".")).env("NO_COLOR", "1");
        CommandOutcome::new(command.output().unwrap())
    };
    let binary = rlhost_tests::binary().display().to_string();
    let model = tiny();
    let flags = format!("--model {model} --dataset pairs.jsonl --max-steps 1 --output-dir piped");
    shell(format!("{binary} dpo {flags} --config <(printf 'seed: 7\\nbeta: 0.25\\n')")).succeeded();
    assert!(config(&place, "piped").contains("beta = 0.25") && config(&place, "piped").contains("seed = 7"));
    let evaluated = place.run(&["eval", "--bf16", "piped", "--json"]);
    assert!(evaluated.succeeded().stdout.contains("eval_loss"), "{}", evaluated.stderr);
}

#[test]
fn help_lists_the_settings_of_the_algorithm() {
    let place = TestFolder::new();
    for arguments in [&["dpo", "--help"][..], &["help", "dpo"], &["train", "--algorithm", "dpo", "-h"], &["-q", "dpo", "-h"]] {
        let said = place.run(arguments).succeeded().stdout.clone();
        assert!(said.contains("--label-smoothing") && !said.contains("--epsilon-high"), "{arguments:?}: {said}");
    }
}

#[test]
fn the_short_help_is_a_page_and_the_long_one_has_headings() {
    let place = TestFolder::new();
    let page = place.run(&["grpo", "-h"]).succeeded().stdout.clone();
    assert!(page.lines().count() < 80 && page.contains("Completions per prompt [default: 8]"), "{page}");
    assert!(page.contains("--epsilon-high") && !page.contains("--adam-epsilon"), "{page}");
    insta::assert_snapshot!("help_of_grpo", page);
    insta::assert_snapshot!("help_of_rlhost", place.run(&["-h"]).succeeded().stdout);
    let all = place.run(&["grpo", "--help"]).succeeded().stdout.clone();
    let headings = ["Model:", "Data:", "Plugins:", "Generation:", "Optimizer:", "Saving:", "Settings of the algorithm:"];
    let places = headings.map(|heading| all.find(&format!("\n{heading}\n")).unwrap_or_else(|| panic!("{heading}: {all}")));
    assert!(places.is_sorted() && all.contains("--adam-epsilon"), "{all}");
}

/// Completes a command line in bash; `words` is that line as bash splits it.
fn completed(place: &TestFolder, words: &[&str]) -> Vec<String> {
    let binary = rlhost_tests::binary();
    let script = "source <(\"$0\" completions bash)\nCOMP_WORDS=(\"$@\") COMP_CWORD=$(($# - 1))\nlast=${COMP_WORDS[COMP_CWORD]}\n\
                  _rlhost \"$0\" \"${last#=}\" \"\"\nprintf '%s\\n' \"${COMPREPLY[@]}\"";
    let mut command = Command::new("bash");
    command.args(["--norc", "-c", script]).arg(binary).arg("rlhost").args(words).current_dir(place.path("."));
    let outcome = CommandOutcome::new(command.output().unwrap());
    outcome.succeeded().stdout.lines().map(str::to_owned).collect()
}

#[test]
fn bash_completes_flags_values_and_files() {
    let place = TestFolder::new();
    place.write("stories.jsonl", "{}\n");
    let script = place.run(&["completions", "bash"]).succeeded().stdout.clone();
    assert!(script.lines().count() < 60, "{script}");
    assert_eq!(completed(&place, &["train", "--epsilon-h"]), ["--epsilon-high"]);
    assert_eq!(completed(&place, &["cpo", "--cpo-al"]), ["--cpo-alpha"]);
    assert_eq!(completed(&place, &["--dataset", "sto"]), ["stories.jsonl"]);
    assert_eq!(completed(&place, &["--plugin", "tldr"]), ["tldr_length_reward.wasm"]);
    assert_eq!(completed(&place, &["dpo", "--packing-strategy", "=", "bfd_"]), ["bfd_split"]);
    assert_eq!(completed(&place, &["dpo", "--learn-from", "="]), ["generation", "dataset"]);
    assert_eq!(completed(&place, &["dpo", "--set", "learn_from", "=", "da"]), ["dataset"]);
}
