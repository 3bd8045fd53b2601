//! The training loop, which uses all the other modules.

mod collector;
mod columns;
mod dataset;
mod episode;
mod error;
mod evaluating;
mod evaluation;
mod experience;
mod figures;
mod flow;
mod journal;
mod learner;
mod measure;
mod moment;
mod named;
mod origin;
mod packed;
mod pass_metrics;
mod patience;
mod periods;
mod phase;
mod plan;
mod plugins;
mod ranks;
mod rehearsal;
mod requests;
mod rescoring;
mod reward_failure;
mod reward_model;
mod rollout_log;
mod saving;
mod setup;
mod sharding;
mod shared_model;
mod snapshot;
mod solved;
mod step;
mod stored_rollouts;
mod trainer;

use rlhost_config as config;
use rlhost_config::activity;
use rlhost_data as data;
use rlhost_dist as dist;
use rlhost_models::{model, optim, rollout};
use rlhost_ops as ops;
use rlhost_plugin as plugin;
use rlhost_records::{checkpoint, diagnosis, metrics, run};
use rlhost_web::hub;

pub use collector::Sample;
pub use dataset::{BUILT_IN_PROMPTS, Kind as RowKind, Learned};
pub use error::Error;
pub use figures::Work;
pub use flow::Flow;
pub use journal::RunFolder;
pub use measure::{Measured, Measurement, MemoryUse};
pub use named::{dataset_of, has_split, local_dataset, model_in, model_of};
pub use origin::{Beginning, Origin, Terms};
pub use periods::{Calendar, Recurring};
pub use plugins::start_of;
pub use rehearsal::{Rehearsal, Scores, Shown};
pub use rescoring::{Asked, Played, Recording, Rescorer};
pub use reward_model::{RewardModel, ScoredRows};
pub use setup::{Purpose, Requirements, requirements, set_up, set_up_for};
pub use trainer::{Finished, Listener, Trainer};

pub use snapshot::read as read_snapshot;

/// Result of an operation of a run.
pub type Result<T> = std::result::Result<T, Error>;

/// As in the program: tests must find that what is untrusted stays within its bounds.
#[cfg(test)]
#[global_allocator]
static ALLOCATOR: ops::bounded::Limited<mimalloc::MiMalloc> = ops::bounded::Limited(mimalloc::MiMalloc);
