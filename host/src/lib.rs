//! `rlhost`: RL post-training of language models with rewards and losses as WebAssembly
//! plugins. `ARCHITECTURE.md` in this crate's folder is the map.

pub mod activity;
pub mod checkpoint;
pub mod cli;
pub mod config;
pub mod data;
pub mod diagnosis;
pub mod dist;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
pub mod gguf;
pub mod hub;
pub mod metrics;
pub mod model;
mod net;
pub mod optim;
pub mod plugin;
pub mod report;
pub mod rollout;
mod run;
pub mod trackers;
pub mod train;

pub use rlhost_ops as ops;

/// Reuses the memory of large tensors, which come and go with every operation; the system's allocator would map and clear each
/// one again. Limited, so that untrusted templates and tokenizers stay within their bounds ([`ops::bounded`]).
#[global_allocator]
static ALLOCATOR: ops::bounded::Limited<mimalloc::MiMalloc> = ops::bounded::Limited(mimalloc::MiMalloc);
