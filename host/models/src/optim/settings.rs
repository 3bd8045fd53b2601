//! Settings of an optimizer.

use crate::config::OptimizerRule;

/// Optimizer settings that are constant during a run.
#[derive(Clone, Copy, Debug)]
pub struct OptimizerSettings {
    /// The optimizer, with its own settings.
    pub rule: OptimizerRule,
    /// Decay of the first moment of AdamW and Lion.
    pub beta1: f64,
    /// Decay of the second moment; for Lion, of the first moment after the update.
    pub beta2: f64,
    /// Added to the square root of AdamW's second moment.
    pub eps: f64,
    /// Weight decay. As in transformers, it does not apply to norms and biases; it does apply to the magnitudes of DoRA.
    pub weight_decay: f64,
    /// Maximum gradient norm; larger gradients are scaled down. 0 for no limit.
    pub max_grad_norm: f64,
}
