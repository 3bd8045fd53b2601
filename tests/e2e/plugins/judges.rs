//! Runs whose reward asks a server: what it is granted, what it is answered, and that the run is the same when it is resumed.

use rlhost_tests::judge::{BODY, JudgeServer, KEY, STEPS, prompts, say, verdict};
use rlhost_tests::{CommandOutcome, KilledOnDrop, TestFolder, tiny};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

fn run(place: &TestFolder, arguments: &[String], more: &[&str]) -> CommandOutcome {
    let mut all: Vec<&str> = arguments.iter().map(String::as_str).collect();
    all.extend(more);
    let cache = place.path("cache").display().to_string();
    place.run_with(&all, &[("JUDGE_KEY", KEY), ("RLHOST_STATE_DIR", &cache)])
}

fn words(line: &[&str]) -> Vec<String> {
    line.iter().map(|word| (*word).to_owned()).collect()
}

fn files(folder: &Path, all: &mut Vec<(String, Vec<u8>)>) {
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        match entry.path() {
            path if path.is_dir() => files(&path, all),
            path => all.push((path.display().to_string(), fs::read(&path).unwrap())),
        }
    }
}

#[test]
fn a_run_with_a_judge_is_the_same_when_it_is_resumed_and_its_key_is_in_no_file() {
    let (place, judge) = (prompts(), JudgeServer::moody());
    let outcome = run(&place, &judge.arguments("whole"), &[]);
    outcome.succeeded();
    let asked = judge.request_count();
    assert!(asked > 10, "{asked}");
    assert!(outcome.stderr.contains("is granted requests to 127.0.0.1:"), "{}", outcome.stderr);
    let loaded = place.events("whole", "plugin_loaded");
    let granted = loaded.iter().find_map(|event| event["granted"].as_str()).unwrap();
    assert!(granted.contains("127.0.0.1:") && granted.ends_with("JUDGE_KEY (env:JUDGE_KEY)"), "{granted}");
    // The judge's mood is in the scores.
    assert!(place.figure("whole", "rewards/judge_reward/std").iter().any(|std| *std > 0.0));
    for step in [1, 3, 5] {
        let name = format!("from-{step}");
        place.copy_as_after("whole", step, &name);
        run(&place, &words(&["resume", &name]), &[]).succeeded();
        place.assert_same_end(&name, "whole", STEPS, "model.safetensors");
    }
    // A fork that goes on in the same way has the same answers.
    let mut fork = judge.arguments("fork");
    fork.extend(words(&["--resume-from-checkpoint", "whole/checkpoint-3"]));
    run(&place, &fork, &[]).succeeded();
    assert_eq!(judge.request_count(), asked, "nothing is asked again");
    run(&place, &words(&["report", "whole"]), &[]).succeeded();
    let mut all = Vec::new();
    files(&place.path(""), &mut all);
    assert!(all.iter().any(|(name, _)| name.ends_with("answers/judge_reward.jsonl")));
    let has = |bytes: &[u8], text: &str| bytes.windows(text.len()).any(|window| window == text.as_bytes());
    assert!(all.iter().any(|(name, bytes)| name.ends_with(".html") && has(bytes, granted)));
    assert!(all.iter().any(|(_, bytes)| has(bytes, "your key is Bearer {{JUDGE_KEY}}")), "what the judge repeated is recorded");
    for (name, bytes) in &all {
        assert!(!has(bytes, KEY) && !has(bytes, &KEY[3..]), "{name} has the key");
    }
    assert!(!outcome.stderr.contains(KEY) && !outcome.stdout.contains(KEY));
}

/// Waits until a run has logged a number of steps, and kills it.
fn kill_after(place: &TestFolder, name: &str, lines: usize, child: &mut Child) {
    loop {
        if place.steps(name) >= lines || child.try_wait().unwrap().is_some() {
            let _ = child.kill();
            let _ = child.wait();
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_killed_run_goes_on_and_is_replayed_without_the_judge() {
    let place = prompts();
    let judge = JudgeServer::new(|before, _, stream| match before % 7 {
        // Lost for its step, and lost again when the step is replayed.
        3 if before > 8 => say(stream, "500 Internal Server Error", "", "oh"),
        _ => verdict(stream, &format!("[[{}]]", 1 + before * 7 % 10)),
    });
    let secret = "plugin.judge_reward.secrets={ JUDGE_KEY = \"file:key\" }";
    place.write("key", KEY);
    let mut arguments = judge.arguments("run");
    arguments.extend(words(&["--set", secret]));
    let mut child = place.start(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
    kill_after(&place, "run", 3, &mut child);
    // The line that was being written.
    let file = place.path("run/answers/judge_reward.jsonl");
    let mut text = fs::read(&file).unwrap();
    text.extend(b"{\"request\":\"ab");
    fs::write(&file, text).unwrap();
    place
        .run(&["resume", "run", "--set", &format!("plugin.judge_reward.hosts=127.0.0.1:{}", judge.port), "--set", secret])
        .succeeded();
    let asked = judge.request_count();
    assert!(place.figure("run", "judge_reward/unanswered").iter().sum::<f64>() > 0.0);
    drop(judge);
    for step in [1, 2, 4] {
        let name = format!("from-{step}");
        place.copy_as_after("run", step, &name);
        place.run(&["resume", &name, "--set", "replay_only=true"]).succeeded();
        place.assert_same_end(&name, "run", STEPS, "model.safetensors");
    }
    let replayed = place.run(&[
        "replay",
        "run",
        "--plugin",
        "judge_reward.wasm",
        "--replay-only",
        "--set",
        "secret=JUDGE_KEY",
        "--set",
        &url_of(&place),
    ]);
    replayed.succeeded();
    assert!(asked > 0 && replayed.stdout.contains("no completion has a different score"), "{}", replayed.stdout);
    fs::write(&file, "").unwrap();
    let refused = place.run(&[
        "replay",
        "run",
        "--plugin",
        "judge_reward.wasm",
        "--replay-only",
        "--set",
        "secret=JUDGE_KEY",
        "--set",
        &url_of(&place),
    ]);
    assert!(refused.stderr.contains("have no answer in the record, and replay_only"), "{}", refused.stderr);
}

/// Arguments of a run that a reward model and a judge score, with a critic that starts from the reward model.
fn scored_by_both(place: &TestFolder, judge: &JudgeServer, run: &str) -> Vec<String> {
    if !place.path("rm").exists() {
        let row =
            |i: usize| format!("{{\"prompt\": \"p{i}\", \"chosen\": \"{}\", \"rejected\": \"ab\"}}\n", "z".repeat(1 + i % 5));
        place.write("pairs.jsonl", (0..16).map(row).collect::<String>());
        let train = ["reward", "--model", tiny(), "--dataset", "pairs.jsonl", "--output-dir", "rm", "--max-steps", "4"];
        place.run(&train).succeeded();
        place.write("key", KEY);
    }
    let mut all = judge.arguments(run);
    all.extend(words(&["--algorithm", "ppo", "--reward-model", "rm", "--steps-per-generation", "2", "--num-generations", "2"]));
    all.extend(words(&["--set", "plugin.judge_reward.secrets={ JUDGE_KEY = \"file:key\" }"]));
    all
}

fn same_with_critic(place: &TestFolder, got: &str) {
    place.assert_same_end(got, "whole", STEPS, "model.safetensors");
    place.assert_same_end(got, "whole", STEPS, "trainer/value_model/model.safetensors");
}

#[test]
fn a_run_with_a_reward_model_a_critic_and_a_judge_resumes_to_the_bit_from_every_step() {
    let (place, judge) = (prompts(), JudgeServer::moody());
    run(&place, &scored_by_both(&place, &judge, "whole"), &[]).succeeded();
    let config = fs::read_to_string(place.path("whole/config.toml")).unwrap();
    assert!(config.contains("rm/checkpoint-4\"\nmodel = true") && config.contains("value_model = "), "{config}");
    let asked = judge.request_count();
    for step in 1..STEPS {
        let name = format!("from-{step}");
        place.copy_as_after("whole", step, &name);
        run(&place, &words(&["resume", &name]), &[]).succeeded();
        same_with_critic(&place, &name);
    }
    assert_eq!(judge.request_count(), asked, "nothing is asked again");
}

#[test]
fn a_run_with_all_three_that_is_killed_at_any_moment_ends_the_same() {
    let (place, judge) = (prompts(), JudgeServer::steady());
    run(&place, &scored_by_both(&place, &judge, "whole"), &[]).succeeded();
    let mut arguments = scored_by_both(&place, &judge, "killed");
    arguments.push("--resume-from-checkpoint".into());
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    place.kill_after_each(&arguments, (0..12).map(|kill| Duration::from_millis(150 + 97 * kill % 400)));
    place.run(&arguments).succeeded();
    same_with_critic(&place, "killed");
}

/// The text between two marks.
fn between<'a>(text: &'a str, from: &str, to: &str) -> &'a str {
    text.split_once(from).unwrap().1.split_once(to).unwrap().0
}

#[test]
fn a_pair_judge_compares_the_completions_of_a_prompt_and_a_reference_in_an_evaluation() {
    let place = prompts();
    // The longer answer is the better one.
    let judge = JudgeServer::new(|_, headers, stream| {
        let body: serde_json::Value = serde_json::from_str(&headers[BODY]).unwrap();
        let question = body["messages"][0]["content"].as_str().unwrap();
        let answer = |name: &str| between(question, &format!("[Answer {name}]\n"), &format!("\n[End of answer {name}]")).len();
        let said = match answer("A").cmp(&answer("B")) {
            std::cmp::Ordering::Greater => "[[A]]",
            std::cmp::Ordering::Less => "[[B]]",
            std::cmp::Ordering::Equal => "[[C]]",
        };
        verdict(stream, said);
    });
    let pairwise = ["compare=others", "config.scoring=pairwise", "config.reference=reference"];
    let mut arguments = judge.arguments("run");
    arguments.extend(pairwise.iter().flat_map(|set| ["--set".to_owned(), format!("plugin.judge_reward.{set}")]));
    run(&place, &arguments, &["--algorithm", "online_dpo", "--per-device-train-batch-size", "4", "--stop", "a", "b", "e"])
        .succeeded();
    let rows = place.lines("run/completions.jsonl");
    let mut decided = 0;
    for pair in rows.chunks(2) {
        assert_eq!(pair[0]["row"], pair[1]["row"]);
        let [one, other] = [0, 1].map(|i| pair[i]["completion"].as_str().unwrap().len());
        let want = if one == other { 0.5 } else { f64::from(u8::from(one > other)) };
        let scores = [0, 1].map(|i| pair[i]["rewards"]["judge_reward"].as_f64().unwrap());
        assert!(scores == [want, 1.0 - want], "{pair:?}");
        decided += usize::from(one != other);
    }
    assert!(decided > 0, "some completions differ in length");
    // In an evaluation, completions meet the dataset's own answers.
    let lines = |text: &str| (0..4).map(|i| format!("{{\"prompt\": \"q{i}\", \"reference\": \"{text}\"}}\n")).collect::<String>();
    for (text, wins) in [("", 1.0), (&"long ".repeat(40), 0.0)] {
        place.write("prompts.jsonl", lines(text));
        let mut all = vec!["eval".to_owned()];
        all.extend(arguments.iter().cloned());
        let flags = ["--set", "plugin.judge_reward.compare=reference", "--eval-dataset", "prompts.jsonl", "--json"];
        let outcome = run(&place, &all, &flags);
        let figures: serde_json::Value = serde_json::from_str(&outcome.succeeded().stdout).unwrap();
        assert_eq!(figures["eval_rewards/judge_reward/mean"], wins, "{figures}");
    }
}

/// The judge's address in a run's configuration, as a setting.
fn url_of(place: &TestFolder) -> String {
    let config = fs::read_to_string(place.path("run/config.toml")).unwrap();
    let line = config.lines().find(|line| line.starts_with("url = ")).unwrap();
    format!("url={}", line.trim_start_matches("url = ").trim_matches('"'))
}

#[test]
fn a_judge_that_misbehaves_costs_rows_and_no_run() {
    let place = prompts();
    let elsewhere = JudgeServer::moody();
    let away = format!("Location: http://127.0.0.1:{}/\r\n", elsewhere.port);
    let judge = JudgeServer::new(move |before, _, stream| match before % 10 {
        _ if before < 8 => verdict(stream, "[[5]]"),
        0 => std::thread::sleep(Duration::from_secs(3600)),
        1 => say(stream, "200 OK", "", "garbage"),
        2 => verdict(stream, "It depends."),
        3 => drop(stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{\"choices\"")),
        4 => {
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n");
            while stream.write_all(&[b'x'; 1 << 16]).is_ok() {}
        }
        5 => say(stream, "307 Temporary Redirect", &away, ""),
        6 => say(stream, "429 Too Many Requests", "Retry-After: 86400\r\n", ""),
        _ => verdict(stream, &format!("[[{}]]", 1 + before % 10)),
    });
    run(&place, &judge.arguments("run"), &[]).succeeded();
    let sum = |name: &str| place.figure("run", name).iter().sum::<f64>();
    let (lost, odd) = (sum("judge_reward/unanswered"), sum("judge_reward/unreadable"));
    assert!(lost > 0.0 && odd > 0.0, "{lost} {odd}");
    let unscored = place.lines("run/completions.jsonl").iter().filter(|line| line["rewards"]["judge_reward"].is_null()).count();
    assert_eq!(unscored as f64, lost + odd, "each is a row without a score");
    assert_eq!(elsewhere.request_count(), 0);
}

#[test]
fn a_judge_that_is_not_there_ends_the_run_with_a_line() {
    let place = prompts();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let gone = JudgeServer::at(port);
    let outcome = run(&place, &gone.arguments("run"), &[]);
    let error = outcome.error();
    assert!(error.contains("judge_reward") && error.contains("requests was answered; the first: http://127.0.0.1:"), "{error}");
    assert!(!place.path("run").exists(), "found out before the run begins");
    let refused = JudgeServer::new(|_, _, stream| say(stream, "401 Unauthorized", "", "no such key"));
    let outcome = run(&place, &refused.arguments("run"), &[]);
    assert!(outcome.error().contains("status 401: no such key"), "{}", outcome.stderr);
}

#[test]
fn a_judge_that_never_gives_a_number_ends_the_run_after_an_answer_was_shown() {
    let (place, judge) = (prompts(), JudgeServer::new(|_, _, stream| verdict(stream, "I can't decide.")));
    // A batch so small that the judge may have no verdict by chance.
    let few = ["--per-device-train-batch-size", "4", "--num-generations", "2", "--max-steps", "20"];
    let outcome = run(&place, &judge.arguments("run"), &few);
    assert_eq!(outcome.code, Some(1), "{}", outcome.stderr);
    let error = outcome.error();
    assert!(error.contains("no reward could score any completion in step 16, 16 generations in a row"), "{error}");
    assert!(outcome.stderr.contains("has a number from 1 to 10; the first is: I can't decide."), "{}", outcome.stderr);
}

#[test]
fn nothing_is_granted_that_the_user_did_not_name() {
    let (place, judge) = (prompts(), JudgeServer::moody());
    let whole = judge.arguments("run");
    let without = |key: &str| -> Vec<String> {
        let begins = format!("plugin.judge_reward.{key}");
        let pairs: Vec<&[String]> = whole.chunks(2).filter(|pair| !pair[1].starts_with(&begins)).collect();
        pairs.concat()
    };
    let refused = |arguments: &[String], more: &[&str], parts: &[&str]| {
        let outcome = run(&place, arguments, more);
        let error = outcome.error().to_owned();
        assert!(parts.iter().all(|part| error.contains(part)), "{parts:?}: {error}");
        assert!(outcome.code == Some(2) && !place.path("run").exists(), "{outcome:?}");
    };
    let line = "--set plugin.judge_reward.hosts=HOST:PORT";
    let set = |text: &str| format!("plugin.judge_reward.{text}");
    let no_secrets = ["--set", &set("secrets={}"), "--set", &set("hosts=[]")];
    refused(&whole, &no_secrets, &["plugin judge_reward", "rlhost:plugin/http@1.0.0", line]);
    refused(&without("hosts"), &[], &["judge_reward", "none are granted"]);
    refused(&without("secrets"), &[], &["JUDGE_KEY, which is not granted", "env:JUDGE_KEY"]);
    refused(&whole, &["--set", &set("hosts=judge.internal:8000")], &["http://127.0.0.1:", "is not granted"]);
    refused(&whole, &["--set", &set("hosts=a b")], &["judge_reward", "HOST:PORT"]);
    refused(&whole, &["--set", &set("secrets={ JUDGE_KEY = \"env:NO_SUCH_KEY\" }")], &["NO_SUCH_KEY is not set"]);
    refused(&whole, &["--set", &set("http.max_concurrency=0")], &["http.max_concurrency"]);
    let outcome = run(&place, &whole, &["--set", &set("secrets={ JUDGE_KEY = \"sk-literal-secret\" }")]);
    assert!(outcome.error().contains("env:VARIABLE"), "{}", outcome.stderr);
    let other = ["--plugin", "tldr_length_reward.wasm", "--set", "plugin.tldr_length_reward.hosts=a"];
    refused(&whole, &other, &["plugin.tldr_length_reward.hosts", "sends no requests"]);
    assert_eq!(judge.request_count(), 0);
}

#[test]
fn a_strangers_run_folder_grants_nothing() {
    let (place, judge) = (prompts(), JudgeServer::moody());
    run(&place, &judge.arguments("run"), &[]).succeeded();
    place.copy_as_after("run", 3, "theirs");
    let asked = judge.request_count();
    let resume = |more: &[&str]| {
        let cache = place.path("another-cache").display().to_string();
        place.run_with(&[&["resume", "theirs"], more].concat(), &[("JUDGE_KEY", KEY), ("RLHOST_STATE_DIR", &cache)])
    };
    let outcome = resume(&[]);
    let error = outcome.error();
    let hosts = format!("plugin.judge_reward.hosts=[\"127.0.0.1:{}\"]", judge.port);
    let secrets = "plugin.judge_reward.secrets={ JUDGE_KEY = \"env:JUDGE_KEY\" }";
    assert!(error.contains(&format!("--set '{hosts}' --set '{secrets}'")), "{error}");
    assert!(resume(&["--set", &hosts]).error().contains("--set"), "the secrets have to be given too");
    resume(&["--set", &hosts, "--set", secrets]).succeeded();
    place.assert_same_end("theirs", "run", STEPS, "model.safetensors");
    assert_eq!(judge.request_count(), asked);
    // Replaying asks nobody by itself.
    let replay = ["replay", "run", "--plugin", "judge_reward.wasm"];
    let cache = place.path("third-cache").display().to_string();
    let outcome = place.run_with(&replay, &[("JUDGE_KEY", KEY), ("RLHOST_STATE_DIR", &cache)]);
    assert!(outcome.error().contains("--host and --secret"), "{}", outcome.stderr);
}

/// A judge in Python that answers over TLS; prints its port.
const ENCRYPTED: &str = r#"
import http.server, json, ssl
class Judge(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        body = json.dumps({"choices": [{"message": {"content": "[[5]]"}}]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_): pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Judge)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain("leaf.pem", "leaf.key")
server.socket = context.wrap_socket(server.socket, server_side=True)
print(server.server_port, flush=True)
server.serve_forever()
"#;

/// An authority, and a certificate of this machine that it vouches for.
const CERTIFICATES: &str = "\
openssl req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.pem -days 2 -subj /CN=authority
openssl req -newkey rsa:2048 -nodes -keyout leaf.key -out leaf.csr -subj /CN=judge
printf 'subjectAltName=IP:127.0.0.1\\nbasicConstraints=CA:FALSE\\n' > leaf.ext
openssl x509 -req -in leaf.csr -CA ca.pem -CAkey ca.key -CAcreateserial -out leaf.pem -days 2 -extfile leaf.ext";

#[test]
fn a_judge_is_asked_over_tls_if_its_certificate_is_vouched_for() {
    let place = prompts();
    place.write("judge.py", ENCRYPTED);
    let shell = |script: &str| Command::new("sh").args(["-ec", script]).current_dir(place.path("")).output();
    if !shell(CERTIFICATES).is_ok_and(|made| made.status.success())
        || !shell("python3 -c 'import ssl'").is_ok_and(|out| out.status.success())
    {
        eprintln!("skipped: no openssl or no python3 to serve TLS with");
        return;
    }
    let mut python = Command::new("python3");
    let mut server = KilledOnDrop(python.arg("judge.py").current_dir(place.path("")).stdout(Stdio::piped()).spawn().unwrap());
    let mut line = String::new();
    BufReader::new(server.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let judge = JudgeServer::at(line.trim().parse().unwrap());
    let url = format!("plugin.judge_reward.config.url=https://127.0.0.1:{}/v1", judge.port);
    let more = ["--max-steps", "1", "--set", &url];
    let stranger = run(&place, &judge.arguments("stranger"), &more);
    let vouched =
        run(&place, &judge.arguments("run"), &[&more[..], &["--set", "plugin.judge_reward.http.ca_file=ca.pem"]].concat());
    assert!(stranger.error().to_lowercase().contains("certificate"), "{}", stranger.stderr);
    vouched.succeeded();
    assert!(place.figure("run", "rewards/judge_reward/mean").iter().all(|mean| (mean - 4.0 / 9.0).abs() < 1e-6));
}
