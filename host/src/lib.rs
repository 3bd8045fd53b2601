//! `rlhost`: RL post-training of language models with rewards and losses as WebAssembly
//! plugins. `ARCHITECTURE.md` beside this crate has the map.

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
pub mod optim;
pub mod plugin;
pub mod report;
pub mod rollout;
pub mod trackers;
pub mod train;

pub use rlhost_ops as ops;

/// Caches large allocations, which come and go with every operation; the system's allocator maps and clears each anew. Also
/// enforces memory limits for untrusted templates and tokenizers ([`ops::bounded`]).
#[global_allocator]
static ALLOCATOR: ops::bounded::Limited<mimalloc::MiMalloc> = ops::bounded::Limited(mimalloc::MiMalloc);
