//! Settings of GRPO, under TRL's names and with its defaults.

use rlhost_plugin_sdk::config::UpperBound;
use rlhost_plugin_sdk::prelude::*;
use rlhost_plugin_sdk::schemars::{Schema, SchemaGenerator, json_schema};
use std::borrow::Cow;

/// The divisor of a centred reward.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase", from = "ScaleRewardsInput")]
pub enum ScaleRewards {
    /// Standard deviation of its prompt's rewards.
    Group,
    /// Standard deviation of the complete generation batch.
    Batch,
    /// No scaling.
    None,
}

/// TRL also accepts true and false, from the time when those were the only values.
#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum ScaleRewardsName {
    Group,
    Batch,
    None,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum ScaleRewardsInput {
    Flag(bool),
    Name(ScaleRewardsName),
}

impl From<ScaleRewardsInput> for ScaleRewards {
    fn from(given: ScaleRewardsInput) -> Self {
        match given {
            ScaleRewardsInput::Flag(true) | ScaleRewardsInput::Name(ScaleRewardsName::Group) => Self::Group,
            ScaleRewardsInput::Name(ScaleRewardsName::Batch) => Self::Batch,
            ScaleRewardsInput::Flag(false) | ScaleRewardsInput::Name(ScaleRewardsName::None) => Self::None,
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

/// How several rewards are combined into one advantage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum MultiObjectiveAggregation {
    /// Centre and scale their weighted sum.
    SumThenNormalize,
    /// Centre and scale each within its group, then their weighted sum over the batch (GDPO, arXiv 2601.05242).
    NormalizeThenSum,
}

/// What a turn's return is compared with, if each turn of an episode has its own advantage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TurnAdvantages {
    /// Nothing: an episode has one advantage, from the sum of its turns' rewards.
    None,
    /// This turn in the prompt's other episodes. One that no other episode reached has no advantage.
    Turn,
    /// All turns of the prompt's episodes.
    Group,
}

/// Whether probability ratios are per token or per completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ImportanceSamplingLevel {
    /// One ratio per token.
    Token,
    /// One ratio per completion: the geometric mean of its tokens' ratios (GSPO, arXiv 2507.18071).
    Sequence,
}

/// A token's loss and how token losses are combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum GrpoLossType {
    /// Mean over completions of each one's mean over tokens.
    Grpo,
    /// Sum over tokens divided by the number of tokens.
    Bnpo,
    /// Sum over tokens divided by the number of completions times the length limit.
    DrGrpo,
    /// Sum over tokens divided by the number of tokens in the complete step.
    Dapo,
    /// As dapo, but the ratio itself is capped, at epsilon_high.
    Cispo,
    /// As grpo, with a soft gate instead of clipping.
    Sapo,
    /// Mean over completions of each one's sum over tokens; for sequence-level ratios.
    Luspo,
    /// As dapo, with a weight per completion instead of clipping.
    Vespo,
}

/// Ratios of the training's to the sampling's probabilities that the loss is multiplied by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CorrectionMode {
    /// One per token, clipped.
    TokenTruncate,
    /// One per token, zero beyond the bounds.
    TokenMask,
    /// One per completion, clipped.
    SequenceTruncate,
    /// One per completion, zero beyond the bounds.
    SequenceMask,
}

impl CorrectionMode {
    /// Returns whether each token has a ratio of its own.
    pub(crate) fn is_by_token(self) -> bool {
        matches!(self, Self::TokenTruncate | Self::TokenMask)
    }

    /// Returns whether ratios beyond the bounds are clipped rather than zero.
    pub(crate) fn is_clipping(self) -> bool {
        matches!(self, Self::TokenTruncate | Self::SequenceTruncate)
    }
}

/// Settings of GRPO.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct GrpoSettings {
    /// Divisor of a centred reward; true means group, false means none.
    pub scale_rewards: ScaleRewards,
    /// How several rewards are combined into one advantage.
    pub multi_objective_aggregation: MultiObjectiveAggregation,
    /// Give each turn of an episode an advantage of its own, from the rewards from this turn on, compared with the same turn of
    /// the prompt's other episodes or with all turns of that group.
    pub turn_advantages: TurnAdvantages,
    /// Discount per turn of the rewards after a turn, for `turn_advantages`.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub turn_discount: f64,
    /// A token's loss and how token losses are combined.
    pub loss_type: GrpoLossType,
    /// Whether probability ratios are per token or per completion.
    pub importance_sampling_level: ImportanceSamplingLevel,
    /// Lower clipping range of the probability ratio: it is clipped at 1 - epsilon.
    #[schemars(range(min = 0.0))]
    pub epsilon: f64,
    /// Upper clipping range of the ratio [epsilon]; for cispo, the cap of the ratio itself, for which 5 is recommended.
    #[schemars(range(min = 0.0))]
    pub epsilon_high: Option<f64>,
    /// Upper bound of the ratio on the unclipped side (two-sided clipping); should exceed 1 + epsilon.
    #[schemars(range(min = 0.0))]
    pub delta: Option<f64>,
    /// Weight of the KL divergence from the reference model; 0 for none.
    #[schemars(range(min = 0.0))]
    pub beta: f64,
    /// Multiply the KL estimate by the probability ratio, which makes it unbiased off-policy.
    pub use_bias_correction_kl: bool,
    /// Exclude completions that reached the length limit from the loss.
    pub mask_truncated_completions: bool,
    /// Temperature of sapo's gate for tokens whose advantage is not positive.
    #[schemars(extend("exclusiveMinimum" = 0.0))]
    pub sapo_temperature_neg: f64,
    /// Temperature of sapo's gate for tokens with a positive advantage.
    #[schemars(extend("exclusiveMinimum" = 0.0))]
    pub sapo_temperature_pos: f64,
    /// Exponent of vespo's weight for non-negative advantages: how fast it falls for ratios below 1.
    pub vespo_k_pos: f64,
    /// Decay of vespo's weight for non-negative advantages: how fast it falls for ratios above 1.
    pub vespo_lambda_pos: f64,
    /// Exponent of vespo's weight for negative advantages.
    pub vespo_k_neg: f64,
    /// Decay of vespo's weight for negative advantages.
    pub vespo_lambda_neg: f64,
    /// Weight, beside the rewards, of a teacher: it adds this times `ln p(teacher) - ln p(policy)` of each sampled token to the token's
    /// advantage (on-policy distillation); 0 for none.
    #[schemars(range(min = 0.0))]
    pub teacher_kl_coef: f64,
    /// Share of a micro-batch's tokens, those with the highest entropy, kept in the policy's loss.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub top_entropy_quantile: f64,
    /// Weight of the mean token entropy as a bonus; the starting value if it adapts.
    pub entropy_coef: f64,
    /// Adapt `entropy_coef` after every step, and apply it only if the previous step's entropy was not above `entropy_target`.
    pub use_adaptive_entropy: bool,
    /// Minimum of an adaptive `entropy_coef`.
    pub entropy_coef_min: f64,
    /// Maximum of an adaptive `entropy_coef`.
    pub entropy_coef_max: f64,
    /// Change of an adaptive `entropy_coef` per step.
    pub entropy_coef_delta: f64,
    /// Target of the mean token entropy, in nats.
    pub entropy_target: f64,
    /// Exclude completions with a negative advantage whose mean log-ratio of sampling to current policy, in nats per token,
    /// exceeds this.
    pub off_policy_mask_threshold: Option<f64>,
    /// Multiply the policy's loss by the ratios of the training's to the sampling's probabilities, where these differ by the
    /// precision (truncated importance sampling).
    #[schemars(extend("aliases" = ["importance_sampling_correction"]))]
    pub vllm_importance_sampling_correction: bool,
    /// Ratios of the correction; vespo needs one per token.
    #[schemars(extend("aliases" = ["importance_sampling_mode"]))]
    pub vllm_importance_sampling_mode: CorrectionMode,
    /// Greatest ratio of the correction; none for no bound.
    #[schemars(extend("aliases" = ["importance_sampling_clip_max", "vllm_importance_sampling_cap"]))]
    pub vllm_importance_sampling_clip_max: UpperBound,
    /// Least ratio of the correction.
    #[schemars(range(min = 0.0), extend("aliases" = ["importance_sampling_clip_min"]))]
    pub vllm_importance_sampling_clip_min: Option<f64>,
}

impl Default for GrpoSettings {
    fn default() -> Self {
        Self {
            scale_rewards: ScaleRewards::Group,
            multi_objective_aggregation: MultiObjectiveAggregation::SumThenNormalize,
            turn_advantages: TurnAdvantages::None,
            turn_discount: 1.0,
            loss_type: GrpoLossType::Dapo,
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
            teacher_kl_coef: 0.0,
            top_entropy_quantile: 1.0,
            entropy_coef: 0.0,
            use_adaptive_entropy: false,
            entropy_coef_min: 0.0,
            entropy_coef_max: 1.0,
            entropy_coef_delta: 0.005,
            entropy_target: 0.2,
            off_policy_mask_threshold: None,
            vllm_importance_sampling_correction: false,
            vllm_importance_sampling_mode: CorrectionMode::SequenceMask,
            vllm_importance_sampling_clip_max: UpperBound::At(3.0),
            vllm_importance_sampling_clip_min: None,
        }
    }
}

impl GrpoSettings {
    /// Returns the upper clipping range, or cispo's cap.
    pub(crate) fn high(&self) -> f64 {
        self.epsilon_high.unwrap_or(self.epsilon)
    }

    /// Returns whether there is an entropy bonus. An adaptive bonus may be zero for a while.
    pub(crate) fn has_entropy_bonus(&self) -> bool {
        self.use_adaptive_entropy || self.entropy_coef != 0.0
    }

    /// Refuses a correction that is impossible, as TRL does.
    pub(crate) fn check_correction(&self) -> Result<(), String> {
        if !self.vllm_importance_sampling_correction {
            return Ok(());
        }
        let mode = self.vllm_importance_sampling_mode;
        let (least, most) = (self.vllm_importance_sampling_clip_min, self.vllm_importance_sampling_clip_max.value());
        if self.loss_type == GrpoLossType::Vespo && !mode.is_by_token() {
            return Err("vllm_importance_sampling_mode must be token_truncate or token_mask with the loss type vespo".into());
        }
        if let (Some(least), Some(most)) = (least, most)
            && least >= most
        {
            return Err(format!("vllm_importance_sampling_clip_min is {least}; it must be below clip_max, {most}"));
        }
        if mode.is_clipping() && least.is_none() && most.is_none() {
            return Err("vllm_importance_sampling_mode clips; set vllm_importance_sampling_clip_min or clip_max".into());
        }
        Ok(())
    }

    /// Refuses advantages of turns if each reward is normalised separately, because a reward of the whole episode would belong to no turn.
    pub(crate) fn check_turns(&self) -> Result<(), String> {
        let sums = self.multi_objective_aggregation == MultiObjectiveAggregation::SumThenNormalize;
        if sums || self.turn_advantages == TurnAdvantages::None {
            return Ok(());
        }
        Err("turn_advantages needs multi_objective_aggregation = sum_then_normalize".into())
    }

    /// Returns warnings about settings that work but are probably not intended. TRL warns about the last three and accepts the
    /// first two.
    pub(crate) fn warnings(&self) -> Vec<String> {
        use GrpoLossType::{Bnpo, Cispo, Dapo, DrGrpo, Luspo, Vespo};
        let sequence = self.importance_sampling_level == ImportanceSamplingLevel::Sequence;
        let mut doubts = Vec::new();
        if let Some(delta) = self.delta.filter(|delta| *delta <= 1.0 + self.epsilon) {
            doubts.push(format!("delta is {delta}; it should be greater than 1 + epsilon = {}", 1.0 + self.epsilon));
        }
        if self.loss_type == Cispo && self.epsilon_high.is_none() {
            doubts.push(format!("cispo caps the ratio at epsilon_high, which is epsilon, {}; 5 is recommended", self.epsilon));
        }
        if self.loss_type == Luspo && !sequence {
            doubts.push("luspo is meant for importance_sampling_level = sequence".into());
        }
        if self.loss_type == Vespo && sequence {
            doubts.push("vespo weights sequences itself; it is meant for importance_sampling_level = token".into());
        }
        if sequence && matches!(self.loss_type, Bnpo | DrGrpo | Dapo | Cispo) {
            doubts.push(
                "with importance_sampling_level = sequence, this loss_type weights completions by length; GSPO uses grpo".into(),
            );
        }
        doubts
    }
}
