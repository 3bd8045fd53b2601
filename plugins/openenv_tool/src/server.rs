//! Requests to the server, and parsing of its answers.

use rlhost_plugin_sdk::Error;
use rlhost_plugin_sdk::http::{Request, Response, fetch};
use rlhost_plugin_sdk::serde_json::{Value, from_str, json};

/// Maximum length of an answer's text in an error message, in characters.
const SHOWN: usize = 200;

/// The code with which a server rejects a session, as opposed to a mistake of the model.
const BAD_PARAMS: i32 = -32602;

/// Advice about a lost session.
const LOST: &str =
    "it is lost if the server was restarted, and with on_error = \"unscorable\" that costs the episode's row, not the run";

/// Reason why a request has no result.
#[derive(Clone, Debug, PartialEq)]
pub enum RequestFailure {
    /// The environment refused the request, for a reason that may be shown to the model.
    Refused(String),
    /// The server gave no valid answer.
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

/// Address of the server, and the run's credentials.
pub struct OpenEnvServer {
    base: String,
    secret: Option<String>,
}

impl OpenEnvServer {
    /// # Errors
    /// If the address is invalid.
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

    /// Makes JSON-RPC calls in parallel, each with an id, a method and parameters.
    pub fn rpc<'a>(&self, calls: impl Iterator<Item = (&'a str, &'a str, Value)>) -> Vec<Result<Value, RequestFailure>> {
        let body = |(id, method, params)| json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
        let requests: Vec<Request> = calls.map(|call| self.post("/mcp", &body(call))).collect();
        fetch(&requests).into_iter().map(result).collect()
    }

    /// Takes a step for each body, in parallel.
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
        // The model should not see errors about a lost session.
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

/// Returns a tool's result as text, and as JSON if it is JSON. A server without MCP's client returns the tool's own value.
pub fn result_text(result: &Value) -> (String, Option<Value>) {
    let structured = ["structuredContent", "structured_content"].into_iter().map(|name| &result[name]).find(|v| v.is_object());
    let Some(content) = result["content"].as_array() else { return (text_of(result), Some(result.clone())) };
    let parts: Vec<&str> = content.iter().filter_map(|part| part["text"].as_str()).collect();
    let text = parts.join("\n");
    let value = structured.cloned().or_else(|| from_str(&text).ok());
    (text, value)
}

/// Returns a JSON value as shown to the model: a text without quotes.
pub fn text_of(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Shortens a text, and splits text that templates might take for a special token: `<|end|>`, `</s>`, `[INST]`.
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

/// Returns whether a special token may begin here.
fn opens_mark(text: &str) -> bool {
    let within = |open: char, close: char, of: fn(char) -> bool| {
        let inner = text.strip_prefix(open)?;
        let end = inner.find(close)?;
        Some(end > 0 && inner[..end].chars().all(of))
    };
    let angled = within('<', '>', |c| c != '<' && !c.is_whitespace()) == Some(true);
    angled || within('[', ']', |c| c == '/' || c == '_' || c.is_ascii_uppercase()) == Some(true)
}

/// The response to a step.
pub struct OpenEnvStep {
    pub observation: Value,
    pub reward: Option<f32>,
    pub done: Option<bool>,
}

/// # Errors
/// If the server gave no valid answer.
pub fn step_in(answer: Result<Response, String>) -> Result<OpenEnvStep, Error> {
    let mut body = body(answer)?;
    let reward = body["reward"].as_f64().map(|reward| reward as f32);
    let done = body["done"].as_bool();
    Ok(OpenEnvStep { observation: body["observation"].take(), reward, done })
}
