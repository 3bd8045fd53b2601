//! What a run's folder may set beyond computing, which is nothing: limits, ports and the like are the user's to grant, and a folder
//! has them only with that user's mark.

use rlhost_tests::{CommandOutcome, TestFolder, tiny};
use std::fs;
use std::process::Command;

/// Runs the binary as a user with a key of their own.
fn run_as(user: &str, place: &TestFolder, arguments: &[&str]) -> CommandOutcome {
    place.run_with(arguments, &[("RLHOST_STATE_DIR", &place.path(user).display().to_string())])
}

const LIMITS: [&str; 4] =
    ["--set", "plugin.tldr_length_reward.limits.memory_mb=4000", "--set", "loss_limits.call_timeout_s=1000000.0"];

/// A port that nobody else sees, and that is given by the system.
const PORT: [&str; 4] = ["--metrics-port", "0", "--metrics-address", "127.0.0.2"];

fn train(place: &TestFolder, output: &str, more: &[&str]) -> CommandOutcome {
    place.write("prompts.jsonl", "{\"prompt\":\"a\"}\n{\"prompt\":\"b\"}\n");
    let model = ["--model", tiny(), "--dataset", "prompts.jsonl", "--plugin", "tldr_length_reward.wasm", "--output-dir", output];
    let size = ["--num-generations", "2", "--per-device-train-batch-size", "2", "--max-completion-length", "4"];
    let steps = ["--max-steps", "2", "--save-steps", "1", "--logging-steps", "1"];
    run_as("me", place, &[&model[..], &size, &steps, more].concat())
}

/// A run that takes more than the defaults, as its user has ordered.
fn generous() -> TestFolder {
    let place = TestFolder::new();
    let outcome = train(&place, "run", &[&LIMITS[..], &PORT].concat());
    outcome.succeeded();
    for shown in [
        "granted: plugin.tldr_length_reward.limits.memory_mb = 4000",
        "granted: loss_limits.call_timeout_s = 1000000.0",
        "granted: metrics_port = 0 with metrics_address = 127.0.0.2",
    ] {
        assert!(outcome.stderr.contains(shown), "{shown}: {}", outcome.stderr);
    }
    place.copy_as_after("run", 1, "half");
    place
}

const REFUSED: [&str; 4] = [
    "plugin.tldr_length_reward.limits.memory_mb = 4000",
    "loss_limits.call_timeout_s = 1000000.0",
    "metrics_port = 0 with metrics_address = 127.0.0.2",
    "you have not granted that on this machine",
];

fn assert_refused(outcome: &CommandOutcome, parts: &[&str]) {
    let error = outcome.error();
    assert!(outcome.code == Some(2) && parts.iter().all(|part| error.contains(part)), "{parts:?}: {}", outcome.stderr);
    assert!(!outcome.stderr.contains("granted:"), "{}", outcome.stderr);
}

#[test]
fn a_strangers_run_folder_sets_no_limits_and_opens_no_ports() {
    let place = generous();
    // The user's own run resumes as before, wherever it is now.
    place.copy("half", "own");
    run_as("me", &place, &["resume", "own"]).succeeded();
    place.assert_same_end("own", "run", 2, "model.safetensors");
    #[cfg(unix)]
    {
        place.copy("half", "linked");
        std::os::unix::fs::symlink(place.path("linked"), place.path("link")).unwrap();
        run_as("me", &place, &["resume", "link"]).succeeded();
    }

    place.copy("half", "theirs");
    let resume = |user: &str, more: &[&str]| run_as(user, &place, &[&["resume", "theirs"], more].concat());
    let events = fs::read(place.path("theirs/events.jsonl")).unwrap();
    let outcome = resume("another", &[]);
    assert_refused(&outcome, &REFUSED);
    assert!(outcome.error().contains("there is no key for the marks of your runs"), "{}", outcome.stderr);
    // Part of it, or something like it, is not enough.
    let again = |value: &str| format!("plugin.tldr_length_reward.limits.memory_mb={value}");
    for part in [&["--set", "metrics_port=0"][..], &["--set", "metrics_port=1"], &["--set", &again("4000")], &LIMITS] {
        assert_refused(&resume("another", part), &["with metrics_address = 127.0.0.2", "--accept-grants"]);
    }
    let rest = resume("another", &["--set", &again("4000"), "--set", "metrics_port=0", "--set", "metrics_address=127.0.0.2"]);
    assert_refused(&rest, &["sets loss_limits.call_timeout_s = 1000000.0, but you have not granted"]);
    // Other ways into the run's configuration.
    for arguments in [
        &["eval", "theirs", "--eval-dataset", "prompts.jsonl"][..],
        &["train", "--resume-from-checkpoint", "theirs"],
        &["train", "--resume-from-checkpoint", "theirs/checkpoint-1", "--output-dir", "fork"],
        &["--resume-from-checkpoint", "--output-dir", "theirs"],
        &["resume", "theirs/checkpoint-1"],
        &["resume", "theirs", "--allow-changed"],
    ] {
        assert_refused(&run_as("another", &place, arguments), &REFUSED);
    }
    assert_eq!(fs::read(place.path("theirs/events.jsonl")).unwrap(), events);
    assert!(!place.path("fork").exists() && !place.path("another").exists(), "no key is made for what is refused");

    // What the message says to add can be pasted.
    let error = resume("another", &[]).error().to_owned();
    let flags = error.rsplit("to allow it by name, add ").next().unwrap();
    let script = format!("\"$RLHOST\" resume theirs {flags}");
    let mut pasted = Command::new("sh");
    pasted.args(["-c", &script]).current_dir(place.path("")).env("RLHOST", rlhost_tests::binary());
    pasted.env("RLHOST_STATE_DIR", place.path("another")).env("HF_HUB_OFFLINE", "1");
    let pasted = CommandOutcome::new(pasted.output().unwrap());
    pasted.succeeded();
    place.assert_same_end("theirs", "run", 2, "model.safetensors");
    // Then it is theirs too, and still the first user's.
    for user in ["another", "me"] {
        run_as(user, &place, &["resume", "theirs"]).succeeded();
    }
    place.copy("half", "accepted");
    run_as("third", &place, &["resume", "accepted", "--accept-grants"]).succeeded();
    run_as("third", &place, &["resume", "accepted"]).succeeded();
    run_as("third", &place, &["eval", "accepted", "--eval-dataset", "prompts.jsonl"]).succeeded();
    let fork = ["train", "--resume-from-checkpoint", "accepted", "--output-dir", "fork", "--max-steps", "3"];
    run_as("third", &place, &fork).succeeded();
    run_as("third", &place, &["resume", "fork"]).succeeded();
    assert_refused(&run_as("another", &place, &["resume", "fork"]), &REFUSED);
}

#[test]
fn what_is_edited_into_a_marked_folder_is_no_grant() {
    let place = generous();
    let edited = |from: &str, to: &str| {
        place.copy("half", "edited");
        let file = place.path("edited/config.toml");
        let text = fs::read_to_string(&file).unwrap();
        assert!(text.contains(from), "{text}");
        fs::write(file, text.replace(from, to)).unwrap();
        let outcome = run_as("me", &place, &["resume", "edited"]);
        fs::remove_dir_all(place.path("edited")).unwrap();
        outcome
    };
    assert_refused(
        &edited("memory_mb = 4000", "memory_mb = 4001"),
        &["sets plugin.tldr_length_reward.limits.memory_mb = 4001, but"],
    );
    assert_refused(&edited("127.0.0.2", "0.0.0.0"), &["sets metrics_port = 0 with metrics_address = 0.0.0.0, but"]);
    assert_refused(&edited("metrics_port = 0", "metrics_port = 9"), &["sets metrics_port = 9 with"]);
    assert_refused(&edited("total_memory_mb = 768", "total_memory_mb = 769"), &["total_memory_mb = 769"]);
    assert!(edited("memory_mb = 4000", "memory_mb = inf").code == Some(2));
    edited("memory_mb = 4000", "memory_mb = 3000").succeeded();
    // Marks of another run, or none, are no marks of this.
    train(&place, "other", &LIMITS[..2]).succeeded();
    for marks in [Some("other"), None] {
        place.copy("half", "changed");
        let file = place.path("changed/granted.jsonl");
        match marks {
            Some(other) => drop(fs::copy(place.path(other).join("granted.jsonl"), &file).unwrap()),
            None => fs::remove_file(&file).unwrap(),
        }
        assert_refused(&run_as("me", &place, &["resume", "changed"]), &["loss_limits.call_timeout_s", "metrics_port = 0"]);
        fs::remove_dir_all(place.path("changed")).unwrap();
    }
    // A run that reaches nothing needs no mark and no key.
    let plain = run_as("nobody", &place, &["resume", "half", "--accept-grants"]);
    plain.succeeded();
    assert!(place.path("nobody/key").is_file() && place.path("half/granted.jsonl").is_file());
    train(&place, "plain", &["--set", "plugin.tldr_length_reward.limits.memory_mb=100"]).succeeded();
    assert!(!place.path("plain/granted.jsonl").exists());
    place.copy_as_after("plain", 1, "plain-half");
    run_as("them", &place, &["resume", "plain-half"]).succeeded();
    assert!(!place.path("them").exists());
}

#[test]
fn where_no_key_can_be_kept_the_flag_accepts_what_the_marks_would() {
    let place = TestFolder::new();
    place.write("file", "");
    let unwritable = |arguments: &[&str]| run_as("file/below", &place, arguments);
    train(&place, "run", &[&LIMITS[..], &PORT].concat()).succeeded();
    place.copy_as_after("run", 1, "half");
    let outcome = unwritable(&["resume", "half"]);
    assert_refused(&outcome, &REFUSED);
    assert!(outcome.error().contains("file/below/key") && outcome.error().contains("--accept-grants"), "{}", outcome.stderr);
    let accepted = unwritable(&["resume", "half", "--accept-grants"]);
    accepted.succeeded();
    let warning = "can't record your grants for this run";
    assert!(accepted.stderr.contains(warning) && accepted.stderr.contains("--accept-grants"), "{}", accepted.stderr);
    // A relative folder could be a stranger's, as the folder that a run is in.
    fs::create_dir_all(place.path("theirs")).unwrap();
    let relative = place.run_with(&["resume", "half"], &[("RLHOST_STATE_DIR", "me"), ("XDG_STATE_HOME", "me"), ("HOME", "")]);
    assert!(relative.error().contains("XDG_STATE_HOME"), "{}", relative.stderr);
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        fs::set_permissions(place.path("me/key"), fs::Permissions::from_mode(0o644)).unwrap();
        let outcome = run_as("me", &place, &["resume", "half"]);
        assert_refused(&outcome, &["other users may read it", "--accept-grants"]);
    }
}
