//! Language models: the decoder ([`model`]), what it generates ([`rollout`]) and how it is updated ([`optim`]).

pub mod model;
pub mod optim;
pub mod rollout;

use rlhost_config as config;
use rlhost_config::activity;
use rlhost_ops as ops;
