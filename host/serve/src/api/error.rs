//! Errors in OpenAI's and Anthropic's forms.

use crate::config::printable;
use crate::engine::RequestRefusal;
use serde_json::{Value, json};

/// Maximum length of a message, in bytes.
const LONGEST: usize = 1000;

/// Field by which Anthropic's clients ask the server to store a conversation.
pub(super) const THREAD: &str = "thread";

/// Error response to a request.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ApiError {
    /// HTTP status.
    pub status: u16,
    /// Request field at fault.
    param: Option<String>,
    message: String,
}

/// Result of handling a request.
pub(crate) type Result<T> = std::result::Result<T, ApiError>;

impl ApiError {
    /// Creates an error with this status.
    pub(crate) fn new(status: u16, message: impl AsRef<str>) -> Self {
        Self { status, param: None, message: printable(message.as_ref(), LONGEST) }
    }

    /// Creates the error of an invalid request (400).
    pub(crate) fn invalid(message: impl AsRef<str>) -> Self {
        Self::new(400, message)
    }

    /// Creates the error of an invalid field.
    pub(crate) fn field(name: &str, message: impl AsRef<str>) -> Self {
        let name = printable(name, 100);
        Self { param: Some(name.clone()), ..Self::invalid(format!("{name}: {}", message.as_ref())) }
    }

    /// Returns this error with another status.
    pub(crate) fn with_status(self, status: u16) -> Self {
        Self { status, ..self }
    }

    /// Returns the message.
    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    /// Returns the error as JSON, in OpenAI's form.
    pub(crate) fn to_json(&self) -> Value {
        let (kind, code) = match self.status {
            401 => ("authentication_error", "invalid_api_key"),
            404 => ("not_found_error", "not_found"),
            429 => ("rate_limit_error", "too_many_requests"),
            400..=499 => ("invalid_request_error", "invalid_request"),
            503 => ("service_unavailable_error", "unavailable"),
            _ => ("server_error", "internal_error"),
        };
        json!({"error": {"message": self.message, "type": kind, "param": self.param, "code": code}})
    }
}

impl ApiError {
    /// Returns the error as JSON, in Anthropic's form.
    pub(crate) fn to_anthropic(&self) -> Value {
        let kind = match self.status {
            401 => "authentication_error",
            403 => "permission_error",
            404 => "not_found_error",
            413 => "request_too_large",
            429 => "rate_limit_error",
            400..=499 => "invalid_request_error",
            503 => "overloaded_error",
            504 => "timeout_error",
            _ => "api_error",
        };
        let mut all = json!({"type": "error", "error": {"type": kind, "message": self.message}});
        if self.param.as_deref() == Some(THREAD) {
            // Clients then send the full conversation each time, as to any server that stores nothing.
            all["error"]["details"] = json!({"error_code": "thread_unsupported_request", "unsupported": [THREAD]});
        }
        all
    }
}

impl From<RequestRefusal> for ApiError {
    fn from(refusal: RequestRefusal) -> Self {
        let status = match refusal {
            RequestRefusal::Full => 429,
            RequestRefusal::Stopping | RequestRefusal::EngineEnded => 503,
            RequestRefusal::Empty | RequestRefusal::UnknownToken { .. } | RequestRefusal::TooLong { .. } => 400,
        };
        Self::new(status, refusal.to_string())
    }
}

impl From<crate::data::Error> for ApiError {
    fn from(error: crate::data::Error) -> Self {
        Self::invalid(error.to_string())
    }
}
