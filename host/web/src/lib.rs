//! Outgoing requests: the agent that makes them all ([`net`]), models and datasets from the hub ([`hub`]), and clients of inference servers
//! ([`inference`]).

pub mod hub;
pub mod inference;
pub mod net;

use rlhost_config as config;
use rlhost_config::activity;
