//! Keys whose values are words from a fixed set.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Which completions an algorithm trains on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CompletionSource {
    /// The policy's own completions, generated and rewarded.
    Generation,
    /// The dataset's completions.
    Dataset,
}

/// The log-probabilities that a generation's later updates compare the policy with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OldLogpSource {
    /// Log-probabilities that the sampler computed.
    Sampling,
    /// Log-probabilities of a training forward pass right after sampling.
    Recompute,
}

/// The teacher in a run's process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum TeacherModelKind {
    /// The model that teacher_model names.
    Named,
    /// The model that the run starts with.
    Base,
    /// The policy itself, as it is at each step.
    Live,
    /// An exponential moving average of the policy.
    Ema,
    /// Another model, whose likeliest tokens are in the dataset's columns teacher_token_ids and teacher_logprobs.
    Dataset,
}

impl TeacherModelKind {
    /// Returns the value as configurations spell it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Named => "named",
            Self::Base => "base",
            Self::Live => "live",
            Self::Ema => "ema",
            Self::Dataset => "dataset",
        }
    }
}

/// How inference servers get the policy's weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum RolloutSync {
    /// As an adapter on the model that the servers have loaded.
    Lora,
    /// As all weights, in a folder that the servers read.
    Disk,
}

/// Which generations a run keeps in its rollout log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum RolloutLogMode {
    /// Generations that no checkpoint contains, if agents or inference servers write completions; otherwise none.
    Auto,
    /// No generations.
    #[serde(alias = "false")]
    None,
    /// Generations that no checkpoint contains.
    Unsaved,
    /// All generations.
    #[serde(alias = "true")]
    All,
}

/// The precision of the weights that completions are generated with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum RolloutDtype {
    /// The precision of the model's computation.
    Auto,
    /// bf16.
    #[serde(alias = "bf16")]
    Bfloat16,
    /// 8 bits with a scale for each output; the inputs of matrix products are rounded to 8 bits too.
    Int8,
}

/// Which completions are written to completions.jsonl.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CompletionLogging {
    /// No completions.
    #[serde(alias = "false")]
    None,
    /// The completions of each generation's first prompt.
    Sample,
    /// All completions.
    #[serde(alias = "true")]
    All,
}

/// Where metrics are reported besides metrics.jsonl.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ReportTarget {
    /// Nowhere.
    None,
    /// TensorBoard event files in the run's folder.
    Tensorboard,
    /// At the end of the run, an offline run of Weights & Biases in its folder.
    Wandb,
    /// At the end of the run, an MLflow file store in its folder.
    Mlflow,
    /// At the end of the run, a table for Trackio in its folder.
    Trackio,
}

/// The precision in which gradients are sent to other processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ReduceDtype {
    /// Full precision.
    #[serde(alias = "fp32", alias = "f32")]
    Float32,
    /// Rounded to half the bytes and summed in f32.
    #[serde(alias = "bf16")]
    Bfloat16,
}

/// How much of a model's training state is divided among the processes of a run (ZeRO). Each stage includes those before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ZeroStage(u8);

impl ZeroStage {
    /// Each process holds everything.
    pub const NOTHING: Self = Self(0);

    /// The last stage.
    pub const LAST: u8 = 3;

    /// Returns the stage with this number, at most the last.
    pub fn new(number: u8) -> Self {
        Self(number.min(Self::LAST))
    }

    /// Returns the stage's number.
    pub fn number(self) -> u8 {
        self.0
    }

    /// Returns whether the optimizer's moments are divided.
    pub fn shards_moments(self) -> bool {
        self.0 >= 1
    }

    /// Returns whether gradients are divided.
    pub fn shards_gradients(self) -> bool {
        self.0 >= 2
    }

    /// Returns whether parameters are divided.
    pub fn shards_parameters(self) -> bool {
        self.0 >= 3
    }
}

/// The precision in which a model's weights are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ModelDtype {
    /// The stored precision.
    Auto,
    /// 32 bits.
    #[serde(alias = "fp32", alias = "f32")]
    Float32,
    /// 16 bits with the exponent range of f32.
    #[serde(alias = "bf16")]
    Bfloat16,
    /// 16 bits.
    #[serde(alias = "fp16", alias = "f16")]
    Float16,
}

/// What to do when a checkpoint can't be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SaveErrorAction {
    /// The run ends.
    Fail,
    /// The run continues to the next save; only the last save must succeed.
    Continue,
}

/// When a periodic action happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum IntervalStrategy {
    /// Never, except at the end if needed.
    #[serde(alias = "false")]
    No,
    /// Every so many steps.
    Steps,
    /// After each epoch.
    Epoch,
}

/// How texts are packed into sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PackingStrategy {
    /// Best-fit decreasing; longer texts are truncated.
    Bfd,
    /// Best-fit decreasing; longer texts are split.
    BfdSplit,
    /// Concatenated, then cut into sequences.
    Wrapped,
}
