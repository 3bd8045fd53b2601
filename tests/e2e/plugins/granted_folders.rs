//! Folders that the user lets a plugin read: what it sees, that nothing else is in reach, and that a resumed run has the same.

use rlhost_tests::{CommandOutcome, TestFolder, small, version};
use std::fs;

/// A plugin that scores the lines of a folder, and a folder of five lines in files at two levels.
fn place() -> TestFolder {
    let place = TestFolder::new();
    place.write("versioned.wasm", version(1));
    fs::create_dir_all(place.path("lists/inner/empty")).unwrap();
    place.write("lists/words.txt", "one\ntwo\nthree\n");
    // More than a plugin reads at once.
    place.write("lists/inner/more.txt", format!("{}\ny", "x".repeat(66_000)));
    place
}

const CACHE: &str = "own-cache";

fn run(place: &TestFolder, arguments: &[&str], cache: &str) -> CommandOutcome {
    place.run_with(arguments, &[("RLHOST_STATE_DIR", &place.path(cache).display().to_string())])
}

fn train(place: &TestFolder, output: &str, more: &[&str]) -> CommandOutcome {
    let plugin = ["--plugin", "versioned.wasm", "--set", "plugin.versioned.config.folder=/words", "--output-dir", output];
    let steps = ["--max-steps", "3", "--save-steps", "1", "--logging-steps", "1"];
    run(place, &[&small()[..], &plugin, &steps, more].concat(), CACHE)
}

const GRANT: [&str; 2] = ["--set", "plugin.versioned.folders={ words = \"lists\" }"];

#[test]
fn a_plugin_reads_the_folder_it_was_granted_and_nothing_else() {
    let place = place();
    let outcome = train(&place, "run", &GRANT);
    outcome.succeeded();
    // Its version and five lines.
    assert_eq!(place.figure("run", "rewards/versioned/mean"), [6.0; 3]);
    let lists = place.path("lists").display().to_string();
    assert!(outcome.stderr.contains(&format!("versioned is granted to read {lists} as /words")), "{}", outcome.stderr);
    let granted = place.events("run", "plugin_loaded").iter().find_map(|e| e["granted"].as_str().map(str::to_owned)).unwrap();
    assert_eq!(granted, format!("to read {lists} as /words"));
    // Checks and replays are granted folders by flags.
    fs::create_dir_all(place.path("few")).unwrap();
    place.write("few/words.txt", "one\ntwo\n");
    let check = ["plugin", "check", "versioned.wasm", "--set", "folder=/words"];
    assert_ne!(place.run(&check).code, Some(0));
    place.run(&[&check[..], &["--folder", "words=few"]].concat()).succeeded();
    run(&place, &["replay", "run", "--plugin", "versioned.wasm", "--set", "folder=/words"], CACHE).succeeded();

    let refused = |more: &[&str], parts: &[&str]| {
        let outcome = train(&place, "no", more);
        assert!(parts.iter().all(|part| outcome.error().contains(part)), "{parts:?}: {}", outcome.stderr);
        assert_eq!(outcome.code, Some(2), "{}", outcome.stderr);
    };
    let folders = |table: &str| format!("plugin.versioned.folders={{ {table} }}");
    refused(&["--set", &folders("words = \"nowhere\"")], &["plugin.versioned", "folders.words", "nowhere"]);
    refused(&["--set", &folders("\"../x\" = \"lists\"")], &["versioned", "../x"]);
    // Without the grant there is no such folder, and the reward fails.
    let outcome = train(&place, "none", &[]);
    assert!(outcome.code != Some(0) && outcome.error().contains("versioned"), "{}", outcome.stderr);
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink("/etc/passwd", place.path("lists/link")).unwrap();
        refused(&GRANT, &["lists/link", "no links"]);
    }
}

#[test]
fn a_resumed_run_reads_the_same_folder_or_says_that_it_changed() {
    let place = place();
    train(&place, "run", &GRANT).succeeded();
    place.copy_as_after("run", 1, "resumed");
    run(&place, &["resume", "resumed"], CACHE).succeeded();
    place.assert_same_end("resumed", "run", 3, "model.safetensors");

    // A stranger's run grants nothing.
    place.copy_as_after("run", 1, "theirs");
    let outcome = run(&place, &["resume", "theirs"], "another-cache");
    let lists = place.path("lists").display().to_string();
    let again = format!("--set 'plugin.versioned.folders={{ words = {lists:?} }}'");
    assert!(outcome.code == Some(2) && outcome.error().contains(&again), "{}", outcome.stderr);
    let set = format!("plugin.versioned.folders={{ words = {lists:?} }}");
    run(&place, &["resume", "theirs", "--set", &set], "another-cache").succeeded();

    // Part of what is granted, or something else about it, is no grant.
    place.copy_as_after("run", 1, "partly");
    for part in ["plugin.versioned.folders.more=lists", "plugin.versioned.folders_hash=\"x\""] {
        let outcome = run(&place, &["resume", "partly", "--set", part, "--allow-changed"], "another-cache-still");
        assert!(outcome.code == Some(2) && outcome.error().contains("have not granted"), "{}", outcome.stderr);
    }
    // A replay that asks nobody reads no ungranted folder either.
    let replay = ["replay", "run", "--plugin", "versioned.wasm", "--set", "folder=/words", "--replay-only"];
    let outcome = run(&place, &replay, "another-cache-still");
    assert!(outcome.error().contains("--folder"), "{}", outcome.stderr);
    run(&place, &[&replay[..], &["--folder", "words=lists"]].concat(), "another-cache-still").succeeded();
    // Without its folders, or with more, it is another run.
    let more = format!("plugin.versioned.folders={{ words = {lists:?}, more = {lists:?} }}");
    for other in ["plugin.versioned.folders={}", more.as_str()] {
        let outcome = run(&place, &["resume", "partly", "--set", other], CACHE);
        assert!(outcome.code == Some(2) && outcome.error().contains("have changed"), "{}", outcome.stderr);
    }

    place.copy_as_after("run", 1, "changed");
    place.write("lists/words.txt", "one\n");
    let outcome = run(&place, &["resume", "changed"], CACHE);
    assert!(outcome.code == Some(2) && outcome.error().contains("have changed since the run began"), "{}", outcome.stderr);
    run(&place, &["resume", "changed", "--allow-changed"], CACHE).succeeded();
    assert_eq!(place.figure("changed", "rewards/versioned/mean"), [6.0, 4.0, 4.0]);
}

#[test]
fn a_strangers_environment_is_granted_nothing_by_an_own_list_of_plugins() {
    let place = place();
    let folders = "environment.guess_number.folders={ words = \"lists\" }";
    let play = ["grpo", "--environment", "guess_number.wasm", "--max-turns", "2", "--output-dir", "played", "--set", folders];
    let steps = ["--max-steps", "2", "--save-steps", "1", "--max-completion-length", "4", "--num-generations", "2"];
    let size = ["--per-device-train-batch-size", "2"];
    run(&place, &[&play[..], &steps, &size].concat(), CACHE).succeeded();
    place.write("own.toml", "[[plugin]]\npath = \"format_reward.wasm\"\n");
    let resume = ["train", "--config", "own.toml", "--resume-from-checkpoint", "played/checkpoint-1", "--output-dir", "theirs"];
    let outcome = run(&place, &resume, "another-cache");
    let lists = place.path("lists").display().to_string();
    let advice = format!("--set 'environment.guess_number.folders={{ words = {lists:?} }}'");
    assert!(outcome.code == Some(2) && outcome.error().contains(&advice), "{}", outcome.stderr);
    let set = format!("environment.guess_number.folders={{ words = {lists:?} }}");
    place.copy_as_after("played", 1, "again");
    run(&place, &["resume", "again", "--set", &set], "another-cache").succeeded();
}
