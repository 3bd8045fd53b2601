//! HTTP: connections, their limits, and who may ask.

mod access;
mod body;
mod connections;
mod limits;
mod listening;
mod server;

pub use access::{check_key, read_keys};
pub use body::{Budget, ReplyBody, UnreadBody};
pub use limits::Limits;
pub use listening::{Bound, Listening, Service};
pub use server::{Server, Settings};
