//! `rlhost ui` on a run while it trains.

use rlhost_tests::server::{ServerProcess, TestHttpResponse};
use rlhost_tests::{KilledOnDrop, TestFolder, small};
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader};
use std::time::Duration;

/// Longest that anything here is waited for.
const PATIENCE: Duration = Duration::from_secs(120);

/// A reward that prefers a length.
fn script(target: usize) -> String {
    format!(
        "def my_reward(completions, target: int = {target}, **columns):\n    return [-abs(len(c) - target) for c in completions]\n"
    )
}

/// A run that trains until it is dropped, and its page.
struct UiTestRun {
    // Both end before their folder goes.
    ui: ServerProcess,
    token: String,
    run: KilledOnDrop,
    place: TestFolder,
}

impl UiTestRun {
    fn start(more: &[&str]) -> Self {
        let place = TestFolder::new();
        place.write("my_reward.py", script(20));
        let run = ["--plugin", "my_reward.py", "--output-dir", "runs/a", "--max-steps", "100000", "--logging-steps", "1"];
        let size = ["--max-completion-length", "64", "--per-device-train-batch-size", "8", "--save-strategy", "no"];
        let run = KilledOnDrop(place.start(&[&small()[..], &run, &size].concat()));
        place.wait("runs/a", PATIENCE, || place.steps("runs/a") > 2);
        let (ui, token) = ServerProcess::start_ui(&place, &[&["runs"], more].concat());
        Self { ui, token, run, place }
    }

    fn get(&self, path: &str) -> Value {
        let answer = self.ui.get(&format!("/{}/api/{path}", self.token));
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        answer.json()
    }

    fn post(&self, path: &str, body: &str) -> TestHttpResponse {
        let headers = format!("x-rlhost-token: {}\r\n", self.token);
        TestHttpResponse::read(self.ui.send(&format!("POST /{}/api/{path}", self.token), &headers, body))
    }

    /// Waits for an event that answers a request.
    fn answered(&self, request: &str) -> Value {
        let events = || -> Vec<Value> {
            let text = fs::read_to_string(self.place.path("runs/a/events.jsonl")).unwrap_or_default();
            text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
        };
        let own = |event: &Value| event["request"] == request;
        self.place.wait("runs/a", PATIENCE, || events().iter().any(own));
        events().into_iter().find(own).unwrap()
    }
}

#[test]
fn a_reward_is_tried_swapped_and_rolled_back_while_the_run_goes_on() {
    let shown = UiTestRun::start(&["--control"]);
    let runs = shown.get("runs");
    assert_eq!((runs["runs"][0]["name"].as_str(), runs["runs"][0]["state"].as_str()), (Some("a"), Some("running")), "{runs}");
    let plugins = shown.get("plugins?run=a");
    let first = plugins["plugins"][0]["now"]["hash"].as_str().unwrap().to_owned();
    let source = shown.get(&format!("source?run=a&plugin=my_reward&hash={first}"));
    assert_eq!(source["source"], script(20));

    let answer = shown.post("what-if?run=a&plugin=my_reward&file=my_reward.py&newest=64", &script(5)).json();
    let comparison = &answer["comparison"];
    assert!(answer["completions"].as_u64().unwrap() >= 8 && comparison["rows"] == answer["completions"], "{answer}");
    assert!(comparison["old_mean"] != comparison["new_mean"] && !answer["rows"].as_array().unwrap().is_empty(), "{answer}");
    // Another setting of the version that the run has.
    let same = shown.post(&format!("what-if?run=a&plugin=my_reward&hash={first}"), "").json();
    assert_eq!(same["differing"], 0, "{same}");
    let other = shown.post(&format!("what-if?run=a&plugin=my_reward&hash={first}&settings=%7B%22target%22%3A5%7D"), "").json();
    assert_ne!(other["differing"], 0, "{other}");
    let broken = shown.post("what-if?run=a&plugin=my_reward&file=bad.py", "def bad(completions, **columns): return [1/0]\n");
    assert!(broken.status == 422 && broken.body.contains("ZeroDivisionError"), "{}", broken.body);

    let sent = shown.post("swap?run=a&plugin=my_reward&file=my_reward.py", &script(5)).json();
    let swapped = shown.answered(sent["request"].as_str().unwrap());
    assert_eq!((swapped["event"].as_str(), swapped["config"]["target"].as_u64()), (Some("plugin_swapped"), Some(5)));
    let sent = shown.post(&format!("roll-back?run=a&plugin=my_reward&hash={first}"), "").json();
    let back = shown.answered(sent["request"].as_str().unwrap());
    assert!(back["event"] == "plugin_swapped" && back["to"].as_str().unwrap().starts_with(&first), "{back}");
    let history = shown.get("plugins?run=a")["plugins"][0]["history"].clone();
    let kinds: Vec<&str> = history.as_array().unwrap().iter().filter_map(|version| version["kind"].as_str()).collect();
    assert_eq!(kinds, ["plugin_swapped", "plugin_swapped", "plugin_loaded"]);

    assert!(back["by"].as_str().unwrap().ends_with(", in the browser"), "{back}");

    let configured =
        |body: &str| shown.post("configure?run=a&plugin=my_reward", body).json()["request"].as_str().unwrap().to_owned();
    let request = configured("{\"settings\": {\"target\": 9}, \"weight\": 0.5}");
    shown.place.wait("runs/a", PATIENCE, || {
        let settings = shown.place.events("runs/a", "settings_changed").len();
        settings == 1 && shown.place.events("runs/a", "plugin_swapped").len() == 3
    });
    let changed = &shown.place.events("runs/a", "settings_changed")[0];
    assert!(changed["request"] == request && changed["by"] == back["by"], "{changed}");
    // What the run rejects is not in its configuration, and later changes are none of its business.
    for (rejected, reason) in [("{\"settings\": {\"target\": \"x\"}}", "target"), ("{\"weight\": 1e300}", "at most 1e6")] {
        let answer = shown.answered(&configured(rejected));
        let said = answer["reason"].as_str().unwrap_or_default();
        assert!(answer["event"] == "plugin_refused" && said.contains(reason), "{answer}");
        let config = fs::read_to_string(shown.place.path("runs/a/config.toml")).unwrap();
        assert!(config.contains("target = 9") && config.contains("weight = 0.5"), "{config}");
    }
    assert_eq!(shown.answered(&configured("{\"weight\": 2}"))["to"]["weight"], 2.0);
    // A version comes back with its settings.
    let history = shown.get("plugins?run=a")["plugins"][0]["history"].clone();
    let oldest = history.as_array().unwrap().last().unwrap();
    let version = oldest["version"].as_str().unwrap().replace('+', "%2B");
    let sent = shown.post(&format!("roll-back?run=a&plugin=my_reward&hash={first}&version={version}"), "").json();
    let back = shown.answered(sent["request"].as_str().unwrap());
    assert!(back["config"]["target"] == 20 && back["to"].as_str().unwrap().starts_with(&first), "{back}");
    let config = fs::read_to_string(shown.place.path("runs/a/config.toml")).unwrap();
    assert!(config.contains("target = 20"), "{config}");
    let unknown = shown.post("swap?run=a&plugin=nobody&file=my_reward.py", &script(5));
    assert!(unknown.status == 409 && unknown.body.contains("no plugin"), "{}", unknown.body);
}

#[test]
fn a_run_is_followed_and_its_end_is_seen() {
    let mut shown = UiTestRun::start(&[]);
    let stream = shown.ui.send(&format!("GET /{}/api/live?run=a", shown.token), "", "");
    let mut rows = 0;
    for line in BufReader::new(stream).lines() {
        let line = line.unwrap();
        let Some(news) = line.strip_prefix("data: ").and_then(|text| serde_json::from_str::<Value>(text).ok()) else { continue };
        rows += news["rows"]["steps"].as_array().map_or(0, Vec::len);
        if rows > 4 {
            break;
        }
    }
    assert!(rows > 4);
    let series = shown.get("series?run=a&metric=reward");
    assert!(series["runs"]["a"]["series"]["reward"]["y"].as_array().unwrap().len() > 4, "{series}");
    assert!(shown.get("completions?run=a")["items"].as_array().unwrap().len() > 1);
    let refused = shown.post("swap?run=a&plugin=my_reward&file=my_reward.py", &script(5));
    assert!(refused.status == 403 && refused.body.contains("--control"), "{}", refused.body);
    shown.run.signal("TERM");
    shown.run.wait().unwrap();
    assert_eq!(shown.get("run?run=a")["status"]["state"], "stopped");
    shown.ui.terminate();
    assert_eq!(shown.ui.wait(), Some(0));
}

#[test]
fn the_time_of_a_resumed_run_is_that_of_all_its_processes() {
    let place = TestFolder::new();
    let sizes = ["--logging-steps", "1", "--save-steps", "2"];
    place.train("run", &[&small()[..], &sizes, &["--max-steps", "4"]].concat()).succeeded();
    place.run(&["resume", "run", "--set", "max_steps=6"]).succeeded();
    let (ui, token) = ServerProcess::start_ui(&place, &["run"]);
    let get = |path: &str| ui.get(&format!("/{token}/api/{path}")).json();
    let series = get("series?run=run&x=time&metric=reward");
    let times: Vec<f64> = series["runs"]["run"]["x"].as_array().unwrap().iter().filter_map(Value::as_f64).collect();
    assert!(times.len() == 6 && times.is_sorted(), "{times:?}");
    let worked: f64 = place.events("run", "finished").iter().filter_map(|event| event["seconds"].as_f64()).sum();
    let took = get("run?run=run")["status"]["seconds"].as_f64().unwrap();
    assert!((took - worked).abs() < 1e-6, "{took} {worked}");
}

#[cfg(unix)]
#[test]
fn a_link_in_a_runs_folder_discloses_nothing() {
    let place = TestFolder::new();
    place.write("secret", "key = \"hunter2\"\n");
    place.write("secret.jsonl", "{\"step\":1,\"hunter2\":2,\"event\":\"hunter2\",\"completion\":\"hunter2\"}\n");
    fs::create_dir_all(place.path("runs/a")).unwrap();
    let link =
        |target: &str, name: &str| std::os::unix::fs::symlink(place.path(target), place.path(&format!("runs/a/{name}"))).unwrap();
    link("secret", "config.toml");
    link("secret.jsonl", "metrics.jsonl");
    link("secret.jsonl", "completions.jsonl");
    place.write("runs/a/events.jsonl", "{\"event\":\"started\",\"step\":0}\n");
    let (ui, token) = ServerProcess::start_ui(&place, &["runs"]);
    let routes = [
        "runs",
        "run?run=a",
        "config?run=a",
        "settings?run=a",
        "series?run=a",
        "story?run=a",
        "metrics?run=a",
        "completions?run=a",
        "diagnosis?run=a",
        "fork?run=a",
    ];
    for route in routes {
        let answer = ui.get(&format!("/{token}/api/{route}"));
        assert!(!answer.body.contains("hunter2"), "{route}: {}", answer.body);
    }
    let report = place.run(&["report", "runs/a"]);
    assert!(report.code != Some(0) && report.stderr.contains("it is a link"), "{}", report.stderr);
    assert!(!place.path("runs/a/report.html").exists());
}

#[test]
fn a_run_serves_its_own_page() {
    let place = TestFolder::new();
    let outcome = place.train("run", &[&small()[..], &["--max-steps", "1", "--ui"]].concat());
    let said = &outcome.succeeded().stdout;
    assert!(said.lines().any(|line| line.starts_with("page: http://127.0.0.1:")), "{said}");
}

#[test]
fn folders_that_can_have_no_runs_are_refused() {
    let place = TestFolder::new();
    place.write("file", "");
    fs::create_dir_all(place.path("run/checkpoint-3")).unwrap();
    for (folder, said) in [("nowhere", "there is no such folder"), ("file", "is a file"), ("run/checkpoint-3", "folder of a run")]
    {
        let outcome = place.run(&["ui", folder]);
        assert_eq!(outcome.code, Some(2), "{folder}");
        assert!(outcome.stderr.contains(said), "{folder}: {}", outcome.stderr);
    }
    let outcome = place.run(&["ui", ".", "--host", "no such host"]);
    assert!(outcome.code == Some(2) && outcome.stderr.contains("can't serve on port 0 of no such host"), "{}", outcome.stderr);
    // One in which a run may begin.
    let (ui, token) = ServerProcess::start_ui(&place, &["."]);
    assert_eq!(ui.get(&format!("/{token}/api/runs")).json()["runs"].as_array().unwrap().len(), 0);
    assert_eq!(ui.get("/api/runs").status, 403);
}

#[test]
fn a_finished_run_shows_single_tokens_and_how_to_fork_it() {
    let place = TestFolder::new();
    place.train("run", &["--max-steps", "2", "--save-steps", "1"]).succeeded();
    let (ui, token) = ServerProcess::start_ui(&place, &["run"]);
    let get = |path: &str| {
        let answer = ui.get(&format!("/{token}/api/{path}"));
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        answer.json()
    };
    let group = get("group?run=run&id=0");
    let written = place.lines("run/completions.jsonl");
    for (item, line) in group["items"].as_array().unwrap().iter().zip(&written) {
        let tokens = &item["per_token"];
        let texts: Vec<&str> = tokens["text"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
        let ids = line["completion_ids"].as_array().unwrap().len();
        assert_eq!((texts.len(), tokens["logp"].as_array().unwrap().len()), (ids, ids), "{item}");
        // What is in the completion besides its text are special tokens.
        let completion = item["completion"].as_str().unwrap();
        assert!(texts.concat().starts_with(completion), "{texts:?} {completion:?}");
        assert!(tokens["logp"].as_array().unwrap().iter().all(|logp| logp.as_f64().unwrap() <= 0.0), "{item}");
    }
    let plugins = get("plugins?run=run");
    let reward = plugins["plugins"].as_array().unwrap().iter().find(|p| p["name"] == "tldr_length_reward").unwrap();
    let form = get(&format!("form?run=run&plugin=tldr_length_reward&hash={}", reward["now"]["hash"].as_str().unwrap()));
    let kinds: Vec<_> = form["fields"].as_array().unwrap().iter().map(|f| (f["name"].as_str(), f["kind"].as_str())).collect();
    assert_eq!(kinds, [(Some("target"), Some("number")), (Some("unit"), Some("choice"))]);

    let asked = "fork?run=run&step=1&folder=fork&set=plugin.tldr_length_reward.config.target%3D3&set=max_steps%3D3";
    let fork = get(asked);
    assert_eq!((&fork["problem"], &fork["checkpoints"]), (&Value::Null, &serde_json::json!([1, 2])), "{fork}");
    let command = fork["command"].as_str().unwrap().replace("\\\n", " ");
    let words: Vec<&str> = command.split_whitespace().collect();
    place.run(&words[1..]).succeeded();
    let forked = place.events("fork", "forked");
    assert_eq!(forked[0]["step"], 1, "{forked:?}");
    let rows = place.lines("fork/metrics.jsonl");
    assert_eq!(rows.iter().map(|row| row["step"].as_u64()).collect::<Vec<_>>(), [Some(2), Some(3)]);
    assert!(fs::read_to_string(place.path("fork/config.toml")).unwrap().contains("target = 3"));
}
