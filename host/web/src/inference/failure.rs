//! Errors of inference servers.

use thiserror::Error;

/// Reason why a request to an inference server failed.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum InferenceFailure {
    /// The server refused the request.
    #[error("{server} refused {path}: {status} {detail}")]
    Refused {
        /// Address of the server.
        server: String,
        /// Path of the request.
        path: &'static str,
        /// HTTP status.
        status: u16,
        /// Message of the server.
        detail: String,
    },
    /// The server can't be reached, or takes too long.
    #[error("{server}: {detail}")]
    Unreachable {
        /// Address of the server.
        server: String,
        /// Reason.
        detail: String,
    },
    /// The response does not follow the protocol.
    #[error("{server} answered {path} with something else than an inference server does: {detail}")]
    Foreign {
        /// Address of the server.
        server: String,
        /// Path of the request.
        path: &'static str,
        /// What is wrong with the response.
        detail: String,
    },
}

impl InferenceFailure {
    /// Returns whether the server may be able to answer later: it can't be reached, or says that it is busy or not ready.
    pub fn is_temporary(&self) -> bool {
        matches!(self, Self::Unreachable { .. } | Self::Refused { status: 408 | 429 | 500..=599, .. })
    }

    /// Returns whether the request is at fault rather than the server, so that another server would fail, too.
    pub fn is_of_the_request(&self) -> bool {
        matches!(self, Self::Refused { status: 400 | 401 | 403 | 413 | 422, .. })
    }
}
