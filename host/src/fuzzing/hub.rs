//! Answers of a hub, or of something impersonating it.

use super::{choice, refused, scratch};
use crate::hub::{Hub, Settings, Slowest};
use std::cell::RefCell;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// Answers; the last one is repeated.
type Answers = Arc<Mutex<Vec<Vec<u8>>>>;

/// Maximum number of requests that are answered; the hub's client makes no more.
const REQUESTS: usize = 200;

/// A server on its own port, used as the hub.
struct Server {
    hub: Hub,
    answers: Answers,
}

/// The hub's cache.
fn cache() -> PathBuf {
    scratch().join("hub")
}

impl Server {
    fn start() -> std::io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let endpoint = format!("http://{}", listener.local_addr()?);
        let patience = Duration::ZERO;
        let hub =
            Hub::new(Settings { endpoint, cache: cache(), token: None, offline: false, patience, slowest: Slowest::default() });
        let answers = Answers::default();
        let theirs = answers.clone();
        thread::spawn(move || {
            for stream in listener.incoming() {
                // Somebody who does not wait for the answer is gone.
                let _ = stream.and_then(|stream| answer(stream, &theirs));
            }
        });
        Ok(Self { hub, answers })
    }
}

/// Reads a request, sends the next answer, and ends the connection.
fn answer(mut stream: TcpStream, answers: &Answers) -> std::io::Result<()> {
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    let mut request = BufReader::new(stream.try_clone()?);
    let mut line = String::new();
    while request.read_line(&mut line)? > 2 {
        line.clear();
    }
    let answer = answers.lock().unwrap_or_else(PoisonError::into_inner).pop().unwrap_or_default();
    stream.write_all(&answer)
}

/// The hub's answers for a model's or a dataset's name, separated by lines of `=====`. A head without a length gets the body's.
pub fn hub(input: &[u8]) {
    thread_local! {
        static SERVER: RefCell<Option<Server>> = const { RefCell::new(None) };
    }
    let Some((kind, input)) = choice(input, 2) else { return };
    let text = String::from_utf8_lossy(input);
    let mut answers: Vec<Vec<u8>> = text.split("=====\n").map(http).collect();
    let last = answers.last().cloned().unwrap_or_default();
    answers.resize(REQUESTS, last);
    answers.reverse();
    SERVER.with_borrow_mut(|server| {
        let server = server.get_or_insert_with(|| Server::start().unwrap_or_else(|e| panic!("no server: {e}")));
        *server.answers.lock().unwrap_or_else(PoisonError::into_inner) = answers;
        let _ = std::fs::remove_dir_all(cache());
        let hub = &server.hub;
        match if kind == 0 { hub.model("owner/name") } else { hub.dataset("owner/name", "train") } {
            Ok(snapshot) => {
                assert!(snapshot.files.iter().all(|file| file.starts_with(cache())), "{:?}", snapshot.files);
            }
            Err(error) => refused(&error),
        }
    });
}

/// Returns an answer as sent over the network.
fn http(text: &str) -> Vec<u8> {
    let (head, body) = text.split_once("\n\n").unwrap_or((text, ""));
    let mut head = head.replace('\n', "\r\n");
    if !head.to_lowercase().contains("content-length") {
        head.push_str(&format!("\r\ncontent-length: {}", body.len()));
    }
    [head.as_bytes(), b"\r\nconnection: close\r\n\r\n", body.as_bytes()].concat()
}
