//! A frozen model as a teacher: its distributions over the tokens that a policy predicts. Of a teacher that is elsewhere, its likeliest
//! tokens are known.

use super::{Error, FrozenModel, PassObserver, Result};
use crate::ops::divergence::{self, Divergence, Predictions};
use crate::ops::logprob::{LogitScale, TokenStats};
use crate::ops::top_divergence::{self, LikelyToken, TopDivergence, TopTokens};
use crate::ops::{self, Forest};
use candle_core::Tensor;

/// A teacher's predictions for the policy's tokens, and the divergence to compute.
pub struct TeacherPredictions {
    /// Selects the divergence, from 0 to 1; see [`divergence`].
    beta: f64,
    compared: Comparison,
}

/// The distributions that the policy's are compared with.
enum Comparison {
    /// Those of a model, at these tokens.
    Model(ModelPredictions, ComparedTokens),
    /// The likeliest tokens at each prediction, and whether all others together count as one more.
    Listed(Vec<Vec<LikelyToken>>, bool),
}

/// Predictions of a model.
pub(super) struct ModelPredictions {
    hidden: Tensor,
    /// The output matrix, without rows beyond the policy's vocabulary.
    output: Tensor,
    scale: LogitScale,
}

/// Options of the divergence between a policy's and a model's distributions.
#[derive(Clone, Copy, Debug)]
pub struct DivergenceOptions {
    /// Divisor of both models' logits.
    pub temperature: f32,
    /// Selects the divergence, from 0 to 1; see [`divergence`].
    pub beta: f64,
    /// The tokens that are compared.
    pub tokens: ComparedTokens,
}

/// The tokens at which distributions are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ComparedTokens {
    /// The whole vocabulary.
    All,
    /// The policy's likeliest tokens.
    OfPolicy(TopTokens),
    /// The teacher's likeliest tokens.
    OfTeacher(TopTokens),
}

/// A policy's divergence from a teacher.
pub(super) enum TeacherDivergence {
    /// Over the whole vocabulary, from this model's distributions.
    Whole(Divergence, ModelPredictions),
    /// Over likely tokens.
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
        let model = ModelPredictions { hidden, output, scale: decoder.logits(compared.temperature) };
        Ok(TeacherPredictions { beta: compared.beta, compared: Comparison::Model(model, compared.tokens) })
    }
}

impl ModelPredictions {
    fn as_predictions(&self) -> Predictions<'_> {
        Predictions { hidden: &self.hidden, output: &self.output, scale: self.scale }
    }
}

impl TeacherPredictions {
    /// Returns the predictions of a teacher of which these tokens are known at each of the policy's predictions. `beta` selects the
    /// divergence; all other tokens together count as one more if `with_rest`.
    pub fn listed(tokens: Vec<Vec<LikelyToken>>, beta: f64, with_rest: bool) -> Self {
        Self { beta, compared: Comparison::Listed(tokens, with_rest) }
    }

    fn divergence(self, policy: Predictions<'_>, stats: &TokenStats) -> ops::Result<TeacherDivergence> {
        let beta = self.beta;
        let (model, tokens) = match self.compared {
            Comparison::Model(model, tokens) => (model, tokens),
            Comparison::Listed(tokens, with_rest) => {
                return top_divergence::listed(policy, stats, &tokens, beta, with_rest).map(TeacherDivergence::Top);
            }
        };
        let teacher = model.as_predictions();
        let top = match tokens {
            ComparedTokens::All => {
                let whole = divergence::forward(policy, stats, teacher, beta)?;
                return Ok(TeacherDivergence::Whole(whole, model));
            }
            ComparedTokens::OfPolicy(top) => top_divergence::forward(policy, stats, teacher, beta, top)?,
            ComparedTokens::OfTeacher(TopTokens { count, with_rest }) => {
                let listed = top_divergence::likeliest_tokens(teacher, count)?;
                top_divergence::listed(policy, stats, &listed, beta, with_rest)?
            }
        };
        Ok(TeacherDivergence::Top(top))
    }
}

impl TeacherDivergence {
    /// Computes the divergence of a policy's predictions, with these statistics, from a teacher's.
    pub(super) fn new(teaching: TeacherPredictions, policy: Predictions<'_>, stats: &TokenStats) -> Result<Self> {
        let this = teaching.divergence(policy, stats)?;
        if this.values().iter().all(|value| value.is_finite()) { Ok(this) } else { Err(Error::NotFinite) }
    }

    /// Returns the divergence of each prediction, in nats.
    pub(super) fn values(&self) -> &[f32] {
        match self {
            Self::Whole(divergence, _) => divergence.values(),
            Self::Top(divergence) => divergence.values(),
        }
    }

    /// Returns the gradient of the policy's hidden states. Adds that of the policy's output matrix to `d_output`, if given.
    pub(super) fn backward(&self, policy: Predictions<'_>, d_values: &[f32], d_output: Option<&Tensor>) -> Result<Tensor> {
        Ok(match self {
            Self::Whole(divergence, teacher) => divergence.backward(policy, teacher.as_predictions(), d_values, d_output)?,
            Self::Top(divergence) => divergence.backward(policy, d_values, d_output)?,
        })
    }
}
