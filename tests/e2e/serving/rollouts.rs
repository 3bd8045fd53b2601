//! Runs whose completions inference servers write.

use rlhost_tests::server::{ServerProcess, TestHttpRequest};
use rlhost_tests::{KilledOnDrop, TestFolder, small, tiny};
use serde_json::{Value, json};
use std::cell::RefCell;
use std::io::{BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

/// A time limit of what should take seconds.
const PATIENCE: Duration = Duration::from_secs(120);

const ADAPTER: &str = "adapter_model.safetensors";

/// Arguments of a run that generates 16 completions of up to 24 tokens a step.
fn arguments<'a>(run: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let mut all = small().to_vec();
    all.extend([
        "--plugin",
        "tldr_length_reward.wasm",
        "--max-completion-length",
        "24",
        "--logging-steps",
        "1",
        "--num-generations",
    ]);
    all.extend(["4", "--per-device-train-batch-size", "16", "--learning-rate", "0.003", "--log-completions", "all"]);
    all.extend(["--output-dir", run]);
    all.extend(more);
    all
}

fn url(server: &ServerProcess) -> String {
    format!("http://{}", server.address)
}

fn start(place: &TestFolder) -> ServerProcess {
    ServerProcess::start(place, &["--model", tiny(), "--allow-weight-updates"])
}

/// Asserts that two runs learned from the same tokens and ended with the same weights, to the bit.
fn assert_same(place: &TestFolder, got: &str, want: &str, step: u64, weights: &str) {
    let file = |run: &str| std::fs::read(place.path(run).join(format!("checkpoint-{step}")).join(weights)).unwrap();
    assert!(file(got) == file(want), "{got}: {weights} differs");
    // Ratios are computed for a server's completions alone, and log-probabilities are the same but for rounding.
    let written = |run: &str| {
        let mut lines = place.lines_without_times(&format!("{run}/completions.jsonl"));
        let tokens = lines.iter_mut().filter_map(|line| line["per_token"].as_object_mut());
        let logp = |tokens: &mut serde_json::Map<String, Value>| {
            tokens.remove("ratio");
            tokens.remove("logp").and_then(|logp| logp.as_array().map(|all| all.iter().filter_map(Value::as_f64).collect()))
        };
        let logp: Vec<Vec<f64>> = tokens.filter_map(logp).collect();
        (lines, logp.concat())
    };
    let ((got_lines, got_logp), (want_lines, want_logp)) = (written(got), written(want));
    assert_eq!(got_lines, want_lines, "{got}");
    assert_eq!(got_logp.len(), want_logp.len(), "{got}");
    let differs = |(a, b): (&f64, &f64)| (a - b).abs() > 2e-4;
    assert!(!got_logp.is_empty() && !got_logp.iter().zip(&want_logp).any(differs), "{got}: {got_logp:?} {want_logp:?}");
    let learned = |run: &str| -> Vec<Value> {
        let rows = place.lines(&format!("{run}/metrics.jsonl"));
        let names = ["reward", "loss", "grad_norm", "entropy", "eval_reward", "eval_loss"];
        rows.iter().map(|row| names.iter().map(|name| row[name].clone()).collect()).collect()
    };
    assert_eq!(learned(got), learned(want), "{got}");
    let moved =
        place.lines(&format!("{got}/metrics.jsonl")).iter().any(|row| row["grad_norm"].as_f64().is_some_and(|norm| norm > 0.0));
    assert!(moved, "{got} has learned nothing");
}

#[test]
fn a_server_writes_the_tokens_that_the_run_itself_would_write() {
    let place = TestFolder::new();
    let evaluations = ["--eval-dataset", rlhost_tests::STORIES, "--eval-strategy", "steps", "--eval-steps", "2"];
    let twice = ["--num-iterations", "2", "--beta", "0.04", "--old-logp", "recompute", "--stop", "e", "--temperature", "0.8"];
    for (name, more, weights) in [
        ("whole", &[][..], "model.safetensors"),
        ("lora", &[&["--lora-r", "4"], &evaluations[..]].concat(), ADAPTER),
        ("merged", &["--lora-r", "4", "--lora-dropout", "0"], ADAPTER),
        ("twice", &[&["--lora-r", "2"], &twice[..]].concat(), ADAPTER),
    ] {
        let server = start(&place);
        let (here, there, url) = (format!("{name}-here"), format!("{name}-there"), url(&server));
        let steps = ["--max-steps", "4", "--save-steps", "2"];
        let sync = if name == "merged" { &["--rollout-sync", "disk"][..] } else { &[] };
        place.run(&arguments(&here, &[&steps, more].concat())).succeeded();
        let outcome = place.run(&arguments(&there, &[&steps, more, &["--rollout-server", &url], sync].concat()));
        outcome.succeeded();
        assert!(outcome.stderr.contains("rollouts come from") && outcome.stderr.contains("rlhost serve"), "{}", outcome.stderr);
        assert_same(&place, &there, &here, 4, weights);
        if name == "lora" {
            place.copy(&there, "again");
            place.run(&["resume", "again", "--step", "2", "--set", &format!("rollout_server=[\"{url}\"]")]).succeeded();
            assert_same(&place, "again", &here, 4, weights);
        }
        assert_eq!(place.lines(&format!("{there}/metrics.jsonl"))[0]["rollout/servers"], 1.0);
        // An evaluation asks no server.
        let evaluated = ["eval", &there, "--eval-dataset", rlhost_tests::STORIES, "--json"];
        assert!(name != "lora" || !place.run(&evaluated).succeeded().stdout.contains("rollout/"));
        // Nothing is left: no file, and no adapter.
        assert!(!place.path(&there).join("rollout_sync").exists());
        assert_eq!(server.get("/v1/models").json()["data"].as_array().unwrap().len(), 1, "{name}");
    }
}

/// The newest adapter of a server with its folder.
fn adapter(server: &ServerProcess) -> Option<(String, String)> {
    let models = server.get("/v1/models").json();
    let own = models["data"].as_array()?.iter().rfind(|model| !model["parent"].is_null())?;
    Some((own["id"].as_str()?.to_owned(), own["root"].as_str()?.to_owned()))
}

#[test]
fn servers_that_are_lost_or_have_other_weights_change_nothing() {
    let place = TestFolder::new();
    let common = ["--lora-r", "4", "--lr-scheduler-type", "constant", "--save-steps", "100000"];
    let (first, second) = (start(&place), start(&place));
    let urls = [url(&first), url(&second)];
    let servers = ["--rollout-server", &urls[0], "--rollout-server", &urls[1], "--max-num-seqs", "8", "--max-steps", "100000"];
    let mut run = KilledOnDrop(place.start(&arguments("run", &[&common[..], &servers].concat())));
    // What the run has said of a server.
    let said = |server: &str, what: &str| {
        let events = std::fs::read_to_string(place.path("run/events.jsonl")).unwrap_or_default();
        events.lines().any(|line| line.contains(server) && line.contains(what))
    };
    let until = |done: &dyn Fn() -> bool| place.wait("run", PATIENCE, done);
    until(&|| place.steps("run") >= 2);
    // One stops without a word, and goes on later.
    second.signal("STOP");
    until(&|| said(&urls[1], "tried again"));
    second.signal("CONT");
    // Somebody takes the policy away from the other.
    until(&|| {
        if let Some((name, _)) = adapter(&first) {
            let _ = first.post("/v1/unload_lora_adapter", &json!({"lora_name": name}));
        }
        said(&urls[0], "404")
    });
    // Or puts an older version in its place. A server that is not used yet would only stay so: one that is used gets one version after another.
    let versions = RefCell::new(Vec::new());
    until(&|| {
        let older = adapter(&first).and_then(|(name, folder)| {
            let mut versions = versions.borrow_mut();
            if versions.last() != Some(&name) {
                versions.push(name.clone());
            }
            if versions.len() < 4 {
                return None;
            }
            versions.clear();
            let (stem, version) = folder.rsplit_once('-')?;
            let version = version.parse::<u64>().ok()?.checked_sub(1)?;
            Some(json!({"lora_name": name, "lora_path": format!("{stem}-{version}"), "load_inplace": true}))
        });
        let _ = older.map(|older| first.post("/v1/load_lora_adapter", &older));
        // The probe finds it, or the version of the tokens that it wrote.
        said(&urls[0], "weights of version") || said(&urls[0], "other weights than it was sent")
    });
    // And at last, one is killed.
    let before = adapter(&first);
    until(&|| adapter(&first).is_some_and(|now| before.as_ref() != Some(&now)));
    let at = place.steps("run");
    until(&|| place.steps("run") >= at + 3);
    drop(first);
    // A connection is refused, or the peer has disconnected.
    until(&|| said(&urls[0], "onnect"));
    let killed = place.steps("run");
    until(&|| place.steps("run") >= killed + 3);
    run.signal("TERM");
    assert!(run.wait().unwrap().code().is_some());
    let steps = *place.checkpoints("run").last().unwrap();
    place.run(&arguments("alone", &[&common[..], &["--max-steps", &steps.to_string()]].concat())).succeeded();
    assert_same(&place, "run", "alone", steps, ADAPTER);
    // The probe may have met all of it, and then no completion was asked for again.
    assert!(place.figure("run", "rollout/retried").iter().all(|retried| *retried >= 0.0));
}

#[test]
fn generations_ahead_are_as_old_as_they_may_be_and_no_prompt_is_lost() {
    let place = TestFolder::new();
    let server = start(&place);
    let url = url(&server);
    let ahead =
        ["--lora-r", "4", "--rollout-server", &url, "--max-staleness", "2", "--vllm-importance-sampling-correction", "true"];
    let steps = ["--max-steps", "8", "--save-steps", "4", "--save-total-limit", "9"];
    place.run(&arguments("run", &[&ahead[..], &steps].concat())).succeeded();
    let oldest = place.figure("run", "rollout/staleness/max");
    assert_eq!(oldest[..3], [0.0, 1.0, 2.0], "{oldest:?}");
    // Later ones are fresher where training is faster than loading weights.
    assert!(oldest.iter().all(|age| *age <= 2.0) && oldest[3..].iter().any(|age| *age > 0.0), "{oldest:?}");
    // The same prompts in the same order as in a run that does not look ahead, also if it is resumed.
    place.run(&arguments("alone", &[&["--lora-r", "4"][..], &steps].concat())).succeeded();
    let prompts = |run: &str| -> Vec<Value> {
        place.lines(&format!("{run}/completions.jsonl")).iter().map(|line| line["prompt"].clone()).collect()
    };
    assert!(prompts("run") == prompts("alone"), "other prompts");
    place.copy("run", "again");
    place.run(&["resume", "again", "--step", "4", "--set", &format!("rollout_server=[\"{url}\"]")]).succeeded();
    assert!(prompts("again") == prompts("alone"), "other prompts after a resume");
    // Two updates for each generation leave room for one generation ahead.
    let twice = ["--lora-r", "4", "--rollout-server", &url, "--max-staleness", "2", "--num-iterations", "2"];
    place.run(&arguments("twice", &[&twice[..], &steps].concat())).succeeded();
    let oldest: Vec<f64> =
        place.lines("twice/metrics.jsonl").iter().filter_map(|row| row["rollout/staleness/max"].as_f64()).collect();
    assert_eq!((oldest.len(), &oldest[..2]), (4, &[0.0, 2.0][..]), "{oldest:?}");
    assert!(oldest.iter().all(|age| *age <= 2.0), "{oldest:?}");
}

/// Passes requests on to a server, and its answers back, those to loads of an adapter after a delay. Returns its URL.
fn with_slow_loads(server: &ServerProcess, delay: Duration) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let address = server.address.clone();
    let pass_on = move |mut client: TcpStream, address: &str| {
        let read = TestHttpRequest::read(&mut BufReader::new(client.try_clone().unwrap()));
        let Some(TestHttpRequest { path, body, .. }) = read else { return };
        let method = if body.is_empty() { "GET" } else { "POST" };
        let fields = format!("Host: {address}\r\nConnection: close\r\nContent-Type: application/json\r\n");
        let head = format!("{method} {path} HTTP/1.1\r\n{fields}Content-Length: {}\r\n\r\n", body.len());
        let Ok(mut server) = TcpStream::connect(address) else { return };
        let _ = server.write_all(&[head.as_bytes(), &body].concat());
        let mut answer = Vec::new();
        let _ = server.read_to_end(&mut answer);
        if path == "/v1/load_lora_adapter" {
            std::thread::sleep(delay);
        }
        let _ = client.write_all(&answer);
    };
    std::thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let address = address.clone();
            std::thread::spawn(move || pass_on(client, &address));
        }
    });
    url
}

#[test]
fn servers_keep_no_adapter_of_an_ended_run() {
    let place = TestFolder::new();
    let (first, second) = (start(&place), start(&place));
    // The first does all the work of the last step, while the other has loaded an adapter and not said so.
    let urls = [url(&first), with_slow_loads(&second, Duration::from_secs(4))];
    let servers = ["--lora-r", "4", "--rollout-server", &urls[0], "--rollout-server", &urls[1], "--max-steps", "3"];
    place.run(&arguments("run", &servers)).succeeded();
    assert!(place.figure("run", "rollout/servers").contains(&1.0), "the run waited for both");
    for server in [&first, &second] {
        assert_eq!(adapter(server), None);
    }
}

#[test]
fn what_is_wrong_with_servers_is_one_line() {
    let place = TestFolder::new();
    let none = TcpListener::bind("127.0.0.1:0").unwrap();
    let nobody = format!("http://{}", none.local_addr().unwrap());
    drop(none);
    let refused = |more: &[&str], code: i32, expected: &str| {
        let outcome = place.run(&arguments("run", &[&["--max-steps", "2"], more].concat()));
        assert_eq!(outcome.code, Some(code), "{}", outcome.stderr);
        assert!(outcome.error().contains(expected), "{expected}: {}", outcome.error());
        std::fs::remove_dir_all(place.path("run")).ok();
    };
    refused(&["--rollout-server", &nobody, "--rollout-timeout-s", "1"], 2, "rollout_server");
    refused(&["--rollout-server", "nowhere"], 2, "rollout_server");
    refused(&["--rollout-server", &nobody, "--agent", "python3 a.py"], 2, "rollout_server");
    let server = ServerProcess::start(&place, &["--model", tiny()]);
    refused(&["--rollout-server", &url(&server)], 1, "--allow-weight-updates");
    refused(&["--rollout-server", &url(&server), "--rollout-sync", "lora"], 2, "rollout_sync");
    // Another model under the same name.
    let other = ServerProcess::start(&place, &["--allow-weight-updates"]);
    refused(&["--rollout-server", &url(&other)], 1, "architecture");
    refused(&["--rollout-server", &url(&other), "--lora-r", "2"], 1, "no rollout server can be used");
}

/// A server that answers the first requests as this function says, then closes connections. Returns its URL.
fn crafted(answer: impl Fn(&str) -> (u16, Value) + Send + Sync + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let read = TestHttpRequest::read(&mut BufReader::new(stream.try_clone().unwrap()));
            let Some(TestHttpRequest { path, .. }) = read else { continue };
            let (status, body) = answer(&path);
            let body = body.to_string();
            let head = format!("HTTP/1.1 {status} .\r\nConnection: close\r\nContent-Length: {}\r\n\r\n", body.len());
            let _ = stream.write_all((head + &body).as_bytes());
        }
    });
    url
}

#[test]
fn what_a_server_should_not_answer_is_never_trained_on() {
    let place = TestFolder::new();
    let models = json!({"data": [{"id": "m", "owned_by": "vllm", "parent": null, "max_model_len": 192}]});
    let nonsense = |completion: Value| {
        let models = models.clone();
        crafted(move |path| match path {
            "/v1/models" => (200, models.clone()),
            "/v1/completions" => (200, completion.clone()),
            _ => (200, json!({"weight_version": "x"})),
        })
    };
    let choice = |tokens: Value, logps: Value| {
        let of = |index: usize| json!({"index": index, "token_ids": tokens, "finish_reason": "length", "logprobs": {"token_logprobs": logps}});
        json!({"choices": (0..8).map(of).collect::<Vec<Value>>()})
    };
    for (what, url, expected) in [
        ("no server of completions", crafted(|_| (200, json!({"hello": "world"}))), "lists no models"),
        ("a web page", crafted(|_| (404, json!("<html>"))), "404"),
        ("no choices", nonsense(json!({"choices": 7})), "it has no choices"),
        ("too few log-probabilities", nonsense(choice(json!([1]), json!([]))), "1 tokens with 0 log-probabilities"),
        ("another model's tokens", nonsense(choice(json!([1_000_000]), json!([-1.0]))), "serves another model"),
        ("somebody else's model", crafted(|_| (200, json!({"data": [{"id": "m", "owned_by": "me"}]}))), "owned by me"),
    ] {
        let steps = ["--max-steps", "2", "--rollout-server", &url, "--lora-r", "2", "--rollout-timeout-s", "2"];
        let outcome = place.run(&arguments("run", &steps));
        assert!(matches!(outcome.code, Some(1 | 2)) && outcome.error().contains(expected), "{what}: {}", outcome.stderr);
        assert!(!place.path("run/checkpoint-1").exists(), "{what}");
        std::fs::remove_dir_all(place.path("run")).ok();
    }
}

/// A server in front of this one, whose answers to requests for completions of more than one token this function changes. Probes of
/// the weights ask for one token. Returns its URL.
fn altered(server: ServerProcess, alter: impl Fn(&mut (u16, Value)) + Send + Sync + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let shared = std::sync::Arc::new((server, alter));
    let pass_on = |mut client: TcpStream, server: &ServerProcess, alter: &dyn Fn(&mut (u16, Value))| {
        let read = TestHttpRequest::read(&mut BufReader::new(client.try_clone().unwrap()));
        let Some(TestHttpRequest { path, body, .. }) = read else { return };
        let sent: Value = serde_json::from_slice(&body).unwrap_or_default();
        let answer = if body.is_empty() { server.get(&path) } else { server.post(&path, &sent) };
        let mut answer = (answer.status, serde_json::from_str(&answer.body).unwrap_or_default());
        if path == "/v1/completions" && sent["max_tokens"].as_u64().is_some_and(|most| most > 1) {
            alter(&mut answer);
        }
        let text = answer.1.to_string();
        let head = format!("HTTP/1.1 {} .\r\nConnection: close\r\nContent-Length: {}\r\n\r\n", answer.0, text.len());
        let _ = client.write_all((head + &text).as_bytes());
    };
    std::thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let shared = std::sync::Arc::clone(&shared);
            std::thread::spawn(move || pass_on(client, &shared.0, &shared.1));
        }
    });
    url
}

/// Changes each number of the choices under this pointer.
fn change(answer: &mut (u16, Value), pointer: &str, to: impl Fn(f64) -> Value) {
    for choice in answer.1["choices"].as_array_mut().into_iter().flatten() {
        for number in choice.pointer_mut(pointer).and_then(Value::as_array_mut).into_iter().flatten() {
            *number = to(number.as_f64().unwrap());
        }
    }
}

#[test]
fn completions_that_the_policy_did_not_write_are_never_trained_on_though_probes_are_right() {
    let place = TestFolder::new();
    let logp = "/logprobs/token_logprobs";
    type Change = Box<dyn Fn(&mut (u16, Value)) + Send + Sync>;
    let cases: [(&str, Change, &str); 4] = [
        ("errors", Box::new(|answer| *answer = (500, json!({"error": "boom"}))), "no rollout server can be used for 3 s"),
        ("raw numbers", Box::new(move |answer| change(answer, logp, |logp| json!(0.4 * logp))), "processed_logprobs"),
        ("no logarithms", Box::new(move |answer| change(answer, logp, |logp| json!(logp + 50.0))), "numbers from -10000 to 0"),
        ("refusals", Box::new(|answer| *answer = (400, json!({"error": {"message": "no"}}))), "400"),
    ];
    for (what, alter, expected) in cases {
        let url = altered(start(&place), alter);
        let steps = ["--max-steps", "2", "--rollout-server", &url, "--lora-r", "2", "--rollout-timeout-s", "3"];
        let outcome = place.run(&arguments("run", &steps));
        assert!(outcome.code == Some(1) && outcome.error().contains(expected), "{what}: {}", outcome.stderr);
        assert!(!place.path("run/checkpoint-1").exists(), "{what}");
        std::fs::remove_dir_all(place.path("run")).ok();
    }
    // Another server does the work of one that refuses all of it.
    let (refusing, other) =
        (altered(start(&place), |answer| *answer = (400, json!({"error": {"message": "no"}}))), start(&place));
    let servers = ["--rollout-server", &refusing, "--rollout-server", &url(&other), "--lora-r", "2", "--max-steps", "2"];
    place.run(&arguments("both", &servers)).succeeded();
    place.run(&arguments("alone", &servers[4..])).succeeded();
    assert_same(&place, "both", "alone", 2, ADAPTER);
}

#[test]
fn a_server_with_another_base_or_a_shorter_context_is_refused() {
    let place = TestFolder::with_answers();
    let taught = ["sft", "--model", tiny(), "--dataset", "answers.jsonl", "--max-steps", "4", "--learning-rate", "0.01"];
    place.run(&[&taught[..], &["--output-dir", "taught"]].concat()).succeeded();
    let refused = |model: &[&str], expected: &str| {
        let server = ServerProcess::start(&place, &[model, &["--allow-weight-updates"]].concat());
        let steps = ["--max-steps", "2", "--rollout-server", &url(&server), "--lora-r", "2", "--rollout-timeout-s", "3"];
        let outcome = place.run(&arguments("run", &steps));
        assert!(outcome.code == Some(1) && outcome.error().contains(expected), "{expected}: {}", outcome.stderr);
        std::fs::remove_dir_all(place.path("run")).ok();
    };
    refused(&["--model", "taught/checkpoint-4"], "it serves another model");
    // Under the run's adapters is the base of the adapter that is served.
    place.run(&arguments("adapter", &["--max-steps", "1", "--lora-r", "2"])).succeeded();
    let server = ServerProcess::start(&place, &["--model", "adapter/checkpoint-1", "--allow-weight-updates"]);
    let steps = ["--model", "adapter/checkpoint-1", "--max-steps", "2", "--rollout-server", &url(&server)];
    place.run(&arguments("continued", &steps)).succeeded();
    // A single bit that no log-probability shows.
    place.copy(tiny(), "bit");
    let file = place.path("bit/model.safetensors");
    let mut bytes = std::fs::read(&file).unwrap();
    let lowest = bytes.len() - size_of::<f32>();
    bytes[lowest] ^= 1;
    std::fs::write(&file, bytes).unwrap();
    refused(&["--model", "bit"], "it serves another model: 1 of ");
    refused(&["--model", tiny(), "--max-model-len", "70"], "it reads at most 70 tokens");
}
