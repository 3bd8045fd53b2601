//! Settings of CPO, under TRL's names and with its defaults.

use rlhost_plugin_sdk::prelude::*;

/// The loss of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum CpoLossType {
    /// Logistic loss of the difference of log-probabilities.
    Sigmoid,
    /// Hinge loss (SLiC, Zhao et al. 2023).
    Hinge,
    /// Squared distance of the difference per token from `1 / 2 beta` (IPO, Azar et al. 2023).
    Ipo,
    /// Logistic loss of the difference per token minus the margin `simpo_gamma` (SimPO, Meng et al. 2024).
    Simpo,
    /// As simpo, with `cpo_alpha` 0 and for an `alpha` other than 0 (AlphaPO, Gupta et al. 2025).
    Alphapo,
}

/// Settings of CPO.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct CpoSettings {
    /// The loss of a pair.
    pub loss_type: CpoLossType,
    /// Scale of a completion's reward.
    #[schemars(range(min = 0.0))]
    pub beta: f64,
    /// Probability that a preference label is wrong; not used by hinge and ipo.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub label_smoothing: f64,
    /// Weight of the chosen completions' negative log-likelihood; 0 for SimPO.
    #[schemars(range(min = 0.0))]
    pub cpo_alpha: f64,
    /// Target margin between the rewards, for simpo and alphapo.
    pub simpo_gamma: f64,
    /// Shape of the reward `(1 - p^-alpha) / alpha` of a probability `p` (AlphaPO); 0 means the logarithm. Applies to every loss.
    pub alpha: f64,
}

impl Default for CpoSettings {
    fn default() -> Self {
        Self { loss_type: CpoLossType::Sigmoid, beta: 0.1, label_smoothing: 0.0, cpo_alpha: 1.0, simpo_gamma: 0.5, alpha: 0.0 }
    }
}

impl CpoSettings {
    /// Returns whether a completion counts by its mean over tokens instead of their sum.
    pub(crate) fn per_token(&self) -> bool {
        matches!(self.loss_type, CpoLossType::Ipo | CpoLossType::Simpo | CpoLossType::Alphapo)
    }

    /// Returns the weight of the negative log-likelihood.
    pub(crate) fn nll_weight(&self) -> f64 {
        if self.loss_type == CpoLossType::Alphapo { 0.0 } else { self.cpo_alpha }
    }
}
