//! Settings of GRPO, under TRL's names and with its defaults.

use rlhost_plugin_sdk::prelude::*;

/// What a centred reward is divided by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ScaleRewards {
    /// The standard deviation of its prompt's rewards.
    Group,
    /// The standard deviation of the whole generation batch.
    Batch,
    /// Nothing.
    None,
}

/// How token losses become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LossType {
    /// Mean over completions of each one's mean over tokens.
    Grpo,
    /// Sum over tokens by the number of tokens.
    Bnpo,
    /// Sum over tokens by completions times the length limit.
    DrGrpo,
    /// Sum over tokens by the number of tokens of the whole step.
    Dapo,
}

/// Settings of GRPO.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// What a centred reward is divided by.
    pub scale_rewards: ScaleRewards,
    /// How token losses become one.
    pub loss_type: LossType,
    /// How far below 1 a probability ratio may fall before it is clipped.
    #[schemars(range(min = 0.0))]
    pub epsilon: f64,
    /// How far above 1 it may rise; `epsilon` where not given.
    #[schemars(range(min = 0.0))]
    pub epsilon_high: Option<f64>,
    /// Upper bound of the ratio on the unclipped side (two-sided clipping); should exceed
    /// 1 + epsilon.
    #[schemars(range(min = 0.0))]
    pub delta: Option<f64>,
    /// Weight of the KL divergence from the reference model; without it there is none.
    #[schemars(range(min = 0.0))]
    pub beta: f64,
    /// Weigh the KL estimate by the probability ratio, which makes it unbiased off-policy.
    pub use_bias_correction_kl: bool,
    /// Leave completions that met the length limit out of the loss.
    pub mask_truncated_completions: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            scale_rewards: ScaleRewards::Group,
            loss_type: LossType::Dapo,
            epsilon: 0.2,
            epsilon_high: None,
            delta: None,
            beta: 0.0,
            use_bias_correction_kl: true,
            mask_truncated_completions: false,
        }
    }
}
