//! A run's folder: what retention leaves, what an edit of config.toml does, what a failed start leaves behind, and what a stranger
//! may have put there.

use rlhost_tests::{CommandOutcome, TestFolder, binary, seal, small, version};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::fs;
use std::path::Path;
use std::process::Command;

/// Changes the snapshot of a checkpoint, and its sum.
fn change_snapshot(folder: &Path, change: impl FnOnce(&mut Value)) {
    let file = folder.join("trainer/snapshot.json");
    let mut snapshot: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    change(&mut snapshot);
    fs::write(&file, snapshot.to_string()).unwrap();
    seal(folder, &[]);
}

#[test]
fn a_file_of_somebody_elses_keeps_a_checkpoint_and_is_said_once() {
    let place = TestFolder::new();
    let keep = ["--save-steps", "1", "--save-total-limit", "2"];
    place.train("run", &[&keep[..], &["--max-steps", "2"]].concat()).succeeded();
    place.write("run/checkpoint-1/notes.txt", "mine");
    let more = place.run(&["resume", "run", "--max-steps", "6"]);
    more.succeeded();
    assert_eq!(place.checkpoints("run"), [1, 5, 6]);
    assert_eq!(fs::read_to_string(place.path("run/checkpoint-1/notes.txt")).unwrap(), "mine");
    assert_eq!(more.stderr.matches("notes.txt").count(), 1, "{}", more.stderr);
    // Nothing half removed stays behind.
    assert!(!place.entries_of("run").iter().any(|name| name.starts_with(".checkpoint")));
}

#[test]
fn damaged_and_infinite_checkpoints_are_shown_and_make_no_good_one_go() {
    let place = TestFolder::new();
    place.train("run", &["--save-steps", "1", "--max-steps", "3"]).succeeded();
    let whole = fs::read(place.path("run/checkpoint-2/model.safetensors")).unwrap();
    let mut infinite = whole;
    let last = infinite.len() - 4;
    infinite[last..].copy_from_slice(&f32::NAN.to_le_bytes());
    place.write("run/checkpoint-2/model.safetensors", infinite);
    seal(&place.path("run/checkpoint-2"), &[]);
    place.write("run/checkpoint-3/model.safetensors", "");
    let list = place.run(&["checkpoint", "list", "run"]);
    list.succeeded();
    let line = |step: &str| list.stdout.lines().find(|l| l.trim_start().starts_with(step)).unwrap().to_owned();
    assert!(line("3").contains("model.safetensors has 0 bytes"), "{}", list.stdout);
    assert!(!line("1").contains("can't be used"), "{}", list.stdout);
    let verified = place.run(&["checkpoint", "verify", "run"]);
    assert_eq!(verified.code, Some(1));
    assert!(verified.stdout.contains("not finite") && verified.stdout.contains("checkpoint-1: intact"), "{}", verified.stdout);
    let resumed = place.run(&["resume", "run"]);
    resumed.succeeded();
    assert!(resumed.stdout.contains("from step 1"), "{}", resumed.stdout);
    // Retention counts the one that is good, and so keeps it until there is another.
    place.train("other", &["--save-steps", "1", "--max-steps", "2"]).succeeded();
    place.write("other/checkpoint-2/model.safetensors", "");
    place.copy("other/checkpoint-2", "other/checkpoint-1-kept");
    let limit = ["resume", "other", "--max-steps", "3", "--set", "save_total_limit=1"];
    place.run(&limit).succeeded();
    assert_eq!(place.checkpoints("other"), [3]);
    assert!(place.path("other/superseded-checkpoint-2").exists() && place.path("other/checkpoint-1-kept").exists());
}

#[test]
fn a_run_does_not_go_into_a_datasets_folder() {
    let place = TestFolder::new();
    fs::create_dir(place.path("data")).unwrap();
    place.write("data/a.jsonl", "{\"prompt\": \"a\"}\n".repeat(4));
    let train = |dataset: &str, run: &str, key: &str| {
        let batch = ["--per-device-train-batch-size", "8", "--num-generations", "8", "--max-completion-length", "8"];
        let mut arguments = ["--plugin", "tldr_length_reward.wasm", "--model", small()[1], "--max-steps", "1"].to_vec();
        arguments.extend(batch);
        arguments.extend([key, dataset, "--output-dir", run]);
        place.run(&arguments)
    };
    for (run, key) in [("data/run", "--dataset"), ("data/a/b", "--dataset"), ("data/run", "--eval-dataset")] {
        let refused = train("data", run, key);
        assert_eq!(refused.code, Some(2), "{}", refused.stderr);
        assert!(refused.error().contains("dataset") && refused.error().contains("output_dir"), "{}", refused.error());
    }
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink(place.path("data"), place.path("link")).unwrap();
        assert!(train("data", "link/run", "--dataset").error().contains("dataset"));
    }
    assert_eq!(place.entries_of("data"), ["a.jsonl"]);
    // Beside a dataset's file, and beside its folder, is fine.
    train("data/a.jsonl", "data/run", "--dataset").succeeded();
    train("data", "run", "--dataset").succeeded();
}

#[test]
fn a_start_that_was_killed_leaves_nothing_in_the_way() {
    let place = TestFolder::new();
    let slow = ["--max-steps", "1", "--max-completion-length", "150", "--per-device-train-batch-size", "64"];
    let mut arguments = small().to_vec();
    arguments.extend(["--plugin", "tldr_length_reward.wasm", "--output-dir", "run"]);
    arguments.extend(slow);
    let mut child = place.start(&arguments);
    while !place.path("run/events.jsonl").exists() && child.try_wait().unwrap().is_none() {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(place.path("run/.lock").exists() && !place.path("run/checkpoint-1").exists());
    place.run(&arguments).succeeded();
    assert_eq!((place.checkpoints("run"), place.figure("run", "step")), (vec![1], vec![1.0]));
    // What has steps is a run, and is not begun again.
    let refused = place.run(&arguments);
    assert_eq!(refused.code, Some(2));
    assert!(refused.error().contains("--resume-from-checkpoint"), "{}", refused.error());
    // Nor is a folder begun in that holds anything else.
    fs::create_dir(place.path("mine")).unwrap();
    for name in [".lock", "notes.txt"] {
        place.write(&format!("mine/{name}"), "");
    }
    assert!(place.train("mine", &["--max-steps", "1"]).error().contains("not empty"));
}

#[allow(clippy::print_stdout)]
#[test]
fn a_start_without_room_leaves_nothing_in_the_way() {
    let place = TestFolder::new();
    let model = small().join(" ");
    let run =
        format!("$RLHOST {model} --plugin tldr_length_reward.wasm --max-completion-length 8 --max-steps 1 --output-dir run");
    let script = format!("{run}; echo code $?; mount -o remount,size=16m . && {run} && $RLHOST checkpoint verify run");
    let Some(tried) = place.on_disk("64k", &script) else { return println!("skipped: no mount namespaces here") };
    assert!(tried.stdout.contains("code ") && !tried.stdout.contains("code 0"), "{}", tried.stderr);
    assert!(tried.stderr.contains("No space left"), "{}", tried.stderr);
    assert_eq!(tried.code, Some(0), "{}", tried.stderr);
    assert!(tried.stdout.contains("run/checkpoint-1: intact"), "{}", tried.stdout);
}

#[test]
fn an_edited_configuration_counts_when_a_run_is_resumed() {
    let place = TestFolder::new();
    place.train("run", &["--max-steps", "2"]).succeeded();
    let file = place.path("run/config.toml");
    let edit = |from: &str, to: &str| {
        let text = fs::read_to_string(&file).unwrap();
        assert!(text.contains(from), "{from:?} is not in {text}");
        fs::write(&file, text.replacen(from, to, 1)).unwrap();
    };
    let weight = || place.lines("run/metrics.jsonl").last().unwrap()["reward"].as_f64().unwrap();
    let scored = || place.lines("run/metrics.jsonl").last().unwrap()["rewards/tldr_length_reward/mean"].as_f64().unwrap();
    // What may change while a run goes on, and what changes nothing.
    edit("weight = 1.0", "weight = 3.0");
    edit("max_steps = 2", "max_steps = 3");
    edit("beta = 0.0", "beta = 0.25");
    place.run(&["resume", "run"]).succeeded();
    assert_eq!(place.figure("run", "step"), [1.0, 2.0, 3.0]);
    assert!((weight() - 3.0 * scored()).abs() < 1e-4, "{} of {}", weight(), scored());
    let changed = place.events("run", "resumed")[0]["changed"].clone();
    assert_eq!(changed["plugin.tldr_length_reward.weight"], json!([1.0, 3.0]));
    assert_eq!((&changed["loss.beta"], &changed["max_steps"]), (&json!([0.0, 0.25]), &json!([2, 3])));
    // The command line is stronger, and what it may not do it may not do here either.
    edit("max_steps = 3", "max_steps = 9");
    place.run(&["resume", "run", "--max-steps", "4"]).succeeded();
    assert_eq!(place.figure("run", "step").len(), 4);
    let refused = place.run(&["resume", "run", "--max-steps", "5", "--set", "loss.beta=0.5"]);
    assert!(refused.error().contains("changing loss.beta would change the run's results"), "{}", refused.error());
    // What is left out has its default.
    edit("beta = 0.25\n", "");
    place.run(&["resume", "run", "--max-steps", "5"]).succeeded();
    assert!(fs::read_to_string(&file).unwrap().contains("beta = 0.0"));
    // What may not change, by its key, and what is no key or no TOML.
    let whole = fs::read_to_string(&file).unwrap();
    for (from, to, expected) in [
        ("temperature = 1.0", "temperature = 0.5", "temperature can't change during a run"),
        ("seed = 42", "seed = 43", "seed can't change"),
        ("path = \"tldr_length_reward.wasm\"", "path = \"grpo.wasm\"", "plugin can't change"),
        (
            "path = \"tldr_length_reward.wasm\"",
            "path = \"b/tldr_length_reward.wasm\"",
            "plugin.tldr_length_reward.path can't change",
        ),
        ("algorithm = \"grpo", "algorithm = \"b/grpo", "algorithm can't change"),
        ("seed = 42", "seed = 42\nsede = 43", "sede"),
        ("seed = 42", "seed = ", "config.toml:"),
    ] {
        edit(from, to);
        let edited = fs::read_to_string(&file).unwrap();
        let refused = place.run(&["resume", "run", "--max-steps", "6"]);
        assert_eq!(refused.code, Some(2), "{to}: {}", refused.stderr);
        assert!(refused.error().contains(expected), "{to}: {}", refused.error());
        assert_eq!(fs::read_to_string(&file).unwrap(), edited, "it is left as it is");
        fs::write(&file, &whole).unwrap();
    }
    edit("temperature = 1.0", "temperature = 0.5");
    place.run(&["resume", "run", "--max-steps", "6", "--allow-changed"]).succeeded();
    assert!(fs::read_to_string(&file).unwrap().contains("temperature = 0.5"));
    place.run(&["resume", "run", "--max-steps", "7"]).succeeded();
}

#[test]
fn an_edit_that_the_run_refused_is_no_setting_of_it_and_no_dead_end() {
    let place = TestFolder::new();
    place.train("run", &["--max-steps", "2"]).succeeded();
    let file = place.path("run/config.toml");
    let whole = fs::read_to_string(&file).unwrap();
    // As it stays in the file where a live run refuses it.
    for (from, to) in
        [("target = 20", "target = \"x\""), ("target = 20", "traget = 20"), ("seed = 42", "seed = "), ("beta = 0.0", "beta = -1")]
    {
        assert!(whole.contains(from), "{from:?} is not in {whole}");
        fs::write(&file, whole.replacen(from, to, 1)).unwrap();
        let refused = place.run(&["resume", "run", "--max-steps", "3"]);
        assert_eq!(refused.code, Some(2), "{to}: {}", refused.stderr);
        let advice = "config.toml was edited, and the run has not taken the edit up; to go on without it: rlhost resume run --discard-edits";
        assert!(refused.error().contains(advice), "{to}: {}", refused.error());
        place.run(&["report", "run"]).succeeded();
        let config = &place.report("run")["of_runs"]["config"]["run"];
        assert!(config["note"].as_str().unwrap().contains("the run has not taken the edit up"), "{to}");
        assert_eq!(config["settings"]["plugin.tldr_length_reward.config.target"], "20", "{to}");
        let shown = place.run(&["compare", "run", "run/../run", "--json"]);
        assert!(shown.error().contains("is one run"), "{}", shown.stderr);
        place.run(&["replay", "run", "--plugin", "tldr_length_reward.wasm"]).succeeded();
        place.run(&["rollouts", "run"]).succeeded();
        place.run(&["diagnose", "run"]).succeeded();
    }
    place.copy("run", "other");
    fs::write(&file, whole.replacen("weight = 1.0", "weight = 2.0", 1)).unwrap();
    let compared = place.run(&["compare", "run", "other", "--json"]);
    let line: Value = serde_json::from_str(&compared.succeeded().stdout).unwrap();
    assert_eq!(line["groups"].as_array().unwrap().len(), 1, "{line}");
    place.run(&["resume", "run", "--max-steps", "3", "--discard-edits"]).succeeded();
    assert_eq!(fs::read_to_string(&file).unwrap(), whole.replacen("max_steps = 2", "max_steps = 3", 1));
    assert_eq!(place.report("run")["of_runs"]["config"]["run"]["note"], Value::Null);
}

/// A metric of a window.
fn metric(total: f64) -> Value {
    json!({"total": total, "weight": 1.0, "reduction": "Last"})
}

fn swap() -> Value {
    json!({"step": 1, "plugin": "p", "from": "a", "to": "b", "rolled_back": false})
}

/// A plugin that was replaced.
fn replaced(until: u64, limits: Value) -> Value {
    let what = json!({"Plugin": {"config": {}, "limits": limits, "chosen": [], "written_by": null}});
    json!({"until": until, "hash": "a", "by": "b", "what": what})
}

#[test]
fn numbers_in_a_snapshot_that_lead_nowhere_are_one_line() {
    let place = TestFolder::new();
    // Micro-batches wait at the checkpoint.
    let parts = ["--per-device-train-batch-size", "8", "--steps-per-generation", "4", "--max-steps", "1"];
    place.train("run", &parts).succeeded();
    type SnapshotEdit = fn(&mut Value);
    let changes: &[(&str, SnapshotEdit)] = &[
        ("prompt refers to row", |s| s["experiences"][0]["prompts"][0] = json!(1_000_000_000u64)),
        ("belongs to prompt", |s| s["experiences"][0]["rollouts"][0]["prompt"] = json!(1_000_000)),
        ("log-probabilities", |s| drop(s["experiences"][0]["columns"].as_array_mut().unwrap().remove(0))),
        ("texts", |s| s["experiences"][0]["texts"] = json!([])),
        ("rewards", |s| s["experiences"][0]["rewards"][0][2] = json!([])),
        ("advantage has", |s| s["experiences"][0]["columns"][1]["per"] = json!("sequence")),
        ("no tensor 0/column/another", |s| s["experiences"][0]["columns"][1]["name"] = json!("another")),
        ("values in", |s| drop(s["experiences"][0]["rollouts"].as_array_mut().unwrap().pop())),
        ("pair", |s| s["experiences"][0]["pairs"] = json!([[0, 1_000_000]])),
        ("micro-batch", |s| s["pending"][0] = json!([7, 0, 1])),
        ("micro-batch", |s| s["pending"][0] = json!([0, 5, 1])),
        ("micro-batch", |s| s["pending"][0] = json!([0, 0, 1_000_000])),
        ("from step 9", |s| s["state"]["global_step"] = json!(9)),
        ("num_tokens", |s| s["state"]["num_tokens"] = json!(u64::MAX)),
        ("epoch", |s| s["cursor"]["epoch"] = json!(u64::MAX)),
        ("optimizer_updates", |s| s["optimizer_updates"] = json!(u64::MAX)),
        ("a metric \"step\"", |s| s["window"]["sums"]["step"] = metric(7e300)),
        ("a metric \"a\\u{1b}", |s| s["since_save"]["sums"]["a\u{1b}[31m"] = metric(1.0)),
        ("metrics; the limit is", |s| (0..20_000).for_each(|i| s["window"]["sums"][i.to_string()] = metric(1.0))),
        ("swaps has 100001 entries", |s| s["swaps"] = json!(vec![swap(); 100_001])),
        ("kept until step", |s| s["replaced"]["grpo"] = replaced(10_000, json!({}))),
        ("call_timeout_s", |s| s["replaced"]["grpo"] = replaced(3, json!({"call_timeout_s": -1.0}))),
        ("replaced.grpo", |s| s["replaced"]["grpo"] = replaced(3, json!({"memory_mb": u64::MAX}))),
    ];
    for (expected, change) in changes {
        place.copy("run", "copy");
        change_snapshot(&place.path("copy/checkpoint-1"), change);
        let refused = place.run(&["resume", "copy", "--max-steps", "2"]);
        assert_eq!(refused.code, Some(2), "{expected}: {}", refused.stderr);
        let error = refused.error();
        // Of these, the list in snapshot.json leads to numbers that are not there.
        let of_numbers =
            ["log-probabilities", "advantage has", "no tensor", "values in"].iter().any(|start| expected.starts_with(start));
        let file = if of_numbers { "rollouts.safetensors: " } else { "snapshot.json: " };
        assert!(error.contains(file) && error.contains(expected), "{expected}: {error}");
        fs::remove_dir_all(place.path("copy")).unwrap();
    }
    change_snapshot(&place.path("run/checkpoint-1"), |_| ());
    place.run(&["resume", "run", "--max-steps", "2"]).succeeded();
}

#[test]
fn a_predecessor_in_a_strangers_checkpoint_sets_no_limits() {
    let place = TestFolder::new();
    // It traps from a step on, and then its predecessor returns.
    place.write("versioned.wasm", version(1));
    let plugin = ["--plugin", "versioned.wasm", "--set", "plugin.versioned.config.trap_at=3", "--output-dir", "run"];
    place.run(&[&small()[..], &plugin, &["--max-steps", "1", "--max-completion-length", "4"]].concat()).succeeded();
    let loaded = place.events("run", "plugin_loaded");
    let by = loaded.iter().find(|event| event["plugin"] == "versioned").unwrap()["hash"].clone();
    let hash: String = Sha256::digest(version(2)).iter().map(|byte| format!("{byte:02x}")).collect();
    for (limits, refused) in [(json!({}), None), (json!({"memory_mb": 4000}), Some("limits.memory_mb = 4000"))] {
        place.copy("run", "copy");
        let checkpoint = place.path("copy/checkpoint-1");
        fs::create_dir(checkpoint.join("trainer/replaced")).unwrap();
        fs::write(checkpoint.join("trainer/replaced/versioned.wasm"), version(2)).unwrap();
        let was = json!({"hash": hash, "by": by, "until": 8, "what": replaced(8, limits)["what"]});
        change_snapshot(&checkpoint, |snapshot| snapshot["replaced"]["versioned"] = was);
        let resumed = place.run(&["resume", "copy", "--max-steps", "5"]);
        let warning = "versioned can't be rolled back: the checkpoint gives its predecessor plugin.versioned.";
        match refused {
            Some(limit) => {
                assert_eq!(resumed.code, Some(1), "{}", resumed.stderr);
                assert!(resumed.stderr.contains(&format!("{warning}{limit}")), "{}", resumed.stderr);
            }
            None => assert_eq!(place.events("copy", "plugin_rolled_back").len(), 1, "{}", resumed.stderr),
        }
        fs::remove_dir_all(place.path("copy")).unwrap();
    }
}

#[cfg(unix)]
#[test]
fn a_strangers_run_is_not_written_through_links_nor_waited_for() {
    use std::os::unix::fs::symlink;
    let place = TestFolder::new();
    place.train("run", &["--max-steps", "1"]).succeeded();
    place.write("victim", "precious\n");
    let events = place.entries_of("run/tensorboard")[0].clone();
    let logs = ["metrics.jsonl", "events.jsonl", "completions.jsonl", ".lock"].map(str::to_owned);
    let pipe = |path: &Path| assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
    for name in logs.into_iter().chain([format!("tensorboard/{events}")]) {
        for by_pipe in [false, true] {
            place.copy("run", "copy");
            let path = place.path("copy").join(&name);
            fs::remove_file(&path).unwrap();
            if by_pipe {
                pipe(&path);
            } else {
                symlink(place.path("victim"), &path).unwrap();
            }
            let refused = place.run(&["resume", "copy", "--max-steps", "2"]);
            assert!(refused.code == Some(2) && refused.error().contains(&name), "{name}: {}", refused.stderr);
            assert!(refused.error().contains(if by_pipe { "a pipe" } else { "a link" }), "{}", refused.error());
            assert_eq!(fs::read_to_string(place.path("victim")).unwrap(), "precious\n", "{name}");
            fs::remove_dir_all(place.path("copy")).unwrap();
        }
    }
    fs::create_dir(place.path("elsewhere")).unwrap();
    for name in ["tensorboard", "plugins", "swap"] {
        place.copy("run", "copy");
        let path = place.path("copy").join(name);
        fs::remove_dir_all(&path).unwrap();
        symlink(place.path("elsewhere"), &path).unwrap();
        let refused = place.run(&["resume", "copy", "--max-steps", "2"]);
        assert!(refused.code == Some(2) && refused.error().contains("a link"), "{name}: {}", refused.stderr);
        assert!(place.entries_of("elsewhere").is_empty(), "{name}");
        fs::remove_dir_all(place.path("copy")).unwrap();
    }
    // A kept plugin is put in the link's place.
    for plugin in place.entries_of("run/plugins") {
        let path = place.path("run/plugins").join(plugin);
        fs::remove_file(&path).unwrap();
        symlink(place.path("victim"), &path).unwrap();
    }
    place.run(&["resume", "run", "--max-steps", "2"]).succeeded();
    assert_eq!(fs::read_to_string(place.path("victim")).unwrap(), "precious\n");
    assert!(place.entries_of("run/plugins").iter().all(|p| !place.path("run/plugins").join(p).is_symlink()));
}

#[cfg(unix)]
#[test]
fn what_is_no_file_in_a_checkpoint_is_refused_and_not_read() {
    let place = TestFolder::new();
    place.train("run", &["--max-steps", "1"]).succeeded();
    let pipe = |path: &Path| assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
    let verify = || {
        let verified = place.run(&["checkpoint", "verify", "copy"]);
        assert_eq!(verified.code, Some(1), "{}", verified.stdout);
        let resumed = place.run(&["resume", "copy", "--max-steps", "2"]);
        assert_eq!(resumed.code, Some(2), "{}", resumed.stderr);
        verified.stdout
    };
    for name in ["trainer/manifest.json", "trainer/snapshot.json", "model.safetensors", "more"] {
        place.copy("run", "copy");
        let path = place.path("copy/checkpoint-1").join(name);
        let _ = fs::remove_file(&path);
        pipe(&path);
        let said = verify();
        assert!(said.contains("a pipe") && said.contains(name), "{name}: {said}");
        place.run(&["checkpoint", "list", "copy"]).succeeded();
        fs::remove_dir_all(place.path("copy")).unwrap();
    }
    // Paths that lead out of it.
    let secret = Sha256::digest(b"secret\n").iter().map(|b| format!("{b:02x}")).collect::<String>();
    place.write("secret", "secret\n");
    for name in ["../../secret", place.path("secret").to_str().unwrap()] {
        place.copy("run", "copy");
        seal(&place.path("copy/checkpoint-1"), &[(name, json!({ "bytes": 7, "sha256": secret }))]);
        let said = verify();
        assert!(said.contains("is not inside it"), "{name}: {said}");
        fs::remove_dir_all(place.path("copy")).unwrap();
    }
    // A report waits for none either.
    fs::remove_file(place.path("run/metrics.jsonl")).unwrap();
    pipe(&place.path("run/metrics.jsonl"));
    assert!(place.run(&["report", "run"]).error().contains("metrics.jsonl"));
    fs::remove_file(place.path("run/completions.jsonl")).unwrap();
    pipe(&place.path("run/completions.jsonl"));
    let replayed = place.run(&["replay", "run", "--plugin", "tldr_length_reward.wasm"]);
    assert!(replayed.error().contains("a pipe"), "{}", replayed.error());
}

/// Files that seem to be larger than any memory: they have nothing but zeros, which take no room on the disk.
#[cfg(unix)]
#[test]
fn files_without_an_end_in_a_strangers_run_take_no_memory() {
    let place = TestFolder::new();
    place.train("run", &["--max-steps", "1"]).succeeded();
    let grown = |name: &str| {
        place.copy("run", "copy");
        let file = fs::File::options().append(true).open(place.path("copy").join(name)).unwrap();
        file.set_len(1 << 36).unwrap();
    };
    // Instances of plugins reserve address space, with which the memory of the process is not bounded more closely.
    let run = |arguments: &str| {
        let mut command = Command::new("sh");
        let script = format!("ulimit -v {} && exec \"$0\" {arguments}", 16 << 20);
        command.args(["-c", &script]).arg(binary()).current_dir(place.path("")).env("NO_COLOR", "1").env_remove("RUST_LOG");
        CommandOutcome::new(command.output().unwrap())
    };
    let events = format!("tensorboard/{}", place.entries_of("run/tensorboard")[0]);
    for name in ["metrics.jsonl", "events.jsonl", "completions.jsonl"] {
        grown(name);
        let resumed = run("resume copy --max-steps 2");
        assert_eq!(resumed.code, Some(2), "{name}: {}", resumed.stderr);
        assert!(resumed.error().contains(name) && resumed.error().contains("is longer than 64 MiB"), "{}", resumed.stderr);
        fs::remove_dir_all(place.path("copy")).unwrap();
    }
    // An event file is cut off where it is no longer one.
    grown(&events);
    run("resume copy --max-steps 2").succeeded();
    assert!(fs::metadata(place.path("copy").join(&events)).unwrap().len() < 1 << 20);
    fs::remove_dir_all(place.path("copy")).unwrap();

    grown("config.toml");
    let refused = run("report copy");
    assert!(refused.code == Some(2) && refused.error().contains("larger than the limit of 4 MiB"), "{}", refused.stderr);
    fs::remove_dir_all(place.path("copy")).unwrap();
    grown("completions.jsonl");
    let refused = run("replay copy --plugin tldr_length_reward.wasm");
    assert!(refused.code == Some(2) && refused.error().contains("is longer than 8 MiB"), "{}", refused.stderr);
    fs::remove_dir_all(place.path("copy")).unwrap();
}

#[test]
fn a_report_of_more_metrics_than_there_is_room_for_is_small_and_says_so() {
    let place = TestFolder::new();
    fs::create_dir(place.path("run")).unwrap();
    place.write("run/config.toml", "seed = 1\n");
    let line = |i: usize| format!("{{\"step\":{i},\"reward\":1,\"x{i}\":1}}\n");
    place.write("run/metrics.jsonl", (1..20_000).map(line).collect::<String>());
    place.run(&["report", "run"]).succeeded();
    let page = fs::read_to_string(place.path("run/report.html")).unwrap();
    assert!(page.contains("only the first 4096 metrics are shown"), "{}", &page[..page.len().min(2000)]);
    assert!(page.contains("metrics and steps; its last"), "the steps that are left out");
    let points: usize = place.report("run")["series"]["run"]["series"]
        .as_object()
        .unwrap()
        .values()
        .map(|s| s["y"].as_array().unwrap().len())
        .sum();
    assert!(points <= 1_000_000, "{points}");
    assert!(page.len() < 64 << 20, "{} bytes", page.len());
}

#[test]
fn the_last_step_there_can_be_is_a_step() {
    let place = TestFolder::new();
    place.train("run", &["--max-steps", "1"]).succeeded();
    let mut lines = place.lines("run/completions.jsonl");
    for line in &mut lines {
        line["step"] = json!(u64::MAX);
    }
    place.write("run/completions.jsonl", lines.iter().map(|line| format!("{line}\n")).collect::<String>());
    let replayed = place.run(&["replay", "run", "--plugin", "tldr_length_reward.wasm"]);
    assert!(replayed.succeeded().stdout.contains("completions of 18,446,744,073,709,551,615 steps"), "{}", replayed.stdout);
}

#[test]
fn a_run_stands_for_its_newest_checkpoint_wherever_a_model_is_asked_for() {
    let place = TestFolder::new();
    place.train("run", &["--max-steps", "2", "--save-steps", "1", "--lora-r", "2", "--learning-rate", "0.1"]).succeeded();
    for (command, to) in [("export", "out"), ("merge", "merged")] {
        let made = place.run(&[command, "run", to]);
        made.succeeded();
        assert!(made.stderr.contains("run: using its newest checkpoint, run/checkpoint-2"), "{}", made.stderr);
        let of_checkpoint = format!("{to}-of-checkpoint");
        place.run(&[command, "run/checkpoint-2", &of_checkpoint]).succeeded();
        let weights = |folder: &str| fs::read(place.path(folder).join("model.safetensors")).unwrap();
        assert!(weights(to) == weights(&of_checkpoint), "{command}");
    }
    place.train("whole", &["--max-steps", "2", "--save-steps", "1"]).succeeded();
    let next = ["--plugin", "tldr_length_reward.wasm", "--model", "whole", "--dataset", small()[3], "--max-steps", "1"];
    place.run(&[&next[..], &["--max-completion-length", "8", "--output-dir", "next"]].concat()).succeeded();
    let config = fs::read_to_string(place.path("next/config.toml")).unwrap();
    assert!(config.contains("/whole/checkpoint-2\""), "{config}");
    // A run that has saved nothing has no model.
    fs::remove_dir_all(place.path("whole/checkpoint-1")).unwrap();
    fs::remove_dir_all(place.path("whole/checkpoint-2")).unwrap();
    let refused = place.run(&["export", "whole", "none"]);
    assert!(refused.code == Some(2) && refused.error().contains("whole: has no checkpoint"), "{}", refused.stderr);
    assert!(!place.path("none").exists());
}

/// A run that goes on until it is stopped, in its third step.
#[cfg(target_os = "linux")]
fn working(place: &TestFolder, save_steps: &str) -> std::process::Child {
    let mut all = small().to_vec();
    all.extend(["--plugin", "tldr_length_reward.wasm", "--max-completion-length", "24", "--output-dir", "run"]);
    all.extend(["--logging-steps", "1", "--max-steps", "1000000", "--save-steps", save_steps]);
    let child = place.start(&all);
    place.wait("run", std::time::Duration::from_secs(60), || place.steps("run") > 2);
    child
}

#[cfg(target_os = "linux")]
fn terminate(mut child: std::process::Child) {
    Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(3));
}

#[cfg(target_os = "linux")]
#[test]
fn a_run_whose_folder_is_renamed_or_removed_loses_no_step() {
    let place = TestFolder::new();
    let child = working(&place, "1000000");
    fs::rename(place.path("run"), place.path("other")).unwrap();
    // Somebody else's, which is left alone.
    fs::create_dir(place.path("run")).unwrap();
    let before = place.steps("other");
    place.wait("other", std::time::Duration::from_secs(60), || place.steps("other") > before + 1);
    terminate(child);
    let last = place.checkpoints("other")[0];
    assert_eq!((place.entries_of("run").len(), place.steps("other") as u64), (0, last));
    let warnings = place.events("other", "warning");
    assert!(warnings.iter().any(|event| event["text"].as_str().unwrap().contains("was renamed to")), "{warnings:?}");
    place.run(&["resume", "other", "--max-steps", &(last + 1).to_string()]).succeeded();
    assert_eq!(place.checkpoints("other"), [last, last + 1]);

    fs::remove_dir(place.path("run")).unwrap();
    let child = working(&place, "1000000");
    fs::remove_dir_all(place.path("run")).unwrap();
    terminate(child);
    let last = place.checkpoints("run")[0];
    place.run(&["checkpoint", "verify", "run"]).succeeded();
    // What is logged from then on is in the new folder, which has all that a run's folder has.
    assert!(!place.events("run", "stopped").is_empty() && !place.entries_of("run/plugins").is_empty());
    assert!(place.path("run/config.toml").exists());
    place.run(&["resume", "run", "--max-steps", &(last + 1).to_string()]).succeeded();
}

#[cfg(target_os = "linux")]
#[test]
fn a_checkpoint_that_a_rename_interrupts_is_saved_again() {
    let place = TestFolder::new();
    let mut child = working(&place, "1");
    let mut name = "run".to_owned();
    for i in 0..8 {
        let next = format!("renamed-{i}");
        fs::rename(place.path(&name), place.path(&next)).unwrap();
        name = next;
        let before = place.steps(&name);
        place.wait(&name, std::time::Duration::from_secs(60), || place.steps(&name) > before + 1);
        assert!(child.try_wait().unwrap().is_none(), "it goes on");
    }
    terminate(child);
    let last = place.checkpoints(&name).pop().unwrap();
    assert_eq!(place.steps(&name) as u64, last);
    place.run(&["checkpoint", "verify", &name]).succeeded();
    place.run(&["resume", &name, "--max-steps", &(last + 1).to_string()]).succeeded();
}

#[cfg(target_os = "linux")]
#[test]
fn a_removed_lock_lets_no_second_process_in() {
    let place = TestFolder::new();
    let child = working(&place, "1");
    fs::remove_file(place.path("run/.lock")).unwrap();
    let refused = place.run(&["resume", "run"]);
    assert!(refused.code == Some(2) && refused.error().contains("another rlhost process"), "{}", refused.stderr);
    terminate(child);
    let last = place.checkpoints("run").pop().unwrap();
    place.run(&["resume", "run", "--max-steps", &(last + 1).to_string()]).succeeded();
}

#[test]
fn temporary_files_of_interrupted_writes_go_when_the_run_resumes() {
    let place = TestFolder::new();
    place.train("run", &["--max-steps", "1"]).succeeded();
    let ours = ["run/.rlhost-a1B2c3.tmp", "run/plugins/.rlhost-d4E5f6.tmp"];
    let others = ["run/.rlhost-notes", "run/notes.tmp", "run/plugins/.mine.tmp"];
    ours.iter().chain(&others).for_each(|name| place.write(name, "half a line"));
    fs::create_dir(place.path("run/.rlhost-folder.tmp")).unwrap();
    place.run(&["resume", "run", "--max-steps", "2"]).succeeded();
    assert!(ours.iter().all(|name| !place.path(name).exists()));
    assert!(others.iter().chain(&["run/.rlhost-folder.tmp"]).all(|name| place.path(name).exists()));
    // Nothing else of the kind is left.
    assert!(place.entries_of("run").iter().all(|name| !name.starts_with(".tmp") && name != ".config.toml"));
}
