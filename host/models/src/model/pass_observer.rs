//! Progress of a training pass through the model. Sharding uses it to have parameters and gradients present when they are needed.

use super::Result;

/// A part of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ModelPart {
    /// The embeddings.
    Bottom,
    /// A layer, by its number.
    Layer(usize),
    /// The last norm, and the output matrix and a critic's head if there are some.
    Top,
}

/// The direction of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PassDirection {
    /// From tokens to predictions. The pass enters the bottom and the top together and leaves neither.
    Forward,
    /// From derivatives to gradients. Parameters outside layers are entered as the top; they are left as the top and, at the end, as the
    /// bottom.
    Backward,
}

/// Callbacks of a pass through a model.
pub trait PassObserver {
    /// Called before a part is computed. Its parameters must be present; in the backward pass, also the gradients that it adds to.
    ///
    /// # Errors
    /// If these can't be made present.
    fn enter(&self, direction: PassDirection, part: ModelPart) -> Result<()>;

    /// Called after a part is computed. In the backward pass, its gradients are complete.
    ///
    /// # Errors
    /// If the observer's work fails.
    fn leave(&self, direction: PassDirection, part: ModelPart) -> Result<()>;
}

/// An observer that does nothing.
pub(super) struct NoObserver;

impl PassObserver for NoObserver {
    fn enter(&self, _direction: PassDirection, _part: ModelPart) -> Result<()> {
        Ok(())
    }

    fn leave(&self, _direction: PassDirection, _part: ModelPart) -> Result<()> {
        Ok(())
    }
}
