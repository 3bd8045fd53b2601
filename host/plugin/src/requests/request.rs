//! A request to a server, and its answer.

use std::sync::Arc;
use wasmtime::component::{ComponentType, Lift, Lower};

/// The interface through which a plugin sends requests, in all its versions, which are identical.
pub(crate) const INTERFACES: [&str; 2] = ["rlhost:plugin/http@1.0.0", "rlhost:plugin/http@0.2.0"];

/// A request as the plugin makes it.
#[derive(Clone, Debug, PartialEq, Eq, ComponentType, Lift)]
#[component(record)]
pub(crate) struct OutboundRequest {
    pub method: String,
    pub url: String,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    #[component(name = "timeout-ms")]
    pub timeout_ms: u32,
}

/// A server's answer.
#[derive(Clone, Debug, PartialEq, Eq, ComponentType, Lower)]
#[component(record)]
pub(crate) struct OutboundResponse {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

/// The outcome of a request: an answer, or the reason why there is none.
pub(crate) type OutboundResult = Result<Arc<OutboundResponse>, String>;
