//! Why a server gave no answer to use.

use thiserror::Error;

/// Why a server gave no answer to use.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum InferenceFailure {
    /// It refused a request.
    #[error("{server} refused {path}: {status} {detail}")]
    Refused {
        /// The server.
        server: String,
        /// The path that was asked for.
        path: &'static str,
        /// The HTTP status.
        status: u16,
        /// What it says of it.
        detail: String,
    },
    /// It can't be reached, or takes too long.
    #[error("{server}: {detail}")]
    Unreachable {
        /// The server.
        server: String,
        /// Why.
        detail: String,
    },
    /// Its answer is not what the protocol says.
    #[error("{server} answered {path} with something else than an inference server does: {detail}")]
    Foreign {
        /// The server.
        server: String,
        /// The path that was asked for.
        path: &'static str,
        /// What is wrong with it.
        detail: String,
    },
}

impl InferenceFailure {
    /// Returns whether it is about the request rather than about the server: repeating it elsewhere would change nothing.
    pub fn is_of_the_request(&self) -> bool {
        matches!(self, Self::Refused { status: 400 | 401 | 403 | 413 | 422, .. })
    }
}
