//! Settings of SDPO. Names and defaults are TRL's.

use crate::reprompting::TextTemplate;
use rlhost_plugin_sdk::config::UpperBound;
use rlhost_plugin_sdk::distillation::{DistillationMode, TeacherComparison};
use rlhost_plugin_sdk::prelude::*;

/// What the losses of tokens are divided by in the policy gradient's loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SdpoLossType {
    /// Each sequence's tokens, then the sequences.
    Grpo,
    /// The step's tokens, as dapo does.
    Bnpo,
    /// The sequences times the maximum length of completions.
    DrGrpo,
    /// The step's tokens.
    Dapo,
}

/// What an importance ratio belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RatioLevel {
    /// Each token.
    Token,
    /// A completion: the geometric mean of its tokens' ratios.
    Sequence,
}

/// The deviation that advantages are divided by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum AdvantageScaling {
    /// The deviation of the prompt's rewards.
    Group,
    /// The deviation of the generation's rewards.
    Batch,
    /// Advantages are only centred.
    None,
}

/// Settings of self-distillation policy optimization.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SdpoSettings {
    /// What is compared with the teacher at each token.
    pub distillation_mode: DistillationMode,
    /// Which divergence: 0 is the forward one, KL(teacher || policy), 1 the reverse one, KL(policy || teacher), and numbers between are
    /// generalised Jensen-Shannon divergences.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub distillation_alpha: f64,
    /// Number of likeliest tokens that topk_logits compares; it must be set there.
    #[schemars(range(min = 1, max = 16384))]
    pub distillation_topk: Option<u32>,
    /// Whether all other tokens together count as one more in topk_logits. Otherwise probabilities are divided by their sum.
    pub distillation_add_tail: bool,
    /// Maximum of the ratio of a token's probability to that when it was sampled, by which its divergence is weighted; without one there are no
    /// weights.
    pub distillation_is_clip: UpperBound,
    /// Weight of self-distillation in the loss; the rest is the weight of a policy gradient.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub distillation_weight: f64,
    /// Minimum reward of a successful completion.
    pub success_reward_threshold: f64,
    /// Whether the teacher reads a successful completion of the prompt.
    pub use_successful_as_teacher: bool,
    /// Whether a successful completion is taught by another one only, and not by itself.
    pub dont_reprompt_on_self_success: bool,
    /// Whether the teacher reads feedback, the column privileged_context.
    pub include_environment_feedback: bool,
    /// Whether the teacher reads feedback only where it reads no successful completion.
    pub environment_feedback_only_without_solution: bool,
    /// The question that the teacher reads, of {prompt}, {solution} and {feedback}; doubled braces stand for themselves.
    pub reprompt_template: String,
    /// {solution} in it, of {successful_previous_attempt}.
    pub solution_template: String,
    /// {feedback} in it, of {feedback_raw}.
    pub feedback_template: String,
    /// Whether `<think>...</think>` is removed from successful completions.
    pub remove_thinking_from_demonstration: bool,
    /// Maximum length of the teacher's prompt in tokens, of which the last are kept.
    #[schemars(range(min = 1))]
    pub max_reprompt_len: u32,
    /// What the policy gradient's losses of tokens are divided by.
    pub loss_type: SdpoLossType,
    /// Lower clipping range of the policy gradient's ratios: they are clipped at 1 - epsilon.
    #[schemars(range(min = 0.0))]
    pub epsilon: f64,
    /// Upper clipping range of the ratios [epsilon].
    #[schemars(range(min = 0.0))]
    pub epsilon_high: Option<f64>,
    /// What an importance ratio belongs to.
    pub importance_sampling_level: RatioLevel,
    /// The deviation that advantages are divided by.
    pub scale_rewards: AdvantageScaling,
    /// Exclude completions that reached the length limit from the loss.
    pub mask_truncated_completions: bool,
}

impl Default for SdpoSettings {
    fn default() -> Self {
        Self {
            distillation_mode: DistillationMode::SampledToken,
            distillation_alpha: 1.0,
            distillation_topk: None,
            distillation_add_tail: false,
            distillation_is_clip: UpperBound::At(2.0),
            distillation_weight: 1.0,
            success_reward_threshold: 1.0,
            use_successful_as_teacher: true,
            dont_reprompt_on_self_success: true,
            include_environment_feedback: false,
            environment_feedback_only_without_solution: false,
            reprompt_template: "{prompt}{solution}{feedback}\n\nCorrectly solve the original question.\n".to_owned(),
            solution_template: "\nCorrect solution:\n\n{successful_previous_attempt}\n\n".to_owned(),
            feedback_template: "\nThe following is feedback from your unsuccessful earlier attempt:\n\n{feedback_raw}\n\n"
                .to_owned(),
            remove_thinking_from_demonstration: false,
            max_reprompt_len: 10240,
            loss_type: SdpoLossType::Dapo,
            epsilon: 0.2,
            epsilon_high: None,
            importance_sampling_level: RatioLevel::Token,
            scale_rewards: AdvantageScaling::Group,
            mask_truncated_completions: false,
        }
    }
}

impl SdpoSettings {
    /// Returns how the policy is compared with the teacher.
    pub(crate) fn compared(&self) -> TeacherComparison {
        TeacherComparison {
            mode: self.distillation_mode,
            alpha: self.distillation_alpha,
            top: self.distillation_topk.unwrap_or(1),
            with_rest: self.distillation_add_tail,
            max_ratio: self.distillation_is_clip.value(),
        }
    }

    /// Checks what the settings' ranges don't say.
    pub(crate) fn check(&self) -> Result<(), Error> {
        self.compared().check()?;
        if self.distillation_mode == DistillationMode::TopkLogits && self.distillation_topk.is_none() {
            return Err(Error::Config("distillation_topk must be set with distillation_mode topk_logits".into()));
        }
        for (key, template, names) in [
            ("reprompt_template", &self.reprompt_template, &["prompt", "solution", "feedback"][..]),
            ("solution_template", &self.solution_template, &["successful_previous_attempt"]),
            ("feedback_template", &self.feedback_template, &["feedback_raw"]),
        ] {
            TextTemplate::parse(template, names).map_err(|detail| Error::Config(format!("{key} {detail}")))?;
        }
        Ok(())
    }
}
