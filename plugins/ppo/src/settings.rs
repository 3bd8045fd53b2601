//! Settings of PPO, under the names and with the defaults that it had in TRL.

use rlhost_plugin_sdk::prelude::*;

/// How the KL divergence from the reference model is estimated at a token, with
/// `d = logp - ref_logp` (Schulman, joschu.net/blog/kl-approx.html).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum KlEstimator {
    /// `d`: unbiased.
    K1,
    /// `e^-d - 1 + d`: unbiased too, never negative and of lower variance.
    K3,
}

/// Settings of PPO.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Weight of the KL divergence from the reference model, which is taken off each token's
    /// reward; where it adapts, what it begins with.
    #[schemars(range(min = 0.0))]
    pub kl_coef: f64,
    /// How that divergence is estimated.
    pub kl_estimator: KlEstimator,
    /// Adapt `kl_coef` so that a token's divergence, in nats and averaged over each completion, stays near this.
    #[schemars(extend("exclusiveMinimum" = 0.0))]
    pub kl_target: Option<f64>,
    /// In how many completions `kl_coef` may change by a fifth.
    #[schemars(extend("exclusiveMinimum" = 0.0))]
    pub kl_horizon: f64,
    /// Taken off the score of a completion that met the length limit.
    #[schemars(range(min = 0.0))]
    pub missing_eos_penalty: Option<f64>,
    /// Divide rewards by their standard deviation over the batch, leaving their mean.
    pub whiten_rewards: bool,
    /// Discount of a reward for each token that it is away.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub gamma: f64,
    /// Lambda of generalised advantage estimation: at 1 all rewards to come, at 0 the next value.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub lam: f64,
    /// How far from 1 a probability ratio may be before it is clipped.
    #[schemars(range(min = 0.0))]
    pub cliprange: f64,
    /// How far a value may move from what it was at generation before it is clipped.
    #[schemars(range(min = 0.0))]
    pub cliprange_value: f64,
    /// Weight of the critic's loss.
    #[schemars(range(min = 0.0))]
    pub vf_coef: f64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            kl_coef: 0.05,
            kl_estimator: KlEstimator::K1,
            kl_target: None,
            kl_horizon: 10_000.0,
            missing_eos_penalty: None,
            whiten_rewards: false,
            gamma: 1.0,
            lam: 0.95,
            cliprange: 0.2,
            cliprange_value: 0.2,
            vf_coef: 0.1,
        }
    }
}

impl Settings {
    /// Whether there is a divergence to estimate. A coefficient that adapts may grow from little.
    pub(crate) fn has_reference(&self) -> bool {
        self.kl_coef > 0.0 || self.kl_target.is_some()
    }
}
