//! Where a pass that learns is: what divides a model among processes has parameters and gradients there when they are needed.

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
    /// From the tokens to what is predicted. It enters the bottom and the top together and leaves neither.
    Forward,
    /// From derivatives to gradients. What is in no layer is entered as the top, and left as the top and, at last, as the bottom.
    Backward,
}

/// Is called as a pass goes through a model.
pub trait PassObserver {
    /// Called before a part is computed: its parameters and, going backward, the gradients that it adds to must be there.
    ///
    /// # Errors
    /// If they can't be.
    fn enter(&self, direction: PassDirection, part: ModelPart) -> Result<()>;

    /// Called once a part is computed: going backward, its gradients are complete.
    ///
    /// # Errors
    /// If what is done then fails.
    fn leave(&self, direction: PassDirection, part: ModelPart) -> Result<()>;
}

/// Watches nothing.
pub(super) struct NoObserver;

impl PassObserver for NoObserver {
    fn enter(&self, _direction: PassDirection, _part: ModelPart) -> Result<()> {
        Ok(())
    }

    fn leave(&self, _direction: PassDirection, _part: ModelPart) -> Result<()> {
        Ok(())
    }
}
