//! Client of one server: JSON requests and responses, with limits on time and size.

use super::InferenceFailure;
use crate::config::{Address, json, printable};
use crate::net::{NetworkGuard, refusal};
use serde_json::Value;
use std::time::Duration;
use ureq::http::{Response, header};
use ureq::{Agent, Body};

/// Connection timeout.
const CONNECT: Duration = Duration::from_secs(10);

/// Maximum size of a response, in bytes.
const LONGEST: u64 = 256 << 20;

/// Maximum number of JSON values in a response.
const MOST_VALUES: u64 = 16 << 20;

/// Maximum length of a server's message in an error, in bytes.
const SHOWN: usize = 300;

/// Timeout of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestTimeout {
    /// Time in which a server answers a request that needs no computation.
    Short,
    /// Explicit duration.
    For(Duration),
}

impl RequestTimeout {
    fn duration(self) -> Duration {
        match self {
            Self::Short => Duration::from_secs(10),
            Self::For(duration) => duration,
        }
    }
}

/// Client of one inference server.
#[derive(Clone, Debug)]
pub struct InferenceClient {
    agent: Agent,
    base: String,
    server: String,
    key: Option<String>,
}

impl InferenceClient {
    /// Creates a client of the server at this URL, which sends the API key with each request.
    ///
    /// # Errors
    /// If the URL is not that of a server.
    pub fn new(url: &str, key: Option<String>) -> Result<Self, String> {
        let address = Address::parse(url)?;
        let base = url.trim_end_matches('/');
        // Clients of OpenAI's API include `/v1` in their base URLs.
        let base = base.strip_suffix("/v1").unwrap_or(base).to_owned();
        let config = Agent::config_builder()
            .timeout_resolve(Some(CONNECT))
            .timeout_connect(Some(CONNECT))
            .proxy(None)
            .user_agent(concat!("rlhost/", env!("CARGO_PKG_VERSION")));
        let agent = NetworkGuard::for_own_server(&address).agent(config);
        Ok(Self { agent, base, server: address.server(), key })
    }

    /// Returns the server's scheme, name and port.
    pub fn server(&self) -> &str {
        &self.server
    }

    /// Sends a GET request to a path.
    pub fn get(&self, path: &'static str, patience: RequestTimeout) -> Result<Value, InferenceFailure> {
        let request = self.agent.get(format!("{}{path}", self.base)).config().timeout_global(Some(patience.duration())).build();
        self.answer(path, self.authorized(request).call())
    }

    /// Sends a POST request to a path.
    pub fn post(&self, path: &'static str, body: &Value, patience: RequestTimeout) -> Result<Value, InferenceFailure> {
        let request = self.agent.post(format!("{}{path}", self.base)).config().timeout_global(Some(patience.duration())).build();
        let request = self.authorized(request).header(header::CONTENT_TYPE, "application/json");
        self.answer(path, request.send(body.to_string()))
    }

    fn authorized<T>(&self, request: ureq::RequestBuilder<T>) -> ureq::RequestBuilder<T> {
        match &self.key {
            Some(key) => request.header(header::AUTHORIZATION, format!("Bearer {key}")),
            None => request,
        }
    }

    fn answer(&self, path: &'static str, answer: Result<Response<Body>, ureq::Error>) -> Result<Value, InferenceFailure> {
        let unreachable = |e: ureq::Error| {
            let detail = match &e {
                ureq::Error::Timeout(_) => "it gave no answer in time".to_owned(),
                other => refusal(other).unwrap_or_else(|| other.to_string()),
            };
            InferenceFailure::Unreachable {
                server: self.server.clone(),
                detail: format!("{path}: {}", printable(&detail, SHOWN)),
            }
        };
        let mut answer = answer.map_err(unreachable)?;
        let status = answer.status();
        let text = answer.body_mut().with_config().limit(LONGEST).read_to_string().map_err(unreachable)?;
        if !status.is_success() {
            let detail = said(&text);
            return Err(InferenceFailure::Refused { server: self.server.clone(), path, status: status.as_u16(), detail });
        }
        // Routes that change state answer with a sentence, or with nothing.
        if text.is_empty() || !text.starts_with(['{', '[']) {
            return Ok(Value::String(text));
        }
        let (value, _) = json::sized(&text, MOST_VALUES).map_err(|e| self.foreign(path, e.to_string()))?;
        Ok(value)
    }

    /// Returns the error for a response that does not follow the protocol.
    pub(super) fn foreign(&self, path: &'static str, detail: impl Into<String>) -> InferenceFailure {
        InferenceFailure::Foreign { server: self.server.clone(), path, detail: detail.into() }
    }
}

/// Returns the message of an error response, without its JSON.
fn said(text: &str) -> String {
    let message = serde_json::from_str::<Value>(text).ok().and_then(|value| {
        let of = |value: &Value| value.get("message").and_then(Value::as_str).map(str::to_owned);
        of(&value).or_else(|| of(value.get("error")?)).or_else(|| value.get("detail")?.as_str().map(str::to_owned))
    });
    printable(message.as_deref().unwrap_or(text).trim(), SHOWN)
}
