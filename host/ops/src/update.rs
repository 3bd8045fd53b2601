//! Inputs of an optimizer's update.

use candle_core::Tensor;

/// A trained parameter: everything an update reads and writes except the moments.
#[derive(Clone, Debug)]
pub struct Parameter<'a> {
    /// Name of the parameter.
    pub name: String,
    /// Values of the parameter, f32.
    pub master: &'a Tensor,
    /// Rounded copy that the model computes with, if any.
    pub rounded: Option<&'a Tensor>,
    /// Gradient of the parameter, f32.
    pub gradient: &'a Tensor,
}

/// Scalars of one AdamW update.
#[derive(Clone, Copy, Debug)]
pub struct AdamWStep {
    /// Learning rate.
    pub lr: f64,
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// Epsilon added to the square root of the second moment.
    pub eps: f64,
    /// Decoupled weight decay.
    pub weight_decay: f64,
    /// Number of this update, from 1.
    pub t: u64,
    /// Factor of the gradient (clipping).
    pub grad_scale: f32,
}

impl AdamWStep {
    pub(super) fn scalars(self) -> AdamWScalars {
        let bias1 = 1.0 - self.beta1.powf(self.t as f64);
        let bias2 = 1.0 - self.beta2.powf(self.t as f64);
        AdamWScalars {
            grad_scale: self.grad_scale,
            beta1: self.beta1 as f32,
            beta2: self.beta2 as f32,
            eps: self.eps as f32,
            decay: (1.0 - self.lr * self.weight_decay) as f32,
            step_size: (self.lr / bias1) as f32,
            root_bias2: bias2.sqrt() as f32,
        }
    }
}

/// Factors of an update, the same for each value.
#[derive(Clone, Copy)]
pub(super) struct AdamWScalars {
    pub grad_scale: f32,
    pub beta1: f32,
    pub beta2: f32,
    pub eps: f32,
    /// Factor of the parameter.
    pub decay: f32,
    /// Learning rate divided by the first moment's bias correction.
    pub step_size: f32,
    /// Square root of the second moment's bias correction.
    pub root_bias2: f32,
}
