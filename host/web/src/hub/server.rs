//! Test server on its own port: it answers like huggingface.co, records the requests, and misbehaves on demand.

use serde_json::json;
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard};

/// Commit of every repository, and that of its conversion to Parquet.
pub(super) const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
pub(super) const CONVERTED: &str = "89abcdef0123456789abcdef0123456789abcdef";

/// Recorded request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HubTestRequest {
    pub(super) method: String,
    pub(super) path: String,
    /// Start of the requested range.
    pub(super) from: Option<u64>,
    pub(super) token: Option<String>,
}

/// Contents and behaviour of the server.
#[derive(Default)]
pub(super) struct HubTestState {
    /// Files by `models/ID@REVISION` or `datasets/ID@REVISION`.
    pub(super) repos: BTreeMap<String, BTreeMap<String, Vec<u8>>>,
    /// Large files by hash, once a redirect to them was sent.
    contents: BTreeMap<String, Vec<u8>>,
    /// Token that requests must have.
    pub(super) token: Option<String>,
    /// Bodies are cut off after this many bytes, this many times.
    pub(super) cut: Option<(usize, usize)>,
    /// Number of requests for files that are rejected as too busy before one is answered.
    pub(super) busy: usize,
    /// Whether one byte of every large file is wrong.
    pub(super) damaged: bool,
    /// Number of bytes by which large files exceed their announced size.
    pub(super) swelled: usize,
    /// Announced size of large files, if it is wrong.
    pub(super) size: Option<String>,
    /// Bodies of responses to paths that contain this text arrive one byte at a time.
    pub(super) slow: Option<&'static str>,
    /// Target of redirects to large files, if it is wrong.
    pub(super) redirect: Option<String>,
    /// Whether range requests are ignored.
    pub(super) rangeless: bool,
    pub(super) asked: Vec<HubTestRequest>,
}

pub(super) struct HubTestServer {
    pub(super) endpoint: String,
    /// Address of the server of large files.
    pub(super) elsewhere: String,
    state: Arc<Mutex<HubTestState>>,
}

struct HubTestAnswer {
    status: &'static str,
    headers: Vec<(&'static str, String)>,
    body: Vec<u8>,
}

impl HubTestAnswer {
    fn refusal(status: &'static str, code: &str) -> Self {
        Self { status, headers: vec![("X-Error-Code", code.to_owned())], body: b"{}".to_vec() }
    }
}

impl HubTestServer {
    pub(super) fn new() -> Self {
        let state = Arc::new(Mutex::new(HubTestState::default()));
        // Large files are on another server, as on the hub.
        let elsewhere = listen(state.clone(), String::new());
        let endpoint = listen(state.clone(), elsewhere.clone());
        Self { endpoint, elsewhere, state }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, HubTestState> {
        self.state.lock().unwrap()
    }

    /// Adds files to a repository.
    pub(super) fn hold(&self, repo: &str, files: &[(&str, &[u8])]) {
        let files = files.iter().map(|(name, bytes)| ((*name).to_owned(), bytes.to_vec())).collect();
        self.state().repos.insert(repo.to_owned(), files);
    }

    /// Returns the requests since the last call.
    pub(super) fn asked(&self) -> Vec<HubTestRequest> {
        std::mem::take(&mut self.state().asked)
    }
}

fn listen(state: Arc<Mutex<HubTestState>>, elsewhere: String) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let (state, elsewhere) = (state.clone(), elsewhere.clone());
            std::thread::spawn(move || serve(&stream, &state, &elsewhere));
        }
    });
    endpoint
}

/// Answers one request per connection. Failures here show in what the client receives.
fn serve(stream: &TcpStream, state: &Mutex<HubTestState>, elsewhere: &str) {
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok).take_while(|line| !line.is_empty());
    let first = lines.next().unwrap_or_default();
    let headers: BTreeMap<String, String> =
        lines.filter_map(|line| line.split_once(": ").map(|(k, v)| (k.to_lowercase(), v.to_owned()))).collect();
    let mut words = first.split(' ').map(str::to_owned);
    let asked = HubTestRequest {
        method: words.next().unwrap_or_default(),
        path: words.next().unwrap_or_default(),
        from: headers.get("range").and_then(|r| r.strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok()),
        token: headers.get("authorization").and_then(|a| a.strip_prefix("Bearer ")).map(str::to_owned),
    };
    let mut state = state.lock().unwrap();
    state.asked.push(asked.clone());
    let mut answer = answer(&mut state, &asked, elsewhere);
    let whole = answer.body.len();
    if let (Some(from), false, "200 OK") = (asked.from, state.rangeless, answer.status) {
        if from as usize >= whole {
            answer = HubTestAnswer { status: "416 Range Not Satisfiable", headers: Vec::new(), body: Vec::new() };
        } else {
            answer.status = "206 Partial Content";
            answer.headers.push(("Content-Range", format!("bytes {from}-{}/{whole}", whole - 1)));
            answer.body.drain(..from as usize);
        }
    }
    let mut text = format!("HTTP/1.1 {}\r\nConnection: close\r\nContent-Length: {}\r\n", answer.status, answer.body.len());
    for (name, value) in answer.headers {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    let mut sent = answer.body.as_slice();
    let api = asked.path.starts_with("/api");
    if let Some((bytes, times)) = &mut state.cut
        && (asked.method == "GET" && !api && *times > 0 && sent.len() > *bytes)
    {
        sent = &sent[..*bytes];
        *times -= 1;
    }
    let slow = state.slow.is_some_and(|part| asked.path.contains(part));
    drop(state);
    let body = if asked.method == "HEAD" { &[] } else { sent };
    let mut stream = stream;
    if slow {
        let _ = stream.write_all(&[text.as_bytes(), b"\r\n"].concat());
        for byte in body {
            std::thread::sleep(std::time::Duration::from_millis(20));
            if stream.write_all(&[*byte]).is_err() {
                return;
            }
        }
        return;
    }
    let _ = stream.write_all(&[text.as_bytes(), b"\r\n", body].concat());
}

fn answer(state: &mut HubTestState, asked: &HubTestRequest, elsewhere: &str) -> HubTestAnswer {
    let plain = |body: Vec<u8>| HubTestAnswer { status: "200 OK", headers: Vec::new(), body };
    if state.busy > 0 && !asked.path.starts_with("/api/") {
        state.busy -= 1;
        return HubTestAnswer::refusal("503 Service Unavailable", "");
    }
    if let Some(hash) = asked.path.strip_prefix("/contents/") {
        return state
            .contents
            .get(hash)
            .map_or_else(|| HubTestAnswer::refusal("403 Forbidden", ""), |bytes| plain(bytes.clone()));
    }
    if state.token.is_some() && state.token != asked.token {
        return HubTestAnswer::refusal(
            "401 Unauthorized",
            if asked.path.contains("gated") { "GatedRepo" } else { "RepoNotFound" },
        );
    }
    if let Some(path) = asked.path.strip_prefix("/api/") {
        let (repo, revision) = path.split_once("/revision/").unwrap_or((path, ""));
        let revision = revision.replace("%2F", "/");
        let known: BTreeSet<&str> = state.repos.keys().filter_map(|key| key.split('@').next()).collect();
        let Some(files) = at(state, repo, &revision) else {
            return HubTestAnswer::refusal(
                "404 Not Found",
                if known.contains(repo) { "RevisionNotFound" } else { "RepoNotFound" },
            );
        };
        let siblings: Vec<_> = files.keys().map(|name| json!({ "rfilename": name })).collect();
        return plain(
            json!({"id": repo, "sha": commit(&revision), "siblings": siblings, "private": false}).to_string().into_bytes(),
        );
    }
    let Some((page, rest)) = asked.path.split_once("/resolve/") else { return HubTestAnswer::refusal("404 Not Found", "") };
    // The repository was renamed.
    if let Some(name) = page.strip_prefix("/old/") {
        let headers = vec![("Location", format!("/new/{name}/resolve/{rest}"))];
        return HubTestAnswer { status: "307 Temporary Redirect", headers, body: Vec::new() };
    }
    let repo = page.strip_prefix("/datasets/").map_or_else(|| format!("models{page}"), |id| format!("datasets/{id}"));
    let (revision, file) = rest.split_once('/').unwrap_or_default();
    let bytes = at(state, &repo, revision).and_then(|files| files.get(&file.replace("%20", " "))).cloned();
    let Some(bytes) = bytes else { return HubTestAnswer::refusal("404 Not Found", "EntryNotFound") };
    let sum: String = Sha256::digest(&bytes).iter().map(|b| format!("{b:02x}")).collect();
    let at_commit = ("X-Repo-Commit", commit(revision).to_owned());
    if [".safetensors", ".parquet"].iter().any(|ending| file.ends_with(ending)) {
        let headers = vec![
            at_commit,
            ("X-Linked-Etag", format!("\"{sum}\"")),
            ("X-Linked-Size", state.size.clone().unwrap_or_else(|| bytes.len().to_string())),
            ("Location", format!("{}/contents/{sum}", state.redirect.as_deref().unwrap_or(elsewhere))),
        ];
        let mut held = bytes;
        if let (true, Some(byte)) = (state.damaged, held.last_mut()) {
            *byte ^= 1;
        }
        held.resize(held.len() + state.swelled, 7);
        state.contents.insert(sum, held);
        return HubTestAnswer { status: "302 Found", headers, body: Vec::new() };
    }
    // Like git's own hashes, it has forty digits.
    HubTestAnswer { headers: vec![at_commit, ("ETag", format!("W/\"{}\"", &sum[..40]))], ..plain(bytes) }
}

/// Returns the commit of a revision.
fn commit(revision: &str) -> &'static str {
    if [super::CONVERTED, CONVERTED].contains(&revision) { CONVERTED } else { COMMIT }
}

/// Returns a repository's files at a revision, or at the commit of one.
fn at<'a>(state: &'a HubTestState, repo: &str, revision: &str) -> Option<&'a BTreeMap<String, Vec<u8>>> {
    let is = |known: &str| match revision {
        COMMIT => known != super::CONVERTED,
        CONVERTED => known == super::CONVERTED,
        _ => known == revision,
    };
    let found = state.repos.iter().find(|(key, _)| key.split_once('@').is_some_and(|(name, known)| name == repo && is(known)));
    found.map(|(_, files)| files)
}
