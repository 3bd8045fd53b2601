//! Language models: the decoder ([`model`]), generation ([`rollout`]) and optimizers ([`optim`]).

pub mod model;
pub mod optim;
pub mod rollout;

use rlhost_config as config;
use rlhost_config::activity;
use rlhost_ops as ops;
