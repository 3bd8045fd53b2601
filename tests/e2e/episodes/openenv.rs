//! Episodes on a server: `openenv_tool`, against a server that answers as OpenEnv's does.

use rlhost_tests::judge::{BODY, JudgeServer, say};
use rlhost_tests::{TestFolder, tiny};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::net::TcpStream;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const CALL: &str = "<tool_call>{\"name\":\"count\",\"arguments\":{}}</tool_call>";

/// A model that calls the tool, and prompts.
fn place() -> TestFolder {
    let place = TestFolder::new();
    let row = |completion: &str| format!("{}\n", json!({"prompt": "Go.\n", "completion": completion}));
    place.write("calls.jsonl", row(&format!("{CALL}\n{}\n{CALL}\n", json!({"n": 1, "o": false, "w": 1}))).repeat(16));
    place.write("rows.jsonl", "{\"prompt\": \"Go.\\n\"}\n".repeat(8));
    let learn = ["sft", "--model", tiny(), "--dataset", "calls.jsonl", "--output-dir", "caller", "--max-steps", "60"];
    place.run(&[&learn[..], &["--learning-rate", "0.01", "--per-device-train-batch-size", "4"]].concat()).succeeded();
    place
}

/// What a server does with a call of a tool: it gets the session's number and how often it was called there, and answers itself or gives
/// the tool's result.
type ToolCallHandler = fn(u64, u64, &mut TcpStream) -> Option<Value>;

/// A server with a tool that counts its calls in a session.
fn server(calls: ToolCallHandler) -> JudgeServer {
    let sessions: Mutex<BTreeMap<String, (u64, u64)>> = Mutex::default();
    // No session gets the name of an earlier one: those of failed episodes stay open while others close.
    let begun = AtomicU64::default();
    JudgeServer::new(move |_, headers, stream| {
        let asked: Value = serde_json::from_str(&headers[BODY]).unwrap();
        let session = asked["params"]["session_id"].as_str().unwrap_or_default().to_owned();
        let mut sessions = sessions.lock().unwrap();
        let result = match asked["method"].as_str().unwrap() {
            "openenv/session/create" => {
                let count = begun.fetch_add(1, Ordering::Relaxed);
                sessions.insert(format!("session {count}"), (count, 0));
                Some(json!({"session_id": format!("session {count}")}))
            }
            "tools/list" => {
                Some(json!({"tools": [{"name": "count", "description": "Counts.", "input_schema": {"type": "object"}}]}))
            }
            "tools/call" => {
                let (number, called) = sessions.get_mut(&session).unwrap();
                *called += 1;
                let (number, called) = (*number, *called);
                drop(sessions);
                calls(number, called, stream)
            }
            _ => sessions.remove(&session).map(|_| json!({"closed": true})),
        };
        if let Some(result) = result {
            say(stream, "200 OK", "", &json!({"jsonrpc": "2.0", "id": asked["id"], "result": result}).to_string());
        }
    })
}

fn tool_result(text: &Value) -> Value {
    json!({"content": [{"type": "text", "text": text.to_string()}], "is_error": false})
}

/// The session's number decides how many calls it takes, and what they are worth.
fn well(number: u64, called: u64, _: &mut TcpStream) -> Option<Value> {
    Some(tool_result(&json!({"n": called, "w": number % 4, "o": called > number % 2})))
}

fn arguments(run: &str, server: &JudgeServer) -> Vec<String> {
    let mut all =
        vec!["train", "--model", "caller/checkpoint-60", "--environment", "openenv_tool.wasm", "--dataset", "rows.jsonl"];
    all.extend(["--output-dir", run, "--num-generations", "4", "--per-device-train-batch-size", "4", "--max-turns", "2"]);
    all.extend(["--max-completion-length", "56", "--max-steps", "4", "--save-steps", "1", "--learning-rate", "0.0001"]);
    all.extend(["--logging-steps", "1", "--log-completions", "all", "--temperature", "0.3", "--max-episode-tokens", "180"]);
    let port = server.port;
    let settings = [
        format!("hosts=127.0.0.1:{port}"),
        format!("config.url=http://127.0.0.1:{port}"),
        "config.reward=/w".to_owned(),
        "config.done=/o".to_owned(),
        "http.timeout_s=1".to_owned(),
        "http.retries=0".to_owned(),
    ];
    let settings = settings.into_iter().flat_map(|set| ["--set".to_owned(), format!("environment.openenv_tool.{set}")]);
    all.into_iter().map(str::to_owned).chain(settings).collect()
}

fn run(place: &TestFolder, arguments: &[String], more: &[&str]) -> rlhost_tests::CommandOutcome {
    let own: Vec<&str> = arguments.iter().map(String::as_str).collect();
    place.run(&[&own[..], more].concat())
}

#[test]
fn episodes_are_played_on_a_server_and_resume_to_the_bit_without_it() {
    let place = place();
    let server = server(well);
    run(&place, &arguments("run", &server), &[]).succeeded();
    let lines = place.lines("run/completions.jsonl");
    let mut longest = 0;
    for line in &lines {
        let heard: Vec<Value> = line["messages"].as_array().unwrap().iter().filter(|m| m["role"] == "tool").cloned().collect();
        let heard: Vec<Value> = heard.iter().filter_map(|m| serde_json::from_str(m["content"].as_str().unwrap()).ok()).collect();
        // Each session counts for itself, and pays for each call.
        assert!(heard.iter().zip(1..).all(|(told, i)| told["n"] == i), "{line}");
        let calls = line["turns"].as_array().unwrap().iter().filter(|turn| turn["calls"] != json!([])).count();
        longest = longest.max(calls);
        if let Some(told) = heard.first() {
            let (worth, reward) = (told["w"].as_f64().unwrap(), line["rewards"]["openenv_tool"].as_f64().unwrap());
            assert!((reward - worth * calls as f64).abs() < 1e-5, "{line}");
        }
    }
    assert!(lines.len() == 16 && longest > 1, "{longest} calls in an episode");
    assert!(place.figure("run", "openenv_tool/calls").iter().all(|calls| *calls > 0.5));
    // What was answered is recorded, so what comes after a checkpoint needs no server.
    let asked = server.request_count();
    for step in 1..4 {
        let again = format!("from-{step}");
        place.copy("run", &again);
        place.run(&["resume", &again, "--step", &step.to_string(), "--set", "replay_only=true"]).succeeded();
        place.assert_same_end(&again, "run", 4, "model.safetensors");
    }
    let set = ["--set", "reward=/w", "--set", "done=/o"];
    let url = format!("url=http://127.0.0.1:{}", server.port);
    let replayed =
        place.run(&[&["replay", "run", "--environment", "openenv_tool.wasm", "--replay-only", "--set", &url], &set[..]].concat());
    assert!(replayed.succeeded().stdout.contains("0 of 16 episodes get replies that differ"), "{}", replayed.stdout);
    assert_eq!(server.request_count(), asked);
}

#[test]
fn evaluations_forks_and_changed_runs_have_sessions_of_their_own() {
    let place = place();
    let server = server(well);
    // Each evaluation plays the same episodes, and the policy has changed in between.
    let more = ["--eval-dataset", "rows.jsonl", "--eval-steps", "1", "--temperature", "1.2", "--learning-rate", "0.01"];
    run(&place, &arguments("run", &server), &more).succeeded();
    let lines = place.lines("run/metrics.jsonl");
    assert_eq!(lines.iter().filter(|line| line["eval_reward"].is_number()).count(), 4, "{lines:?}");
    // What was answered then is answered again.
    let asked = server.request_count();
    place.copy("run", "again");
    place.run(&["resume", "again", "--step", "2", "--set", "replay_only=true"]).succeeded();
    place.assert_same_end("again", "run", 4, "model.safetensors");
    assert_eq!(server.request_count(), asked);
    // With another rate, the episodes go another way.
    place.copy("run", "changed");
    let rate = ["--allow-changed", "--set", "learning_rate=0.02"];
    place.run(&[&["resume", "changed", "--step", "1"], &rate[..]].concat()).succeeded();
    assert!(place.path("changed/answers/openenv_tool.before.jsonl").is_file());
    let fork = ["train", "--resume-from-checkpoint", "run/checkpoint-2", "--output-dir", "fork", "--max-steps", "3"];
    place.run(&[&fork[..], &["--learning-rate", "0.02"]].concat()).succeeded();
    assert!(server.request_count() > asked);
}

#[test]
fn an_episode_that_was_given_up_stays_so_when_its_step_is_repeated() {
    let place = place();
    // As often as an episode is tried; later it would answer.
    let server = server(|number, called, stream| {
        if number % 4 == 3 && called <= 3 {
            say(stream, "500 Oh No", "", "on fire");
            return None;
        }
        well(number, called, stream)
    });
    run(&place, &arguments("run", &server), &["--set", "environment.openenv_tool.on_error=\"unscorable\""]).succeeded();
    let failed = place.lines("run/completions.jsonl").iter().filter(|line| line["failed"].is_string()).count();
    assert!(failed > 0, "none was given up");
    let asked = server.request_count();
    place.copy("run", "again");
    place.run(&["resume", "again", "--step", "1"]).succeeded();
    place.assert_same_end("again", "run", 4, "model.safetensors");
    assert_eq!(server.request_count(), asked);
}

#[test]
fn what_the_model_calls_a_session_is_its_own_mistake() {
    let place = place();
    let server = server(|_, _, stream| {
        let error = json!({"code": -32603, "message": "Unknown tool: 'session_id'"});
        say(stream, "200 OK", "", &json!({"jsonrpc": "2.0", "id": 1, "error": error}).to_string());
        None
    });
    run(&place, &arguments("run", &server), &["--max-steps", "1"]).succeeded();
    assert!(place.figure("run", "openenv_tool/failed_calls")[0] > 0.0);
    // A reward that is no number is not taken for none.
    let odd = self::server(|_, _, _| Some(tool_result(&json!({"w": "1.0", "o": true}))));
    let refused = run(&place, &arguments("odd", &odd), &["--max-steps", "1"]);
    assert!(refused.code == Some(1) && refused.error().contains("reward is \"1.0\""), "{}", refused.stderr);
}

#[test]
fn a_server_that_misbehaves_costs_its_episodes() {
    let place = place();
    let misdeeds: [(&str, ToolCallHandler, &str); 3] = [
        (
            "fails",
            |number, _, stream| {
                (number % 4 != 3).then(|| tool_result(&json!(1))).or_else(|| {
                    say(stream, "500 Oh No", "", "on fire");
                    None
                })
            },
            "status 500: on fire",
        ),
        (
            "hangs",
            |number, _, _| {
                (number % 4 != 3).then(|| tool_result(&json!(1))).or_else(|| {
                    std::thread::sleep(Duration::from_secs(5));
                    None
                })
            },
            "1.0 s",
        ),
        (
            "babbles",
            |number, _, stream| {
                (number % 4 != 3).then(|| tool_result(&json!(1))).or_else(|| {
                    say(stream, "200 OK", "", "<html>");
                    None
                })
            },
            "is not JSON",
        ),
    ];
    for (name, misdeed, words) in misdeeds {
        let server = server(misdeed);
        let failed = run(&place, &arguments(name, &server), &["--max-steps", "1"]);
        assert!(failed.error().contains("openenv_tool") && failed.error().contains(words), "{name}: {}", failed.stderr);
        let survived = format!("{name}-survived");
        let more = ["--max-steps", "1", "--set", "environment.openenv_tool.on_error=\"unscorable\""];
        run(&place, &arguments(&survived, &server), &more).succeeded();
        let failed =
            place.lines(&format!("{survived}/completions.jsonl")).iter().filter(|line| line["failed"].is_string()).count();
        assert!((1..4).contains(&failed), "{name}: {failed} of four failed");
    }
}

#[test]
fn a_server_that_was_not_granted_is_not_asked() {
    let place = place();
    let server = server(well);
    let refused = |arguments: &[String], words: &[&str]| {
        let outcome = run(&place, arguments, &["--max-steps", "1"]);
        assert!(outcome.code == Some(2) && words.iter().all(|word| outcome.error().contains(word)), "{}", outcome.stderr);
        assert_eq!(server.request_count(), 0);
    };
    let all = arguments("none", &server);
    let at = all.iter().position(|argument| argument.contains(".hosts=")).unwrap();
    refused(&[&all[..at - 1], &all[at + 1..]].concat(), &["openenv_tool", "hosts"]);
    let other = [&all[..at], &["environment.openenv_tool.hosts=other:80".to_owned()], &all[at + 1..]].concat();
    refused(&other, &["openenv_tool", "127.0.0.1"]);
    // One that asks nothing is granted nothing.
    let asks_nothing = |argument: &String| argument.replace("openenv_tool", "guess_number");
    let game: Vec<String> = all[..=at].iter().map(asks_nothing).collect();
    let outcome = run(&place, &game, &["--max-steps", "1"]);
    assert!(
        outcome.error().contains("guess_number.hosts") && outcome.error().contains("sends no requests"),
        "{}",
        outcome.stderr
    );
}
