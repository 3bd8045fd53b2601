//! Who may ask: API keys, and the hosts under which the server answers.

use crate::api::ApiError;
use crate::config::files;
use crate::session::AgentSession;
use crate::sessions::{KeyOwner, Sessions};
use hyper::HeaderMap;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, ORIGIN};
use rlhost_records::metrics::AllowedHosts;
use std::io;
use std::path::Path;
use std::sync::Arc;
use subtle::{Choice, ConstantTimeEq};

/// Maximum size of a file with keys, in bytes.
const LARGEST: u64 = 1 << 20;

/// Bytes of the shortest key.
const SHORTEST: usize = 16;

/// Reads a file with an API key in each line. Empty lines and lines that begin with `#` are left out.
///
/// # Errors
/// If it can't be read, has no key, or one that is easily guessed.
pub fn read_keys(path: &Path) -> io::Result<Vec<String>> {
    let wrong = |detail: String| io::Error::new(io::ErrorKind::InvalidData, format!("{}: {detail}", path.display()));
    let text = files::read_text(path, LARGEST).map_err(|e| wrong(e.to_string()))?;
    let lines = text.lines().map(str::trim).zip(1..).filter(|(line, _)| !line.is_empty() && !line.starts_with('#'));
    let mut keys = Vec::new();
    for (key, number) in lines {
        check_key(key).map_err(|detail| wrong(format!("line {number}: {detail}")))?;
        keys.push(key.to_owned());
    }
    if keys.is_empty() { Err(wrong("it has no key; write one in a line".into())) } else { Ok(keys) }
}

/// Checks that a key is not easily guessed.
///
/// # Errors
/// Says what a key has to be.
pub fn check_key(key: &str) -> Result<(), String> {
    let fits = key.len() >= SHORTEST && key.bytes().all(|byte| byte.is_ascii_graphic());
    if fits { Ok(()) } else { Err(format!("a key has at least {SHORTEST} visible ASCII characters, without spaces")) }
}

/// What a request must bring.
pub(super) struct InferenceAccess {
    /// Keys, one of which is needed; none if anybody may ask.
    pub keys: Vec<String>,
    pub hosts: AllowedHosts,
}

impl InferenceAccess {
    /// Refuses a request for a host that the server is not, as from a web page whose name leads here (DNS rebinding). With keys,
    /// which such a page does not have, any host will do: proxies have names of their own.
    pub(super) fn check_host(&self, headers: &HeaderMap) -> Result<(), ApiError> {
        if !self.keys.is_empty() || self.hosts.allows(Self::host(headers)) {
            return Ok(());
        }
        Err(ApiError::new(403, "the server does not answer to this Host; use its address, or start it with --api-key-file"))
    }

    /// Refuses a request without a key.
    pub(super) fn check_key(&self, headers: &HeaderMap) -> Result<(), ApiError> {
        if self.keys.is_empty() {
            return Ok(());
        }
        let given = key_of(headers)?;
        let known = self.keys.iter().fold(Choice::from(0), |known, key| known | key.as_bytes().ct_eq(given));
        if bool::from(known) { Ok(()) } else { Err(wrong_key()) }
    }

    /// Returns the session whose key a request has.
    pub(super) fn session(&self, sessions: &Sessions, headers: &HeaderMap) -> Result<Arc<AgentSession>, ApiError> {
        match sessions.find(key_of(headers)?) {
            KeyOwner::Open(session) => Ok(session),
            KeyOwner::Closed => {
                let detail =
                    "the session of this key has ended: it was ended, took longer than timeout_s, or its generation is over";
                Err(ApiError::new(410, detail))
            }
            KeyOwner::Nobody if !self.keys.is_empty() && self.check_key(headers).is_ok() => {
                Err(ApiError::new(401, "this is the run's key; use that of a session: POST /rl/next_task or /rl/start_session"))
            }
            KeyOwner::Nobody => Err(wrong_key()),
        }
    }

    /// Returns the name under which a request has reached the server.
    pub(super) fn host(headers: &HeaderMap) -> &str {
        headers.get(HOST).and_then(|host| host.to_str().ok()).unwrap_or_default()
    }

    /// Refuses a request that a web page sent: without a body, nothing else makes the browser ask the server first.
    pub(super) fn check_not_from_page(headers: &HeaderMap) -> Result<(), ApiError> {
        if headers.contains_key(ORIGIN) || headers.contains_key("sec-fetch-site") {
            return Err(ApiError::new(403, "web pages can't do this"));
        }
        Ok(())
    }

    /// Refuses a body that is not announced as JSON: a web page can send anything else without asking the server first.
    pub(super) fn check_type(headers: &HeaderMap) -> Result<(), ApiError> {
        let value = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let kind = value.split(';').next().unwrap_or_default().trim();
        if kind.eq_ignore_ascii_case("application/json") {
            return Ok(());
        }
        Err(ApiError::new(415, "the body must be JSON: Content-Type: application/json"))
    }
}

/// Returns the key of a request: a bearer token, or `x-api-key`.
fn key_of(headers: &HeaderMap) -> Result<&[u8], ApiError> {
    let bearer = headers.get(AUTHORIZATION).and_then(|value| {
        let (scheme, key) = value.as_bytes().split_at_checked("Bearer ".len())?;
        scheme.eq_ignore_ascii_case(b"Bearer ").then_some(key)
    });
    let given = bearer.or_else(|| headers.get("x-api-key").map(|value| value.as_bytes()));
    given.ok_or_else(|| ApiError::new(401, "an API key is needed: Authorization: Bearer KEY"))
}

fn wrong_key() -> ApiError {
    ApiError::new(401, "the API key is wrong")
}
