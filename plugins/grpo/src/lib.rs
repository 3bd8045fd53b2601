//! Group Relative Policy Optimization (Shao et al. 2024, arXiv 2402.03300) and its variants. Names, defaults and metrics are
//! TRL's.
//!
//! - `advantage`: advantages from rewards
//! - `turns`: advantages of each turn of an episode
//! - `teacher`: addition of a teacher's divergence to advantages
//! - `surrogate`: the loss of one token, by loss type
//! - `loss`: the loss of a micro-batch and its derivatives
//! - `correction`: factors for sampling in another precision
//! - `masks`: tokens and completions excluded from the policy's loss
//! - `entropy`: the entropy bonus and its adaptive coefficient
//! - `metrics`: metrics of a loss

mod advantage;
mod correction;
mod entropy;
mod loss;
mod masks;
mod metrics;
pub mod settings;
mod surrogate;
mod teacher;
#[cfg(test)]
mod tests;
mod turns;

use entropy::EntropyControl;
use rlhost_plugin_sdk::Error;
use rlhost_plugin_sdk::policy::{Advantages, Needs, Observing, Policy, PolicyGradient, Rollouts, Stateful, Tokens};
pub use settings::{
    CorrectionMode, GrpoLossType, GrpoSettings, ImportanceSamplingLevel, MultiObjectiveAggregation, ScaleRewards, TurnAdvantages,
};

/// The algorithm with its settings.
pub struct Grpo {
    settings: GrpoSettings,
    control: EntropyControl,
}

impl Policy for Grpo {
    type Config = GrpoSettings;
    const DESCRIPTION: &'static str =
        "Group Relative Policy Optimization (grpo, bnpo, dr_grpo, dapo, cispo, sapo, luspo, vespo; GSPO, GDPO)";

    fn needs(config: &GrpoSettings) -> Needs {
        let mut needs = Needs::ENTROPY;
        if config.beta > 0.0 {
            needs |= Needs::REF_LOGP;
        }
        if config.teacher_kl_coef > 0.0 {
            needs |= Needs::TEACHER_LOGP;
        }
        if config.off_policy_mask_threshold.is_some() || config.vllm_importance_sampling_correction {
            needs |= Needs::SAMPLING_LOGP;
        }
        if config.turn_advantages != TurnAdvantages::None {
            needs |= Needs::TURN_REWARD;
        }
        needs
    }

    fn compares(_: &GrpoSettings) -> bool {
        true
    }

    fn new(settings: GrpoSettings) -> Result<Self, Error> {
        settings.check_correction().map_err(Error::Config)?;
        settings.check_turns().map_err(Error::Config)?;
        for doubt in settings.warnings() {
            rlhost_plugin_sdk::warn(&doubt);
        }
        Ok(Self { settings, control: EntropyControl::default() })
    }

    fn estimate(&mut self, rollouts: &Rollouts) -> Result<Advantages, Error> {
        let estimated = match &rollouts.turns {
            Some(turns) => turns::estimate(&self.settings, rollouts, turns),
            None => advantage::estimate(&self.settings, rollouts),
        };
        teacher::add(&self.settings, rollouts, estimated)
    }

    fn loss(&mut self, tokens: &Tokens) -> Result<PolicyGradient, Error> {
        loss::loss(&self.settings, &self.control, tokens)
    }
}

impl Stateful for Grpo {
    type State = EntropyControl;

    fn state(&mut self) -> &mut EntropyControl {
        &mut self.control
    }
}

impl Observing for Grpo {
    fn observe(&mut self, _step: u64, metrics: &[(String, f64)]) {
        self.control.observe(&self.settings, metrics);
    }
}

rlhost_plugin_sdk::policy_plugin!(Grpo, observing);
