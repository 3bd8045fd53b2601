//! The keys of the learning rate schedule: its name and the arguments of transformers' function of that name.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The learning rate schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LrSchedule {
    /// Decays linearly to zero at the end of the run.
    Linear,
    /// Decays along half a cosine to zero at the end of the run.
    Cosine,
    /// Constant, without warmup.
    Constant,
    /// Constant after the warmup.
    ConstantWithWarmup,
    /// Decays along half a cosine several times, each time from the peak.
    CosineWithRestarts,
    /// Decays along half a cosine to a minimum.
    CosineWithMinLr,
    /// Decays along half a cosine to a minimum, after a warmup that does not start at zero.
    CosineWarmupWithMinLr,
    /// Decays as a power of the remaining fraction of the run.
    Polynomial,
    /// Decays with the inverse square root of the step.
    InverseSqrt,
    /// Constant after the warmup, and decays at the end.
    WarmupStableDecay,
    /// Is multiplied by a factor whenever evaluations stop improving.
    ReduceLrOnPlateau,
}

/// A schedule's shape with its settings.
#[derive(Clone, Copy, Debug, PartialEq)]
#[expect(missing_docs, reason = "each is the schedule of its name")]
pub enum LrShape {
    Linear,
    Cosine(CosineArgs),
    Constant,
    ConstantWithWarmup,
    CosineWithRestarts(CosineRestartsArgs),
    CosineWithMinLr(CosineMinLrArgs),
    CosineWarmupWithMinLr(CosineWarmupMinLrArgs),
    Polynomial(PolynomialArgs),
    InverseSqrt(InverseSqrtArgs),
    WarmupStableDecay(StableDecayArgs),
    ReduceLrOnPlateau(PlateauArgs),
}

/// Settings of [`LrSchedule::Cosine`].
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CosineArgs {
    /// Number of waves; half a wave decays to zero.
    pub num_cycles: f64,
}

/// Settings of [`LrSchedule::CosineWithRestarts`].
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CosineRestartsArgs {
    /// Number of decays.
    pub num_cycles: f64,
}

/// Settings of [`LrSchedule::CosineWithMinLr`].
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CosineMinLrArgs {
    /// Number of waves; half a wave decays to the minimum.
    pub num_cycles: f64,
    /// The minimum.
    pub min_lr: Option<f64>,
    /// The minimum, as a fraction of the peak.
    pub min_lr_rate: Option<f64>,
}

/// Settings of [`LrSchedule::CosineWarmupWithMinLr`].
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CosineWarmupMinLrArgs {
    /// Number of waves; half a wave decays to the minimum.
    pub num_cycles: f64,
    /// The minimum.
    pub min_lr: Option<f64>,
    /// The minimum, as a fraction of the peak.
    pub min_lr_rate: Option<f64>,
    /// The start of the warmup, as a fraction of the peak; by default, such that its first step is as large as the others.
    pub warmup_lr_rate: Option<f64>,
}

/// Settings of [`LrSchedule::Polynomial`].
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PolynomialArgs {
    /// The rate at the end.
    pub lr_end: f64,
    /// The exponent.
    pub power: f64,
}

/// Settings of [`LrSchedule::InverseSqrt`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct InverseSqrtArgs {
    /// Number of steps after the warmup at which the rate is the peak divided by the square root of two; by default the number of warmup
    /// steps, or 10,000 without a warmup.
    pub timescale: Option<u32>,
}

/// Settings of [`LrSchedule::WarmupStableDecay`].
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct StableDecayArgs {
    /// Number of steps of the decay; required.
    pub num_decay_steps: Option<u32>,
    /// Number of constant steps; by default the rest of the run.
    pub num_stable_steps: Option<u32>,
    /// Shape of the warmup.
    pub warmup_type: RampShape,
    /// Shape of the decay.
    pub decay_type: RampShape,
    /// The rate at both ends, as a fraction of the peak.
    pub min_lr_ratio: f64,
    /// Number of waves of a cosine decay.
    pub num_cycles: f64,
}

/// Shape of a warmup or a decay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub enum RampShape {
    /// A straight line.
    #[serde(rename = "linear")]
    Linear,
    /// A cosine.
    #[serde(rename = "cosine")]
    Cosine,
    /// One minus a square root.
    #[serde(rename = "1-sqrt")]
    OneMinusSqrt,
}

/// Settings of [`LrSchedule::ReduceLrOnPlateau`], as in torch's class of that name.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PlateauArgs {
    /// Whether lower or higher is better; by default, this depends on the metric's name.
    pub mode: Option<MetricDirection>,
    /// Factor by which the rate is multiplied.
    pub factor: f64,
    /// Number of evaluations without improvement that are tolerated.
    pub patience: u32,
    /// Minimum improvement.
    pub threshold: f64,
    /// Whether the threshold is relative to the best value.
    pub threshold_mode: ThresholdMode,
    /// Number of evaluations after a reduction that don't count.
    pub cooldown: u32,
    /// Minimum rate.
    pub min_lr: f64,
    /// Minimum change of the rate; smaller changes are not applied.
    pub eps: f64,
}

/// Which values are better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MetricDirection {
    /// Lower values.
    Min,
    /// Higher values.
    Max,
}

/// Measure of an improvement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ThresholdMode {
    /// As a fraction of the best value.
    Rel,
    /// As a difference.
    Abs,
}

impl Default for CosineArgs {
    fn default() -> Self {
        Self { num_cycles: 0.5 }
    }
}

impl Default for CosineRestartsArgs {
    fn default() -> Self {
        Self { num_cycles: 1.0 }
    }
}

impl Default for CosineMinLrArgs {
    fn default() -> Self {
        Self { num_cycles: 0.5, min_lr: None, min_lr_rate: None }
    }
}

impl Default for CosineWarmupMinLrArgs {
    fn default() -> Self {
        Self { num_cycles: 0.5, min_lr: None, min_lr_rate: None, warmup_lr_rate: None }
    }
}

impl Default for PolynomialArgs {
    fn default() -> Self {
        Self { lr_end: 1e-7, power: 1.0 }
    }
}

impl Default for StableDecayArgs {
    fn default() -> Self {
        Self {
            num_decay_steps: None,
            num_stable_steps: None,
            warmup_type: RampShape::Linear,
            decay_type: RampShape::Cosine,
            min_lr_ratio: 0.0,
            num_cycles: 0.5,
        }
    }
}

impl Default for PlateauArgs {
    fn default() -> Self {
        Self {
            mode: None,
            factor: 0.1,
            patience: 10,
            threshold: 1e-4,
            threshold_mode: ThresholdMode::Rel,
            cooldown: 0,
            min_lr: 0.0,
            eps: 1e-8,
        }
    }
}
