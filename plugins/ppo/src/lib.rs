//! Proximal Policy Optimization with a critic (Schulman et al. 2017, arXiv 1707.06347; for language models Ziegler et al. 2019,
//! arXiv 1909.08593), as TRL had it until 1.10.
//!
//! There is no padding. A completion's score is added to its last token. Upstream adds it to the first padded position after that, whose
//! value it then learns too, unless the completion has the full length. In both, a token's value is that of the state in which it is
//! chosen.
//!
//! - `advantage`: rewards of tokens, generalised advantage estimation, whitening
//! - `loss`: the clipped losses of policy and critic
//! - `moments`: the mean and deviation of all scores
//! - `control`: the adaptive KL coefficient, and the state of both

mod advantage;
mod control;
mod loss;
mod moments;
pub mod settings;
#[cfg(test)]
mod tests;

use control::KlControl;
use rlhost_plugin_sdk::policy::{
    Advantages, Defaults, Derivation, DerivedMetric, Needs, Observing, Policy, PolicyGradient, Rollouts, Stateful, Tokens,
};
use rlhost_plugin_sdk::scores::scores;
use rlhost_plugin_sdk::{Error, Metric};
pub use settings::{PpoKlEstimator, PpoSettings};

/// The algorithm with its settings.
pub struct Ppo {
    settings: PpoSettings,
    control: KlControl,
}

impl Policy for Ppo {
    type Config = PpoSettings;
    const DESCRIPTION: &'static str = "Proximal Policy Optimization with a critic";
    const LEARNING_RATE: f64 = 3e-6;
    const DEFAULTS: Defaults = Defaults::NO_AUX_LOSS;
    // As TRL's PPO logs them.
    const DERIVED_METRICS: &'static [DerivedMetric] =
        &[("eps", Derivation::PerSecond("episode")), ("lr", Derivation::Copy("learning_rate"))];

    fn needs(config: &PpoSettings) -> Needs {
        let mut needs = Needs::VALUE | Needs::OLD_VALUE | Needs::RETURN | Needs::ENTROPY;
        if config.has_reference() {
            needs |= Needs::REF_LOGP;
        }
        if config.turn_rewards {
            needs |= Needs::TURN_REWARD;
        }
        needs
    }

    fn new(settings: PpoSettings) -> Result<Self, Error> {
        if settings.turn_rewards && settings.normalize_reward {
            return Err(Error::Config(
                "turn_rewards needs normalize_reward = false, which is for scores of whole episodes".into(),
            ));
        }
        Ok(Self { settings, control: KlControl::default() })
    }

    fn estimate(&mut self, rollouts: &Rollouts) -> Result<Advantages, Error> {
        let coef = self.control.coef(&self.settings);
        if self.settings.normalize_reward {
            self.control.scores.update(scores(rollouts).into_iter().flatten());
        }
        let mut advantages = advantage::estimate(&self.settings, coef, &self.control.scores, rollouts)?;
        self.control.count_completions(rollouts.prompt_of.len());
        advantages.metrics.push(Metric::max("episode", self.control.episode as f64));
        Ok(advantages)
    }

    fn loss(&mut self, tokens: &Tokens) -> Result<PolicyGradient, Error> {
        loss::loss(&self.settings, tokens)
    }
}

impl Stateful for Ppo {
    type State = KlControl;

    fn state(&mut self) -> &mut KlControl {
        &mut self.control
    }
}

impl Observing for Ppo {
    fn observe(&mut self, _step: u64, metrics: &[(String, f64)]) {
        self.control.observe(&self.settings, metrics);
    }
}

rlhost_plugin_sdk::policy_plugin!(Ppo, observing);
