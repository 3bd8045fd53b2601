//! Inference server: the engine ([`engine`]), and an OpenAI-compatible HTTP server on top of it ([`InferenceServer`]).
//!
//! The engine knows tokens, sampling parameters and weight versions; text, chat templates and HTTP are layers above it. Only the routes in
//! `api/` know the fields of a request, and only `http/` knows connections.

mod api;
pub mod engine;
mod http;
mod scorer;
pub mod session;
pub mod sessions;
pub mod tasks;
mod text;
mod weights;

pub use api::{App, EventSource, ModelCard, ServedWeights};
pub use http::{
    BodyMemoryBudget, BodyReadError, BoundAddress, ConnectionLimits, HttpListener, HttpService, InferenceServer,
    InferenceServerSettings, ReplyBody, check_key, read_keys,
};
pub use scorer::RewardModelScorer;
pub use weights::{WeightLoader, folder_checksums};

use rlhost_config as config;
use rlhost_data as data;
use rlhost_models::model;
use rlhost_ops as ops;
