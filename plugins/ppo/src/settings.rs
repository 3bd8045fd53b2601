//! Settings of PPO, under the names and with the defaults that it had in TRL.

use rlhost_plugin_sdk::prelude::*;

/// Estimator of the KL divergence from the reference model at a token, with `d = logp - ref_logp` (Schulman,
/// joschu.net/blog/kl-approx.html).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum PpoKlEstimator {
    /// `d`: unbiased.
    K1,
    /// `e^-d - 1 + d`: also unbiased, never negative, and with lower variance.
    K3,
}

/// Settings of PPO.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct PpoSettings {
    /// Weight of the KL divergence from the reference model, subtracted from each token's reward; the starting value if it
    /// adapts.
    #[schemars(range(min = 0.0))]
    pub kl_coef: f64,
    /// Estimator of that divergence.
    pub kl_estimator: PpoKlEstimator,
    /// Adapt `kl_coef` so that a token's divergence, in nats and averaged over each completion, stays near this.
    #[schemars(extend("exclusiveMinimum" = 0.0))]
    pub kl_target: Option<f64>,
    /// Number of completions in which `kl_coef` may change by a fifth.
    #[schemars(extend("exclusiveMinimum" = 0.0))]
    pub kl_horizon: f64,
    /// Subtracted from the score of a completion that reached the length limit.
    #[schemars(range(min = 0.0))]
    pub missing_eos_penalty: Option<f64>,
    /// Subtract the mean of all scores so far from each score, and divide by their standard deviation.
    pub normalize_reward: bool,
    /// Give each turn of an episode its own reward, at its last token, instead of their sum at the end; without
    /// `normalize_reward`.
    pub turn_rewards: bool,
    /// Divide rewards by their standard deviation over the batch, keeping their mean.
    pub whiten_rewards: bool,
    /// Discount of future rewards per token.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub gamma: f64,
    /// Lambda of generalised advantage estimation: 1 uses all future rewards, 0 the next value.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub lam: f64,
    /// Clipping range of the probability ratio around 1.
    #[schemars(range(min = 0.0))]
    pub cliprange: f64,
    /// Dual clipping (arXiv 1912.09729): the largest ratio that counts where the advantage is negative; greater than 1 [no limit;
    /// verl's default is 3].
    #[schemars(extend("exclusiveMinimum" = 1.0))]
    pub clip_ratio_c: Option<f64>,
    /// Weight of the tokens' mean entropy, which is subtracted from the loss.
    #[schemars(extend("aliases" = ["entropy_coeff", "entropy_loss_coef"]))]
    pub entropy_coef: f64,
    /// Clipping range of a value around its value at generation.
    #[schemars(range(min = 0.0))]
    pub cliprange_value: f64,
    /// Weight of the critic's loss.
    #[schemars(range(min = 0.0))]
    pub vf_coef: f64,
}

impl Default for PpoSettings {
    fn default() -> Self {
        Self {
            kl_coef: 0.05,
            kl_estimator: PpoKlEstimator::K1,
            kl_target: None,
            kl_horizon: 10_000.0,
            missing_eos_penalty: None,
            normalize_reward: false,
            turn_rewards: false,
            whiten_rewards: false,
            gamma: 1.0,
            lam: 0.95,
            cliprange: 0.2,
            clip_ratio_c: None,
            entropy_coef: 0.0,
            cliprange_value: 0.2,
            vf_coef: 0.1,
        }
    }
}

impl PpoSettings {
    /// Returns whether there is a divergence to estimate. An adaptive coefficient may grow from zero.
    pub(crate) fn has_reference(&self) -> bool {
        self.kl_coef > 0.0 || self.kl_target.is_some()
    }
}
