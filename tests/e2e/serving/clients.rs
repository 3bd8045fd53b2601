//! Clients of `rlhost serve` that are slow, hostile, or gone.

use rlhost_tests::TestFolder;
use rlhost_tests::server::{ServerProcess, TestHttpResponse};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

const KEY: &str = "a-key-of-many-letters";

/// A request of so many completions, each of which takes a while.
fn long(n: usize) -> Value {
    json!({"prompt": "TITLE:", "max_tokens": 400, "ignore_eos": true, "stream": true, "n": n})
}

fn short() -> Value {
    json!({"prompt": "TITLE:", "max_tokens": 2, "ignore_eos": true})
}

/// Reads until a stream has begun.
fn begun(stream: &mut TcpStream) {
    let mut seen = Vec::new();
    while !seen.windows(6).any(|bytes| bytes == b"data: ") {
        let mut byte = [0];
        assert_eq!(stream.read(&mut byte).unwrap(), 1, "{}", String::from_utf8_lossy(&seen));
        seen.push(byte[0]);
    }
}

#[test]
fn a_key_is_needed_where_keys_are_given() {
    let place = TestFolder::new();
    place.write("keys", format!("# keys\nanother-key-of-many-letters\n{KEY}\n"));
    let server = ServerProcess::start(&place, &["--api-key-file", "keys", "--host", "0.0.0.0"]);
    let address = server.address.replace("0.0.0.0", "127.0.0.1");
    let ask = |headers: &str| {
        let mut stream = TcpStream::connect(&address).unwrap();
        let body = short().to_string();
        let head =
            format!("Host: {address}\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {}", body.len());
        stream.write_all(format!("POST /v1/completions HTTP/1.1\r\n{head}\r\n{headers}\r\n{body}").as_bytes()).unwrap();
        TestHttpResponse::read(stream).status
    };
    assert_eq!(ask(&format!("Authorization: Bearer {KEY}\r\n")), 200);
    assert_eq!(ask(&format!("x-api-key: {KEY}\r\n")), 200);
    for wrong in
        ["", "Authorization: Bearer \r\n", "Authorization: Bearer a-key-of-many-letterz\r\n", "Authorization: Basic x\r\n"]
    {
        assert_eq!(ask(wrong), 401, "{wrong}");
    }
    let mut open = TcpStream::connect(&address).unwrap();
    open.write_all(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    assert_eq!(TestHttpResponse::read(open).status, 200);
}

#[test]
fn web_pages_of_others_and_oversized_requests_are_refused() {
    let server = ServerProcess::start(&TestFolder::new(), &[]);
    let post = |headers: &str, body: &str| TestHttpResponse::read(server.send("POST /v1/completions", headers, body));
    assert_eq!(post("Host: evil.example\r\nContent-Type: application/json\r\n", &short().to_string()).status, 403);
    // A page may send these without asking first.
    for kind in ["", "Content-Type: text/plain\r\n", "Content-Type: application/x-www-form-urlencoded\r\n"] {
        assert_eq!(post(kind, &short().to_string()).status, 415, "{kind}");
    }
    let large = format!("{{\"prompt\": \"{}\"}}", "x".repeat(17 << 20));
    let answer = post("Content-Type: application/json\r\n", &large);
    assert!(answer.status == 413 && answer.json()["error"]["message"].as_str().unwrap().contains("maximum"), "{answer:?}");
    let headers: String = (0..500).map(|i| format!("x-{i}: y\r\n")).collect();
    assert_eq!(post(&headers, "").status, 431);
    assert_eq!(server.post("/v1/completions", &short()).status, 200);
}

#[test]
fn a_client_that_disconnects_frees_its_place() {
    let server = ServerProcess::start(&TestFolder::new(), &["--max-num-seqs", "1"]);
    let mut first = server.begin("/v1/completions", &long(16));
    begun(&mut first);
    // It waits for a place, and is gone before it has one.
    let second = server.begin("/v1/completions", &json!({"prompt": "TITLE:", "max_tokens": 300, "ignore_eos": true}));
    let queued = || server.metric("requests_waiting") + server.metric("requests_running");
    drop(second);
    drop(first);
    let begun = Instant::now();
    while queued() > 0 {
        assert!(begun.elapsed() < Duration::from_secs(60));
    }
    assert!(server.metric("requests_abandoned_total") >= 2);
    assert!(server.metric("sampled_tokens_total") < 16 * 400);
    assert_eq!(server.post("/v1/completions", &short()).status, 200);
}

#[test]
fn too_many_requests_are_told_to_come_again() {
    let server = ServerProcess::start(&TestFolder::new(), &["--max-num-seqs", "1", "--max-waiting", "1"]);
    let mut first = server.begin("/v1/completions", &long(16));
    begun(&mut first);
    let third = server.post("/v1/completions", &short());
    assert!(third.status == 429 && third.head.contains("retry-after: "), "{third:?}");
    assert_eq!(third.json()["error"]["type"], "rate_limit_error");
}

#[test]
fn slow_clients_and_noise_keep_nobody_waiting() {
    let server = ServerProcess::start(&TestFolder::new(), &[]);
    let beginnings = ["P", "POST /v1/completions HTTP/1.1\r\nHost: ", "GET /v1/models HTTP/1.1\r\n"];
    let slow: Vec<TcpStream> = (0..300)
        .map(|i| {
            let mut stream = server.connect();
            stream.write_all(beginnings[i % 3].as_bytes()).unwrap();
            stream
        })
        .collect();
    let body =
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 1000000\r\n\r\n{";
    let mut waiting = server.connect();
    waiting.write_all(body.as_bytes()).unwrap();
    let mut state = 1u64;
    for length in 0..200 {
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        };
        let noise: Vec<u8> = (0..length * 5).map(|_| next()).collect();
        // It may be refused before it is sent.
        let _ = server.connect().write_all(&noise);
    }
    let begun = Instant::now();
    assert_eq!(server.post("/v1/completions", &short()).status, 200);
    // Slow clients have 15 s for their headers: none of them was waited for.
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    drop(slow);
}

#[test]
fn a_server_that_is_asked_to_stop_finishes_what_it_has_begun() {
    let place = TestFolder::new();
    let server = ServerProcess::start(&place, &[]);
    let _idle = server.connect();
    let mut stream = server.begin("/v1/completions", &long(2));
    begun(&mut stream);
    server.terminate();
    let rest = {
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    };
    assert!(rest.contains("\"finish_reason\":\"length\"") && rest.contains("data: [DONE]"), "{rest}");
    assert_eq!(server.wait(), Some(0));
    // Or not, within its time.
    let server = ServerProcess::start(&place, &["--drain-timeout", "0"]);
    let mut stream = server.begin("/v1/completions", &long(16));
    begun(&mut stream);
    server.terminate();
    assert_eq!(server.wait(), Some(0));
    let mut text = String::new();
    let _ = stream.read_to_string(&mut text);
    assert!(!text.contains("[DONE]"), "{text}");
}
