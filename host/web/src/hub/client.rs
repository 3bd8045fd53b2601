//! Requests to the hub.
//!
//! Redirects are followed manually: the headers that describe a file are on the redirect response, and the token is sent to the hub only.
//! Redirects may lead only to public servers over https: not to this machine, nor to hosts that only it can reach.

use super::HubSettings;
use crate::config::{Address, Host, printable};
use crate::net::{NetworkGuard, refusal};
use std::fmt;
use std::sync::Once;
use std::time::Duration;
use ureq::http::{Response, StatusCode, header};
use ureq::{Agent, Body, Proxy};

/// Timeouts for a connection, and for a response or its next part.
const CONNECT: Duration = Duration::from_secs(10);
const ANSWER: Duration = Duration::from_secs(30);

const REDIRECTS: usize = 10;

/// Maximum length of a refusal's message, in bytes.
const LONGEST_SAID: usize = 512;

/// Header in every response of the hub about a file.
pub(super) const COMMIT: &str = "x-repo-commit";

/// Reason why a request to the hub failed.
#[derive(Debug)]
pub(super) enum HubFailure {
    /// The server refused the request.
    Refused {
        status: StatusCode,
        /// Error code of the hub.
        code: String,
        /// Error message of the hub.
        message: String,
    },
    /// The server did not respond.
    NoAnswer(String),
    /// The network guard forbids the server, or the connection would not be encrypted.
    Disallowed(String),
}

impl HubFailure {
    /// Returns whether a retry may succeed.
    pub(super) fn is_transient(&self) -> bool {
        match self {
            Self::NoAnswer(_) => true,
            Self::Disallowed(_) => false,
            Self::Refused { status, .. } => status.is_server_error() || *status == StatusCode::TOO_MANY_REQUESTS,
        }
    }
}

impl fmt::Display for HubFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoAnswer(said) | Self::Disallowed(said) => write!(f, "{said}"),
            Self::Refused { status, message: said, .. } => write!(f, "{} {said}", status.as_u16()),
        }
    }
}

/// Kind of a request.
#[derive(Clone, Copy)]
pub(super) enum HubRequestKind {
    /// Metadata of a file.
    Head,
    /// Content of a file from an offset on.
    Get { from: u64 },
    /// Complete short response, within its timeout.
    ShortAnswer,
}

/// Connection to the hub.
struct HubConnection {
    agent: Agent,
    guard: NetworkGuard,
    /// Server of the hub, the only one that gets the token.
    home: String,
}

pub(super) struct HubClient {
    /// Connection to the hub, or the reason why there is none.
    hub: Result<HubConnection, String>,
    token: Option<String>,
    /// Timeout of a short response.
    answer: Duration,
}

impl HubClient {
    pub(super) fn new(settings: &HubSettings) -> Self {
        Self { hub: HubConnection::new(settings), token: settings.token.clone(), answer: settings.timeouts.answer }
    }

    /// Sends a request and follows redirects; for [`HubRequestKind::Head`], stops at the hub's own response with the file's metadata.
    pub(super) fn ask(&self, url: &str, ask: HubRequestKind) -> Result<Response<Body>, HubFailure> {
        let HubConnection { agent, guard, home } = self.hub.as_ref().map_err(|detail| HubFailure::NoAnswer(detail.clone()))?;
        let mut address = Address::parse(url).map_err(HubFailure::NoAnswer)?;
        for _ in 0..REDIRECTS {
            let mut request = match ask {
                HubRequestKind::Head => agent.head(&address.url),
                HubRequestKind::Get { .. } | HubRequestKind::ShortAnswer => agent.get(&address.url),
            };
            if !matches!(ask, HubRequestKind::Get { .. }) {
                request = request.config().timeout_global(Some(self.answer)).build();
            }
            // Sizes and ranges refer to the uncompressed file.
            request = request.header(header::ACCEPT_ENCODING, "identity");
            if let (Some(token), true) = (&self.token, address.server() == *home) {
                request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
            }
            if let HubRequestKind::Get { from: from @ 1.. } = ask {
                request = request.header(header::RANGE, format!("bytes={from}-"));
            }
            let failure =
                |e: ureq::Error| refusal(&e).map_or_else(|| HubFailure::NoAnswer(e.to_string()), HubFailure::Disallowed);
            let answer = request.call().map_err(failure)?;
            let location = text(&answer, "location");
            if !answer.status().is_redirection() || location.is_empty() {
                return judged(answer);
            }
            let next = redirected(&address, location, guard);
            let stays = next.as_ref().is_ok_and(|next| next.server() == address.server());
            if matches!(ask, HubRequestKind::Head) && answer.headers().contains_key(COMMIT) && !stays {
                return Ok(answer);
            }
            address = next?;
        }
        Err(HubFailure::NoAnswer(format!("more than {REDIRECTS} redirects, the last to {}", address.server())))
    }
}

impl HubConnection {
    fn new(settings: &HubSettings) -> Result<Self, String> {
        let home = Address::parse(&settings.endpoint)?;
        let granted = settings.redirects.split(',').map(str::trim).filter(|host| !host.is_empty()).map(Host::parse);
        let granted = granted.collect::<Result<Vec<_>, _>>().map_err(|detail| format!("RLHOST_HUB_HOSTS: {detail}"))?;
        let config = Agent::config_builder()
            .timeout_resolve(Some(CONNECT))
            .timeout_connect(Some(CONNECT))
            .timeout_send_request(Some(ANSWER))
            .timeout_recv_response(Some(ANSWER))
            .timeout_per_read(Some(ANSWER))
            .proxy(if home.is_local() { None } else { Proxy::try_from_env() })
            .user_agent(concat!("rlhost/", env!("CARGO_PKG_VERSION")));
        if let (Some(_), Some(warning)) = (&settings.token, in_plain_text(&home)) {
            static SAID: Once = Once::new();
            SAID.call_once(|| tracing::warn!("{warning}"));
        }
        let guard = NetworkGuard::for_server_and_redirects(&home, granted);
        Ok(Self { agent: guard.clone().agent(config), guard, home: home.server() })
    }
}

/// Returns the target of a redirect, if it is allowed.
fn redirected(from: &Address, location: &str, guard: &NetworkGuard) -> Result<Address, HubFailure> {
    let next = Address::parse(&from.joined(location))
        .map_err(|detail| HubFailure::Disallowed(format!("{} redirects to {detail}", from.server())))?;
    let (server, to) = (from.server(), next.server());
    if from.is_secure() && !next.is_secure() {
        return Err(HubFailure::Disallowed(format!("{server} redirects from https to {to}, which is not encrypted")));
    }
    let refused = |detail| {
        let advice = "if you trust it, name it in RLHOST_HUB_HOSTS, as in RLHOST_HUB_HOSTS";
        HubFailure::Disallowed(format!("{server} redirects to {to}, which {detail}; {advice}={to}"))
    };
    guard.check(&next).map_err(refused)?;
    Ok(next)
}

/// Returns a warning if the token is sent to this hub unencrypted.
fn in_plain_text(home: &Address) -> Option<String> {
    let server = home.server();
    let warning = || format!("the token goes to {server} in plain text; HF_ENDPOINT should begin with https://");
    (!home.is_secure() && !home.is_local()).then(warning)
}

/// Returns the text of a header; empty if it is missing.
pub(super) fn text<'a>(answer: &'a Response<Body>, name: &str) -> &'a str {
    answer.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
}

fn judged(answer: Response<Body>) -> Result<Response<Body>, HubFailure> {
    let status = answer.status();
    if status.is_success() {
        return Ok(answer);
    }
    let said = |name: &str| printable(text(&answer, name), LONGEST_SAID);
    let (code, said) = (said("x-error-code"), said("x-error-message"));
    Err(HubFailure::Refused { status, code, message: said })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(url: &str) -> Address {
        Address::parse(url).unwrap()
    }

    fn guard() -> NetworkGuard {
        NetworkGuard::for_server_and_redirects(&read("https://hub.co"), vec![Host::parse("http://store:9000").unwrap()])
    }

    #[test]
    fn a_redirect_from_https_to_http_is_refused_for_good() {
        let refused = |from: &str, location: &str| redirected(&read(from), location, &guard()).unwrap_err();
        for (from, location) in [
            ("https://hub.co/a", "http://hub.co/a"),
            ("HTTPS://hub.co/a", "HTTP://cdn:80/x"),
            ("https://localhost:1/a", "http://localhost:2/a"),
        ] {
            let failure = refused(from, location);
            assert!(failure.to_string().contains("from https to http://") && !failure.is_transient(), "{failure}");
        }
        for location in ["ftp://cdn/x", "https://user@cdn/x", "https://"] {
            assert!(!refused("https://hub.co/a", location).is_transient(), "{location}");
        }
    }

    #[test]
    fn redirects_may_be_relative_and_a_query_is_no_address() {
        let leads = |from: &str, location: &str| redirected(&read(from), location, &guard()).unwrap().url;
        assert_eq!(leads("https://hub.co/a", "//cdn/x"), "https://cdn/x");
        assert_eq!(leads("http://hub.co/a", "https://cdn/x"), "https://cdn/x");
        assert_eq!(leads("http://hub.co/a", "http://store:9000/x"), "http://store:9000/x");
        for base in ["https://hub.co/a/b", "https://hub.co/a/b?c=/d/e"] {
            assert_eq!(leads(base, "f"), "https://hub.co/a/f");
            assert_eq!(leads(base, "/x?next=https://y"), "https://hub.co:443/x?next=https://y");
            assert_eq!(leads(base, "f?next=http://y"), "https://hub.co/a/f?next=http://y");
        }
    }

    #[test]
    fn a_token_over_http_to_another_machine_is_warned_of() {
        let warning = in_plain_text(&read("http://hub.co/x")).unwrap();
        assert!(warning.contains("to http://hub.co:80 in plain text"), "{warning}");
        for fine in ["https://hub.co", "http://localhost:80/x", "http://127.0.0.1", "http://[::1]:8"] {
            assert_eq!(in_plain_text(&read(fine)), None, "{fine}");
        }
        for elsewhere in ["http://localhost.org", "http://0.0.0.0:1", "http://hub.co.localhost.evil"] {
            assert!(in_plain_text(&read(elsewhere)).is_some(), "{elsewhere}");
        }
    }
}
