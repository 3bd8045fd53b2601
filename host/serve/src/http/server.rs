//! HTTP server of a model: start, access control and shutdown.

use super::access::InferenceAccess;
use super::body::BodyMemoryBudget;
use super::connections::InferenceServerContext;
use super::limits::ConnectionLimits;
use super::listener::{BoundAddress, HttpListener};
use crate::api::App;
use rlhost_records::metrics::AllowedHosts;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// Memory for all bodies that are being read, in bytes.
const MOST_BODIES: usize = 256 << 20;

/// Address and access control of a server.
#[derive(Clone, Debug)]
pub struct InferenceServerSettings {
    /// IP address or host name.
    pub host: String,
    /// Port; 0 picks a free one.
    pub port: u16,
    /// API keys, one of which a request must have; empty if requests need none.
    pub keys: Vec<String>,
    /// Limits on connections.
    pub limits: ConnectionLimits,
}

/// Running server. Dropping it closes all connections.
pub struct InferenceServer {
    app: Arc<App>,
    listening: HttpListener,
}

impl InferenceServer {
    /// Binds the address and starts to answer requests.
    ///
    /// # Errors
    /// If the address can't be bound, or others can reach it and there are no keys; names address and port.
    pub fn start(app: App, settings: InferenceServerSettings) -> io::Result<Self> {
        let InferenceServerSettings { host, port, keys, limits } = settings;
        let bound = BoundAddress::new(&host, port)?;
        let address = bound.address();
        if keys.is_empty() && !address.ip().is_loopback() {
            let detail = format!(
                "{host} can be reached from other machines, and nothing asks them for a key; give an --api-key-file, or listen on 127.0.0.1"
            );
            return Err(io::Error::new(io::ErrorKind::InvalidInput, detail));
        }
        let app = Arc::new(app);
        let access = InferenceAccess { keys, hosts: AllowedHosts::new(host, address.ip()) };
        let context = Arc::new(InferenceServerContext {
            app: Arc::clone(&app),
            access,
            limits,
            budget: BodyMemoryBudget::new(MOST_BODIES),
        });
        Ok(Self { app, listening: HttpListener::start(context, bound, limits)? })
    }

    /// Returns the address it listens on.
    pub fn address(&self) -> SocketAddr {
        self.listening.address()
    }

    /// Stops accepting connections, and waits up to `limit` for requests in progress. Returns whether all have finished.
    pub fn drain(&self, limit: Duration) -> bool {
        if let Some(engine) = self.app.engine() {
            engine.stop_accepting();
            // Requests that a pause holds back finish, too. Fails only if the engine has ended.
            let _ = engine.resume();
        }
        self.listening.drain(limit)
    }
}
