//! A frozen model as a teacher: its distributions over the tokens that a policy predicts.

use super::{Error, FrozenModel, PassObserver, Result};
use crate::ops::divergence::{self, Divergence, Predictions};
use crate::ops::logprob::{LogitScale, TokenStats};
use crate::ops::top_divergence::{self, TopDivergence, TopTokens};
use crate::ops::{self, Forest};
use candle_core::Tensor;

/// A teacher's predictions for the policy's tokens, and the divergence to compute.
pub struct TeacherPredictions {
    hidden: Tensor,
    /// The output matrix, without rows beyond the policy's vocabulary.
    output: Tensor,
    scale: LogitScale,
    compared: DivergenceOptions,
}

/// Options of the divergence between a policy's and a teacher's distributions.
#[derive(Clone, Copy, Debug)]
pub struct DivergenceOptions {
    /// Divisor of both models' logits.
    pub temperature: f32,
    /// Selects the divergence, from 0 to 1; see [`divergence`].
    pub beta: f64,
    /// The policy's likeliest tokens, if only these are compared.
    pub top: Option<TopTokens>,
}

/// A policy's divergence from a teacher.
pub(super) struct TeacherDivergence {
    teaching: TeacherPredictions,
    computed: ComputedDivergence,
}

/// A divergence over the whole vocabulary, or over likely tokens.
enum ComputedDivergence {
    Whole(Divergence),
    Top(TopDivergence),
}

impl FrozenModel {
    /// Predicts the tokens after the packed positions `rows`, for the divergence of a policy with this many tokens from this model. Models
    /// of one tokenizer may differ in the number of rows that represent no token; rows that the policy lacks are left out.
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
        let decoder = self.decoder();
        let hidden = self.hidden(forest, rows, watch)?;
        let output = decoder.weights.output().narrow(0, 0, vocabulary)?;
        Ok(TeacherPredictions { hidden, output, scale: decoder.logits(compared.temperature), compared })
    }
}

impl TeacherPredictions {
    fn predictions(&self) -> Predictions<'_> {
        Predictions { hidden: &self.hidden, output: &self.output, scale: self.scale }
    }

    fn divergence(&self, policy: Predictions<'_>, stats: &TokenStats) -> ops::Result<ComputedDivergence> {
        let DivergenceOptions { beta, top, .. } = self.compared;
        Ok(match top {
            None => ComputedDivergence::Whole(divergence::forward(policy, stats, self.predictions(), beta)?),
            Some(top) => ComputedDivergence::Top(top_divergence::forward(policy, stats, self.predictions(), beta, top)?),
        })
    }
}

impl TeacherDivergence {
    /// Computes the divergence of a policy's predictions, with these statistics, from a teacher's.
    pub(super) fn new(teaching: TeacherPredictions, policy: Predictions<'_>, stats: &TokenStats) -> Result<Self> {
        let computed = teaching.divergence(policy, stats)?;
        let this = Self { teaching, computed };
        if this.values().iter().all(|value| value.is_finite()) { Ok(this) } else { Err(Error::NotFinite) }
    }

    /// Returns the divergence of each prediction, in nats.
    pub(super) fn values(&self) -> &[f32] {
        match &self.computed {
            ComputedDivergence::Whole(divergence) => divergence.values(),
            ComputedDivergence::Top(divergence) => divergence.values(),
        }
    }

    /// Returns the gradient of the policy's hidden states. Adds that of the policy's output matrix to `d_output`, if given.
    pub(super) fn backward(&self, policy: Predictions<'_>, d_values: &[f32], d_output: Option<&Tensor>) -> Result<Tensor> {
        Ok(match &self.computed {
            ComputedDivergence::Whole(divergence) => {
                divergence.backward(policy, self.teaching.predictions(), d_values, d_output)?
            }
            ComputedDivergence::Top(divergence) => divergence.backward(policy, d_values, d_output)?,
        })
    }
}
