//! Answers of a hub, or of something impersonating it.

use super::server::{self, FuzzAnswers};
use super::{choice, refused, scratch};
use crate::hub::{Hub, HubSettings, HubTimeouts};
use std::cell::RefCell;
use std::path::PathBuf;
use std::time::Duration;

/// Requests that are answered; there are no more in what the hub is asked.
const REQUESTS: usize = 200;

/// A server, and the hub that is said to be there.
struct FuzzHub {
    hub: Hub,
    answers: FuzzAnswers,
}

/// The hub's cache.
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

/// The hub's answers to a model's or a dataset's name, with lines of `=====` between. A head that says no length has the body's.
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

/// Returns an answer as sent over the network.
fn http(text: &str) -> Vec<u8> {
    let (head, body) = text.split_once("\n\n").unwrap_or((text, ""));
    let mut head = head.replace('\n', "\r\n");
    if !head.to_lowercase().contains("content-length") {
        head.push_str(&format!("\r\ncontent-length: {}", body.len()));
    }
    [head.as_bytes(), b"\r\nconnection: close\r\n\r\n", body.as_bytes()].concat()
}
