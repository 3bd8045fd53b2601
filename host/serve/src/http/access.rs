//! Access control: API keys, and the host names of the server.

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

/// Maximum size of a key file, in bytes.
const LARGEST: u64 = 1 << 20;

/// Minimum length of a key, in bytes.
const SHORTEST: usize = 16;

/// Reads a file with one API key per line. Empty lines and lines that begin with `#` are skipped.
///
/// # Errors
/// If the file can't be read, has no key, or has one that is easily guessed.
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
/// Says what a key must be.
pub fn check_key(key: &str) -> Result<(), String> {
    let fits = key.len() >= SHORTEST && key.bytes().all(|byte| byte.is_ascii_graphic());
    if fits { Ok(()) } else { Err(format!("a key has at least {SHORTEST} visible ASCII characters, without spaces")) }
}

/// Credentials that a request needs.
pub(super) struct InferenceAccess {
    /// Accepted keys; empty if requests need none.
    pub keys: Vec<String>,
    pub hosts: AllowedHosts,
}

impl InferenceAccess {
    /// Rejects a request for a host name that is not the server's, as from a web page whose name resolves to this machine (DNS rebinding).
    /// With keys, which such a page lacks, any host name is accepted: proxies have names of their own.
    pub(super) fn check_host(&self, headers: &HeaderMap) -> Result<(), ApiError> {
        if !self.keys.is_empty() || self.hosts.allows(Self::host(headers)) {
            return Ok(());
        }
        Err(ApiError::new(403, "the server does not answer to this Host; use its address, or start it with --api-key-file"))
    }

    /// Rejects a request without a valid key.
    pub(super) fn check_key(&self, headers: &HeaderMap) -> Result<(), ApiError> {
        if self.keys.is_empty() {
            return Ok(());
        }
        let given = key_of(headers)?;
        let known = self.keys.iter().fold(Choice::from(0), |known, key| known | key.as_bytes().ct_eq(given));
        if bool::from(known) { Ok(()) } else { Err(wrong_key()) }
    }

    /// Returns the session of a request's key.
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

    /// Returns the host name by which a request reached the server.
    pub(super) fn host(headers: &HeaderMap) -> &str {
        headers.get(HOST).and_then(|host| host.to_str().ok()).unwrap_or_default()
    }

    /// Rejects a request sent by a web page: without a body, a browser would not ask the server for permission first (CORS preflight).
    pub(super) fn check_not_from_page(headers: &HeaderMap) -> Result<(), ApiError> {
        if headers.contains_key(ORIGIN) || headers.contains_key("sec-fetch-site") {
            return Err(ApiError::new(403, "web pages can't do this"));
        }
        Ok(())
    }

    /// Rejects a body that is not declared as JSON: a web page can send any other type without a CORS preflight.
    pub(super) fn check_type(headers: &HeaderMap) -> Result<(), ApiError> {
        let value = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let kind = value.split(';').next().unwrap_or_default().trim();
        if kind.eq_ignore_ascii_case("application/json") {
            return Ok(());
        }
        Err(ApiError::new(415, "the body must be JSON: Content-Type: application/json"))
    }
}

/// Returns the key of a request: a bearer token, or the header `x-api-key`.
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
