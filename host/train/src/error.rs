//! Errors that can end a run, and who caused them.

use crate::config::words::counted;
use std::fmt::Display;
use std::path::{Path, PathBuf};

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
    /// A plugin failed in the trial before the run began.
    #[error(transparent)]
    DryRun(crate::plugin::Error),
    /// The configuration does not fit what was loaded.
    #[error(transparent)]
    Config(#[from] crate::config::Error),
    /// A checkpoint could not be written.
    #[error(transparent)]
    Checkpoint(#[from] crate::checkpoint::Error),
    /// A file of the run could not be written.
    #[error("can't write {}: {source}", path.display())]
    Write {
        /// Path of the file.
        path: PathBuf,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// Another process of the run failed, or can't be reached.
    #[error(transparent)]
    Ranks(#[from] crate::dist::Error),
    /// An operation failed.
    #[error(transparent)]
    Op(#[from] crate::ops::Error),
    /// A setting does not fit the model, the data or the algorithm.
    #[error("{key}: {detail}")]
    Setting {
        /// The configuration's key.
        key: &'static str,
        /// What is wrong, and what would be valid.
        detail: String,
    },
    /// The run's folder can't be used.
    #[error("output_dir {} {detail}", path.display())]
    OutputDir {
        /// Path of the folder.
        path: PathBuf,
        /// Why it can't be used, and what to do.
        detail: String,
    },
    /// A file or folder that the run needs is invalid.
    #[error("{}: {detail}", path.display())]
    Unusable {
        /// Path of the file or folder.
        path: PathBuf,
        /// Description of the fault.
        detail: String,
    },
    /// The settings differ from those of the resumed run.
    #[error("{0}")]
    Changed(String),
    /// The dataset is too small.
    #[error(
        "the dataset has {}, but one generation takes {generation}; lower per_device_train_batch_size or \
         steps_per_generation",
        counted(*prompts as u64, "prompt")
    )]
    TooFewPrompts {
        /// Number of prompts in the dataset.
        prompts: usize,
        /// Number of prompts in a generation.
        generation: usize,
    },
    /// A reward model could not score a text.
    #[error("reward model {name}: {detail}")]
    RewardModel {
        /// Name of the reward model.
        name: String,
        /// Description of the fault.
        detail: String,
    },
    /// No reward scored any completion.
    #[error("no reward could score any completion in step {}{}{}", step + 1, in_a_row(*generations), because(reason.as_deref()))]
    Unscored {
        /// Number of steps completed before.
        step: u64,
        /// Number of consecutive generations without a score.
        generations: u64,
        /// The first error that a reward returned for a completion, if any did.
        reason: Option<String>,
    },
    /// The inference servers that should generate completions can't be used.
    #[error("{0}")]
    RolloutServers(String),
    /// The teacher's inference server can't be used.
    #[error("teacher_server: {0}")]
    TeacherServer(String),
    /// The replayed run has no more completions.
    #[error("{0}")]
    ReplayEnds(String),
    /// Too few groups of completions have rewards that differ.
    #[error(
        "filter_groups: in {} (max_num_gen_batches) only {found} of the {wanted} prompts that a step needs have completions \
         whose rewards differ; use prompts that the model solves sometimes, or a finer-grained reward",
        counted(*generations, "generation")
    )]
    NoSpread {
        /// Number of generations that were made.
        generations: u64,
        /// Number of prompts whose rewards differ.
        found: usize,
        /// Number of prompts that a step needs.
        wanted: usize,
    },
    /// The ranks were not started for the same run.
    #[error("rank {rank} {detail}")]
    SetUpsDiffer {
        /// The first rank that differs from rank 0.
        rank: usize,
        /// The difference.
        detail: String,
    },
    /// The ranks no longer train the same model.
    #[error(
        "after step {step} the weights of rank {rank} differ from those of rank 0: a processor, a library or the network gives \
         different results"
    )]
    WeightsDiffer {
        /// Number of the step.
        step: u64,
        /// The first rank that differs from rank 0.
        rank: usize,
    },
    /// Something can't be encoded.
    #[error("{what} can't be encoded: {detail}")]
    Encoding {
        /// Name of the object.
        what: &'static str,
        /// Error of the encoder.
        detail: String,
    },
    /// A bug: something impossible has happened.
    #[error("{0}; this is a bug in rlhost")]
    Bug(&'static str),
    /// The step counter moved by something other than one: a bug.
    #[error("the step counter went from {from} to {to}; this is a bug in rlhost, so the run stops")]
    Counter {
        /// Counter before the step.
        from: u64,
        /// Counter after the step.
        to: u64,
    },
    /// The loss or gradient is not finite.
    #[error("the {}gradient at step {step} is {norm}; the weights were not changed", whose(prefix))]
    NotFinite {
        /// Number of the step.
        step: u64,
        /// Norm of the gradient.
        norm: f64,
        /// Prefix of the critic (`critic_`), or empty for the policy.
        prefix: &'static str,
    },
    /// The update would have made weights infinite or NaN.
    #[error(
        "the {}update at step {step} would make {parameter} infinite or NaN; the weights were not changed. The learning \
         rate is {lr:e}: lower {prefix}learning_rate, unless the model's own weights are like that",
        whose(prefix)
    )]
    Overflow {
        /// Number of the step.
        step: u64,
        /// The first affected parameter.
        parameter: String,
        /// The learning rate of the step.
        lr: f64,
        /// Prefix of the critic (`critic_`), or empty for the policy.
        prefix: &'static str,
    },
    /// The weights are not finite; only a model that was loaded that way can have such weights.
    #[error("some weights are not finite, so they are not saved: a checkpoint of them would be useless")]
    WeightsNotFinite,
}

/// Returns how an error names the model with this prefix.
fn whose(prefix: &str) -> &'static str {
    if prefix.is_empty() { "" } else { "critic's " }
}

fn in_a_row(generations: u64) -> String {
    if generations == 1 { String::new() } else { format!(", {generations} generations in a row") }
}

fn because(reason: Option<&str>) -> String {
    reason.map_or_else(String::new, |reason| format!(": {reason}"))
}

impl Error {
    pub(super) fn setting(key: &'static str, detail: impl Display) -> Self {
        Self::Setting { key, detail: detail.to_string() }
    }

    pub(super) fn unusable(path: &Path, detail: impl Display) -> Self {
        Self::Unusable { path: path.to_owned(), detail: detail.to_string() }
    }

    pub(super) fn encoding(what: &'static str, error: &dyn Display) -> Self {
        Self::Encoding { what, detail: error.to_string() }
    }

    /// Returns whether a checkpoint could not be written, on this rank or on a failed one.
    pub fn is_of_saving(&self) -> bool {
        match self {
            Self::Checkpoint(_) => true,
            Self::Ranks(crate::dist::Error::Failed { failure, .. }) => failure.of_saving,
            _ => false,
        }
    }

    /// Returns whether the user's input is at fault, rather than the machine or the program.
    pub fn is_mistake(&self) -> bool {
        match self {
            Self::Model(error) => error.is_mistake(),
            Self::Data(error) => error.is_mistake(),
            Self::Config(error) => error.is_mistake(),
            Self::Hub(error) => error.is_mistake(),
            Self::DryRun(_) => true,
            Self::Plugin(error) => error.is_mistake(),
            Self::Checkpoint(error) => error.is_mistake(),
            Self::Ranks(error) => error.is_mistake(),
            Self::Setting { .. } | Self::OutputDir { .. } | Self::Unusable { .. } | Self::Changed(_) => true,
            Self::TooFewPrompts { .. } | Self::RewardModel { .. } | Self::SetUpsDiffer { .. } => true,
            Self::Write { source, .. } => crate::config::files::is_path_error(source),
            Self::Op(_)
            | Self::Unscored { .. }
            | Self::NoSpread { .. }
            | Self::RolloutServers(_)
            | Self::TeacherServer(_)
            | Self::ReplayEnds(_)
            | Self::WeightsDiffer { .. }
            | Self::Encoding { .. }
            | Self::Bug(_) => false,
            Self::Counter { .. } | Self::NotFinite { .. } | Self::Overflow { .. } | Self::WeightsNotFinite => false,
        }
    }

    /// Returns the plugin whose call failed, in this process or another.
    pub fn plugin_at_fault(&self) -> Option<&str> {
        match self {
            Self::Plugin(crate::plugin::Error::Call { name, .. })
            | Self::DryRun(crate::plugin::Error::Call { name, .. })
            | Self::RewardModel { name, .. } => Some(name),
            Self::Ranks(crate::dist::Error::Failed { failure, .. }) => failure.plugin.as_deref(),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lone_prompt_is_not_many() {
        let said = |prompts: usize| Error::TooFewPrompts { prompts, generation: 8 }.to_string();
        assert!(said(1).starts_with("the dataset has 1 prompt, but one generation takes 8; "), "{}", said(1));
        assert!(said(2).starts_with("the dataset has 2 prompts, but "), "{}", said(2));
    }

    #[test]
    fn a_generation_without_a_score_is_explained_by_what_a_reward_said() {
        let said = |generations, reason: Option<&str>| {
            Error::Unscored { step: 3, generations, reason: reason.map(str::to_owned) }.to_string()
        };
        let failed = said(1, Some("plugin rw, score in step 4: no answer"));
        assert_eq!(failed, "no reward could score any completion in step 4: plugin rw, score in step 4: no answer");
        assert_eq!(said(16, None), "no reward could score any completion in step 4, 16 generations in a row");
    }
}
