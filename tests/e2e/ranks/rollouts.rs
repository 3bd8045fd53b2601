//! Completions of several processes that others have written: inference servers, or the run whose log is replayed.

use rlhost_tests::TestFolder;
use rlhost_tests::mpi::{arguments, possible, run, same_figures, same_weights};
use rlhost_tests::server::ServerProcess;
use rlhost_tests::tiny;
use serde_json::Value;

/// Two prompts a step and process, each with two completions.
const STEPS: [&str; 6] = ["--max-steps", "3", "--num-generations", "2", "--per-device-train-batch-size", "4"];

/// The tokens and rewards of each completion.
fn written(place: &TestFolder, run: &str) -> Vec<[Value; 3]> {
    let lines = place.lines(&format!("{run}/completions.jsonl"));
    lines.into_iter().map(|line| ["step", "completion_ids", "rewards"].map(|key| line[key].clone())).collect()
}

/// Arguments of a run that logs its completions.
fn logging<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [&arguments("grpo", true, &STEPS)[..], &["--log-completions", "all"], more].concat()
}

#[test]
fn the_first_process_asks_servers_for_the_completions_of_all() {
    if !possible() {
        return;
    }
    let place = TestFolder::new();
    let server = ServerProcess::start(&place, &["--model", tiny(), "--allow-weight-updates"]);
    let url = format!("http://{}", server.address);
    run(&place, "here", 2, &logging(&[])).succeeded();
    run(&place, "there", 2, &logging(&["--rollout-server", &url])).succeeded();
    same_weights(&place, "there", "here", 3);
    assert_eq!(written(&place, "there"), written(&place, "here"));
    // Weights that are divided are gathered before servers get them; a log ahead of training is that of all processes.
    let server = ServerProcess::start(&place, &["--model", tiny(), "--allow-weight-updates"]);
    let url = format!("http://{}", server.address);
    let ahead = ["--zero-stage", "3", "--rollout-server", &url, "--max-staleness", "1", "--rollout-log", "all"];
    run(&place, "ahead", 2, &logging(&ahead)).succeeded();
    drop(server);
    place.run_ranks(2, &["replay", "ahead", "--train", "--output-dir", "again"]).succeeded();
    same_weights(&place, "again", "ahead", 3);
    same_figures(&place, "again", "ahead");
}

#[test]
fn a_log_is_replayed_by_any_number_of_processes() {
    if !possible() {
        return;
    }
    let place = TestFolder::new();
    run(&place, "run", 2, &logging(&["--rollout-log", "all"])).succeeded();
    place.run_ranks(2, &["replay", "run", "--train", "--output-dir", "two"]).succeeded();
    let weights = |run: &str| std::fs::read(place.path(run).join("checkpoint-3/model.safetensors")).unwrap();
    assert!(weights("two") == weights("run"), "two processes give other weights than the two before");
    place.run(&["replay", "run", "--train", "--output-dir", "one", "--set", "per_device_train_batch_size=8"]).succeeded();
    same_weights(&place, "one", "run", 3);
    same_figures(&place, "one", "run");
    assert!(written(&place, "one") == written(&place, "run") && written(&place, "two") == written(&place, "run"));
}
