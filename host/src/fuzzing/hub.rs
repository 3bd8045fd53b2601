//! Responses of a hub, or of a server that impersonates it.

use super::server::{self, FuzzAnswers};
use super::{choice, refused, scratch};
use crate::hub::{Hub, HubSettings, HubTimeouts};
use std::cell::RefCell;
use std::path::PathBuf;
use std::time::Duration;

/// Number of responses, more than the hub client sends requests.
const REQUESTS: usize = 200;

/// A fuzzed server, and a hub client that uses it.
struct FuzzHub {
    hub: Hub,
    answers: FuzzAnswers,
}

/// Returns the folder of the hub's cache.
fn cache() -> PathBuf {
    scratch().join("hub")
}

impl FuzzHub {
    fn start() -> std::io::Result<Self> {
        let (endpoint, answers) = server::start()?;
        let patience = Duration::ZERO;
        let hub = Hub::new(HubSettings {
            endpoint,
            cache: cache(),
            redirects: String::new(),
            token: None,
            offline: false,
            retry_delay: patience,
            timeouts: HubTimeouts::default(),
        });
        Ok(Self { hub, answers })
    }
}

/// Fuzzes the hub's responses to requests for a model or a dataset, separated by lines of `=====`. A head without a length gets that of its
/// body.
pub fn hub(input: &[u8]) {
    thread_local! {
        static SERVER: RefCell<Option<FuzzHub>> = const { RefCell::new(None) };
    }
    let Some((kind, input)) = choice(input, 2) else { return };
    let text = String::from_utf8_lossy(input);
    let mut answers: Vec<Vec<u8>> = text.split("=====\n").map(http).collect();
    let last = answers.last().cloned().unwrap_or_default();
    answers.resize(REQUESTS, last);
    SERVER.with_borrow_mut(|server| {
        let server = server.get_or_insert_with(|| FuzzHub::start().unwrap_or_else(|e| panic!("no server: {e}")));
        server.answers.set(answers);
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

/// Returns a response as sent over the network.
fn http(text: &str) -> Vec<u8> {
    let (head, body) = text.split_once("\n\n").unwrap_or((text, ""));
    let mut head = head.replace('\n', "\r\n");
    if !head.to_lowercase().contains("content-length") {
        head.push_str(&format!("\r\ncontent-length: {}", body.len()));
    }
    [head.as_bytes(), b"\r\nconnection: close\r\n\r\n", body.as_bytes()].concat()
}
