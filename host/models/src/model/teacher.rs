//! A frozen model as a teacher: its distributions of the tokens that a policy predicts.

use super::{Error, FrozenModel, PassObserver, Result};
use crate::ops::Forest;
use crate::ops::divergence::{self, Divergence, Predictions};
use crate::ops::logprob::{LogitScale, TokenStats};
use candle_core::Tensor;

/// A teacher's predictions of the same tokens, and what a policy's are compared by.
pub struct TeacherPredictions {
    hidden: Tensor,
    /// The output matrix, without rows beyond the policy's vocabulary.
    output: Tensor,
    scale: LogitScale,
    /// Which divergence it is, from 0 to 1; see [`divergence`].
    beta: f64,
}

/// How a policy's distributions are compared with a teacher's.
#[derive(Clone, Copy, Debug)]
pub struct DivergenceOptions {
    /// Divisor of both models' logits.
    pub temperature: f32,
    /// Which divergence it is, from 0 to 1; see [`divergence`].
    pub beta: f64,
}

/// A policy's divergence from a teacher.
pub(super) struct TeacherDivergence {
    teaching: TeacherPredictions,
    pub(super) divergence: Divergence,
}

impl FrozenModel {
    /// Predicts the tokens after the packed positions `rows`, for a policy with so many tokens whose divergence from this model, as `beta`
    /// selects it, will be computed at this temperature. Models of one tokenizer may have different numbers of rows that stand for no
    /// token; those of this model that the policy lacks are left out.
    ///
    /// # Errors
    /// If an operation fails, or this model has fewer tokens.
    pub fn teacher_predictions(
        &self,
        forest: &Forest,
        rows: &[usize],
        vocabulary: usize,
        compared: DivergenceOptions,
        watch: Option<&dyn PassObserver>,
    ) -> Result<TeacherPredictions> {
        let DivergenceOptions { temperature, beta } = compared;
        let decoder = self.decoder();
        let hidden = self.hidden(forest, rows, watch)?;
        let output = decoder.weights.output().narrow(0, 0, vocabulary)?;
        Ok(TeacherPredictions { hidden, output, scale: decoder.logits(temperature), beta })
    }
}

impl TeacherPredictions {
    fn predictions(&self) -> Predictions<'_> {
        Predictions { hidden: &self.hidden, output: &self.output, scale: self.scale }
    }
}

impl TeacherDivergence {
    /// Compares a policy's predictions, with these statistics, with a teacher's.
    pub(super) fn new(teaching: TeacherPredictions, policy: Predictions<'_>, stats: &TokenStats) -> Result<Self> {
        let divergence = divergence::forward(policy, stats, teaching.predictions(), teaching.beta)?;
        match divergence.values().iter().all(|value| value.is_finite()) {
            true => Ok(Self { teaching, divergence }),
            false => Err(Error::NotFinite),
        }
    }

    /// Returns the gradient of the policy's hidden states, and adds that of its output matrix to `d_output`, if given.
    pub(super) fn backward(&self, policy: Predictions<'_>, d_values: &[f32], d_output: Option<&Tensor>) -> Result<Tensor> {
        Ok(self.divergence.backward(policy, self.teaching.predictions(), d_values, d_output)?)
    }
}
