//! What a policy learns from a teacher at each token, for losses that weigh tokens themselves.

use crate::Error;
use crate::algorithm::{Batch, Needs, Unit};
use crate::columns::{LOGP, OLD_LOGP, TEACHER_LOGP, teacher_divergence, teacher_divergence_of_top};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What is compared at each token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DistillationMode {
    /// The log-probabilities of the sampled tokens, by a policy gradient for the reverse divergence.
    SampledToken,
    /// Distributions over the whole vocabulary.
    FullLogits,
    /// Distributions over the policy's likeliest tokens.
    TopkLogits,
}

/// How a policy is compared with a teacher.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TeacherComparison {
    /// What is compared.
    pub mode: DistillationMode,
    /// Which divergence: 0 is the forward one, 1 the reverse one, and numbers between are generalised Jensen-Shannon divergences.
    pub alpha: f64,
    /// Number of likeliest tokens that are compared, with [`DistillationMode::TopkLogits`].
    pub top: u32,
    /// Whether all other tokens together count as one more; otherwise the likely tokens' probabilities are divided by their sum.
    pub with_rest: bool,
    /// Maximum of a token's ratio to its probability when it was sampled, by which its loss is weighted; without one there are no weights.
    pub max_ratio: Option<f64>,
}

/// What the policy learns at a token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DistilledToken {
    /// Divergence from the teacher; for sampled tokens, the difference of log-probabilities.
    pub distance: f64,
    /// The token's loss.
    pub loss: f64,
    /// Derivative of the loss with respect to the entry of [`TeacherComparison::column`].
    pub slope: f64,
}

impl TeacherComparison {
    /// Checks that the divergence can be estimated.
    ///
    /// # Errors
    /// If sampled tokens should estimate another divergence than the reverse one.
    pub fn check(&self) -> Result<(), Error> {
        if self.mode == DistillationMode::SampledToken && self.alpha != 1.0 {
            let detail =
                "distillation_alpha must be 1 with distillation_mode sampled_token, which estimates the reverse divergence";
            return Err(Error::Config(detail.into()));
        }
        Ok(())
    }

    /// Returns the name of the column by which the loss has derivatives.
    #[must_use]
    pub fn column(&self) -> String {
        match self.mode {
            DistillationMode::SampledToken => LOGP.to_owned(),
            DistillationMode::FullLogits => teacher_divergence(self.alpha),
            DistillationMode::TopkLogits => teacher_divergence_of_top(self.alpha, self.top as usize, self.with_rest),
        }
    }

    /// Returns the columns that [`TeacherComparison::tokens`] reads.
    #[must_use]
    pub fn needs(&self) -> Needs {
        let of_teacher = match self.mode {
            DistillationMode::SampledToken => Needs::TEACHER_LOGP,
            _ => Needs::column(&self.column()),
        };
        of_teacher | Needs::LOGP | Needs::OLD_LOGP
    }

    /// Returns what the policy learns at each token of a batch.
    ///
    /// # Errors
    /// If the batch lacks a column.
    pub fn tokens(&self, batch: &Batch) -> Result<Vec<DistilledToken>, Error> {
        let (logp, old) = (batch.values(LOGP, Unit::Token)?, batch.values(OLD_LOGP, Unit::Token)?);
        let is_sampled = self.mode == DistillationMode::SampledToken;
        let column = if is_sampled { TEACHER_LOGP.to_owned() } else { self.column() };
        let of_teacher = batch.values(&column, Unit::Token)?;
        let token = |i: usize| {
            let ratio = self.ratio(logp[i], old[i]);
            if !is_sampled {
                let distance = f64::from(of_teacher[i]);
                return DistilledToken { distance, loss: ratio * distance, slope: ratio };
            }
            // The distance is constant in the derivatives.
            let distance = f64::from(logp[i] - of_teacher[i]);
            DistilledToken { distance, loss: ratio * distance * f64::from(logp[i]), slope: ratio * distance }
        };
        Ok((0..logp.len()).map(token).collect())
    }

    /// Returns the weight of a token's loss, which is constant in the derivatives.
    fn ratio(&self, logp: f32, old: f32) -> f64 {
        self.max_ratio.map_or(1.0, |most| f64::from(logp - old).clamp(-20.0, 20.0).exp().min(most))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::Column;
    use crate::algorithm::testing::batch;

    const SAMPLED: TeacherComparison =
        TeacherComparison { mode: DistillationMode::SampledToken, alpha: 1.0, top: 100, with_rest: false, max_ratio: Some(2.0) };

    fn tokens(compared: TeacherComparison, column: &str, values: [f32; 3]) -> Vec<DistilledToken> {
        let columns = [(LOGP, [-1.0, -2.0, -3.0]), (OLD_LOGP, [-1.0, -5.0, -2.0]), (column, values)];
        let mut given = batch(&[&[3]]);
        given.columns.extend(columns.map(|(name, values)| Column::new(name, Unit::Token, values.to_vec())));
        compared.tokens(&given).unwrap()
    }

    #[test]
    fn the_column_says_what_is_compared() {
        let full = TeacherComparison { mode: DistillationMode::FullLogits, alpha: 0.5, ..SAMPLED };
        let top = TeacherComparison { mode: DistillationMode::TopkLogits, with_rest: true, ..full };
        assert_eq!(
            [SAMPLED, full, top].map(|compared| compared.column()),
            ["logp", "teacher_divergence/0.5", "teacher_divergence/0.5/top100+rest"]
        );
        assert_eq!(SAMPLED.needs().names(), ["logp", "old_logp", "teacher_logp"]);
        assert!(SAMPLED.check().is_ok() && full.check().is_ok());
        assert!(matches!(TeacherComparison { alpha: 0.5, ..SAMPLED }.check(), Err(Error::Config(_))));
    }

    #[test]
    fn losses_are_weighted_by_clipped_ratios() {
        let full = TeacherComparison { mode: DistillationMode::FullLogits, ..SAMPLED };
        let of_divergences = tokens(full, "teacher_divergence/1", [1.0, 3.0, 2.0]);
        let ratios = [1.0, 2.0, (-1f64).exp()];
        for ((token, ratio), distance) in of_divergences.iter().zip(ratios).zip([1.0, 3.0, 2.0]) {
            assert!((token.loss - ratio * distance).abs() < 1e-6 && (token.slope - ratio).abs() < 1e-6, "{token:?}");
            assert_eq!(token.distance, distance);
        }
        let free = tokens(TeacherComparison { max_ratio: None, ..full }, "teacher_divergence/1", [1.0, 3.0, 2.0]);
        assert!(free.iter().all(|token| token.slope == 1.0 && token.loss == token.distance));
        let of_samples = tokens(SAMPLED, TEACHER_LOGP, [-0.5, -2.0, -4.0]);
        let found: Vec<f64> = of_samples.iter().map(|token| token.slope).collect();
        assert!(found.iter().zip([-0.5, 0.0, (-1f64).exp()]).all(|(slope, want)| (slope - want).abs() < 1e-6), "{found:?}");
        assert!(of_samples.iter().zip([-1.0, -2.0, -3.0]).all(|(token, logp)| (token.loss - token.slope * logp).abs() < 1e-6));
    }
}
