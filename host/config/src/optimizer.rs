//! Keys of the optimizer: its name and its settings in `optim_args`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The optimizer, by transformers' name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OptimizerName {
    /// AdamW (arXiv 1711.05101).
    #[serde(
        alias = "adamw_torch_fused",
        alias = "adamw_torch_xla",
        alias = "adamw_torch_npu_fused",
        alias = "adamw_hf",
        alias = "adamw_apex_fused",
        alias = "adamw",
        alias = "paged_adamw",
        alias = "paged_adamw_32bit"
    )]
    AdamwTorch,
    /// AdamW with moments in 8 bits, as in bitsandbytes (arXiv 2110.02861).
    #[serde(rename = "adamw_8bit", alias = "adamw_bnb_8bit", alias = "adamw_torch_8bit", alias = "paged_adamw_8bit")]
    Adamw8Bit,
    /// Stochastic gradient descent.
    Sgd,
    /// RMSprop (Tieleman and Hinton 2012), as in torch.
    #[serde(alias = "rmsprop_bnb", alias = "rmsprop_bnb_32bit")]
    Rmsprop,
    /// Lion (arXiv 2302.06675).
    #[serde(rename = "lion_32bit", alias = "lion", alias = "paged_lion", alias = "paged_lion_32bit")]
    Lion32Bit,
    /// Adafactor (arXiv 1804.04235) with a rate from the schedule.
    Adafactor,
    /// Muon for the layers' matrices, and AdamW for everything else.
    Muon,
}

/// An optimizer with its settings.
#[derive(Clone, Copy, Debug, PartialEq)]
#[expect(missing_docs, reason = "each is the optimizer of its name")]
pub enum OptimizerRule {
    AdamW,
    AdamW8Bit,
    Sgd(SgdArgs),
    RmsProp(RmsPropArgs),
    Lion,
    Adafactor(AdafactorArgs),
    Muon(MuonArgs),
}

/// Settings of [`OptimizerName::Sgd`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SgdArgs {
    /// Decay of the momentum; 0 for none.
    pub momentum: f64,
    /// Dampening: the share of the gradient that is not added to the momentum.
    pub dampening: f64,
    /// Whether momentum is Nesterov's.
    pub nesterov: bool,
}

/// Settings of [`OptimizerName::Rmsprop`].
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RmsPropArgs {
    /// Decay of the mean of squared gradients.
    pub alpha: f64,
    /// Number added to the root of that mean.
    pub eps: f64,
    /// Decay of the momentum; 0 for none.
    pub momentum: f64,
}

/// Settings of [`OptimizerName::Adafactor`].
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AdafactorArgs {
    /// Decay of the first moment; `None` for no first moment.
    pub beta1: Option<f64>,
    /// Maximum root mean square of an update.
    pub clip_threshold: f64,
    /// Exponent of the second moment's decay.
    pub decay_rate: f64,
    /// Whether the rate is multiplied by each parameter's root mean square.
    pub scale_parameter: bool,
}

/// Settings of [`OptimizerName::Muon`].
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MuonArgs {
    /// Decay of the momentum.
    pub momentum: f64,
    /// Whether momentum is Nesterov's.
    pub nesterov: bool,
    /// Number of iterations of the orthogonalization.
    pub ns_steps: usize,
    /// How the learning rate depends on a matrix's sizes.
    pub adjust_lr_fn: LrAdjustment,
}

/// Dependence of Muon's learning rate on a matrix's numbers of outputs and inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LrAdjustment {
    /// The square root of their ratio, at least one.
    Original,
    /// 0.2 times the square root of the larger, so that updates are as large as AdamW's.
    MatchRmsAdamw,
    /// The square root of their ratio.
    SpectralUnclamped,
}

impl Default for RmsPropArgs {
    fn default() -> Self {
        Self { alpha: 0.99, eps: 1e-8, momentum: 0.0 }
    }
}

impl Default for AdafactorArgs {
    fn default() -> Self {
        Self { beta1: None, clip_threshold: 1.0, decay_rate: -0.8, scale_parameter: false }
    }
}

impl Default for MuonArgs {
    fn default() -> Self {
        Self { momentum: 0.95, nesterov: true, ns_steps: 5, adjust_lr_fn: LrAdjustment::Original }
    }
}
