//! Requests to the hub. Redirects are followed by hand, since the headers that tell what a file is
//! stand on the redirect to where it lies, and since the token goes to the hub alone.

use super::Settings;
use crate::config::printable;
use std::fmt;
use std::sync::Once;
use std::time::Duration;
use ureq::http::{Response, StatusCode, header};
use ureq::{Agent, Body, Proxy};

/// How long a connection, an answer, or more of an answer may take.
const CONNECT: Duration = Duration::from_secs(10);
const ANSWER: Duration = Duration::from_secs(30);

const REDIRECTS: usize = 10;

/// Bytes of what an answer says of its refusal.
const LONGEST_SAID: usize = 512;

/// The header that every answer of the hub about a file has.
pub(super) const COMMIT: &str = "x-repo-commit";

/// Why there is no answer to use.
#[derive(Debug)]
pub(super) enum Failure {
    /// The answer is a refusal.
    Refused {
        status: StatusCode,
        /// The hub's own word for it.
        code: String,
        /// And its sentence.
        said: String,
    },
    /// There is none.
    Silent(String),
    /// It would come over a line that anybody may read and change.
    Insecure(String),
}

impl Failure {
    /// Whether it may be gone when the same is asked again.
    pub(super) fn passes(&self) -> bool {
        match self {
            Self::Silent(_) => true,
            Self::Insecure(_) => false,
            Self::Refused { status, .. } => status.is_server_error() || *status == StatusCode::TOO_MANY_REQUESTS,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Silent(said) | Self::Insecure(said) => write!(f, "{said}"),
            Self::Refused { status, said, .. } => write!(f, "{} {said}", status.as_u16()),
        }
    }
}

/// What is asked for.
#[derive(Clone, Copy)]
pub(super) enum Ask {
    /// What a file is.
    Head,
    /// All of it, from a byte on.
    Get { from: u64 },
    /// All of a short answer, in the time for one.
    Said,
}

pub(super) struct Wire {
    agent: Agent,
    /// The hub's own address, to which the token may go.
    home: String,
    token: Option<String>,
    /// The time for a short answer.
    answer: Duration,
}

impl Wire {
    pub(super) fn new(settings: &Settings) -> Self {
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .timeout_resolve(Some(CONNECT))
            .timeout_connect(Some(CONNECT))
            .timeout_send_request(Some(ANSWER))
            .timeout_recv_response(Some(ANSWER))
            .timeout_per_read(Some(ANSWER))
            .proxy(if is_here(&settings.endpoint) { None } else { Proxy::try_from_env() })
            .user_agent(concat!("rlhost/", env!("CARGO_PKG_VERSION")))
            .build();
        if settings.token.is_some() && !is_secure(&settings.endpoint) && !is_here(&settings.endpoint) {
            static SAID: Once = Once::new();
            let endpoint = origin(&settings.endpoint);
            SAID.call_once(|| {
                tracing::warn!("the token goes to {endpoint} in plain text; HF_ENDPOINT should begin with https://");
            });
        }
        let (home, token) = (origin(&settings.endpoint).to_owned(), settings.token.clone());
        Self { agent: config.into(), home, token, answer: settings.slowest.answer }
    }

    /// The answer, once redirects are followed; for [`Ask::Head`], up to where the hub itself says
    /// what the file is.
    pub(super) fn ask(&self, url: &str, ask: Ask) -> Result<Response<Body>, Failure> {
        let mut url = url.to_owned();
        for _ in 0..REDIRECTS {
            let mut request = match ask {
                Ask::Head => self.agent.head(&url),
                Ask::Get { .. } | Ask::Said => self.agent.get(&url),
            };
            if !matches!(ask, Ask::Get { .. }) {
                request = request.config().timeout_global(Some(self.answer)).build();
            }
            // Sizes and ranges are those of the file as it is.
            request = request.header(header::ACCEPT_ENCODING, "identity");
            if let (Some(token), true) = (&self.token, origin(&url) == self.home) {
                request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
            }
            if let Ask::Get { from: from @ 1.. } = ask {
                request = request.header(header::RANGE, format!("bytes={from}-"));
            }
            let answer = request.call().map_err(|e| Failure::Silent(e.to_string()))?;
            let location = text(&answer, "location");
            if !answer.status().is_redirection() || location.is_empty() {
                return judged(answer);
            }
            let next = joined(&url, location);
            if matches!(ask, Ask::Head) && answer.headers().contains_key(COMMIT) && origin(&next) != origin(&url) {
                return Ok(answer);
            }
            if is_secure(&url) && !is_secure(&next) {
                let (from, to) = (origin(&url), origin(&next));
                return Err(Failure::Insecure(format!("{from} redirects from https to {to}, which is not encrypted")));
            }
            url = next;
        }
        Err(Failure::Silent(format!("more than {REDIRECTS} redirects, the last to {url}")))
    }
}

/// A header's text; empty if there is none.
pub(super) fn text<'a>(answer: &'a Response<Body>, name: &str) -> &'a str {
    answer.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
}

fn judged(answer: Response<Body>) -> Result<Response<Body>, Failure> {
    let status = answer.status();
    if status.is_success() {
        return Ok(answer);
    }
    let said = |name: &str| printable(text(&answer, name), LONGEST_SAID);
    let (code, said) = (said("x-error-code"), said("x-error-message"));
    Err(Failure::Refused { status, code, said })
}

/// Whether what goes there and comes from there is encrypted.
fn is_secure(url: &str) -> bool {
    url.get(..8).is_some_and(|begin| begin.eq_ignore_ascii_case("https://"))
}

/// Scheme, host and port.
fn origin(url: &str) -> &str {
    let host = url.find("://").map_or(0, |at| at + 3);
    let end = url[host..].find(['/', '?', '#']).map_or(url.len(), |at| host + at);
    &url[..end]
}

/// Whether a hub is on this machine, where no proxy reaches it.
fn is_here(endpoint: &str) -> bool {
    ["http://127.0.0.1", "http://localhost", "http://[::1]"].iter().any(|here| {
        let port = origin(endpoint).strip_prefix(here);
        port.is_some_and(|port| port.is_empty() || port.starts_with(':'))
    })
}

fn joined(base: &str, location: &str) -> String {
    if location.contains("://") {
        location.to_owned()
    } else if let Some(rest) = location.strip_prefix("//") {
        format!("{}//{rest}", base.split("//").next().unwrap_or_default())
    } else if location.starts_with('/') {
        format!("{}{location}", origin(base))
    } else {
        format!("{}/{location}", base.rsplit_once('/').map_or(base, |(folder, _)| folder))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirects_may_be_relative_and_other_hosts_are_other_hosts() {
        assert_eq!(origin("https://hub.co:8/a/b?c"), "https://hub.co:8");
        assert_eq!(origin("https://hub.co"), "https://hub.co");
        assert!(is_here("http://localhost:80/x") && !is_here("http://localhost.org"));
        assert_ne!(origin("https://hub.co.evil/x"), origin("https://hub.co/x"));
        assert_ne!(origin("https://hub.co@evil/x"), origin("https://hub.co/x"));
        assert_ne!(origin("http://hub.co/x"), origin("https://hub.co/x"));
        assert!(is_secure("HTTPS://hub.co") && !is_secure("http://hub.co") && !is_secure("https:/hub") && !is_secure(""));
        assert_eq!(joined("https://hub.co/a/b", "/c?d"), "https://hub.co/c?d");
        assert_eq!(joined("https://hub.co/a/b", "c"), "https://hub.co/a/c");
        assert_eq!(joined("https://hub.co/a", "//cdn/x"), "https://cdn/x");
        assert_eq!(joined("https://hub.co/a", "http://cdn/x"), "http://cdn/x");
    }
}
