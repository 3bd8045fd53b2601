//! Settings of GRPO, under TRL's names and with its defaults.

use rlhost_plugin_sdk::prelude::*;
use rlhost_plugin_sdk::schemars::{Schema, SchemaGenerator, json_schema};
use std::borrow::Cow;

/// What a centred reward is divided by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase", from = "ScaleRewardsGiven")]
pub enum ScaleRewards {
    /// The standard deviation of its prompt's rewards.
    Group,
    /// The standard deviation of the whole generation batch.
    Batch,
    /// Nothing.
    None,
}

/// TRL takes true and false too, from the time when those were all there was.
#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum ScaleRewardsName {
    Group,
    Batch,
    None,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum ScaleRewardsGiven {
    Flag(bool),
    Name(ScaleRewardsName),
}

impl From<ScaleRewardsGiven> for ScaleRewards {
    fn from(given: ScaleRewardsGiven) -> Self {
        match given {
            ScaleRewardsGiven::Flag(true) | ScaleRewardsGiven::Name(ScaleRewardsName::Group) => Self::Group,
            ScaleRewardsGiven::Name(ScaleRewardsName::Batch) => Self::Batch,
            ScaleRewardsGiven::Flag(false) | ScaleRewardsGiven::Name(ScaleRewardsName::None) => Self::None,
        }
    }
}

impl JsonSchema for ScaleRewards {
    fn schema_name() -> Cow<'static, str> {
        "ScaleRewards".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "enum": ["group", "batch", "none", true, false] })
    }
}

/// How several rewards become one advantage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum MultiObjectiveAggregation {
    /// Their weighted sum is centred and scaled.
    SumThenNormalize,
    /// Each is centred and scaled within its group, and their weighted sum over the whole batch
    /// (GDPO, arXiv 2601.05242).
    NormalizeThenSum,
}

/// What the probability ratio is one of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ImportanceSamplingLevel {
    /// Each token.
    Token,
    /// The whole completion: the geometric mean of its tokens' ratios (GSPO, arXiv 2507.18071).
    Sequence,
}

/// What a token's loss is, and how token losses become one.
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
    /// As dapo; instead of the objective, the ratio is capped, at epsilon_high itself.
    Cispo,
    /// As grpo, with a soft gate in place of clipping.
    Sapo,
    /// Mean over completions of each one's sum over tokens; for sequence-level ratios.
    Luspo,
    /// As dapo, with a weight for each completion in place of clipping.
    Vespo,
}

/// Settings of GRPO.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// What a centred reward is divided by; true is group and false none.
    pub scale_rewards: ScaleRewards,
    /// How several rewards become one advantage.
    pub multi_objective_aggregation: MultiObjectiveAggregation,
    /// What a token's loss is, and how token losses become one.
    pub loss_type: LossType,
    /// Whether each token has its probability ratio, or each completion.
    pub importance_sampling_level: ImportanceSamplingLevel,
    /// How far below 1 a probability ratio may fall before it is clipped.
    #[schemars(range(min = 0.0))]
    pub epsilon: f64,
    /// How far above 1 it may rise; `epsilon` where not given. For cispo, the cap of the ratio
    /// itself, for which 5 is recommended.
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
    /// Temperature of sapo's gate for tokens whose advantage is not positive.
    #[schemars(extend("exclusiveMinimum" = 0.0))]
    pub sapo_temperature_neg: f64,
    /// Temperature of sapo's gate for tokens with a positive advantage.
    #[schemars(extend("exclusiveMinimum" = 0.0))]
    pub sapo_temperature_pos: f64,
    /// Power of vespo's weight for advantages that are not negative: how fast it falls for ratios
    /// below 1.
    pub vespo_k_pos: f64,
    /// Decay of vespo's weight for advantages that are not negative: how fast it falls for ratios
    /// above 1.
    pub vespo_lambda_pos: f64,
    /// Power of vespo's weight for negative advantages.
    pub vespo_k_neg: f64,
    /// Decay of vespo's weight for negative advantages.
    pub vespo_lambda_neg: f64,
    /// The share of a micro-batch's tokens, those of the highest entropy, that the policy's loss
    /// keeps.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub top_entropy_quantile: f64,
    /// Weight of the mean entropy of a token, as a bonus; where it adapts, what it begins with.
    pub entropy_coef: f64,
    /// Adapt `entropy_coef` after every step, and apply it only where the entropy of the step
    /// before was not above `entropy_target`.
    pub use_adaptive_entropy: bool,
    /// The least that an adaptive `entropy_coef` becomes.
    pub entropy_coef_min: f64,
    /// The most that it becomes.
    pub entropy_coef_max: f64,
    /// By how much it changes.
    pub entropy_coef_delta: f64,
    /// The mean entropy of a token, in nats, at which it turns.
    pub entropy_target: f64,
    /// Drop completions with a negative advantage that the policy has come further away from, in
    /// nats a token, than this.
    pub off_policy_mask_threshold: Option<f64>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            scale_rewards: ScaleRewards::Group,
            multi_objective_aggregation: MultiObjectiveAggregation::SumThenNormalize,
            loss_type: LossType::Dapo,
            importance_sampling_level: ImportanceSamplingLevel::Token,
            epsilon: 0.2,
            epsilon_high: None,
            delta: None,
            beta: 0.0,
            use_bias_correction_kl: true,
            mask_truncated_completions: false,
            sapo_temperature_neg: 1.05,
            sapo_temperature_pos: 1.0,
            vespo_k_pos: 2.0,
            vespo_lambda_pos: 3.0,
            vespo_k_neg: 3.0,
            vespo_lambda_neg: 2.0,
            top_entropy_quantile: 1.0,
            entropy_coef: 0.0,
            use_adaptive_entropy: false,
            entropy_coef_min: 0.0,
            entropy_coef_max: 1.0,
            entropy_coef_delta: 0.005,
            entropy_target: 0.2,
            off_policy_mask_threshold: None,
        }
    }
}

impl Settings {
    /// The upper clipping range, or cispo's cap.
    pub(crate) fn high(&self) -> f64 {
        self.epsilon_high.unwrap_or(self.epsilon)
    }

    /// Whether there is an entropy bonus. One that adapts may be zero for a while.
    pub(crate) fn has_entropy_bonus(&self) -> bool {
        self.use_adaptive_entropy || self.entropy_coef != 0.0
    }

    /// What works but is hardly meant. TRL warns of the last three, and takes the first two.
    pub(crate) fn doubts(&self) -> Vec<String> {
        use LossType::{Bnpo, Cispo, Dapo, DrGrpo, Luspo, Vespo};
        let sequence = self.importance_sampling_level == ImportanceSamplingLevel::Sequence;
        let mut doubts = Vec::new();
        if let Some(delta) = self.delta.filter(|delta| *delta <= 1.0 + self.epsilon) {
            doubts.push(format!("delta is {delta}; it should be greater than 1 + epsilon, which is {}", 1.0 + self.epsilon));
        }
        if self.loss_type == Cispo && self.epsilon_high.is_none() {
            doubts.push(format!("cispo caps the ratio at epsilon_high, which is epsilon, {}; 5 is recommended", self.epsilon));
        }
        if self.loss_type == Luspo && !sequence {
            doubts.push("luspo is meant for importance_sampling_level = sequence".into());
        }
        if self.loss_type == Vespo && sequence {
            doubts.push("vespo weighs sequences itself; it is meant for importance_sampling_level = token".into());
        }
        if sequence && matches!(self.loss_type, Bnpo | DrGrpo | Dapo | Cispo) {
            doubts.push(
                "with importance_sampling_level = sequence this loss_type weighs completions by length; GSPO has grpo".into(),
            );
        }
        doubts
    }
}
