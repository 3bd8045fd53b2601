//! Response of a route, before it becomes an HTTP response.

use super::error::ApiError;
use serde_json::Value;
use std::task::{Context, Poll};

/// Prefix of the paths of Anthropic's API.
const ANTHROPIC: &str = "/v1/messages";

/// Source of events, which are written while they are sent.
pub trait EventSource: Send {
    /// Polls for the next events; `None` at the end.
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<String>>;
}

/// Body of a response.
pub(crate) enum ReplyContent {
    /// JSON value.
    Json(Value),
    /// Plain text, in Prometheus' format.
    Text(String),
    /// Server-sent events.
    Events(Box<dyn EventSource>),
}

/// Response of a route.
pub(crate) struct Reply {
    /// HTTP status.
    pub status: u16,
    /// Body.
    pub content: ReplyContent,
}

impl Reply {
    pub(crate) fn json(value: Value) -> Self {
        Self { status: 200, content: ReplyContent::Json(value) }
    }

    pub(crate) fn text(text: String) -> Self {
        Self { status: 200, content: ReplyContent::Text(text) }
    }

    pub(crate) fn events(source: impl EventSource + 'static) -> Self {
        Self { status: 200, content: ReplyContent::Events(Box::new(source)) }
    }
}

impl Reply {
    /// Returns the error response for a path, in the form of the API that the path belongs to.
    pub(crate) fn error(error: &ApiError, path: &str) -> Self {
        let is_anthropic = path.starts_with(ANTHROPIC);
        let content = if is_anthropic { error.to_anthropic() } else { error.to_json() };
        Self { status: error.status, content: ReplyContent::Json(content) }
    }
}
