//! The training loop and the parts of a run: collector, learner, plugins and journal.

mod collector;
mod columns;
mod dataset;
mod episode;
mod error;
mod evaluation;
mod evaluation_loop;
mod experience;
mod flow;
mod journal;
mod learner;
mod measure;
mod name_resolution;
mod origin;
mod packed_completions;
mod pass_at_k;
mod pass_metrics;
mod patience;
mod periods;
mod phase;
mod plan;
mod plugins;
mod policy_progress;
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
mod step;
mod step_metrics;
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

pub use collector::CompletionSample;
pub use dataset::{BUILT_IN_PROMPTS, DatasetKind as RowKind, LearnedParts};
pub use error::Error;
pub use flow::Flow;
pub use journal::RunFolder;
pub use measure::{MeasuredStep, Measurement, MemoryUse};
pub use name_resolution::{dataset_of, has_split, local_dataset, model_in, model_of};
pub use origin::{CheckpointOrigin, ResumeTerms, StartMode};
pub use periods::{Calendar, RecurringAction};
pub use plugins::start_of;
pub use rehearsal::{Rehearsal, RehearsedCompletion, RehearsedPrompt};
pub use rescoring::{RecordedConversation, RecordedGeneration, RecordedPrompt, Rescorer};
pub use reward_model::{FrozenRewardModel, ScoredRows};
pub use setup::{Purpose, Requirements, requirements, set_up, set_up_for};
pub use step_metrics::StepWork;
pub use trainer::{Listener, RunOutcome, Trainer};

pub use snapshot::read as read_snapshot;

/// Result of an operation of a run.
pub type Result<T> = std::result::Result<T, Error>;

/// The program's allocator, so that tests also check the memory limits of untrusted work.
#[cfg(test)]
#[global_allocator]
static ALLOCATOR: ops::bounded::LimitedAllocator<mimalloc::MiMalloc> = ops::bounded::LimitedAllocator(mimalloc::MiMalloc);
