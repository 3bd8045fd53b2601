//! `rlhost`: RL post-training of language models, with rewards and losses as WebAssembly plugins. `ARCHITECTURE.md` in this crate's folder
//! describes its structure.

pub mod cli;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
pub mod gguf;

pub use rlhost_config as config;
pub use rlhost_config::activity;
pub use rlhost_data as data;
pub use rlhost_dist as dist;
pub use rlhost_models::{model, optim, rollout};
pub use rlhost_ops as ops;
pub use rlhost_plugin as plugin;
use rlhost_records::run;
pub use rlhost_records::{checkpoint, diagnosis, metrics, report, trackers};
pub use rlhost_train as train;
pub use rlhost_web::hub;

/// Reuses the memory of large tensors, which every operation allocates and frees; the system's allocator would map and clear it each time.
/// The allocator is limited, so that untrusted templates and tokenizers stay within their bounds ([`ops::bounded`]).
#[global_allocator]
static ALLOCATOR: ops::bounded::LimitedAllocator<mimalloc::MiMalloc> = ops::bounded::LimitedAllocator(mimalloc::MiMalloc);
