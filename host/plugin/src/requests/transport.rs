//! A single request: sent to a granted server, retried after temporary failures, with secrets inserted into the request and removed from
//! the answer.

use super::budget::{AnswerBudget, AnswerReservation, size_of_headers};
use super::{OutboundRequest, OutboundResponse, OutboundResult};
use crate::config::{Address, Host, HttpLimits, Secret, files, now, printable};
use crate::net::{NetworkGuard, refusal};
use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use ureq::http::{HeaderName, HeaderValue, StatusCode};
use ureq::tls::{PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::{Agent, Body};

/// Time limit for DNS resolution and connecting.
const CONNECT: Duration = Duration::from_secs(10);

/// Longest pause between two attempts, unless the server asks for more.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// Maximum number of an answer's headers that a plugin gets.
pub(super) const MOST_HEADERS: usize = 64;

/// Maximum size of those headers in bytes; the rest are dropped.
pub(super) const LONGEST_HEADERS: usize = 256 << 10;

/// Number of bytes of an answer that are read at a time.
const CHUNK: usize = 64 << 10;

/// Maximum length of a reason for a plugin, in bytes.
const LONGEST_REASON: usize = 512;

/// Maximum size of a file of certificates, in bytes.
const LARGEST_CA: u64 = 4 << 20;

/// Headers that the host sets itself.
const OWN_HEADERS: [&str; 7] =
    ["host", "content-length", "transfer-encoding", "connection", "accept-encoding", "upgrade", "proxy-authorization"];

/// The failure of an attempt.
enum AttemptFailure {
    /// Temporary failure: a retry may succeed.
    Passing(String),
    Final(String),
}

pub(super) struct OutboundTransport {
    agent: Agent,
    hosts: Vec<Host>,
    secrets: Vec<(String, Secret)>,
    limits: HttpLimits,
}

/// A request in progress: its next address, and the parts that are sent there.
struct RequestHop<'a> {
    address: Address,
    post: bool,
    body: &'a [u8],
    /// Whether headers with secrets are sent.
    trusted: bool,
}

impl OutboundTransport {
    pub(super) fn new(hosts: Vec<Host>, secrets: Vec<(String, Secret)>, limits: &HttpLimits) -> Result<Self, String> {
        let mut config = Agent::config_builder()
            .timeout_resolve(Some(CONNECT))
            .timeout_connect(Some(CONNECT))
            .max_idle_connections(limits.max_concurrency as usize)
            .max_idle_connections_per_host(limits.max_concurrency as usize)
            // No proxy from the environment either, since it would see every request.
            .proxy(None)
            .user_agent(concat!("rlhost/", env!("CARGO_PKG_VERSION")));
        if let Some(file) = &limits.ca_file {
            config = config.tls_config(TlsConfig::builder().root_certs(authorities(Path::new(file))?).build());
        }
        let agent = NetworkGuard::for_granted_hosts(hosts.clone()).agent(config);
        Ok(Self { agent, hosts, secrets, limits: limits.clone() })
    }

    /// Returns the answer to a request, after retries if needed, or why there is none.
    pub(super) fn ask(&self, request: &OutboundRequest, until: Instant, room: &AnswerBudget) -> OutboundResult {
        let own = match request.timeout_ms {
            0 => self.limits.timeout(),
            given => self.limits.timeout().min(Duration::from_millis(given.into())),
        };
        let mut pause = self.limits.backoff();
        let over = || format!("no answer within {} s (http.call_timeout_s)", self.limits.call_timeout_s);
        let given = |(answer, share): (OutboundResponse, AnswerReservation<'_>)| {
            share.keep();
            Arc::new(answer)
        };
        let mut last: Option<Result<(OutboundResponse, AnswerReservation<'_>), String>> = None;
        for attempt in 0..=self.limits.retries {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let mut wanted = None;
            // Releases the last attempt's memory for the next one.
            drop(last.take());
            last = match self.follow(request, own.min(left), room) {
                Err(AttemptFailure::Final(reason)) => return Err(self.shown(&reason)),
                Err(AttemptFailure::Passing(reason)) => {
                    Some(Err(self.shown(&format!("{reason}, in the last of {} attempts", attempt + 1))))
                }
                Ok((answer, share, after)) => {
                    if !passes(answer.status) {
                        return Ok(given((answer, share)));
                    }
                    wanted = after;
                    Some(Ok((answer, share)))
                }
            };
            let wait = wanted.unwrap_or(pause);
            if attempt == self.limits.retries || wait >= until.saturating_duration_since(Instant::now()) {
                break;
            }
            std::thread::sleep(wait);
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
        last.map_or_else(|| Err(over()), |last| last.map(given))
    }

    /// Returns a printable reason, without secrets.
    fn shown(&self, reason: &str) -> String {
        printable(&String::from_utf8_lossy(&self.without_secrets(reason.as_bytes())), LONGEST_REASON)
    }

    /// Makes one attempt and follows redirects to granted servers. Also returns how long the server asks to wait.
    fn follow<'a>(
        &self,
        request: &OutboundRequest,
        time: Duration,
        room: &'a AnswerBudget,
    ) -> Result<(OutboundResponse, AnswerReservation<'a>, Option<Duration>), AttemptFailure> {
        let until = Instant::now() + time;
        let post = self.checked(request).map_err(AttemptFailure::Final)?;
        let address = Address::parse(&request.url).map_err(AttemptFailure::Final)?;
        if !address.is_one_of(&self.hosts) {
            let server = address.server();
            return Err(AttemptFailure::Final(format!(
                "{server} is not granted: add it to the plugin's hosts to allow requests to it"
            )));
        }
        let mut way = RequestHop { address, post, body: &request.body, trusted: true };
        for _ in 0..=self.limits.max_redirects {
            let answer = self.send(request, &way, until.saturating_duration_since(Instant::now()))?;
            let text =
                |name: &str| answer.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned();
            let (location, after) = (text("location"), text("retry-after"));
            if !answer.status().is_redirection() || location.is_empty() {
                let (answer, share) = self.read(answer, &way.address, room)?;
                return Ok((answer, share, pause(&after)));
            }
            // Removes secrets before parsing, which converts to lower case and whose result an error may show.
            let location = self.text(location.as_bytes());
            let from = way.address.server();
            let next = Address::parse(&way.address.joined(&location)).map_err(AttemptFailure::Final)?;
            if !next.is_one_of(&self.hosts) {
                let to = next.server();
                return Err(AttemptFailure::Final(format!("{from} redirects to {to}, which is not granted")));
            }
            way.trusted &= next.server() == from;
            way.address = next;
            if ![StatusCode::TEMPORARY_REDIRECT, StatusCode::PERMANENT_REDIRECT].contains(&answer.status()) {
                (way.post, way.body) = (false, &[]);
            }
        }
        let (most, server) = (self.limits.max_redirects, way.address.server());
        Err(AttemptFailure::Final(format!("{server} redirects more than {most} times (http.max_redirects)")))
    }

    /// Checks the parts that don't depend on the server. Returns whether the request is a POST.
    fn checked(&self, request: &OutboundRequest) -> Result<bool, String> {
        let post = match request.method.as_str() {
            "POST" => true,
            "GET" if request.body.is_empty() => false,
            "GET" => return Err("a GET request has no body".to_owned()),
            other => return Err(format!("the method is {}; it must be GET or POST", printable(other, 40))),
        };
        let headers: usize = request.headers.iter().map(|(name, value)| name.len() + value.len()).sum();
        if request.body.len() + headers + request.url.len() > (self.limits.max_request_kb as usize) << 10 {
            return Err(format!("the request is larger than {} KiB (http.max_request_kb)", self.limits.max_request_kb));
        }
        Ok(post)
    }

    fn send(
        &self,
        request: &OutboundRequest,
        way: &RequestHop<'_>,
        time: Duration,
    ) -> Result<ureq::http::Response<Body>, AttemptFailure> {
        if time.is_zero() {
            return Err(AttemptFailure::Passing(format!("{} timed out", way.address.server())));
        }
        let mut headers = Vec::with_capacity(request.headers.len());
        for (name, value) in &request.headers {
            if let Some(header) = self.header(name, value, way.trusted).map_err(AttemptFailure::Final)? {
                headers.push(header);
            }
        }
        let url = &way.address.url;
        let answer = if way.post {
            let post = self.agent.post(url).config().timeout_global(Some(time)).build();
            headers.into_iter().fold(post, |post, (name, value)| post.header(name, value)).send(way.body)
        } else {
            let get = self.agent.get(url).config().timeout_global(Some(time)).build();
            headers.into_iter().fold(get, |get, (name, value)| get.header(name, value)).call()
        };
        answer.map_err(|error| self.failure(&error, &way.address, time))
    }

    /// Returns a header with its secrets inserted, or `None` if it has secrets that must not be sent to this server.
    fn header(&self, name: &str, value: &str, trusted: bool) -> Result<Option<(HeaderName, HeaderValue)>, String> {
        let shown = printable(name, 80);
        let header: HeaderName = name.parse().map_err(|_| format!("{shown:?} is not the name of a header"))?;
        if OWN_HEADERS.contains(&header.as_str()) {
            return Err(format!("the header {header} is set by rlhost"));
        }
        let mut whole = value.to_owned();
        for (name, secret) in &self.secrets {
            whole = whole.replace(&format!("{{{{{name}}}}}"), secret.reveal());
        }
        let known = |name: &str| self.secrets.iter().any(|(known, _)| known == name);
        if let Some(unknown) = placeholders(value).find(|name| !known(name)) {
            let add = format!("secrets = {{ {unknown} = \"env:{unknown}\" }}");
            return Err(format!("the header {header} asks for the secret {unknown}, which is not granted; add {add}"));
        }
        if !trusted && whole != value {
            return Ok(None);
        }
        let mut value =
            HeaderValue::from_str(&whole).map_err(|_| format!("the header {header} has a value that can't be sent"))?;
        value.set_sensitive(true);
        Ok(Some((header, value)))
    }

    fn failure(&self, error: &ureq::Error, address: &Address, time: Duration) -> AttemptFailure {
        let server = address.server();
        if let Some(refused) = refusal(error) {
            return AttemptFailure::Final(refused);
        }
        match error {
            ureq::Error::BodyExceedsLimit(_) => AttemptFailure::Final(format!(
                "{server} gave more than {} KiB (http.max_response_kb)",
                self.limits.max_response_kb
            )),
            ureq::Error::BadUri(_) | ureq::Error::Http(_) => AttemptFailure::Final(format!("{server}: {error}")),
            ureq::Error::Timeout(_) => {
                AttemptFailure::Passing(format!("{server} gave no answer within {:.1} s", time.as_secs_f64()))
            }
            other => AttemptFailure::Passing(format!("{server}: {other}")),
        }
    }

    /// Reads an answer within its size limit and the call's budget.
    fn read<'a>(
        &self,
        answer: ureq::http::Response<Body>,
        address: &Address,
        room: &'a AnswerBudget,
    ) -> Result<(OutboundResponse, AnswerReservation<'a>), AttemptFailure> {
        let status = answer.status().as_u16();
        let full = |reason: String| AttemptFailure::Final(format!("{}: {reason}", address.server()));
        let mut length = 0;
        let shown = answer.headers().iter().filter(|(name, _)| name.as_str() != "set-cookie").take(MOST_HEADERS);
        let shown = shown.take_while(|(name, value)| {
            length += name.as_str().len() + value.len();
            length <= LONGEST_HEADERS
        });
        let shown: Vec<(&[u8], &[u8])> = shown.map(|(name, value)| (name.as_str().as_bytes(), value.as_bytes())).collect();
        let mut share = room.share();
        share.take(size_of_headers(shown.iter().copied())).map_err(full)?;
        let headers = shown.into_iter().map(|(name, value)| (self.text(name), self.text(value))).collect();
        let limit = u64::from(self.limits.max_response_kb) << 10;
        let mut reader = answer.into_body().into_with_config().limit(limit).reader();
        let (mut body, mut chunk) = (Vec::new(), vec![0; CHUNK]);
        loop {
            let read = reader.read(&mut chunk);
            let read = read.map_err(|error| self.failure(&ureq::Error::from(error), address, self.limits.timeout()))?;
            if read == 0 {
                break;
            }
            share.take(read).map_err(full)?;
            body.extend_from_slice(&chunk[..read]);
        }
        if !self.secrets.is_empty() {
            body = self.without_secrets(&body);
        }
        let answer = OutboundResponse { status, headers, body };
        share.fit(&answer).map_err(full)?;
        Ok((answer, share))
    }

    /// Returns a text without secrets.
    fn text(&self, bytes: &[u8]) -> String {
        String::from_utf8_lossy(&self.without_secrets(bytes)).into_owned()
    }

    /// Replaces secrets with their names where a server repeats them, in any case and also as JSON escapes them.
    fn without_secrets(&self, bytes: &[u8]) -> Vec<u8> {
        let (mut kept, mut rest) = (Vec::with_capacity(bytes.len()), bytes);
        while let Some((first, after)) = rest.split_first() {
            let found = self.secrets.iter().filter_map(|(name, secret)| Some((name, spelled(rest, secret.reveal())?)));
            rest = match found.max_by_key(|(_, length)| *length) {
                Some((name, length)) => {
                    kept.extend_from_slice(format!("{{{{{name}}}}}").as_bytes());
                    &rest[length..]
                }
                None => {
                    kept.push(*first);
                    after
                }
            };
        }
        kept
    }
}

/// Returns the length of the prefix of `text` that spells the secret, in any case, each byte literal or escaped as in JSON.
fn spelled(text: &[u8], secret: &str) -> Option<usize> {
    if text.get(..secret.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(secret.as_bytes())) {
        return Some(secret.len());
    }
    let mut rest = text;
    for wanted in secret.bytes() {
        let code = |digits: &[u8; 4]| u32::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok();
        rest = match rest {
            [b'\\', byte, after @ ..] if byte.eq_ignore_ascii_case(&wanted) => after,
            [b'\\', b'u', digits @ ..] => {
                let (digits, after) = digits.split_first_chunk()?;
                let byte = u8::try_from(code(digits)?).ok()?;
                byte.eq_ignore_ascii_case(&wanted).then_some(after)?
            }
            [byte, after @ ..] if byte.eq_ignore_ascii_case(&wanted) => after,
            _ => return None,
        };
    }
    Some(text.len() - rest.len())
}

/// Returns the names in double braces that could be secrets.
fn placeholders(value: &str) -> impl Iterator<Item = &str> {
    let is_name = |name: &&str| !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    value.split("{{").skip(1).filter_map(|rest| rest.split_once("}}").map(|(name, _)| name)).filter(is_name)
}

/// Returns whether a retry may give a different answer.
fn passes(status: u16) -> bool {
    matches!(status, 408 | 425 | 429 | 500 | 502 | 503 | 504)
}

/// Parses Retry-After: seconds, or a date.
fn pause(after: &str) -> Option<Duration> {
    let after = after.trim();
    if let Ok(seconds) = after.parse::<u32>() {
        return Some(Duration::from_secs(seconds.into()));
    }
    let then = jiff::fmt::rfc2822::parse(after).ok()?.timestamp();
    let seconds = then.as_second().saturating_sub(now().as_second());
    Some(Duration::from_secs(u64::try_from(seconds).unwrap_or(0)))
}

/// Returns the default certificate authorities and those in a file.
fn authorities(file: &Path) -> Result<RootCerts, String> {
    let wrong = |detail: String| format!("http.ca_file: {}: {detail}", file.display());
    let pem = files::read(file, LARGEST_CA).map_err(|e| wrong(e.to_string()))?;
    let mut own = Vec::new();
    for item in parse_pem(&pem) {
        if let PemItem::Certificate(certificate) = item.map_err(|e| wrong(e.to_string()))? {
            own.push(certificate);
        }
    }
    match own.is_empty() {
        true => Err(wrong("it has no certificate in PEM".to_owned())),
        false => Ok(RootCerts::new_with_certs(&own)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_after_is_read_in_both_forms() {
        assert_eq!(pause("7"), Some(Duration::from_secs(7)));
        assert_eq!(pause("Wed, 21 Oct 2015 07:28:00 GMT"), Some(Duration::ZERO));
        assert!(pause("Wed, 21 Oct 2065 07:28:00 GMT").unwrap() > Duration::from_secs(1_000_000));
        for none in ["", "soon", "-1", "99999999999999"] {
            assert_eq!(pause(none), None, "{none}");
        }
    }

    #[test]
    fn placeholders_are_names_in_double_braces() {
        assert_eq!(placeholders("Bearer {{JUDGE_KEY}} {{}} {{B}}").collect::<Vec<_>>(), ["JUDGE_KEY", "B"]);
        for none in ["Bearer", "{{}}", "{{a b}}", "{KEY}", "{{KEY}"] {
            assert_eq!(placeholders(none).next(), None, "{none}");
        }
    }
}
