//! The server of a model: where it listens, whom it answers, and how it ends.

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

/// Where a server listens, and who may ask.
#[derive(Clone, Debug)]
pub struct InferenceServerSettings {
    /// IP address or host name.
    pub host: String,
    /// Port; 0 picks a free one.
    pub port: u16,
    /// API keys, one of which a request needs; none if anybody may ask.
    pub keys: Vec<String>,
    /// Limits on connections.
    pub limits: ConnectionLimits,
}

/// A running server. Dropping it ends all connections.
pub struct InferenceServer {
    app: Arc<App>,
    listening: HttpListener,
}

impl InferenceServer {
    /// Listens, and starts to answer.
    ///
    /// # Errors
    /// If it can't listen there, or an address that others reach has no keys; names address and port.
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

    /// Accepts nothing more, and waits up to `limit` for what is under way. Returns whether all of it was finished.
    pub fn drain(&self, limit: Duration) -> bool {
        if let Some(engine) = self.app.engine() {
            engine.stop_accepting();
            // What a pause has kept is finished too. The engine has ended if this fails.
            let _ = engine.resume();
        }
        self.listening.drain(limit)
    }
}
