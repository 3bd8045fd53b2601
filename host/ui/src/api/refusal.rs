//! Errors of the API.

use crate::config::printable_lines;
use serde_json::{Value, json};
use std::io;

/// Maximum length of a message, in bytes.
const LONGEST_MESSAGE: usize = 4000;

/// Error response to a request.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ApiRefusal {
    /// HTTP status.
    pub status: u16,
    /// Error message; for status 308, the target of the redirect.
    pub message: String,
}

impl ApiRefusal {
    pub fn new(status: u16, message: impl AsRef<str>) -> Self {
        Self { status, message: printable_lines(message.as_ref(), LONGEST_MESSAGE) }
    }

    pub fn invalid(message: impl AsRef<str>) -> Self {
        Self::new(400, message)
    }

    pub fn to_json(&self) -> Value {
        json!({ "error": self.message })
    }
}

impl From<io::Error> for ApiRefusal {
    fn from(error: io::Error) -> Self {
        Self::new(500, format!("can't read the run's files: {error}"))
    }
}

pub(crate) type Result<T> = std::result::Result<T, ApiRefusal>;
