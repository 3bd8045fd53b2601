//! Where a run's values come from.

use crate::model::ModelFolder;

/// Values of `value_model` that are not folders.
pub(super) const COPY: &str = "policy";

pub(super) const SHARED: &str = "shared";

/// What values the states of a run.
pub(super) enum StateValueSource {
    /// Nothing: the algorithm requests none.
    None,
    /// A head on the policy.
    Shared,
    /// A value model: of this folder, or a copy of the policy's.
    Model(Option<Box<ModelFolder>>),
    /// The trained model itself: a reward model.
    Trained,
}
