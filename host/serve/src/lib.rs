//! Inference for clients: an engine whose requests come and go ([`engine`]).

pub mod engine;

use rlhost_models::model;
use rlhost_ops as ops;
