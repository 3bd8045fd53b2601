//! Limits on connections.

use std::time::Duration;

/// Limits on connections.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionLimits {
    /// Maximum number of open connections; further ones wait until one is closed.
    pub connections: usize,
    /// Maximum size of a body.
    pub body_bytes: usize,
    /// Maximum time for a request's headers, and between two requests on a connection.
    pub header_time: Duration,
    /// Maximum time for a request's body.
    pub body_time: Duration,
    /// Maximum time for a response that is not streamed, and for the start of one that is.
    pub answer_time: Duration,
}

impl Default for ConnectionLimits {
    fn default() -> Self {
        Self {
            connections: 4096,
            body_bytes: 16 << 20,
            header_time: Duration::from_secs(15),
            body_time: Duration::from_secs(60),
            answer_time: Duration::from_secs(3600),
        }
    }
}
