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
mod rescoring;
mod reward_failure;
mod reward_model;
mod setup;
mod snapshot;
mod solved;
mod step;
mod trainer;

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
pub use setup::{Purpose, set_up, set_up_for};
pub use trainer::{Finished, Listener, Trainer};

pub use snapshot::read as read_snapshot;

/// Result of an operation of a run.
pub type Result<T> = std::result::Result<T, Error>;
