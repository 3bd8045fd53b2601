//! The training loop, which uses all the other modules.

mod collector;
mod dataset;
mod evaluation;
mod experience;
mod figures;
mod flow;
mod journal;
mod learner;
mod measure;
mod named;
mod origin;
mod packed;
mod patience;
mod plugins;
mod ranks;
mod reward_model;
mod setup;
mod snapshot;
mod solved;
mod step;
mod trainer;

pub use collector::Sample;
pub use dataset::BUILT_IN_PROMPTS;
pub use figures::Work;
pub use journal::{INBOX, RunFolder, answers_of};
pub use measure::{Measured, Measurement, Memory};
pub use named::{dataset_of, model_of};
pub use origin::{Beginning, Origin};
pub use reward_model::{RewardModel, Said, ScoredRows, model_or_run};
pub use setup::set_up;
pub use trainer::{Finished, Listener, Trainer};

#[cfg(any(test, fuzzing))]
pub(crate) use snapshot::read as read_snapshot;

use std::path::PathBuf;

/// Errors that can end a run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A model could not be loaded or run.
    #[error(transparent)]
    Model(#[from] crate::model::Error),
    /// Data could not be read.
    #[error(transparent)]
    Data(#[from] crate::data::Error),
    /// Something could not be downloaded from the hub.
    #[error(transparent)]
    Hub(#[from] crate::hub::Error),
    /// A plugin could not be loaded or failed.
    #[error(transparent)]
    Plugin(#[from] crate::plugin::Error),
    /// The configuration does not fit what was loaded.
    #[error(transparent)]
    Config(#[from] crate::config::Error),
    /// A checkpoint could not be written.
    #[error(transparent)]
    Checkpoint(#[from] crate::checkpoint::Error),
    /// A file of the run could not be written.
    #[error("can't write {}: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// Another process of the run failed, or can't be reached.
    #[error(transparent)]
    Ranks(#[from] crate::dist::Error),
    /// An operation failed.
    #[error(transparent)]
    Op(#[from] crate::ops::Error),
    /// The configured parts don't form a valid run.
    #[error("{0}")]
    Unfit(String),
    /// The step counter moved by something other than one: a bug.
    #[error("the step counter went from {from} to {to}; this is a bug in rlhost, so the run stops")]
    Counter {
        /// Before the step.
        from: u64,
        /// After it.
        to: u64,
    },
    /// The loss or gradient is not finite.
    #[error("the {}gradient at step {step} is {norm}; the weights were not changed", whose(prefix))]
    NotFinite {
        /// The step.
        step: u64,
        /// The gradient's norm.
        norm: f64,
        /// `critic_` if it is the critic's.
        prefix: &'static str,
    },
    /// The update would have made weights infinite or NaN.
    #[error(
        "the {}update at step {step} would make {parameter} infinite or NaN; the weights were not changed. The learning \
         rate is {lr:e}: lower {prefix}learning_rate, unless the model's own weights are like that",
        whose(prefix)
    )]
    Overflow {
        /// The step.
        step: u64,
        /// The first affected parameter.
        parameter: String,
        /// The learning rate of the step.
        lr: f64,
        /// As in [`Error::NotFinite`].
        prefix: &'static str,
    },
    /// The weights are not finite; only a model that was loaded that way can have such weights.
    #[error("some weights are not finite, so they are not saved: a checkpoint of them would be useless")]
    WeightsNotFinite,
}

/// Names the model in an error.
fn whose(prefix: &str) -> &'static str {
    if prefix.is_empty() { "" } else { "critic's " }
}

impl Error {
    /// Returns the plugin whose call failed, here or in another process.
    fn plugin_at_fault(&self) -> Option<&str> {
        match self {
            Self::Plugin(crate::plugin::Error::Call { name, .. }) => Some(name),
            Self::Ranks(crate::dist::Error::Failed { failure, .. }) => failure.plugin.as_deref(),
            _ => None,
        }
    }
}

/// Result of an operation of a run.
pub type Result<T> = std::result::Result<T, Error>;
