//! Requests to the server, and what its answers say.

use rlhost_plugin_sdk::Error;
use rlhost_plugin_sdk::http::{Request, Response, fetch};
use rlhost_plugin_sdk::serde_json::{Value, from_str, json};

/// Longest text of an answer in an error, in characters.
const SHOWN: usize = 200;

/// The code with which a server refuses a session, but not what the model got wrong.
const BAD_PARAMS: i32 = -32602;

/// What to do about a session that is gone.
const LOST: &str =
    "it is lost if the server was restarted, and with on_error = \"unscorable\" that costs the episode's row, not the run";

/// Why a request has no result.
#[derive(Clone, Debug, PartialEq)]
pub enum RequestFailure {
    /// The environment refuses it, for a reason that the model may be told.
    Refused(String),
    /// The server does not answer as it should.
    Server(String),
}

impl From<RequestFailure> for Error {
    fn from(failure: RequestFailure) -> Self {
        let (RequestFailure::Refused(reason) | RequestFailure::Server(reason)) = failure;
        Self::Internal(reason)
    }
}

impl std::fmt::Display for RequestFailure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (Self::Refused(reason) | Self::Server(reason)) = self;
        f.write_str(reason)
    }
}

/// Where the server is, and how it knows the run.
pub struct OpenEnvServer {
    base: String,
    secret: Option<String>,
}

impl OpenEnvServer {
    /// # Errors
    /// If the address is none.
    pub fn new(url: &str, secret: Option<&str>) -> Result<Self, Error> {
        if !["http://", "https://"].iter().any(|scheme| url.starts_with(scheme)) {
            return Err(Error::Config(format!(
                "url is {url:?}; it must begin with http:// or https://, as in http://localhost:8000"
            )));
        }
        Ok(Self { base: url.trim_end_matches('/').to_owned(), secret: secret.map(str::to_owned) })
    }

    fn post(&self, path: &str, body: &Value) -> Request {
        let request = Request::post(&format!("{}{path}", self.base)).json(body);
        match &self.secret {
            Some(secret) => request.header("Authorization", &format!("Bearer {{{{{secret}}}}}")),
            None => request,
        }
    }

    /// Makes calls of JSON-RPC, each with an id, a method and parameters, side by side.
    pub fn rpc<'a>(&self, calls: impl Iterator<Item = (&'a str, &'a str, Value)>) -> Vec<Result<Value, RequestFailure>> {
        let body = |(id, method, params)| json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
        let requests: Vec<Request> = calls.map(|call| self.post("/mcp", &body(call))).collect();
        fetch(&requests).into_iter().map(result).collect()
    }

    /// Takes a step for each body, side by side.
    pub fn steps(&self, bodies: &[Value]) -> Vec<Result<Response, String>> {
        fetch(&bodies.iter().map(|body| self.post("/step", body)).collect::<Vec<_>>())
    }
}

/// Returns the body of a successful answer.
fn body(answer: Result<Response, String>) -> Result<Value, RequestFailure> {
    let answer = answer.map_err(RequestFailure::Server)?;
    let shown = || answer.text().split_whitespace().collect::<Vec<_>>().join(" ").chars().take(SHOWN).collect::<String>();
    if [400, 422].contains(&answer.status) {
        return Err(RequestFailure::Refused(shown()));
    }
    if !answer.is_success() {
        return Err(RequestFailure::Server(format!("the server answered with status {}: {}", answer.status, shown())));
    }
    answer.parsed().map_err(|e| RequestFailure::Server(format!("the server's answer is not JSON: {e}: {}", shown())))
}

fn result(answer: Result<Response, String>) -> Result<Value, RequestFailure> {
    let mut body = body(answer)?;
    if let Some(error) = body.get("error").filter(|error| !error.is_null()) {
        let said = error["message"].as_str().map_or_else(|| error.to_string(), str::to_owned);
        // A session that is gone is none of the model's business.
        return Err(match error["code"] == BAD_PARAMS && said.starts_with("Unknown session_id") {
            true => RequestFailure::Server(format!("{said}; {LOST}")),
            false => RequestFailure::Refused(said),
        });
    }
    match body.get_mut("result") {
        Some(result) => Ok(result.take()),
        None => Err(RequestFailure::Server(format!("the server's answer has neither a result nor an error: {body}"))),
    }
}

/// Returns whether a tool's result says that the call failed.
pub fn is_error(result: &Value) -> bool {
    ["isError", "is_error"].into_iter().any(|name| result[name] == true)
}

/// Returns what a tool's result says as text, and as JSON if it is that. A server without MCP's client answers with the tool's own
/// value.
pub fn result_text(result: &Value) -> (String, Option<Value>) {
    let structured = ["structuredContent", "structured_content"].into_iter().map(|name| &result[name]).find(|v| v.is_object());
    let Some(content) = result["content"].as_array() else { return (text_of(result), Some(result.clone())) };
    let parts: Vec<&str> = content.iter().filter_map(|part| part["text"].as_str()).collect();
    let text = parts.join("\n");
    let value = structured.cloned().or_else(|| from_str(&text).ok());
    (text, value)
}

/// Returns a JSON value as the model reads it: a text as it is.
pub fn text_of(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Shortens a text, and parts what templates might take for a mark: `<|end|>`, `</s>`, `[INST]`.
pub fn readable(text: &str, longest: usize) -> String {
    let cut = text.floor_char_boundary(longest);
    let (shown, rest) = text.split_at(cut);
    let mut parted = String::with_capacity(shown.len());
    for (at, c) in shown.char_indices() {
        parted.push(c);
        if opens_mark(&shown[at..]) {
            parted.push(' ');
        }
    }
    if !rest.is_empty() {
        parted.push_str(&format!("\n({} more characters)", rest.chars().count()));
    }
    parted
}

/// Returns whether a mark may begin here.
fn opens_mark(text: &str) -> bool {
    let within = |open: char, close: char, of: fn(char) -> bool| {
        let inner = text.strip_prefix(open)?;
        let end = inner.find(close)?;
        Some(end > 0 && inner[..end].chars().all(of))
    };
    let angled = within('<', '>', |c| c != '<' && !c.is_whitespace()) == Some(true);
    angled || within('[', ']', |c| c == '/' || c == '_' || c.is_ascii_uppercase()) == Some(true)
}

/// The answer to a step.
pub struct OpenEnvStep {
    pub observation: Value,
    pub reward: Option<f32>,
    pub done: Option<bool>,
}

/// # Errors
/// If the server does not answer as it should.
pub fn step_in(answer: Result<Response, String>) -> Result<OpenEnvStep, Error> {
    let mut body = body(answer)?;
    let reward = body["reward"].as_f64().map(|reward| reward as f32);
    let done = body["done"].as_bool();
    Ok(OpenEnvStep { observation: body["observation"].take(), reward, done })
}
