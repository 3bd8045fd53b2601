//! What is printed and written beside a run: nothing is lost without a word, nothing obeys what a model wrote.

use rlhost_tests::{CommandOutcome, TestFolder, binary, small, tiny};
use std::fs;
use std::process::{Command, Stdio};

fn to(place: &TestFolder, arguments: &[&str], stdout: impl Into<Stdio>) -> CommandOutcome {
    let mut command = Command::new(binary());
    command.current_dir(place.path("")).args(arguments).env_remove("RUST_LOG").env("NO_COLOR", "1").env("HF_HUB_OFFLINE", "1");
    CommandOutcome::new(command.stdout(stdout).stderr(Stdio::piped()).spawn().unwrap().wait_with_output().unwrap())
}

/// Commands that print, in a place that has a run.
fn printing() -> (TestFolder, Vec<Vec<&'static str>>) {
    let place = TestFolder::new();
    place.train("run", &["--max-steps", "1"]).succeeded();
    let eval = [&["eval", "--plugin", "tldr_length_reward.wasm", "--max-completion-length", "8"][..], &small()].concat();
    let commands = vec![
        vec!["--help"],
        vec!["--version"],
        vec!["train", "--help"],
        vec!["completions", "bash"],
        vec!["man"],
        vec!["checkpoint", "list", "run"],
        vec!["checkpoint", "verify", "run"],
        vec!["plugin", "inspect", "tldr_length_reward.wasm"],
        vec!["report", "run"],
        vec!["generate", "--model", tiny(), "--prompt", "a", "--max-new-tokens", "4"],
        eval,
    ];
    (place, commands)
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_behind_standard_output_is_an_error_and_a_closed_pipe_is_none() {
    let (place, commands) = printing();
    for command in commands {
        let full = to(&place, &command, fs::File::options().write(true).open("/dev/full").unwrap());
        assert_eq!(full.code, Some(1), "{command:?}: {}", full.stderr);
        assert!(full.error().contains("No space left"), "{command:?}: {}", full.error());
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let closed = to(&place, &command, writer);
        assert_eq!(closed.code, Some(0), "{command:?}: {}", closed.stderr);
        assert!(!closed.stderr.contains("error:"), "{command:?}: {}", closed.stderr);
    }
}

#[cfg(unix)]
#[test]
fn a_printed_command_can_be_pasted_whatever_the_run_is_called() {
    let place = TestFolder::new();
    let folder = "my run;touch gone";
    let trained = place.train(folder, &["--max-steps", "1", "--report-to", "trackio"]);
    trained.succeeded();
    let next = trained.stdout.lines().find(|line| line.starts_with("next:")).unwrap();
    assert!(next.contains("--model 'my run;touch gone/checkpoint-1' --prompt"), "{next}");
    assert!(trained.stdout.contains("tensorboard --logdir 'my run;touch gone'"), "{}", trained.stdout);
    assert!(trained.stderr.contains("rlhost export-run 'my run;touch gone' --format trackio"), "{}", trained.stderr);
    let exported = place.run(&["export-run", folder, "--format", "trackio"]);
    exported.succeeded();
    assert!(exported.stderr.contains("python 'my run;touch gone/my_run_touch_gone-trackio.py' && "), "{}", exported.stderr);
    let command = next.split_once("rlhost ").unwrap().1.replace("\"...\"", "a --max-new-tokens 1");
    let script = format!("{} {command}", binary().display());
    let shell = Command::new("sh").args(["-c", &script]).current_dir(place.path("")).output().unwrap();
    assert!(shell.status.success() && !place.path("gone").exists(), "{}", String::from_utf8_lossy(&shell.stderr));
}

#[test]
fn quiet_stays_quiet_whatever_rust_log_says() {
    let place = TestFolder::new();
    let quiet =
        [&["-q", "--plugin", "tldr_length_reward.wasm", "--max-steps", "1", "--output-dir", "run"][..], &small()].concat();
    let quiet = place.run_with(&[&quiet[..], &["--max-completion-length", "8"]].concat(), &[("RUST_LOG", "trace")]);
    assert_eq!((quiet.code, quiet.stderr.as_str()), (Some(0), ""));
}

#[test]
fn what_a_model_writes_and_what_files_are_called_moves_no_cursor() {
    let place = TestFolder::new();
    // A model of random weights writes bytes of all kinds.
    let trained = place.train("run\n\x1b[31m", &["--max-steps", "1", "--set", "max_completion_length=150"]);
    trained.succeeded();
    let hidden = |text: &str| text.chars().any(|c| c.is_control() && c != '\n');
    assert!(!hidden(&trained.stdout), "{:?}", trained.stdout);
    assert!(!hidden(&trained.stderr), "{:?}", trained.stderr);
    assert!(trained.stdout.contains("prompt:"), "{}", trained.stdout);

    fs::create_dir(place.path("data")).unwrap();
    place.write("data/a\nerror: forged \x1b[2J.jsonl", "{\"prompt\": \n");
    let refused = place.run(&["--plugin", "tldr_length_reward.wasm", "--model", tiny(), "--dataset", "data"]);
    assert_eq!(refused.code, Some(2), "{}", refused.stderr);
    assert!(refused.error().contains("a\\nerror: forged \\u{1b}[2J.jsonl"), "{}", refused.error());
    place.write("data/a\nerror: forged \x1b[2J.jsonl", "{\"\u{202e}c\\n\": 1}\n");
    let refused = place.run(&["--plugin", "tldr_length_reward.wasm", "--model", tiny(), "--dataset", "data"]);
    assert!(refused.error().contains("\\u{202e}c\\n"), "{}", refused.error());
}

#[cfg(unix)]
#[test]
fn weights_have_the_rights_of_everything_else() {
    use std::os::unix::fs::MetadataExt;
    let place = TestFolder::new();
    place.train("run", &["--max-steps", "1"]).succeeded();
    place.run(&["export", tiny(), "exported"]).succeeded();
    let rights = |path: &str| place.path(path).metadata().unwrap().mode() & 0o777;
    let (file, folder) = (rights("run/config.toml"), rights("run"));
    for inner in ["run/checkpoint-1", "run/checkpoint-1/trainer"] {
        for name in place.entries_of(inner).into_iter().filter(|name| !["plugins", "trainer"].contains(&name.as_str())) {
            assert_eq!(rights(&format!("{inner}/{name}")), file, "{name}");
        }
        assert_eq!(rights(inner), folder);
    }
    assert_eq!(rights("exported/model.safetensors"), file);
}

#[test]
fn a_weight_that_a_precision_cannot_hold_is_not_exported() {
    let place = TestFolder::new();
    place.copy(tiny(), "model");
    let mut bytes = fs::read(place.path("model/model.safetensors")).unwrap();
    let last = bytes.len() - 4;
    bytes[last..].copy_from_slice(&1e6f32.to_le_bytes());
    place.write("model/model.safetensors", bytes);
    let refused = place.run(&["export", "model", "to/half", "--dtype", "f16"]);
    assert_eq!(refused.code, Some(2), "{}", refused.stderr);
    assert!(refused.error().contains("float16") && refused.error().contains("model."), "{}", refused.error());
    assert!(!place.path("to/half").exists(), "nothing is left to be in the way");
    place.run(&["export", "model", "to/half", "--dtype", "bf16"]).succeeded();
}

#[test]
fn a_wrong_ending_token_is_named_with_its_file() {
    let place = TestFolder::new();
    place.copy(tiny(), "model");
    let config = fs::read_to_string(place.path("model/config.json")).unwrap();
    let generate = || place.run(&["generate", "--model", "model", "--prompt", "a", "--max-new-tokens", "1"]);
    for bad in ["-1", "\"x\"", "[1, 2.5]", "99999999999"] {
        place.write("model/generation_config.json", format!("{{\"eos_token_id\": {bad}}}"));
        let error = generate().error().to_owned();
        assert!(error.contains("generation_config.json") && error.contains("eos_token_id"), "{error}");
    }
    for good in ["1", "[1, 2]", "null"] {
        place.write("model/generation_config.json", format!("{{\"eos_token_id\": {good}}}"));
        generate().succeeded();
    }
    let mut changed: serde_json::Value = serde_json::from_str(&config).unwrap();
    changed["eos_token_id"] = (-1).into();
    place.write("model/config.json", changed.to_string());
    let error = generate().error().to_owned();
    assert!(error.contains("model/config.json") && error.contains("eos_token_id is -1"), "{error}");
}

#[test]
fn a_key_that_stands_twice_is_refused() {
    let place = TestFolder::new();
    place.copy(tiny(), "model");
    let config = fs::read_to_string(place.path("model/config.json")).unwrap();
    for (key, value) in [("hidden_size", "64"), ("rope_theta", "1e5"), ("eos_token_id", "1")] {
        place.write("model/config.json", config.replacen('{', &format!("{{\"{key}\": {value}, \"{key}\": {value},"), 1));
        let outcome = place.run(&["generate", "--model", "model", "--prompt", "a", "--max-new-tokens", "1"]);
        assert_eq!(outcome.code, Some(2), "{key}: {}", outcome.stderr);
        assert!(outcome.error().contains("twice in one object") && outcome.error().contains(key), "{}", outcome.error());
    }
}
