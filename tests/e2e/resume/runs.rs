//! Runs that are stopped and go on: the same to the bit as if nothing had happened.

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rlhost_tests::{CommandOutcome, HOSTILE, REMEMBERING, TestFolder, seal, tiny};
use std::fs;
use std::io::Write;
use std::process::Command;
use std::time::Duration;

const STEPS: u64 = 12;

/// Ten prompts of which a generation takes four: a pass is two generations, the third begins the
/// next pass, and two prompts of each are left out.
fn prompts(place: &TestFolder) {
    let lines: String = (0..10).map(|i| format!("{{\"prompt\": \"prompt {i} {}\"}}\n", "ab".repeat(i))).collect();
    place.write("prompts.jsonl", lines);
}

/// Each generation is trained on twice, in four steps of two micro-batches; figures are logged
/// every fifth step, so that checkpoints fall inside windows; one of the rewards keeps a state.
fn arguments(run: &str) -> Vec<&str> {
    let mut all = vec!["--model", tiny(), "--plugin", "tldr_length_reward.wasm", "--plugin", REMEMBERING];
    all.extend(["--dataset", "prompts.jsonl", "--output-dir", run]);
    all.extend(["--max-completion-length", "12", "--max-steps", "12", "--save-steps", "1", "--logging-steps", "5"]);
    all.extend(["--steps-per-generation", "4", "--num-iterations", "2", "--gradient-accumulation-steps", "2"]);
    all.extend(["--beta", "0.1", "--learning-rate", "0.002", "--log-completions", "all"]);
    all
}

fn assert_same(place: &TestFolder, got: &str, want: &str) {
    place.assert_same_end(got, want, STEPS, "model.safetensors");
}

/// A folder with an uninterrupted run.
fn with_whole_run() -> TestFolder {
    let place = TestFolder::new();
    prompts(&place);
    place.run(&arguments("whole")).succeeded();
    place
}

#[test]
fn a_run_resumed_from_any_step_ends_as_the_uninterrupted_one() {
    let place = with_whole_run();
    let states: Vec<Vec<u8>> = (1..=STEPS)
        .map(|step| fs::read(place.path(&format!("whole/checkpoint-{step}/trainer/plugins/remembering.state"))).unwrap())
        .collect();
    assert_ne!(states[0], states[STEPS as usize - 1], "the reward has no state to lose");
    for step in 1..STEPS {
        let name = format!("from-{step}");
        place.copy_as_after("whole", step, &name);
        place.run(&["resume", &name]).succeeded();
        assert_same(&place, &name, "whole");
        fs::remove_dir_all(place.path(&name)).unwrap();
    }
}

/// Waits for a child to have logged `lines` steps; false if it ended before that.
fn logged(place: &TestFolder, run: &str, lines: u64, child: &mut std::process::Child) -> bool {
    loop {
        if place.steps(run) as u64 >= lines {
            return true;
        }
        if child.try_wait().unwrap().is_some() {
            return false;
        }
        std::thread::sleep(Duration::from_micros(300));
    }
}

/// A hangup, unless these tests ignore them, as their children then do.
fn hangup() -> Option<&'static str> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).map(str::trim);
    let heard = ignored.is_some_and(|mask| u64::from_str_radix(mask, 16).unwrap() & 1 == 0);
    if !heard {
        eprintln!("skipped: hangups are ignored here, or the system does not say whether they are");
    }
    heard.then_some("-HUP")
}

#[test]
fn a_signal_at_any_step_saves_and_ends_with_a_code_of_its_own() {
    let place = TestFolder::new();
    prompts(&place);
    // No checkpoint but the signal's, and a line for each step, to know when to send it.
    let settings = ["--save-steps", "1000", "--logging-steps", "1"];
    place.run(&[&arguments("whole")[..], &settings].concat()).succeeded();
    for signal in ["-INT", "-TERM"].into_iter().chain(hangup()) {
        for step in 1..STEPS {
            let run = format!("signalled{signal}-{step}");
            let given = [&arguments(&run)[..], &settings].concat();
            // A step may be over before the signal comes: then once more.
            let stopped_there = (0..50).any(|_| {
                let mut child = place.start(&given);
                let in_step = logged(&place, &run, step - 1, &mut child);
                if step == 1 {
                    // Nothing is logged before the first step, and signals are heard from then on.
                    while !place.path(&run).join("completions.jsonl").metadata().is_ok_and(|m| m.len() > 0) {
                        std::thread::sleep(Duration::from_micros(300));
                    }
                }
                Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap();
                if signal == "-HUP" {
                    // A closed terminal tells it, and so does the shell.
                    Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap();
                }
                let code = child.wait().unwrap().code();
                let there = in_step && place.checkpoints(&run) == [step];
                assert!(!there || code == Some(3), "{signal} at step {step}: {code:?}");
                if !there {
                    fs::remove_dir_all(place.path(&run)).unwrap();
                }
                there
            });
            assert!(stopped_there, "never stopped at step {step}");
            assert_eq!(place.events(&run, "stopped")[0]["step"], step);
            place.run(&["resume", &run]).succeeded();
            assert_same(&place, &run, "whole");
            fs::remove_dir_all(place.path(&run)).unwrap();
        }
    }
}

#[test]
fn a_first_interrupt_says_what_a_second_one_would_do() {
    let place = TestFolder::new();
    prompts(&place);
    let endless = ["--max-steps", "100000", "--logging-steps", "1", "--save-steps", "100000"];
    let mut child = place.start_piped(&[&arguments("run")[..], &endless].concat());
    assert!(logged(&place, "run", 1, &mut child));
    Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    let heard = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&heard.stderr);
    assert!(said.contains("stopping after this step to save; Ctrl-C again stops at once"), "{said}");
    assert_eq!(heard.status.code(), Some(3));
}

#[test]
fn a_run_that_is_done_has_nothing_left_to_do_and_says_so() {
    let place = with_whole_run();
    let figures = place.figures("whole");
    let again = place.run(&["resume", "whole"]);
    assert!(again.succeeded().stderr.contains("nothing left to do"), "{}", again.stderr);
    let said = &again.stdout;
    assert!(!said.contains("done") && !said.contains("after ") && said.contains("checkpoint: "), "nothing is generated: {said}");
    assert_eq!(place.figures("whole"), figures);
}

/// Asserts that every checkpoint that a run shows is whole.
fn all_whole(place: &TestFolder, run: &str) -> CommandOutcome {
    let verified = place.run(&["checkpoint", "verify", run]);
    assert_eq!(verified.code, Some(0), "{}{}", verified.stdout, verified.stderr);
    verified
}

#[test]
fn a_run_killed_fifty_times_at_random_moments_goes_on_and_ends_the_same() {
    let place = with_whole_run();
    let mut random = ChaCha8Rng::seed_from_u64(11);
    let mut kills_in_saves = 0;
    let mut before = Vec::new();
    for kill in 0..50 {
        // From its start again once it is through, so that all fifty hit something.
        if before.len() as u64 >= STEPS - 1 {
            fs::remove_dir_all(place.path("killed")).unwrap();
            before.clear();
        }
        let mut given = arguments("killed");
        given.push("--resume-from-checkpoint");
        let mut child = place.start(&given);
        let saving = || {
            let entries = fs::read_dir(place.path("killed")).into_iter().flatten().flatten();
            entries.filter(|e| e.file_name().to_str().is_some_and(|n| n.starts_with(".checkpoint-"))).count() > 0
        };
        if kill % 2 == 0 {
            // While a checkpoint is being written.
            while !saving() && child.try_wait().unwrap().is_none() {
                std::thread::sleep(Duration::from_micros(100));
            }
            std::thread::sleep(Duration::from_micros(random.random_range(0..4_000)));
        } else {
            std::thread::sleep(Duration::from_millis(random.random_range(20..250)));
        }
        child.kill().unwrap();
        child.wait().unwrap();
        kills_in_saves += usize::from(saving());
        let now = if place.path("killed").exists() { place.checkpoints("killed") } else { Vec::new() };
        assert!(before.iter().all(|step| now.contains(step)), "kill {kill} lost one of {before:?}: {now:?}");
        if !now.is_empty() {
            all_whole(&place, "killed");
        }
        before = now;
    }
    assert!(kills_in_saves >= 5, "only {kills_in_saves} of the kills hit a save");
    let mut given = arguments("killed");
    given.push("--load_checkpoint");
    place.run(&given).succeeded();
    assert_same(&place, "killed", "whole");
    assert!(!place.entries_of("killed").iter().any(|name| name.starts_with(".checkpoint-")), "an interrupted save is left");
}

#[test]
fn a_run_that_a_plugin_ended_goes_on_as_if_it_had_not() {
    let place = TestFolder::new();
    prompts(&place);
    let hostile = |run: &'static str, misdeed: &str| {
        let mut all: Vec<String> = arguments(run).into_iter().map(String::from).collect();
        all.extend(["--plugin".into(), HOSTILE.into(), "--set".into(), format!("plugin.hostile.config.misdeed={misdeed:?}")]);
        all.extend(["--set".into(), "plugin.hostile.config.from_step=4".into()]);
        // A window ends where settings of a plugin change; here it is one that ends anyway.
        all.extend(["--logging-steps".into(), "4".into()]);
        place.run(&all.iter().map(String::as_str).collect::<Vec<_>>())
    };
    hostile("whole", "none").succeeded();
    assert_eq!(hostile("failed", "trap").code, Some(1));
    assert_eq!(place.checkpoints("failed"), [1, 2, 3, 4]);
    let mended = ["resume", "failed", "--allow-changed", "--set", "plugin.hostile.config.misdeed=\"none\""];
    place.run(&mended).succeeded();
    // The other reward's state was taken back to before the step that failed. Its rows name other settings of the plugin that failed.
    assert_eq!(place.figures("failed"), place.figures("whole"));
    let end = |run: &str, file: &str| fs::read(place.path(run).join(format!("checkpoint-{STEPS}")).join(file)).unwrap();
    for file in ["model.safetensors", "trainer/optimizer.safetensors"] {
        assert!(end("failed", file) == end("whole", file), "{file}");
    }
}

#[test]
fn any_damaged_file_of_a_checkpoint_is_named_and_the_one_before_taken() {
    let place = with_whole_run();
    place.copy_as_after("whole", 5, "damaged");
    // A line that was cut off inside a character, as a full disk leaves it.
    let mut log = fs::OpenOptions::new().append(true).open(place.path("damaged/completions.jsonl")).unwrap();
    log.write_all(b"{\"step\": 7, \"prompt\": \"s\xc3").unwrap();
    let mut random = ChaCha8Rng::seed_from_u64(3);
    let mut files = place.entries_of("damaged/checkpoint-5");
    for folder in ["trainer", "trainer/plugins"] {
        let inside = place.entries_of(&format!("damaged/checkpoint-5/{folder}"));
        files.extend(inside.into_iter().map(|name| format!("{folder}/{name}")));
        files.retain(|name| name != folder);
    }
    assert!(files.len() >= 10, "{files:?}");
    for name in files {
        let file = place.path("damaged/checkpoint-5").join(&name);
        let good = fs::read(&file).unwrap();
        for cut in [false, true] {
            let (mut bytes, at) = (good.clone(), random.random_range(0..good.len()));
            if cut {
                bytes.truncate(at);
            } else {
                bytes[at] ^= random.random_range(1..=255u8);
            }
            fs::write(&file, bytes).unwrap();
            place.copy("damaged", "trial");
            let outcome = place.run(&["resume", "trial", "--max-steps", "5"]);
            outcome.succeeded();
            assert!(outcome.stderr.contains("checkpoint-5 can't be used"), "{name}: {}", outcome.stderr);
            assert!(outcome.stdout.contains("from step 4"), "{name}: {}", outcome.stdout);
            assert!(place.path("trial/superseded-checkpoint-5").exists(), "{name}");
            fs::remove_dir_all(place.path("trial")).unwrap();
        }
        let refused = place.run(&["checkpoint", "verify", "damaged/checkpoint-5"]);
        assert_eq!(refused.code, Some(1), "{name}");
        fs::write(&file, good).unwrap();
    }
    fs::remove_file(place.path("damaged/checkpoint-5/trainer/optimizer.safetensors")).unwrap();
    place.run(&["resume", "damaged"]).succeeded();
    assert_same(&place, "damaged", "whole");
    let refused = place.run(&["resume", "damaged", "--step", "77"]);
    assert_eq!(refused.code, Some(2));
    assert!(refused.error().contains("checkpoint-77"));
}

#[test]
fn settings_that_change_the_past_are_refused_by_name() {
    let place = with_whole_run();
    let sets = ["--set", "temperature=0.5", "--set", "save_steps=2", "--set", "loss.beta=0.2"];
    let refused = place.run(&[&["resume", "whole"], &sets[..]].concat());
    assert_eq!(refused.code, Some(2));
    assert!(refused.error().contains("temperature, loss.beta would"), "{}", refused.error());
    place.run(&["resume", "whole", "--max-steps", "14", "--set", "save_steps=5"]).succeeded();
    assert_eq!(place.events("whole", "resumed")[0]["changed"]["save_steps"], serde_json::json!([1, 5]));
    assert_eq!(place.events("whole", "checkpoint_saved").last().unwrap()["step"], 14);
    // The command of the beginning is no change, and other prompts are.
    let mut again = arguments("whole");
    again.extend(["--resume-from-checkpoint", "latest", "--max-steps", "15"]);
    place.run(&again).succeeded();
    place.write("prompts.jsonl", "{\"prompt\": \"other\"}\n".repeat(10));
    let refused = place.run(&["resume", "whole", "--max-steps", "16"]);
    assert!(refused.error().contains("dataset has changed"), "{}", refused.error());
    place.run(&["resume", "whole", "--max-steps", "16", "--allow-changed"]).succeeded();
    assert_eq!(place.run(&["resume", "nowhere"]).code, Some(2));
}

/// Settings, a row of their dataset, and the hash of ten such rows in checkpoints of versions that hashed tokens.
type TokenHashCase = (&'static [&'static str], fn(usize) -> serde_json::Value, &'static str);

const HASHES_OF_TOKENS: [TokenHashCase; 7] = [
    (
        &["grpo", "--plugin", "tldr_length_reward.wasm", "--max-completion-length", "12", "--num-generations", "2"],
        |i| serde_json::json!({"prompt": format!("prompt {i}"), "id": i}),
        "049155d08fccb18a0aec90e219e5652bd043bc75567bc46ef7bcfb57578a71a0",
    ),
    (
        &["dpo"],
        |i| serde_json::json!({"prompt": format!("prompt {i}"), "chosen": "yes é", "rejected": format!(" no {i}")}),
        "fb7dcd52b3d42c5de996c3eaae7e55c6994bd94166ab1ea9e808d5f274a4339d",
    ),
    (
        &["sft", "--learn-from", "dataset"],
        |i| serde_json::json!({"prompt": format!("prompt {i}"), "completion": "a".repeat(i)}),
        "c69df2d505151350aeea57e84debf245e0863ab904621b9a737672a485cde71f",
    ),
    (
        &["sft", "--learn-from", "dataset", "--packing", "--max-length", "32"],
        |i| serde_json::json!({"prompt": format!("prompt {i}"), "completion": "a".repeat(i)}),
        "c69df2d505151350aeea57e84debf245e0863ab904621b9a737672a485cde71f",
    ),
    (
        &["kto"],
        |i| serde_json::json!({"prompt": format!("prompt {i}"), "completion": "é".repeat(i), "label": i % 3 > 0}),
        "d9c5bd7b4a29b7d26d5069c387e7a81bcc55ef200737f2c51c1eb8921cb4c81e",
    ),
    (
        &["kto", "--max-length", "12"],
        |i| serde_json::json!({"prompt": format!("prompt {i}"), "chosen": "yes é", "rejected": format!(" no {i}")}),
        "8bf9fc88c566ceda4c5580fcd85ae2a2039536140216fa0dd53a4629d1ec3511",
    ),
    (
        &["reward_model"],
        |i| serde_json::json!({"prompt": format!("prompt {i}"), "chosen": "yes é", "rejected": format!(" no {i}"), "margin": i}),
        "81f9c94bde03b6b03298508067cf4ef77a90404c4c1b20be6898618917f41fd6",
    ),
];

#[test]
fn a_checkpoint_with_a_hash_of_tokens_is_resumed_and_notices_another_dataset() {
    for (settings, row, hash) in HASHES_OF_TOKENS {
        let place = TestFolder::new();
        let rows = |from: usize| (from..from + 10).map(|i| format!("{}\n", row(i))).collect::<String>();
        place.write("rows.jsonl", rows(0));
        let mut all = vec!["--model", tiny(), "--dataset", "rows.jsonl", "--learning-rate", "0.01", "--algorithm"];
        all.extend(settings);
        all.extend(["--max-steps", "4", "--save-steps", "1", "--per-device-train-batch-size", "4", "--output-dir", "whole"]);
        place.run(&all).succeeded();
        place.copy_as_after("whole", 2, "part");
        let file = place.path("part/checkpoint-2/trainer/snapshot.json");
        let mut state: serde_json::Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
        assert!(state["dataset"].as_str().unwrap().starts_with("rows:"));
        state["dataset"] = hash.into();
        fs::write(&file, state.to_string()).unwrap();
        seal(&place.path("part/checkpoint-2"), &[]);
        place.write("rows.jsonl", rows(1));
        let refused = place.run(&["resume", "part"]);
        assert!(refused.error().contains("dataset has changed"), "{}", refused.error());
        place.write("rows.jsonl", rows(0));
        place.run(&["resume", "part"]).succeeded();
        place.assert_same_end("part", "whole", 4, "model.safetensors");
    }
}

#[test]
fn a_large_dataset_that_changes_during_a_run_ends_it_with_the_row() {
    let more = "x".repeat(16 << 10);
    let rows = |word: &str, i: usize| match word {
        "none" => format!("{{\"prompt\": \"none {i}\", \"more\": \"{more}\"}}\n"),
        answers => format!("{{\"prompt\": \"some {i}\", {answers}, \"more\": \"{more}\"}}\n"),
    };
    let pair = "\"chosen\": \"a\", \"rejected\": \"b\"";
    let text = "\"completion\": \"a\", \"label\": true";
    for (answers, settings) in [
        (text, &["--plugin", "tldr_length_reward.wasm", "--max-completion-length", "4"][..]),
        (text, &["--algorithm", "kto", "--shuffle-dataset", "true"]),
        (pair, &["--algorithm", "kto", "--shuffle-dataset", "true"]),
        (pair, &["--algorithm", "reward_model"]),
        (text, &["--algorithm", "sft", "--learn-from", "dataset", "--packing", "--max-length", "32"]),
    ] {
        let place = TestFolder::new();
        let rows = |word: &str| (0..1200).map(|i| rows(word, i)).collect::<String>();
        place.write("rows.jsonl", rows(answers));
        let mut all = vec!["--model", tiny(), "--dataset", "rows.jsonl", "--output-dir", "run", "--max-steps", "100000"];
        all.extend([&["--save-steps", "1000"], settings].concat());
        let child = place.start_piped(&all);
        place.wait("run", Duration::from_secs(60), || place.steps("run") > 0);
        place.write("rows.jsonl", rows("none"));
        let ended = CommandOutcome::new(child.wait_with_output().unwrap());
        assert_eq!(ended.code, Some(2), "{settings:?}: {}", ended.error());
        let said = ended.error();
        assert!(said.contains("rows.jsonl:") && said.contains("has changed since the run"), "{settings:?}: {said}");
        assert!(!place.checkpoints("run").is_empty(), "it is saved");
    }
}

#[test]
fn going_back_where_nothing_would_be_done_is_refused_and_changes_nothing() {
    let place = with_whole_run();
    let (before, entries) = (fs::read(place.path("whole/metrics.jsonl")).unwrap(), place.entries_of("whole"));
    let refused = place.run(&["resume", "whole", "--step", "4", "--max-steps", "4"]);
    assert_eq!(refused.code, Some(2), "{}", refused.stderr);
    assert!(refused.stderr.contains("no step would follow checkpoint-4"), "{}", refused.stderr);
    assert_eq!((fs::read(place.path("whole/metrics.jsonl")).unwrap(), place.entries_of("whole")), (before, entries));
    // From the newest one, there is nothing to undo.
    place.run(&["resume", "whole"]).succeeded();

    // A run that ended before its first checkpoint says how it starts over.
    for step in 1..=STEPS {
        fs::remove_dir_all(place.path(&format!("whole/checkpoint-{step}"))).unwrap();
    }
    let refused = place.run(&["resume", "whole"]);
    assert!(refused.code == Some(2) && refused.stderr.contains("--resume-from-checkpoint"), "{}", refused.stderr);
}

#[test]
fn a_limit_on_the_size_of_files_is_reported() {
    let place = TestFolder::new();
    let script = "ulimit -f 8; exec \"$0\" export \"$1\" out --dtype f32";
    let ran =
        Command::new("sh").args(["-c", script]).arg(rlhost_tests::binary()).arg(tiny()).current_dir(place.path(".")).output();
    let ran = ran.unwrap();
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(
        ran.status.code() == Some(1) && said.contains("can't write") && said.contains("File too large"),
        "{:?}: {said}",
        ran.status
    );
}

#[test]
fn moments_below_zero_are_refused() {
    let place = with_whole_run();
    place.copy_as_after("whole", 3, "bad");
    let file = place.path("bad/checkpoint-3/trainer/optimizer.safetensors");
    let mut bytes = fs::read(&file).unwrap();
    let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let described: serde_json::Value = serde_json::from_slice(&bytes[8..header]).unwrap();
    let (name, of) = described.as_object().unwrap().iter().find(|(name, _)| name.ends_with(".v")).unwrap();
    let begin = header + of["data_offsets"][0].as_u64().unwrap() as usize;
    bytes[begin..begin + 4].copy_from_slice(&(-1f32).to_le_bytes());
    fs::write(&file, bytes).unwrap();
    seal(&place.path("bad/checkpoint-3"), &[]);
    let refused = place.run(&["resume", "bad"]);
    assert!(refused.stderr.contains(&format!("{name} has values below zero")), "{}", refused.stderr);
}

#[test]
fn what_is_removed_from_a_runs_folder_costs_no_checkpoint() {
    let place = TestFolder::new();
    prompts(&place);
    let long = ["--save-steps", "100000", "--logging-steps", "1", "--max-steps", "100000"];
    let mut child = place.start(&[&arguments("run")[..], &long].concat());
    assert!(logged(&place, "run", 2, &mut child), "it ended before its second step");
    fs::remove_dir_all(place.path("run/plugins")).unwrap();
    Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(3));
    let step = place.checkpoints("run")[0];
    let on = (step + 1).to_string();
    place.run(&["resume", "run", "--max-steps", &on]).succeeded();
    assert_eq!(place.checkpoints("run"), [step, step + 1]);
}

#[test]
fn a_run_that_began_with_another_runs_checkpoint_goes_on_with_that_one() {
    let place = TestFolder::new();
    prompts(&place);
    let short = ["--max-steps", "1", "--save-steps", "1"];
    place.run(&[&arguments("first")[..], &short].concat()).succeeded();
    let given = [&arguments("second")[..], &["--model", "first", "--save-steps", "1", "--max-steps"]].concat();
    place.run(&[&given[..], &["1"]].concat()).succeeded();
    // The first run has a later checkpoint by now.
    place.run(&["resume", "first", "--max-steps", "2"]).succeeded();
    place.run(&[&given[..], &["2", "--resume-from-checkpoint"]].concat()).succeeded();
    assert_eq!(place.checkpoints("second"), [1, 2]);
    let config = fs::read_to_string(place.path("second/config.toml")).unwrap();
    assert!(config.contains("first/checkpoint-1\""), "{config}");
}
