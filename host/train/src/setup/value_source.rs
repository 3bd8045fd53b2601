//! Source of a run's state values.

use crate::model::ModelFolder;

/// Value of `value_model` that stands for a copy of the policy's model.
pub(super) const COPY: &str = "policy";

pub(super) const SHARED: &str = "shared";

/// Source of the values of a run's states.
pub(super) enum StateValueSource {
    /// No source: the algorithm needs no values.
    None,
    /// A head on the policy.
    Shared,
    /// A value model: from this folder, or a copy of the policy's model.
    Model(Option<Box<ModelFolder>>),
    /// The trained model itself, which is a reward model.
    Trained,
}
