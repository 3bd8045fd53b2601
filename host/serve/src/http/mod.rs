//! HTTP: connections, their limits, and access control.

mod access;
mod body;
mod connections;
mod limits;
mod listener;
mod server;

pub use access::{check_key, read_keys};
pub use body::{BodyMemoryBudget, BodyReadError, ReplyBody};
pub use limits::ConnectionLimits;
pub use listener::{BoundAddress, HttpListener, HttpService};
pub use server::{InferenceServer, InferenceServerSettings};
