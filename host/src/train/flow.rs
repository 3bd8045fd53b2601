//! Defines the ways to learn.

use crate::config::{Batches, Config, LearnFrom};
use crate::plugin::{self, Outline, Role, Source};

/// Where an algorithm's completions come from, and whether it learns from pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// Completions that the policy generates, singly: GRPO, RLOO, PPO.
    Generated,
    /// Pairs among completions that the policy generates: Online DPO.
    GeneratedPairs,
    /// A dataset's completions, singly: SFT.
    Given,
    /// A dataset's pairs: DPO, CPO.
    GivenPairs,
    /// A dataset's completions with labels: KTO.
    Labelled,
    /// A dataset's pairs, in which each answer gets one value: reward models.
    ValuedPairs,
}

impl Flow {
    /// Returns the role and the flow of an algorithm that was outlined from `source`.
    ///
    /// # Errors
    /// If the plugin is not an algorithm.
    pub fn of(outline: &Outline, source: &Source, learn_from: LearnFrom) -> plugin::Result<(Role, Self)> {
        let role = outline.role(source)?;
        let flow = match role {
            Role::Reward | Role::Environment => return Err(outline.is_no(Role::Policy, source)),
            Role::Policy if learn_from == LearnFrom::Generation => Self::Generated,
            Role::Policy => Self::Given,
            Role::OnlinePreference => Self::GeneratedPairs,
            Role::Preference => Self::GivenPairs,
            Role::Labelled => Self::Labelled,
            Role::RewardModel => Self::ValuedPairs,
        };
        Ok((role, flow))
    }

    /// Returns whether the policy generates the completions.
    pub(super) fn generates(self) -> bool {
        matches!(self, Self::Generated | Self::GeneratedPairs)
    }

    /// Returns whether the end of an epoch is left out if it fills no batch. As in TRL, generations of single completions are whole;
    /// Online DPO takes what is left, unless several passes or filters need whole generations.
    pub(super) fn drops_rest(self, config: &Config) -> bool {
        let several = config.num_iterations > 1 || config.num_mini_batches.is_some() || config.passes_over_prompts();
        config.dataloader_drop_last || self == Self::Generated || self == Self::GeneratedPairs && several
    }

    /// Returns the metric that checkpoints and evaluations are compared by where none is named, and whether a greater one is better.
    pub(super) fn usual_metric(self) -> (&'static str, bool) {
        if self.generates() { ("reward", true) } else { ("loss", false) }
    }

    /// Returns whether it learns from pairs.
    pub(super) fn has_pairs(self) -> bool {
        matches!(self, Self::GeneratedPairs | Self::GivenPairs | Self::ValuedPairs)
    }

    /// Returns the number of prompts in a batch of this many items: completions, or prompts if their completions become pairs.
    pub(super) fn prompts(self, items: usize, config: &Config) -> usize {
        self.prompts_of(items, config.group())
    }

    /// Returns the same, for groups of this size.
    pub(super) fn prompts_of(self, items: usize, group: usize) -> usize {
        if self == Self::Generated { items / group } else { items }
    }

    /// Returns how many given items of an evaluation are collected together. Mismatched completions come from batches of training's size,
    /// as in TRL.
    pub(super) fn evaluated_together(self, sizes: Batches) -> usize {
        if self == Self::Labelled { sizes.micro_batch } else { sizes.eval_micro_batch }
    }

    /// Returns how many of `rows` an evaluation uses: all, or those that fill batches, as in transformers, if there are such.
    pub(super) fn evaluated(self, rows: usize, config: &Config, ranks: usize) -> usize {
        let batch = self.prompts_of(config.batches(ranks).eval_micro_batch, config.eval_group()).max(1);
        if config.dataloader_drop_last && rows >= batch { rows - rows % batch } else { rows }
    }

    /// Returns the divisor of logits in training: the sampling temperature if sampled tokens are learned one by one.
    pub(super) fn temperature(self, config: &Config) -> f32 {
        if self == Self::Generated { config.temperature as f32 } else { 1.0 }
    }
}
