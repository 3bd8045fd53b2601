//! Requests to servers that the user granted to the plugin by name, from a reward written with [`asking_reward!`](crate::asking_reward).
//!
//! ```
//! use rlhost_plugin_sdk::http::{Request, Response, fetch, testing};
//!
//! let request = Request::post("http://judge.internal:8000/score")
//!     .header("Authorization", "Bearer {{JUDGE_KEY}}")
//!     .json(&serde_json::json!({ "text": "hello" }));
//! let answers = testing::answering(
//!     |request| match request.body.len() {
//!         0 => Err("nothing to score".into()),
//!         _ => Ok(Response::json(200, &serde_json::json!({ "score": 0.5 }))),
//!     },
//!     || fetch(&[request, Request::get("http://judge.internal:8000/")]),
//! );
//! let first: serde_json::Value = answers[0].as_ref().unwrap().parsed().unwrap();
//! assert_eq!(first["score"], 0.5);
//! assert!(answers[1].is_err());
//! ```

pub use crate::bindings::http::{Request, Response};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::time::Duration;

/// Sends requests in parallel. Returns one response or error per request, in order.
///
/// The host retries temporary failures within its limits. `{{NAME}}` in a header's value stands for the secret with this name, which the
/// plugin never sees. Responses are recorded: from then on, the same request gets the same response.
#[must_use]
pub fn fetch(requests: &[Request]) -> Vec<Result<Response, String>> {
    #[cfg(target_arch = "wasm32")]
    return crate::bindings::http::fetch(requests);
    #[cfg(not(target_arch = "wasm32"))]
    return testing::answers(requests);
}

impl Request {
    fn new(method: &str, url: &str) -> Self {
        Self { method: method.into(), url: url.into(), headers: Vec::new(), body: Vec::new(), timeout_ms: 0 }
    }

    /// Creates a GET request.
    #[must_use]
    pub fn get(url: &str) -> Self {
        Self::new("GET", url)
    }

    /// Creates a POST request without a body.
    #[must_use]
    pub fn post(url: &str) -> Self {
        Self::new("POST", url)
    }

    /// Adds a header.
    #[must_use]
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// Sets the body to a JSON value, and the `content-type` header.
    #[must_use]
    pub fn json(mut self, value: &impl Serialize) -> Self {
        self.body = serde_json::to_vec(value).unwrap_or_default();
        self.header("Content-Type", "application/json")
    }

    /// Sets the timeout of an attempt; the host's limit applies too.
    #[must_use]
    pub fn timeout(mut self, time: Duration) -> Self {
        self.timeout_ms = u32::try_from(time.as_millis()).unwrap_or(u32::MAX);
        self
    }
}

impl Response {
    /// Creates a response with a JSON body, for tests.
    #[must_use]
    pub fn json(status: u16, value: &impl Serialize) -> Self {
        Self { status, headers: Vec::new(), body: serde_json::to_vec(value).unwrap_or_default() }
    }

    /// Returns whether the status is 2xx.
    #[must_use]
    pub fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }

    /// Returns the body as text; invalid UTF-8 is replaced.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// Parses the body as JSON.
    ///
    /// # Errors
    /// If it is not JSON of this type.
    pub fn parsed<T: DeserializeOwned>(&self) -> Result<T, String> {
        serde_json::from_slice(&self.body).map_err(|e| e.to_string())
    }
}

/// Answers requests natively, for a plugin's own tests.
pub mod testing {
    use super::{Request, Response};
    use std::cell::RefCell;

    type RequestHandler = Box<dyn FnMut(&Request) -> Result<Response, String>>;

    thread_local! {
        static SERVER: RefCell<Option<RequestHandler>> = const { RefCell::new(None) };
    }

    /// Calls `f` with `server` answering its requests.
    pub fn answering<R>(server: impl FnMut(&Request) -> Result<Response, String> + 'static, f: impl FnOnce() -> R) -> R {
        let before = SERVER.with(|place| place.borrow_mut().replace(Box::new(server)));
        let result = f();
        SERVER.with(|place| *place.borrow_mut() = before);
        result
    }

    #[cfg(not(target_arch = "wasm32"))]
    pub(super) fn answers(requests: &[Request]) -> Vec<Result<Response, String>> {
        SERVER.with(|place| match place.borrow_mut().as_mut() {
            Some(server) => requests.iter().map(server).collect(),
            None => vec![Err("no server answers; see http::testing::answering".into()); requests.len()],
        })
    }
}
