//! Requests: the agent that makes them all ([`net`]), and models and datasets from the hub ([`hub`]).

pub mod hub;
pub mod net;

use rlhost_config as config;
use rlhost_config::activity;
