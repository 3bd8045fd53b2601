//! Judges: a language model over HTTP, with helpers for its runs, and a process reward model.

use crate::server::TestHttpRequest;
use crate::{TestFolder, tiny};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::io::{BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Number of steps of a run with a judge.
pub const STEPS: u64 = 6;

/// The judge's key, which must not appear in any file.
pub const KEY: &str = "sk-judge-0123456789";

/// Pseudo-header under which a request's body is stored.
pub const BODY: &str = "(body)";

/// A judge on its own port.
pub struct JudgeServer {
    /// Port of the judge.
    pub port: u16,
    count: Arc<AtomicUsize>,
}

impl JudgeServer {
    /// Starts a judge that answers with `behave`, which gets the number of earlier requests, and the headers.
    ///
    /// # Panics
    /// If it can't bind a port.
    pub fn new(behave: impl Fn(usize, &BTreeMap<String, String>, &mut TcpStream) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let port = listener.local_addr().expect("it has an address").port();
        let (count, behave) = (Arc::<AtomicUsize>::default(), Arc::new(behave));
        let counted = count.clone();
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let (count, behave) = (counted.clone(), behave.clone());
                std::thread::spawn(move || {
                    let Some(headers) = headers_of(&stream) else { return };
                    behave(count.fetch_add(1, Ordering::SeqCst), &headers, &mut stream);
                });
            }
        });
        Self { port, count }
    }

    /// Creates a judge on a port that another process may serve.
    #[must_use]
    pub fn at(port: u16) -> Self {
        Self { port, count: Arc::default() }
    }

    /// Starts a judge that scores the same text differently each time, and that repeats the key that it receives.
    #[must_use]
    pub fn moody() -> Self {
        Self::new(|before, headers, stream| {
            let key = headers.get("authorization").cloned().unwrap_or_default();
            verdict(stream, &format!("your key is {key}. [[{}]]", 1 + before * 7 % 10));
        })
    }

    /// Starts a judge whose score depends only on the text.
    #[must_use]
    pub fn steady() -> Self {
        Self::new(|_, headers, stream| {
            let sum: usize = headers[BODY].bytes().map(usize::from).sum();
            // For a comparison of two answers, it names one.
            match headers[BODY].contains("[[A]]") {
                true => verdict(stream, ["[[A]]", "[[B]]", "[[C]]"][sum % 3]),
                false => verdict(stream, &format!("[[{}]]", 1 + sum % 10)),
            }
        })
    }

    /// Returns the number of requests so far.
    #[must_use]
    pub fn request_count(&self) -> usize {
        self.count.load(Ordering::SeqCst)
    }

    /// Returns the arguments of a run that this judge scores.
    #[must_use]
    pub fn arguments(&self, run: &str) -> Vec<String> {
        let port = self.port;
        let steps = STEPS.to_string();
        let mut all = vec!["--model", tiny(), "--plugin", "judge_reward.wasm", "--dataset", "prompts.jsonl", "--output-dir", run];
        all.extend(["--max-completion-length", "8", "--max-steps", &steps, "--save-steps", "1", "--logging-steps", "1"]);
        all.extend(["--learning-rate", "0.01", "--log-completions", "all", "--report-to", "none"]);
        let mut all: Vec<String> = all.into_iter().map(str::to_owned).collect();
        let of_judge = [
            format!("hosts=127.0.0.1:{port}"),
            "secrets={ JUDGE_KEY = \"env:JUDGE_KEY\" }".to_owned(),
            format!("config.url=http://127.0.0.1:{port}/v1"),
            "config.secret=JUDGE_KEY".to_owned(),
            "http.timeout_s=2".to_owned(),
            "http.retries=0".to_owned(),
        ];
        all.extend(of_judge.into_iter().flat_map(|set| ["--set".to_owned(), format!("plugin.judge_reward.{set}")]));
        all
    }
}

fn headers_of(stream: &TcpStream) -> Option<BTreeMap<String, String>> {
    let TestHttpRequest { headers, body, .. } = TestHttpRequest::read(&mut BufReader::new(stream.try_clone().ok()?))?;
    Some(headers.into_iter().chain([(BODY.to_owned(), String::from_utf8(body).ok()?)]).collect())
}

/// Sends a response. If sending fails, the run reports it.
pub fn say(stream: &mut TcpStream, status: &str, headers: &str, body: &str) {
    let length = body.len();
    let _ = write!(stream, "HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {length}\r\n{headers}\r\n{body}");
}

/// Sends a chat response with this text.
pub fn verdict(stream: &mut TcpStream, text: &str) {
    let body = serde_json::json!({ "choices": [{ "message": { "role": "assistant", "content": text } }] });
    say(stream, "200 OK", "", &body.to_string());
}

/// Returns a folder with ten prompts of unequal lengths in `prompts.jsonl`.
#[must_use]
pub fn prompts() -> TestFolder {
    let place = TestFolder::new();
    let lines: String = (0..10).map(|i| format!("{{\"prompt\": \"prompt {i} {}\"}}\n", "ab".repeat(i))).collect();
    place.write("prompts.jsonl", lines);
    place
}

/// Number that the process reward model of [`step_judge`] adds to a value.
pub const BIAS: f64 = 0.25;

/// Returns a folder with a reward model `rm` and a process reward model `prm` with the same weights: the logits of a wrong step are 0,
/// those of a right step are the reward model's value plus a constant.
///
/// # Panics
/// If they can't be created.
#[must_use]
pub fn step_judge() -> TestFolder {
    let place = TestFolder::new();
    place.train_reward_model("run", &[]);
    place.copy("run/checkpoint-2", "rm");
    place.copy("rm", "prm");
    let config = fs::read_to_string(place.path("rm/config.json")).expect("what a reward model has");
    place.write("prm/config.json", config.replace("ForSequenceClassification", "ForTokenClassification"));
    let file = place.path("prm/model.safetensors");
    let bytes = fs::read(&file).expect("what a reward model has");
    let length = u64::from_le_bytes(bytes[..8].try_into().expect("what a reward model has")) as usize;
    let header: BTreeMap<String, Value> = serde_json::from_slice(&bytes[8..8 + length]).expect("what a reward model has");
    let mut tensors: BTreeMap<String, (Value, Vec<u8>)> = BTreeMap::new();
    for (name, bytes) in place.tensors("prm/model.safetensors") {
        tensors.insert(name.clone(), (header[&name]["shape"].clone(), bytes));
    }
    let (_, head) = tensors.remove("score.weight").expect("what a reward model has");
    let both = [vec![0; head.len()], head].concat();
    tensors.insert("score.weight".into(), (json!([2, 64]), both));
    tensors.insert("score.bias".into(), (json!([2]), [0f32, BIAS as f32].iter().flat_map(|b| b.to_le_bytes()).collect()));
    let (mut header, mut data) = (BTreeMap::new(), Vec::new());
    for (name, (shape, bytes)) in tensors {
        let begin = data.len();
        data.extend(bytes);
        header.insert(name, json!({"dtype": "F32", "shape": shape, "data_offsets": [begin, data.len()]}));
    }
    let header = serde_json::to_vec(&header).expect("what a reward model has");
    fs::write(file, [&(header.len() as u64).to_le_bytes()[..], &header, &data].concat()).expect("what a reward model has");
    place
}
