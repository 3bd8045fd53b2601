//! The settings of an optimizer.

use crate::config::OptimizerRule;

/// Settings that are constant during a run.
#[derive(Clone, Copy, Debug)]
pub struct OptimizerSettings {
    /// The optimizer, with its own settings.
    pub rule: OptimizerRule,
    /// Decay of AdamW's and Lion's first moment.
    pub beta1: f64,
    /// Decay of the second moment; of the first after Lion's update.
    pub beta2: f64,
    /// Added to the square root of AdamW's second moment.
    pub eps: f64,
    /// Weight decay; not applied to norms and biases, as in transformers, but to the magnitudes of DoRA.
    pub weight_decay: f64,
    /// Largest gradient norm; larger gradients are scaled down. 0 for no limit.
    pub max_grad_norm: f64,
}
