//! Runs whose completions a server with SGLang's protocol writes. `rlhost serve` computes behind it; SGLang itself needs a GPU.

use rlhost_tests::server::ServerProcess;
use rlhost_tests::sglang::SglangFacade;
use rlhost_tests::{TestFolder, small, tiny};
use serde_json::json;

const SIZE: [&str; 12] = [
    "--plugin",
    "tldr_length_reward.wasm",
    "--max-completion-length",
    "24",
    "--logging-steps",
    "1",
    "--num-generations",
    "4",
    "--per-device-train-batch-size",
    "16",
    "--learning-rate",
    "0.003",
];

fn arguments<'a>(run: &'a str, url: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    [&small()[..], &SIZE, &["--rollout-server", url, "--output-dir", run], more].concat()
}

fn facade(place: &TestFolder) -> (std::sync::Arc<SglangFacade>, String) {
    SglangFacade::start(ServerProcess::start(place, &["--model", tiny(), "--allow-weight-updates"]))
}

#[test]
fn sglang_gets_each_version_and_its_log_probabilities_are_trainings() {
    let place = TestFolder::new();
    for (run, more, update) in [
        ("lora", &["--lora-r", "4", "--lora-dropout", "0", "--temperature", "0.8", "--stop", "e"][..], "/load_lora_adapter"),
        ("whole", &["--beta", "0.04"], "/update_weights_from_disk"),
    ] {
        let (server, url) = facade(&place);
        let outcome = place.run(&arguments(run, &url, &[&["--max-steps", "3"], more].concat()));
        outcome.succeeded();
        assert!(outcome.stderr.contains("SGLang"), "{}", outcome.stderr);
        // Each step's policy was loaded before it wrote.
        assert!(server.requests(update) >= 3 && server.requests("/generate") >= 3, "{run}");
        assert_eq!(server.requests("/v1/completions"), 0);
        let differences = place.figure(run, "sampling/sampling_logp_difference/mean");
        assert!(differences.len() == 3 && differences.iter().all(|difference| *difference < 1e-4), "{run}: {differences:?}");
        let moved = place.figure(run, "grad_norm");
        assert!(moved.iter().any(|norm| *norm > 0.0), "{run}: {moved:?}");
        // Samples of a prompt differ.
        assert!(place.figure(run, "reward_std").iter().any(|std| *std > 0.0), "{run}");
        assert_eq!(server.inner().get("/v1/models").json()["data"].as_array().unwrap().len(), 1, "{run}: an adapter is left");
    }
}

#[test]
fn an_adapter_that_sglang_replaced_behind_the_run_is_noticed() {
    let place = TestFolder::new();
    let (server, url) = facade(&place);
    let more = ["--lora-r", "4", "--max-steps", "100000", "--save-steps", "100000", "--rollout-timeout-s", "20"];
    let mut run = rlhost_tests::KilledOnDrop(place.start(&arguments("run", &url, &more)));
    place.wait("run", std::time::Duration::from_secs(120), || place.steps("run") >= 3);
    let noticed = || {
        let models = server.inner().get("/v1/models").json();
        let own = models["data"].as_array().and_then(|all| all.iter().rfind(|model| !model["parent"].is_null()).cloned());
        let older = own.and_then(|own| {
            let (stem, version) = own["root"].as_str()?.rsplit_once('-')?;
            let version = version.parse::<u64>().ok()?.checked_sub(1)?;
            Some(json!({"lora_name": own["id"], "lora_path": format!("{stem}-{version}"), "load_inplace": true}))
        });
        let _ = older.map(|older| server.inner().post("/v1/load_lora_adapter", &older));
        let events = std::fs::read_to_string(place.path("run/events.jsonl")).unwrap_or_default();
        events.lines().any(|line| line.contains("other weights than it was sent"))
    };
    place.wait("run", std::time::Duration::from_secs(120), noticed);
    run.signal("TERM");
    assert!(run.wait().unwrap().code().is_some());
}
