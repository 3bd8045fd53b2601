//! A user's mistakes: one clear line, exit code 2, and nothing left behind.

use rlhost_tests::{TestFolder, small, tiny};

/// A folder with a tiny model as `model`, a good dataset, and some bad files.
fn place() -> TestFolder {
    let place = TestFolder::new();
    place.copy(tiny(), "model");
    place.write("good.jsonl", "{\"prompt\": \"a\"}\n{\"prompt\": \"b\"}\n");
    place.write("broken.jsonl", "{\"prompt\": \"a\"}\n{\"prompt\": \"b\"\n");
    place.write("foreign.jsonl", "{\"question\": \"a\", \"answer\": \"b\"}\n");
    place.write("empty.jsonl", "\n");
    place.write("long.jsonl", format!("{{\"prompt\": \"{}\"}}\n", "a".repeat(500)));
    place.write("chat.jsonl", "{\"prompt\": [{\"role\": \"user\", \"content\": \"hi\"}]}\n");
    place.write("null.jsonl", "{\"prompt\": null}\n");
    place.write("text.wasm", "not wasm");
    place.write("empty.wasm", "");
    place.write("core.wasm", b"\0asm\x01\0\0\0");
    place.write("run.toml", "max_steps = 3\nlerning_rate = 0.1\n");
    place.write("type.toml", "max_steps = 3\nlearning_rate = 'fast'\n");
    place.write("broken.toml", "max_steps = = 3\n");
    place
}

#[test]
fn an_algorithm_that_compares_completions_says_how_many_it_needs() {
    let place = TestFolder::new();
    let cases: [(&[&str], &str, &str); 5] = [
        (&["--algorithm", "grpo"], "1", "with each other, but this prompt has only one; set num_generations to 2 or more"),
        (&["--algorithm", "rloo"], "1", "set num_generations to 2 or more"),
        (&["--algorithm", "reinforce_pp", "--baseline", "group"], "1", "set num_generations to 2 or more"),
        (&["--algorithm", "online_dpo"], "1", "two completions of each prompt make a pair, not 1; set num_generations to 2"),
        (&["--algorithm", "online_dpo"], "4", "two completions of each prompt make a pair, not 4; set num_generations to 2"),
    ];
    for (arguments, generations, expected) in cases {
        let size = ["--per-device-train-batch-size", "4", "--num-generations", generations];
        let refused = place.train("run", &[arguments, &size].concat());
        assert_eq!(refused.code, Some(2), "{}", refused.stderr);
        assert!(refused.error().contains(arguments[1]) && refused.error().contains(expected), "{}", refused.error());
        assert!(place.entries().is_empty(), "{:?}", place.entries());
    }
}

#[test]
fn a_key_of_any_length_or_depth_is_one_short_line() {
    let place = place();
    let deep = format!("{}=1", vec!["a"; 50_000].join("."));
    let long = format!("{}=1", "x".repeat(100_000));
    for set in [deep.clone(), format!("loss.{deep}"), format!("plugin.tldr_length_reward.config.{deep}"), long] {
        let refused = place.train("run", &["--set", &set]);
        assert_eq!(refused.code, Some(2), "{}", refused.stderr.chars().take(500).collect::<String>());
        assert!(refused.error().len() < 2000 && refused.error().contains("at most"), "{}", refused.error());
    }
    place.write("long.toml", format!("{} = 1\n", "x".repeat(1_000_000)));
    let refused = place.train("run", &["--config", "long.toml"]);
    assert!(refused.code == Some(2) && refused.error().contains("unknown key"), "{}", refused.stderr.len());
    assert!(refused.error().len() < 2000, "{}", refused.error().len());
}

/// Arguments, and what the error must mention.
type Mistake<'a> = (&'a [&'a str], &'a [&'a str]);

/// Runs with each of these arguments, which must be refused in one line and leave nothing. Returns the arguments with their messages.
fn assert_named(place: &TestFolder, mistakes: &[Mistake<'_>]) -> String {
    let before = place.entries();
    let mut messages = String::new();
    for (arguments, expected) in mistakes {
        let model = if arguments.contains(&"--model") { vec![] } else { vec!["--model", "model"] };
        let outcome = place.run(&[&["--plugin=tldr_length_reward.wasm"], &model[..], arguments].concat());
        assert_eq!(outcome.code, Some(2), "{arguments:?}: {}", outcome.stderr);
        let error = outcome.error();
        for part in *expected {
            assert!(error.contains(part), "{arguments:?} should mention {part:?}: {error}");
        }
        assert_eq!(place.entries(), before, "{arguments:?} left something behind");
        let folder = place.path("").display().to_string();
        messages += &format!("{}\n    {}\n", arguments.join(" "), error.replace(folder.trim_end_matches('/'), "FOLDER"));
    }
    messages
}

#[test]
fn a_name_that_is_no_path_and_no_name_on_the_hub_says_what_it_is() {
    let mistakes: &[Mistake<'_>] = &[
        (&["--resume-from-checkpoint="], &["--resume-from-checkpoint", "the path is empty"]),
        (&["--plugin", "nope.wasm"], &["nope.wasm", "the built-in rewards are answer_reward.wasm"]),
        (&["--plugin", "guess_numbr.wasm"], &["guess_numbr.wasm", "the built-in rewards are answer_reward.wasm"]),
        (&["--environment", "guess_numbr"], &["did you mean \"guess_number.wasm\""]),
        (&["--dataset", "https://example.com/x.jsonl"], &["error: https://example.com/x.jsonl: is a URL", "OWNER/NAME"]),
        (&["--model", "https://example.com/x"], &["error: https://example.com/x: is a URL", "OWNER/NAME"]),
        (&["--model", "model/model.safetensors"], &["model.safetensors: is a file", "; name ", "/model"]),
        (&["--dataset", "null.jsonl", "--strict-data"], &["null.jsonl:1", "column \"prompt\" is null"]),
    ];
    let messages = assert_named(&place(), mistakes);
    // Windows has its own words for errors of files.
    if cfg!(unix) {
        insta::assert_snapshot!(messages);
    }
}

#[test]
fn each_mistake_is_one_clear_line_with_exit_code_2_and_leaves_nothing() {
    let place = place();
    let cases: &[Mistake<'_>] = &[
        (&["--model", "./nowhere"], &["nowhere/config.json", "no such file"]),
        (&["--model", "nowhere"], &["nowhere", "no such path", "HF_HUB_OFFLINE"]),
        (&["--dataset", "some/where"], &["some/where", "no such path", "HF_HUB_OFFLINE"]),
        (&["--lerning-rate", "1"], &["--lerning-rate", "learning-rate"]),
        (&["--nonsense"], &["--nonsense", "--help"]),
        (&["--set", "lerning_rate=1"], &["learning_rate"]),
        (&["--set", "loss.bta=1"], &["grpo", "bta", "beta"]),
        (&["--set", "plugin.tldr_length_reward.config.taget=1"], &["taget", "target"]),
        (&["--set", "plugin.other.config.target=1"], &["other", "tldr_length_reward"]),
        (&["--beta", "much"], &["grpo", "beta", "much"]),
        (&["--config", "nowhere.toml"], &["nowhere.toml"]),
        (&["--config", "run.toml"], &["run.toml:2", "learning_rate"]),
        (&["--config", "type.toml"], &["type.toml:2", "fast"]),
        (&["--config", "broken.toml"], &["broken.toml:1"]),
        (&["--dataset", "nowhere.jsonl"], &["nowhere.jsonl"]),
        (&["--dataset", "broken.jsonl"], &["broken.jsonl:2", "JSON"]),
        (&["--dataset", "foreign.jsonl"], &["foreign.jsonl:1", "prompt", "question, answer"]),
        (&["--dataset", "foreign.jsonl", "--columns", "prompt=problem"], &["foreign.jsonl:1", "problem", "question, answer"]),
        (&["--dataset", "foreign.jsonl", "--columns", "prompt"], &["columns", "NAME=COLUMN"]),
        (&["--dataset", "empty.jsonl"], &["empty.jsonl", "no rows"]),
        (&["--dataset", "long.jsonl"], &["long.jsonl:1", "500", "192"]),
        (&["--dataset", "chat.jsonl"], &["chat template"]),
        (&["--dataset", "model"], &["model", "folder"]),
        (&["--dataset", "good.jsonl", "--per-device-train-batch-size", "24"], &["2 prompts", "3"]),
        (&["--seed", "99999999999999999999"], &["seed", "99999999999999999999 is too large"]),
        (&["--num-generations", "3"], &["num_generations", "8"]),
        (&["--num-iterations", "9223372036854775807"], &["num_iterations", "1048576"]),
        (&["--gradient-accumulation-steps", "9223372036854775807"], &["gradient_accumulation_steps", "1048576"]),
        (&["--lora-r", "9223372036854775807"], &["lora_r", "1048576"]),
        (&["--num-threads", "100000"], &["num_threads", "1024"]),
        (&["--set", "plugin.tldr_length_reward.config.target=nan"], &["target", "nan"]),
        (&["--temperature", "0"], &["temperature"]),
        (&["--max-steps", "0"], &["max_steps"]),
        (&["--max-steps", "many"], &["max_steps", "many"]),
        (&["--set", "plugin.tldr_length_reward.name=GRPO"], &["GRPO is the algorithm's name, too"]),
        (&["--algorithm", "tldr_length_reward"], &["algorithm", "rlhost:plugin/algorithm@1.0.0"]),
        (&["--plugin", "grpo.wasm"], &["grpo", "reward", "rlhost:plugin/reward@1.0.0"]),
        (&["--plugin", "text.wasm"], &["text", "magic"]),
        (&["--plugin", "empty.wasm"], &["empty"]),
        (&["--plugin", "core.wasm"], &["core module"]),
        (&["--plugin", "nowhere.wasm"], &["nowhere.wasm", "tldr_length_reward.wasm"]),
        (&["--plugin", "tldr_lenght_reward.wasm"], &["tldr_lenght_reward.wasm", "did you mean \"tldr_length_reward.wasm\""]),
        (&["--output-dir", "good.jsonl"], &["output_dir", "is a file"]),
        (&["--output-dir", "model"], &["output_dir", "not empty"]),
        (&["--output-dir", ""], &["output_dir", "is empty"]),
    ];
    let messages = assert_named(&place, cases);
    if cfg!(unix) {
        insta::assert_snapshot!(messages);
    }
}

#[cfg(unix)]
#[test]
fn arguments_that_are_not_text_and_links_to_nothing_are_named() {
    use std::os::unix::ffi::OsStrExt;
    let place = TestFolder::new();
    let odd = std::ffi::OsStr::from_bytes(b"b\xffad");
    let mut command = std::process::Command::new(rlhost_tests::binary());
    command.current_dir(place.path("")).args(["--plugin", "tldr_length_reward.wasm", "--output-dir"]).arg(odd);
    let refused = rlhost_tests::CommandOutcome::new(command.output().unwrap());
    assert_eq!((refused.code, refused.error()), (Some(2), r"error: --output-dir b\xffad: is not UTF-8 text"));
    std::os::unix::fs::symlink("nowhere", place.path("link")).unwrap();
    let refused = place.train("link", &["--max-steps", "1"]);
    assert_eq!(refused.code, Some(2), "{}", refused.stderr);
    assert!(refused.error().contains("output_dir link is a link to nowhere, which does not exist"), "{}", refused.error());
}

#[test]
fn a_system_message_without_a_chat_template_is_what_is_refused() {
    let place = TestFolder::new();
    let refused = place.run(&["generate", "--model", rlhost_tests::tiny(), "--prompt", "x", "--system", "y"]);
    assert_eq!(refused.code, Some(2), "{}", refused.stderr);
    assert!(refused.error().starts_with("error: --system: ") && !refused.error().contains("--chat"), "{}", refused.error());
}

#[test]
fn what_is_wrong_is_named_as_the_user_knows_it() {
    let place = place();
    place.write("pairs.jsonl", "{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": \"c\"}\n".repeat(8));
    let environment = place.run(&["dpo", "--environment", "guess_number.wasm", "--dataset", "pairs.jsonl"]);
    assert!(
        environment.error().starts_with("error: environment: dpo learns from the dataset's pairs"),
        "{}",
        environment.error()
    );
    let token = place.run(&["--plugin", "tldr_length_reward.wasm", "--eos-token", "<none>"]);
    let wanted = "error: the built-in model/tokenizer.json: eos_token: there is no token \"<none>\"";
    assert_eq!((token.code, token.error()), (Some(2), wanted));
    let zero = place.train("run", &["--logging-steps", "0"]);
    assert!(zero.error().starts_with("error: logging_steps: is 0; give a number of steps"), "{}", zero.error());
    let norm = place.train("run", &["--max-grad-norm", "-1e300"]);
    assert!(norm.error().starts_with("error: max_grad_norm: is -1e300; it must be"), "{}", norm.error());
}

#[test]
fn a_byte_order_mark_before_a_models_json_is_no_mistake() {
    let place = place();
    for file in ["config.json", "tokenizer_config.json", "tokenizer.json"] {
        let text = std::fs::read(place.path("model").join(file)).unwrap();
        place.write(&format!("model/{file}"), [b"\xef\xbb\xbf", &text[..]].concat());
    }
    let run = ["--plugin", "tldr_length_reward.wasm", "--model", "model", "--dataset", "good.jsonl", "--max-steps", "1"];
    let size = ["--per-device-train-batch-size", "8", "--max-completion-length", "4", "--output-dir", "run"];
    place.run(&[&run[..], &size].concat()).succeeded();
}

#[test]
fn a_recorded_completion_of_another_kind_is_named_by_line_and_key() {
    let place = TestFolder::new();
    place.train("run", &["--max-steps", "1", "--log-completions", "all"]).succeeded();
    let replay = || place.run(&["replay", "run", "--plugin", "tldr_length_reward.wasm"]);
    assert!(replay().succeeded().stdout.contains(" completions of 1 step, scored by "), "{}", replay().stdout);
    let lines = std::fs::read_to_string(place.path("run/completions.jsonl")).unwrap();
    place.write("run/completions.jsonl", lines.replacen("\"step\":0", "\"step\":\"x\"", 1));
    let refused = replay();
    assert_eq!(refused.error(), "error: run/completions.jsonl:1: step: invalid type: string \"x\", expected u64");
    assert_eq!(refused.code, Some(2));
}

#[test]
fn a_model_folder_that_is_damaged_is_named() {
    let place = place();
    let weights = std::fs::read(place.path("model/model.safetensors")).unwrap();
    let config = std::fs::read_to_string(place.path("model/config.json")).unwrap();
    let damages: &[(&str, Vec<u8>, &str)] = &[
        ("model.safetensors", weights[..weights.len() / 2].to_vec(), "safetensors"),
        ("model.safetensors", b"x".to_vec(), "safetensors"),
        ("config.json", b"{".to_vec(), "config.json"),
        ("config.json", config.replace("\"llama\"", "\"gptj\"").into(), "gptj"),
        ("config.json", config.replace("\"hidden_size\": 64", "\"hidden_size\": 72").into(), "shape"),
        ("config.json", config.replace("\"vocab_size\": 257", "\"vocab_size\": 200").into(), "200"),
        ("tokenizer.json", b"{}".to_vec(), "tokenizer.json"),
    ];
    for (file, bytes, expected) in damages {
        let whole = std::fs::read(place.path("model").join(file)).unwrap();
        place.write(&format!("model/{file}"), bytes);
        let outcome = place.run(&["--plugin", "tldr_length_reward.wasm", "--model", "model", "--dataset", "good.jsonl"]);
        assert_eq!(outcome.code, Some(2), "{file}: {}", outcome.stderr);
        assert!(outcome.error().contains(expected), "{}", outcome.error());
        place.write(&format!("model/{file}"), whole);
    }
    for file in ["model.safetensors", "config.json", "tokenizer.json"] {
        let (here, away) = (place.path("model").join(file), place.path("away"));
        std::fs::rename(&here, &away).unwrap();
        let outcome = place.run(&["--plugin", "tldr_length_reward.wasm", "--model", "model", "--dataset", "good.jsonl"]);
        assert_eq!((outcome.code, outcome.error().contains(file)), (Some(2), true), "{}", outcome.stderr);
        std::fs::rename(&away, &here).unwrap();
    }
}

#[test]
fn a_rate_at_which_weights_would_be_lost_ends_the_run_with_the_weights_as_they_were() {
    let place = TestFolder::new();
    let run = ["--plugin", "tldr_length_reward.wasm", "--max-steps", "4", "--save-steps", "1", "--output-dir", "run"];
    let outcome = place.run(&[&small()[..], &run, &["--learning-rate", "1e39", "--max-completion-length", "8"]].concat());
    assert_eq!(outcome.code, Some(1), "{}", outcome.stderr);
    assert!(outcome.error().contains("lower learning_rate"), "{}", outcome.error());
    let saved: Vec<_> = std::fs::read_dir(place.path("run")).unwrap().map(|e| e.unwrap().path()).collect();
    for model in saved.iter().map(|folder| folder.join("model.safetensors")).filter(|model| model.exists()) {
        let bytes = std::fs::read(&model).unwrap();
        let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        let finite = bytes[header..].chunks_exact(4).all(|x| f32::from_le_bytes(x.try_into().unwrap()).is_finite());
        assert!(finite, "{}", model.display());
    }
}

#[test]
fn a_run_is_not_put_where_it_would_go_with_something_else() {
    let place = TestFolder::new();
    let run = |folder: &str| {
        let run =
            ["--plugin", "tldr_length_reward.wasm", "--max-steps", "1", "--max-completion-length", "8", "--output-dir", folder];
        place.run(&[&small()[..], &run].concat())
    };
    run("first").succeeded();
    std::fs::create_dir_all(place.path("model")).unwrap();
    for name in ["config.json", "model.safetensors"] {
        std::fs::copy(std::path::Path::new(tiny()).join(name), place.path("model").join(name)).unwrap();
    }
    for (folder, what) in
        [("first/checkpoint-1/run", "a checkpoint"), ("first/a/b/run", "another run's folder"), ("model/run", "a model")]
    {
        let outcome = run(folder);
        assert_eq!(outcome.code, Some(2), "{}", outcome.stderr);
        assert!(outcome.error().contains(what) && outcome.error().contains("output_dir"), "{}", outcome.error());
        assert!(!place.path(folder).exists());
    }
    run("beside").succeeded();
}
