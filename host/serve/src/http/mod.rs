//! HTTP: connections, their limits, and who may ask.

mod access;
mod body;
mod connections;
mod limits;
mod server;

pub use access::{check_key, read_keys};
pub use limits::Limits;
pub use server::{Server, Settings};
