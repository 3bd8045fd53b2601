//! Requests to a server that behaves and misbehaves on request.

use super::*;
use crate::config::HttpLimits;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::AtomicBool;
use std::sync::{Barrier, Condvar};

/// A request as received: its path, its headers with lower-case names, and its body.
struct ReceivedRequest {
    path: String,
    headers: BTreeMap<String, String>,
    body: String,
}

type Behaviour = dyn Fn(&ReceivedRequest, usize, &mut TcpStream) + Send + Sync;

/// A server on its own port; `behave` gets the number of earlier requests.
struct MisbehavingServer {
    place: String,
    count: Arc<AtomicUsize>,
}

impl MisbehavingServer {
    fn new(behave: impl Fn(&ReceivedRequest, usize, &mut TcpStream) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let place = listener.local_addr().unwrap().to_string();
        let (count, behave): (Arc<AtomicUsize>, Arc<Behaviour>) = (Arc::default(), Arc::new(behave));
        let counted = count.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (count, behave) = (counted.clone(), behave.clone());
                std::thread::spawn(move || serve(stream, &count, &*behave));
            }
        });
        Self { place, count }
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.place)
    }

    fn asked(&self) -> usize {
        self.count.load(Ordering::SeqCst)
    }
}

fn serve(mut stream: TcpStream, count: &AtomicUsize, behave: &Behaviour) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut line = String::new();
    reader.read_line(&mut line).unwrap_or_default();
    let path = line.split(' ').nth(1).unwrap_or_default().to_owned();
    let lines = reader.by_ref().lines().map_while(Result::ok).take_while(|line| !line.is_empty());
    let pair = |line: String| line.split_once(": ").map(|(name, value)| (name.to_lowercase(), value.to_owned()));
    let headers: BTreeMap<String, String> = lines.filter_map(pair).collect();
    let mut body = vec![0; headers.get("content-length").and_then(|n| n.parse().ok()).unwrap_or(0)];
    if path.is_empty() || reader.read_exact(&mut body).is_err() {
        return;
    }
    let body = String::from_utf8(body).unwrap();
    behave(&ReceivedRequest { path, headers, body }, count.fetch_add(1, Ordering::SeqCst), &mut stream);
}

/// Sends an answer. Errors show in what the client receives.
fn say(stream: &mut TcpStream, status: &str, headers: &str, body: &str) {
    let length = body.len();
    let _ = write!(stream, "HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {length}\r\n{headers}\r\n{body}");
}

fn hang() {
    std::thread::sleep(Duration::from_secs(3600));
}

fn impatient() -> HttpLimits {
    HttpLimits { timeout_s: 0.5, backoff_s: 0.0, retries: 1, max_response_kb: 64, ..HttpLimits::default() }
}

fn asker(server: &MisbehavingServer, http: HttpLimits) -> PluginHttpClient {
    PluginHttpClient::new(Grants { hosts: vec![server.place.clone()], http, ..Grants::default() }, RequestPolicy::Allowed)
        .unwrap()
}

fn post(url: &str, body: &str) -> OutboundRequest {
    OutboundRequest { method: "POST".into(), url: url.into(), headers: Vec::new(), body: body.into(), timeout_ms: 0 }
}

/// Sends requests in a call that succeeds.
fn ask(asker: &PluginHttpClient, requests: Vec<OutboundRequest>, step: u64) -> Vec<OutboundResult> {
    let mut pending = PendingAnswers::default();
    let until = Instant::now() + asker.grants.http.call_timeout();
    let answers = asker.answer(requests, (step, 0), &mut pending, until).unwrap();
    asker.commit(pending.entries, true).unwrap();
    answers
}

fn text(answer: &OutboundResult) -> String {
    match answer {
        Ok(answer) => format!("{} {}", answer.status, String::from_utf8_lossy(&answer.body)),
        Err(reason) => reason.clone(),
    }
}

#[test]
fn a_batch_is_sent_side_by_side_and_answered_in_order() {
    let together = Barrier::new(64);
    let server = MisbehavingServer::new(move |asked, _, stream| {
        // None is answered before all are there.
        together.wait();
        say(stream, "200 OK", "", &asked.body);
    });
    let asker = asker(&server, HttpLimits::default());
    let requests: Vec<OutboundRequest> = (0..64).map(|i| post(&server.url("/"), &i.to_string())).collect();
    let answers = ask(&asker, requests.iter().chain(&requests).cloned().collect(), 0);
    let expected: Vec<String> = (0..64).chain(0..64).map(|i| format!("200 {i}")).collect();
    assert_eq!(answers.iter().map(text).collect::<Vec<_>>(), expected);
    assert_eq!(server.asked(), 64, "equal requests are sent once");
}

#[test]
fn no_more_requests_are_under_way_than_allowed() {
    let state = Arc::new((Mutex::new((0, 0)), Condvar::new()));
    let shared = state.clone();
    let server = MisbehavingServer::new(move |_, _, stream| {
        let change = |by: i32| {
            let mut now = shared.0.lock().unwrap();
            now.0 += by;
            now.1 = now.1.max(now.0);
        };
        change(1);
        std::thread::sleep(Duration::from_millis(5));
        change(-1);
        say(stream, "200 OK", "", "");
    });
    let asker = asker(&server, HttpLimits { max_concurrency: 3, ..HttpLimits::default() });
    ask(&asker, (0..20).map(|i| post(&server.url("/"), &i.to_string())).collect(), 0);
    assert!((1..=3).contains(&state.0.lock().unwrap().1));
}

#[test]
fn a_call_takes_no_more_than_its_room_however_many_threads_ask() {
    let server = MisbehavingServer::new(|_, _, stream| say(stream, "200 OK", "X-A: b\r\n", &"x".repeat(1000)));
    let asker = asker(&server, HttpLimits::default());
    let mut pending = PendingAnswers { room: AnswerBudget::with_capacity(5000), ..PendingAnswers::default() };
    let soon = Instant::now() + Duration::from_secs(60);
    let batch = |from: usize| (from..from + 8).map(|i| post(&server.url("/"), &i.to_string())).collect::<Vec<_>>();
    let answers = asker.answer(batch(0), (0, 0), &mut pending, soon).unwrap();
    let full = |answers: &[OutboundResult]| answers.iter().filter(|answer| text(answer).contains("96 MiB together")).count();
    assert!((1..5).contains(&(8 - full(&answers))), "{answers:?}");
    assert_eq!(asker.answer(batch(0), (0, 0), &mut pending, soon).unwrap(), answers, "equal requests are counted once");
    let more = asker.answer(batch(8), (0, 0), &mut pending, soon).unwrap();
    assert!(8 - full(&answers) + 8 - full(&more) < 5, "the next batch has what is left");
    asker.commit(pending.entries, true).unwrap();
    let mut recorded = PendingAnswers { room: AnswerBudget::with_capacity(1000), ..PendingAnswers::default() };
    let again = asker.answer(batch(0), (0, 0), &mut recorded, soon).unwrap();
    assert_eq!(full(&again), 8, "what the record has is counted too");
}

#[test]
fn a_redirect_shows_no_secret_in_lower_case() {
    const KEY: &str = "Sk-ABCdef0123";
    let server = MisbehavingServer::new(|asked, _, stream| match asked.path.as_str() {
        "/away" => say(stream, "307 Temporary Redirect", &format!("Location: http://{KEY}.evil.org/\r\n"), ""),
        "/query" => say(stream, "307 Temporary Redirect", "Location: /fine?next=https://x\r\n", ""),
        _ => say(stream, "200 OK", &format!("{KEY}: {}\r\n", KEY.to_uppercase()), KEY),
    });
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), KEY).unwrap();
    let secrets = [("KEY".to_owned(), format!("file:{}", file.path().display()))].into();
    let grants = Grants { hosts: vec![server.place.clone()], secrets, http: impatient(), ..Grants::default() };
    let asker = PluginHttpClient::new(grants, RequestPolicy::Allowed).unwrap();
    let refused = text(&ask(&asker, vec![post(&server.url("/away"), "")], 0)[0]);
    assert!(!refused.to_lowercase().contains(&KEY.to_lowercase()) && refused.contains("{{KEY}}"), "{refused}");
    let answer = ask(&asker, vec![post(&server.url("/query"), "")], 0).remove(0).unwrap();
    assert!(answer.headers.contains(&("{{KEY}}".into(), "{{KEY}}".into())), "{:?}", answer.headers);
    assert_eq!(answer.body, b"{{KEY}}");
}

/// Misbehaves as the path says; `away` is a server that is not granted.
fn misbehave(asked: &ReceivedRequest, before: usize, stream: &mut TcpStream, away: &str) {
    match asked.path.as_str() {
        "/hang" => hang(),
        "/drip" => loop {
            let _ = stream.write_all(b"H").and_then(|()| stream.flush());
            std::thread::sleep(Duration::from_millis(50));
        },
        "/slow-body" => {
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nab");
            hang();
        }
        "/garbage" => drop(stream.write_all(b"\x00\xff not http\r\n\r\n")),
        "/cut" => drop(stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nab")),
        "/gigabytes" => {
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n");
            while stream.write_all(&[b'x'; 1 << 16]).is_ok() {}
        }
        "/claims" => drop(stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\nab")),
        "/headers" => {
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n");
            while stream.write_all(b"x-a: b\r\n").is_ok() {}
        }
        "/away" => say(stream, "307 Temporary Redirect", &format!("Location: {away}\r\n"), ""),
        "/round" => say(stream, "307 Temporary Redirect", "Location: /round\r\n", ""),
        "/file" => say(stream, "302 Found", "Location: file:///etc/passwd\r\n", ""),
        "/home" => say(stream, "308 Permanent Redirect", "Location: fine\r\n", ""),
        "/later" => say(stream, "429 Too Many Requests", "Retry-After: 86400\r\n", "busy"),
        "/again" if before.is_multiple_of(2) => say(stream, "429 Too Many Requests", "Retry-After: 0\r\n", "busy"),
        "/broken" => say(stream, "500 Internal Server Error", "", "oh"),
        "/wrong" => say(stream, "400 Bad Request", "", "no"),
        _ => say(stream, "200 OK", "", &asked.body),
    }
}

#[test]
fn every_misbehaviour_is_an_answer_or_a_line() {
    let elsewhere = MisbehavingServer::new(|_, _, stream| say(stream, "200 OK", "", "reached"));
    let away = elsewhere.url("/secret");
    let server = MisbehavingServer::new(move |asked, before, stream| misbehave(asked, before, stream, &away));
    let asker = asker(&server, impatient());
    let asked = |path: &str| {
        let before = server.asked();
        let answer = ask(&asker, vec![post(&server.url(path), "text")], 0).remove(0);
        (text(&answer), server.asked() - before)
    };
    for (path, said, attempts) in [
        ("/hang", "gave no answer within 0.5 s, in the last of 2 attempts", 2),
        ("/drip", "in the last of 2 attempts", 2),
        ("/slow-body", "gave no answer within 0.5 s", 2),
        ("/garbage", "in the last of 2 attempts", 2),
        ("/cut", "in the last of 2 attempts", 2),
        ("/gigabytes", "64 KiB (http.max_response_kb)", 1),
        ("/headers", "in the last of 2 attempts", 2),
        ("/away", "is not granted", 1),
        ("/round", "more than 3 times (http.max_redirects)", 4),
        ("/file", "is not a URL", 1),
        ("/home", "200 text", 2),
        ("/later", "429 busy", 1),
        ("/broken", "500 oh", 2),
        ("/wrong", "400 no", 1),
    ] {
        let (given, count) = asked(path);
        assert!(given.contains(said), "{path}: {given}");
        assert_eq!(count, attempts, "{path}: {given}");
    }
    let (claimed, _) = asked("/claims");
    assert!(!claimed.starts_with("200"), "{claimed}");
    if !server.asked().is_multiple_of(2) {
        asked("/");
    }
    assert_eq!(asked("/again"), ("200 text".to_owned(), 2));
    assert_eq!(elsewhere.asked(), 0, "nothing was sent where nothing is granted");
}

#[test]
fn requests_that_may_not_be_sent_are_refused_by_name() {
    let server = MisbehavingServer::new(|_, _, stream| say(stream, "200 OK", "", ""));
    let (_, port) = server.place.rsplit_once(':').unwrap();
    let hosts = vec![server.place.clone(), format!("http://127.1:{port}")];
    let asker = PluginHttpClient::new(Grants { hosts, http: impatient(), ..Grants::default() }, RequestPolicy::Allowed).unwrap();
    let with = |name: &str, value: &str| {
        let mut request = post(&server.url("/"), "");
        request.headers.push((name.into(), value.into()));
        request
    };
    let large = post(&server.url("/"), &"x".repeat(2 << 20));
    for (request, said) in [
        (post("http://127.0.0.1:1/", ""), "http://127.0.0.1:1 is not granted"),
        (post("http://evil.org/", ""), "http://evil.org:80 is not granted"),
        (post(&format!("http://{}@evil.org/", server.place), ""), "a user's name"),
        (post(&format!("http://127.1:{port}/"), ""), "the granted name 127.1 resolves to 127.0.0.1"),
        (OutboundRequest { method: "DELETE".into(), ..post(&server.url("/"), "") }, "GET or POST"),
        (OutboundRequest { method: "GET".into(), ..post(&server.url("/"), "x") }, "has no body"),
        (large, "http.max_request_kb"),
        (with("Host", "evil.org"), "set by rlhost"),
        (with("X-A", "a\r\nX-B: b"), "can't be sent"),
        (with("a b", "c"), "not the name of a header"),
        (with("X-A", "{{KEY}}"), "secrets = { KEY = \"env:KEY\" }"),
    ] {
        let answer = text(&ask(&asker, vec![request], 0)[0]);
        assert!(answer.contains(said), "{said}: {answer}");
    }
    assert_eq!(server.asked(), 0);
    let file = Grants {
        hosts: vec!["a".into()],
        http: HttpLimits { ca_file: Some("/nowhere".into()), ..impatient() },
        ..Grants::default()
    };
    assert!(PluginHttpClient::new(file, RequestPolicy::Allowed).err().unwrap().contains("http.ca_file"));
}

#[test]
fn secrets_go_to_their_server_and_come_back_from_none() {
    const KEY: &str = "sk-01/23\\4\"56789";
    // Escaped as in JSON, as PHP does it, and with code points.
    const ESCAPED: [&str; 3] = [r#"sk-01/23\\4\"56789"#, r#"sk-01\/23\\4\"56789"#, r"SK-01\u002f23\u005C4\u002256789"];
    let seen = Arc::new(Mutex::new(Vec::new()));
    let note = |seen: &Arc<Mutex<Vec<String>>>, asked: &ReceivedRequest| {
        seen.lock().unwrap().push(asked.headers.get("authorization").cloned().unwrap_or_default());
    };
    let others = seen.clone();
    let other = MisbehavingServer::new(move |asked, _, stream| {
        note(&others, asked);
        say(stream, "200 OK", "", "other");
    });
    let (own, away) = (seen.clone(), other.url("/"));
    let server = MisbehavingServer::new(move |asked, _, stream| {
        note(&own, asked);
        match asked.path.as_str() {
            "/away" => say(stream, "307 Temporary Redirect", &format!("Location: {away}\r\n"), ""),
            _ => say(stream, "200 OK", &format!("X-Key: {KEY}\r\n"), &format!("wrong key {KEY}{KEY} {}", ESCAPED.join(" "))),
        }
    });
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), KEY).unwrap();
    let secrets = [("KEY".to_owned(), format!("file:{}", file.path().display()))].into();
    let grants = Grants { hosts: vec![server.place.clone(), other.place], secrets, http: impatient(), ..Grants::default() };
    let asker = PluginHttpClient::new(grants, RequestPolicy::Allowed).unwrap();
    let with_key = |path: &str| {
        let mut request = post(&server.url(path), "");
        request.headers.push(("Authorization".into(), "Bearer {{KEY}}".into()));
        request
    };
    let answer = ask(&asker, vec![with_key("/")], 0).remove(0).unwrap();
    assert_eq!(String::from_utf8_lossy(&answer.body), "wrong key {{KEY}}{{KEY}} {{KEY}} {{KEY}} {{KEY}}");
    assert!(answer.headers.contains(&("x-key".into(), "{{KEY}}".into())));
    assert_eq!(text(&ask(&asker, vec![with_key("/away")], 0)[0]), "200 other");
    let bearer = format!("Bearer {KEY}");
    assert_eq!(*seen.lock().unwrap(), [bearer.clone(), bearer, String::new()], "the other server gets no key");
}

#[test]
fn a_call_has_its_time_and_the_record_its_answers() {
    let works = Arc::new(AtomicBool::new(false));
    let on = works.clone();
    let server = MisbehavingServer::new(move |_, before, stream| match on.load(Ordering::SeqCst) {
        true => say(stream, "200 OK", "", &before.to_string()),
        false => hang(),
    });
    let short = HttpLimits { timeout_s: 60.0, call_timeout_s: 0.5, ..HttpLimits::default() };
    let asker = asker(&server, short);
    let request = || vec![post(&server.url("/"), "a")];
    let failed = ask(&asker, request(), 3).remove(0);
    assert!(
        text(&failed).contains("gave no answer within") || text(&failed).contains("http.call_timeout_s"),
        "{}",
        text(&failed)
    );
    works.store(true, Ordering::SeqCst);
    assert_eq!(ask(&asker, request(), 3).remove(0), failed, "the step is the same when it is taken again");
    let answer = ask(&asker, request(), 4).remove(0);
    assert!(answer.is_ok());
    let asked = server.asked();
    for step in [4, 5, 9] {
        assert_eq!(ask(&asker, request(), step), std::slice::from_ref(&answer));
    }
    assert_eq!((ask(&asker, request(), 3).remove(0), server.asked()), (failed, asked));
    // After a failed call, answers are kept and failures are not.
    works.store(false, Ordering::SeqCst);
    let mut pending = PendingAnswers::default();
    let soon = Instant::now() + Duration::from_millis(200);
    let lost = asker.answer(vec![post(&server.url("/"), "b")], (5, 0), &mut pending, soon).unwrap();
    assert!(lost[0].is_err());
    asker.commit(pending.entries, false).unwrap();
    works.store(true, Ordering::SeqCst);
    assert!(ask(&asker, vec![post(&server.url("/"), "b")], 5)[0].is_ok());
    let only = PluginHttpClient { policy: RequestPolicy::ReplayOnly, ..asker };
    assert_eq!(ask(&only, request(), 9), [answer]);
    let refused =
        only.answer(vec![post(&server.url("/"), "c")], (5, 0), &mut PendingAnswers::default(), Instant::now()).unwrap_err();
    assert!(refused.contains("1 of its 1 requests") && refused.contains("replay_only"), "{refused}");
}
