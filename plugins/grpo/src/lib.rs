//! Group Relative Policy Optimization (Shao et al. 2024) with the loss types grpo, bnpo,
//! dr_grpo (Liu et al. 2025) and dapo (Yu et al. 2025). Names, defaults and figures as in TRL.

mod advantage;
mod loss;
pub mod settings;
#[cfg(test)]
mod tests;

use rlhost_plugin_sdk::Error;
use rlhost_plugin_sdk::policy::{Advantages, Gradient, Needs, Policy, Rollouts, Tokens};
pub use settings::{LossType, ScaleRewards, Settings};

/// The algorithm with its settings.
pub struct Grpo {
    settings: Settings,
}

impl Policy for Grpo {
    type Config = Settings;
    const DESCRIPTION: &'static str = "Group Relative Policy Optimization (grpo, bnpo, dr_grpo, dapo)";

    fn needs(config: &Settings) -> Needs {
        if config.beta > 0.0 { Needs::ENTROPY | Needs::REF_LOGP } else { Needs::ENTROPY }
    }

    fn new(settings: Settings) -> Result<Self, Error> {
        if settings.delta.is_some_and(|delta| delta <= 1.0 + settings.epsilon) {
            return Err(Error::Config("delta must be greater than 1 + epsilon".into()));
        }
        Ok(Self { settings })
    }

    fn estimate(&mut self, rollouts: &Rollouts) -> Result<Advantages, Error> {
        Ok(advantage::estimate(&self.settings, rollouts))
    }

    fn loss(&mut self, tokens: &Tokens) -> Result<Gradient, Error> {
        loss::loss(&self.settings, tokens)
    }
}

rlhost_plugin_sdk::policy_plugin!(Grpo);
