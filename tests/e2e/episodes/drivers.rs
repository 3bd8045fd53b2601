//! Drivers elsewhere: they take the episodes of a run over HTTP, and play them as its own program would.

use rlhost_tests::server::TestHttpResponse;
use rlhost_tests::{TestFolder, tiny};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const TEMPLATE: &str =
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}";

/// The key of drivers, where a file has it.
const KEY: &str = "rlhost-drivers-0123456789";

const PATIENCE: Duration = Duration::from_secs(120);

/// A folder with prompts, a chat template and the key of drivers.
fn place() -> TestFolder {
    let place = TestFolder::new();
    let rows = (0..8).map(|i| format!("{}\n", json!({"prompt": format!("Question {i}"), "answer": i})));
    place.write("rows.jsonl", rows.collect::<String>());
    place.write("chat.jinja", TEMPLATE);
    place.write("key", KEY);
    place
}

/// Returns an address at which nobody listens.
fn free_address() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

/// Writes the table of an agent that listens.
fn listening(place: &TestFolder, address: &str, more: &str) {
    place.write("agent.toml", format!("[[agent]]\nlisten = \"{address}\"\napi_key_file = \"key\"\n{more}"));
}

/// The arguments of a run of GRPO, eight episodes a step.
fn arguments<'a>(run: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let mut all = vec!["grpo", "--model", tiny(), "--dataset", "rows.jsonl", "--output-dir", run];
    all.extend(["--chat-template-path", "chat.jinja", "--num-generations", "4", "--per-device-train-batch-size", "8"]);
    all.extend(["--max-completion-length", "12", "--logging-steps", "1", "--log-completions", "all", "--learning-rate", "0.001"]);
    all.extend(more);
    all
}

/// A server at this address, and the key of whoever asks.
#[derive(Clone)]
struct DriverClient {
    address: String,
    key: String,
}

impl DriverClient {
    fn new(address: &str, key: &str) -> Self {
        Self { address: address.to_owned(), key: key.to_owned() }
    }

    /// Asks; none if nobody answers.
    fn ask(&self, path: &str, body: &Value) -> Option<(u16, Value)> {
        self.ask_text(path, &body.to_string())
    }

    fn ask_text(&self, path: &str, body: &str) -> Option<(u16, Value)> {
        let (mut stream, mut bytes) = (self.begin(path, body)?, Vec::new());
        let _ = stream.read_to_end(&mut bytes);
        // The process of a run may end while it writes, so that half of a response arrives.
        bytes.windows(4).any(|end| end == b"\r\n\r\n").then_some(())?;
        let response = TestHttpResponse::read(&bytes[..]);
        Some((response.status, serde_json::from_str(&response.body).ok()?))
    }

    /// Sends a request, and returns the connection; none if nobody listens.
    fn begin(&self, path: &str, body: &str) -> Option<TcpStream> {
        let mut stream = TcpStream::connect(&self.address).ok()?;
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let Self { address, key } = self;
        let headers =
            format!("Host: {address}\r\nAuthorization: Bearer {key}\r\nContent-Type: application/json\r\nConnection: close");
        // What is refused early may not be read to its end.
        let _ = write!(stream, "POST {path} HTTP/1.1\r\n{headers}\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        Some(stream)
    }

    /// Returns the session of an episode.
    fn session(&self, task: &Value) -> Self {
        assert_eq!(task["base_url"], format!("http://{}/v1", self.address));
        Self::new(&self.address, task["api_key"].as_str().unwrap())
    }

    /// Waits for an episode; none if there is none, or nobody answers.
    fn next(&self) -> Option<Value> {
        let (status, task) = self.ask("/rl/next_task", &json!({"timeout_s": 5}))?;
        (status == 200 && task["api_key"].is_string()).then_some(task)
    }

    fn chat(&self, messages: &[Value]) -> Option<Value> {
        let (status, said) = self.ask("/v1/chat/completions", &json!({"model": "policy", "messages": messages}))?;
        (status == 200).then(|| said["choices"][0]["message"].clone())
    }
}

fn user(text: &str) -> Value {
    json!({"role": "user", "content": text})
}

/// Plays the game of the program [`LETTERS`], and ends the session with its reward.
///
/// Returns none if the run did not take part to the end, as one does not whose last step came before.
fn play_letters(session: &DriverClient, task: &Value) -> Option<()> {
    let (mut messages, mut letters) = (vec![user(task["row"]["prompt"].as_str()?)], 0);
    for _ in 0..2 {
        let said = session.chat(&messages)?;
        letters += said["content"].as_str()?.matches('e').count();
        messages.extend([said, user("More.")]);
    }
    let (status, ended) = session.ask("/rl/end_session", &json!({"reward": letters, "metrics": {"letters": letters}}))?;
    // The session ended with its run.
    if matches!(status, 401 | 410) {
        return None;
    }
    assert_eq!(status, 200, "{ended}");
    assert_eq!(ended, json!({"episode": task["episode"], "calls": 2}));
    Some(())
}

/// The game that drivers play here, as a program of the run.
const LETTERS: &str = r#"
import json, os, sys, urllib.request
def chat(messages):
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        json.dumps({"model": "policy", "messages": messages}).encode(),
        {"Content-Type": "application/json", "Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]})
    return json.load(urllib.request.urlopen(request))["choices"][0]["message"]
user = lambda text: {"role": "user", "content": text}
messages, letters = [user(json.loads(sys.stdin.readline())["prompt"])], 0
for _ in range(2):
    said = chat(messages)
    letters += said["content"].count("e")
    messages += [said, user("More.")]
print(json.dumps({"reward": letters, "metrics": {"letters": letters}}))
"#;

/// Lets drivers play while `run` does its work. They ask again whatever happens to the run.
fn driven<T>(client: &DriverClient, drivers: usize, run: impl FnOnce() -> T) -> T {
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..drivers {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    let played = client.next().and_then(|task| play_letters(&client.session(&task), &task));
                    if played.is_none() {
                        thread::sleep(Duration::from_millis(5));
                    }
                }
            });
        }
        let result = run();
        done.store(true, Ordering::Relaxed);
        result
    })
}

/// Asserts that two runs ended alike, but for what their agents printed.
fn assert_same(place: &TestFolder, got: &str, want: &str, step: u64) {
    for run in [got, want] {
        let lines = place.lines(&format!("{run}/completions.jsonl"));
        let without = lines.into_iter().map(|mut line| {
            line.as_object_mut().unwrap().remove("agent_output");
            format!("{line}\n")
        });
        place.write(&format!("{run}/completions.jsonl"), without.collect::<String>());
    }
    place.assert_same_end(got, want, step, "model.safetensors");
}

#[test]
fn drivers_elsewhere_give_the_run_that_the_same_program_gives_and_it_resumes() {
    let (place, address) = (place(), free_address());
    let steps = ["--max-steps", "4", "--save-steps", "2", "--eval-dataset", "rows.jsonl", "--eval-steps", "2"];
    let steps = [&steps[..], &["--num-generations-eval", "2"]].concat();
    let elsewhere = arguments("elsewhere", &[&["--agent-listen", &address], &steps[..]].concat());
    // The key is a new one, in a file that nobody else can read.
    let mut child = place.start(&elsewhere);
    let key_file = place.path("elsewhere/agent_key");
    place.wait("elsewhere", PATIENCE, || key_file.exists());
    #[cfg(unix)]
    assert_eq!(std::os::unix::fs::PermissionsExt::mode(&key_file.metadata().unwrap().permissions()) & 0o777, 0o600);
    let key = std::fs::read_to_string(&key_file).unwrap();
    let client = DriverClient::new(&address, key.trim());
    assert!(driven(&client, 3, || child.wait().unwrap().success()));
    let rows = place.lines("elsewhere/metrics.jsonl");
    let of = |name: &str| rows.iter().filter_map(|row| row[name].as_f64()).collect::<Vec<f64>>();
    assert_eq!((of("agent/calls"), of("eval_agent/calls")), (vec![2.0; 4], vec![2.0; 2]));
    assert_eq!(of("agent/letters"), of("rewards/agent/mean"));

    // One driver alone, whose key is in a variable. The command need not be given again.
    place.copy_as_after("elsewhere", 2, "half");
    let resume = || place.run_with(&["resume", "half", "--max-steps", "4"], &[("RLHOST_AGENT_KEY", KEY)]);
    driven(&DriverClient::new(&address, KEY), 1, resume).succeeded();
    place.assert_same_end("half", "elsewhere", 4, "model.safetensors");

    if Command::new("python3").arg("--version").output().is_err() {
        eprintln!("skipped: there is no python3");
        return;
    }
    place.write("agent.py", LETTERS);
    place.run(&arguments("here", &[&["--agent", "python3 agent.py"], &steps[..]].concat())).succeeded();
    assert_same(&place, "elsewhere", "here", 4);
}

#[test]
fn a_run_that_is_killed_while_drivers_play_ends_as_if_it_had_not_been() {
    let (place, address) = (place(), free_address());
    listening(&place, &address, "");
    let of = |run: &'static str| arguments(run, &["--config", "agent.toml", "--max-steps", "20", "--save-steps", "2"]);
    driven(&DriverClient::new(&address, KEY), 2, || {
        place.run(&of("whole")).succeeded();
        let mut given = of("killed");
        given.push("--resume-from-checkpoint");
        place.kill_after_each(&given, (0..5).map(|kill| Duration::from_millis(400 + 197 * kill % 900)));
        place.run(&given).succeeded();
    });
    place.assert_same_end("killed", "whole", 20, "model.safetensors");
}

#[test]
fn drivers_play_while_training_goes_on() {
    let (place, address) = (place(), free_address());
    listening(&place, &address, "");
    let of = |run: &'static str, more: &[&'static str]| {
        arguments(run, &[&["--config", "agent.toml", "--max-steps", "4", "--max-staleness", "1"], more].concat())
    };
    let (ahead, frozen) = (of("ahead", &[]), of("frozen", &["--learning-rate", "0"]));
    driven(&DriverClient::new(&address, KEY), 2, || {
        place.run(&ahead).succeeded();
        place.run(&frozen).succeeded();
    });
    assert_eq!(place.figure("ahead", "rollout/staleness/max"), [0.0, 1.0, 1.0, 1.0]);
    let tokens = |run: &str| -> Vec<Value> {
        let lines = place.lines(&format!("{run}/completions.jsonl"));
        lines.iter().filter(|line| line["step"].as_u64() < Some(2)).map(|line| line["completion_ids"].clone()).collect()
    };
    assert!(tokens("ahead").len() == 16 && tokens("ahead") == tokens("frozen"));
    // Nobody plays what was begun before the last step, and the run need not wait for it.
    let mut alone = place.start_piped(&of("alone", &["--set", "agent.timeout_s=100000"]));
    let client = DriverClient::new(&address, KEY);
    let mut played = 0;
    while played < 32 {
        match client.next() {
            Some(task) => played += usize::from(play_letters(&client.session(&task), &task).is_some()),
            None => assert!(alone.try_wait().unwrap().is_none(), "the run ended after {played} episodes"),
        }
    }
    assert!(alone.wait().unwrap().success());
}

/// Starts a run, and returns it when its drivers could take an episode.
fn started(place: &TestFolder, client: &DriverClient, arguments: &[&str]) -> Child {
    let mut child = place.start_piped(arguments);
    let begun = Instant::now();
    while client.ask("/rl/start_session", &json!({"row": 1000})).is_none_or(|(status, _)| status == 409) {
        assert!(begun.elapsed() < PATIENCE && child.try_wait().unwrap().is_none(), "the run does not listen");
        thread::sleep(Duration::from_millis(5));
    }
    child
}

/// Returns the status of an answer, and what is wrong.
fn status(client: &DriverClient, path: &str, body: &str) -> (u16, String) {
    let (status, answer) = client.ask_text(path, body).unwrap();
    (status, answer["error"]["message"].as_str().unwrap_or_default().to_owned())
}

#[track_caller]
fn assert_refused(client: &DriverClient, path: &str, body: &str, code: u16, part: &str) {
    let (status, message) = status(client, path, body);
    assert!(status == code && message.contains(part), "{path} {body}: {status} {message}");
}

#[test]
fn requests_that_are_none_are_refused_and_hurt_nobody() {
    let (place, address) = (place(), free_address());
    listening(&place, &address, "");
    let (driver, stranger) = (DriverClient::new(&address, KEY), DriverClient::new(&address, "rlhost-drivers-9876543210"));
    let mut child = started(&place, &driver, &arguments("run", &["--config", "agent.toml", "--max-steps", "1"]));
    assert_refused(&stranger, "/rl/next_task", "{}", 401, "wrong");
    assert_refused(&driver, "/v1/chat/completions", r#"{"messages": []}"#, 401, "the run's key");
    assert_refused(&driver, "/rl/end_session", "{}", 401, "the run's key");
    assert_refused(&driver, "/rl/next_task", r#"{"timeout_s": -1}"#, 400, "from 0 to 300");
    assert_refused(&driver, "/rl/next_task", r#"{"until": 3}"#, 400, "until: unknown");
    assert_refused(&driver, "/rl/start_session", r#"{"row": "first"}"#, 400, "must be an integer");
    assert_refused(&driver, "/rl/start_session", r#"{"row": 1000}"#, 404, "rows that are: ");
    assert_refused(&driver, "/rl/start_session", r#"{"group": 1}"#, 400, "must be a string");
    assert_refused(&driver, "/rl/start_session", "[1]", 400, "not a JSON object");
    let huge = format!("{{\"row\": \"{}\"}}", "x".repeat(1 << 20));
    assert_refused(&driver, "/rl/start_session", &huge, 413, "the maximum is 16384 bytes");
    // Connections that say nothing or half of something stay open.
    let mut half: Vec<TcpStream> = (0..50).map(|_| TcpStream::connect(&address).unwrap()).collect();
    half.iter_mut().step_by(2).for_each(|stream| stream.write_all(b"POST /rl/next_task HTTP/1.1\r\nContent-Le").unwrap());
    for _ in 0..8 {
        let task = driver.next().unwrap();
        assert_refused(&driver.session(&task), "/rl/next_task", "{}", 401, "wrong");
        play_letters(&driver.session(&task), &task).unwrap();
    }
    assert!(child.wait().unwrap().success());
    assert_eq!(place.figure("run", "episodes/failed"), [0.0]);
}

#[test]
fn a_bad_driver_costs_its_rows_and_is_told_why() {
    let (place, address) = (place(), free_address());
    listening(&place, &address, "timeout_s = 4\nmax_concurrent = 7\n");
    let driver = DriverClient::new(&address, KEY);
    let child = started(&place, &driver, &arguments("run", &["--config", "agent.toml", "--max-steps", "1", "--max-turns", "3"]));
    let tasks: Vec<Value> = (0..7).map(|_| driver.next().unwrap()).collect();
    let of = |i: usize| driver.session(&tasks[i]);
    // The row is that of the dataset, and the seed all samples'.
    let row = tasks[0]["index"].as_u64().unwrap();
    assert_eq!(tasks[0]["row"], json!({"prompt": format!("Question {row}"), "answer": row}));
    assert!(tasks[1..4].iter().all(|task| task["seed"] == tasks[0]["seed"]) && tasks[4]["seed"] != tasks[0]["seed"]);
    assert_eq!((&tasks[1]["episode"], &tasks[1]["timeout_s"]), (&json!(format!("train-0-{row}-1")), &json!(4.0)));
    // Ten thousand sessions are seven, and who waits for the eighth and leaves does not get it.
    assert_refused(&driver, "/rl/start_session", "{}", 429, "7 sessions are open (max_concurrent)");
    (0..4).for_each(|_| drop(driver.begin("/rl/next_task", "{}").unwrap()));

    let chat = |i: usize| of(i).chat(&[user("Who?")]).unwrap();
    // 0: sound, after a reward that was not, and ended twice.
    chat(0);
    assert_refused(&of(0), "/rl/set_reward", r#"{"reward": 1e38}"#, 400, "no number of at most 1e12");
    assert_refused(&of(0), "/rl/set_reward", "{}", 400, "reward: is missing");
    assert_eq!(status(&of(0), "/rl/set_reward", r#"{"reward": 0.25}"#).0, 200);
    assert_eq!(status(&of(0), "/rl/end_session", r#"{"metrics": {"a": 1}}"#).0, 200);
    assert_refused(&of(0), "/rl/end_session", r#"{"reward": 9}"#, 410, "has ended");
    assert_refused(&of(0), "/v1/chat/completions", r#"{"messages": []}"#, 410, "has ended");
    // 1: no number; 2: too large; 3: no call; 4: a reason; 5: an unknown field. 6: never ends.
    (1..7).filter(|i| *i != 3).for_each(|i| drop(chat(i)));
    assert_refused(&of(1), "/rl/end_session", r#"{"reward": NaN}"#, 400, "not a JSON object");
    assert_refused(&of(2), "/rl/end_session", r#"{"reward": 1e38}"#, 400, "has ended and failed");
    let (code, ended) = of(3).ask("/rl/end_session", &json!({"reward": 1})).unwrap();
    assert!(code == 200 && ended["failed"] == "the episode ended without a call", "{ended}");
    assert_eq!(status(&of(4), "/rl/end_session", r#"{"error": "the container\nwas lost"}"#).0, 200);
    assert_refused(&of(5), "/rl/end_session", r#"{"score": 1}"#, 400, "score: unknown");
    // The eighth, by its group, and by calls beyond the limit.
    assert_eq!(tasks[1]["group"], json!(format!("train-0-{row}")));
    assert_refused(&driver, "/rl/start_session", r#"{"group": "train-9-0"}"#, 404, "groups that are: train-0-");
    assert_refused(&driver, "/rl/start_session", r#"{"group": "a", "row": 1}"#, 400, "can't be combined");
    let (code, last) = driver.ask("/rl/start_session", &json!({"group": tasks[4]["group"]})).unwrap();
    assert_eq!(code, 200, "{last}");
    let last = driver.session(&last);
    (0..3).for_each(|_| drop(last.chat(&[user("Who?")]).unwrap()));
    assert_refused(&last, "/v1/chat/completions", r#"{"messages": [{"role": "user", "content": "x"}]}"#, 400, "max_turns");
    assert_refused(&driver, "/rl/start_session", "{}", 409, "needs no episode at the moment");
    assert_eq!(status(&last, "/rl/end_session", r#"{"reward": true}"#).0, 200);

    let outcome = rlhost_tests::CommandOutcome::new(child.wait_with_output().unwrap());
    assert!(outcome.succeeded().stderr.contains("the container"), "{}", outcome.stderr);
    assert_ended_so(&place);
}

/// Asserts that the episodes ended as their driver had it.
fn assert_ended_so(place: &TestFolder) {
    assert_eq!(place.figure("run", "episodes/failed"), [6.0]);
    let lines = place.lines("run/completions.jsonl");
    let parts = [
        "",
        "can't be read",
        "has a reward that is no number",
        "ended without a call",
        "the container\\nwas lost",
        "can't be read",
        "took longer than 4 s",
        "",
    ];
    for (i, part) in parts.into_iter().enumerate() {
        let (failed, reward) = (lines[i]["failed"].as_str().unwrap_or_default(), &lines[i]["rewards"]["agent"]);
        assert!(failed.contains(part) && failed.is_empty() == part.is_empty(), "{i}: {failed:?}");
        let wanted = [(0, json!(0.25)), (7, json!(1.0))].into_iter().find(|(at, _)| *at == i);
        assert_eq!(*reward, wanted.map_or(Value::Null, |(_, reward)| reward), "{i}");
    }
}

#[test]
fn a_run_to_which_no_driver_comes_says_what_it_waits_for_and_ends() {
    let (place, address) = (place(), free_address());
    listening(&place, &address, "timeout_s = 1.5\n");
    let outcome = place.run(&arguments("run", &["--config", "agent.toml", "--max-steps", "2"]));
    assert_eq!(outcome.code, Some(1), "{}", outcome.stderr);
    let waiting = format!("waiting for drivers at http://{address}/rl/next_task: of 8 episodes, 8 have not begun");
    for part in [&waiting, "none began the episode within 1.5 s (timeout_s)", "granted: agent = "] {
        assert!(outcome.stderr.contains(part), "{part}: {}", outcome.stderr);
    }
    // A folder from somebody else opens no port.
    let stranger = place.path("stranger").display().to_string();
    driven(&DriverClient::new(&address, KEY), 2, || {
        place.run(&arguments("run", &["--config", "agent.toml", "--max-steps", "1"])).succeeded();
    });
    let resume = ["resume", "run", "--max-steps", "2"];
    let refused = place.run_with(&resume, &[("RLHOST_STATE_DIR", &stranger)]);
    assert!(refused.code == Some(2) && refused.error().contains("you have not granted that"), "{}", refused.stderr);
    // An address that is taken is named.
    let _taken = TcpListener::bind(&address).unwrap();
    let taken = place.run(&resume);
    assert!(taken.code != Some(0) && taken.error().contains("is in use"), "{}", taken.stderr);
}

#[test]
fn the_example_driver_plays_as_the_example_agent_does() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/agents");
    let driver = |address: &str| {
        let mut python = Command::new("python3");
        python.arg(folder.join("driver.py")).args([&format!("http://{address}"), KEY]).stdout(Stdio::null()).spawn()
    };
    let (place, address) = (place(), free_address());
    let Ok(mut driver) = driver(&address) else {
        eprintln!("skipped: there is no python3");
        return;
    };
    listening(&place, &address, "");
    place.run(&arguments("elsewhere", &["--config", "agent.toml", "--max-steps", "2"])).succeeded();
    // It ends with the run.
    assert!(driver.wait().unwrap().success());
    let agent = format!("python3 {}", folder.join("agent.py").display());
    place.run(&arguments("here", &["--agent", &agent, "--max-steps", "2"])).succeeded();
    assert_eq!(place.figure("here", "agent/calls"), [3.0; 2]);
    assert_same(&place, "elsewhere", "here", 2);
}
