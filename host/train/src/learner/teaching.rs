//! What a teacher predicts for the policy's completions.

use super::Learner;
use super::combined_collectives::CombinedCollectives;
use super::moving_teacher::MovingTeacher;
use crate::Result;
use crate::experience::MicroBatch;
use crate::model::{ComparedTokens, DivergenceOptions, FrozenModel, PassObserver, TeacherPredictions};
use crate::ops::top_divergence::{LikelyToken, TopTokens};
use crate::packed_completions::{PackedCompletions, PromptReader};
use crate::plugin::NeededInputs;
use crate::plugin::columns::{DivergenceColumn, TEACHER_LOGP, TopColumn};
use crate::step_metrics::StepMetrics;
use candle_core::Tensor;

impl Learner {
    /// Returns a teacher's predictions of packed completions, if the algorithm compares distributions and there is one.
    pub(super) fn teaching(
        &self,
        packed: &PackedCompletions,
        needs: &NeededInputs,
        watching: &CombinedCollectives<'_>,
    ) -> Result<Option<TeacherPredictions>> {
        let Some((_, DivergenceColumn { beta, top })) = needs.divergence() else { return Ok(None) };
        let vocabulary = self.policy.architecture().vocab_size;
        let moving = self.moving_teacher();
        let Some(teacher) = self.teacher.as_ref().map(|teacher| teacher.model()).or(moving.as_ref()) else {
            let top = top.filter(|top| top.of_teacher);
            let Some((tokens, top)) = packed.likely_tokens.as_ref().zip(top) else { return Ok(None) };
            let mut tokens: Vec<_> = tokens.iter().map(|tokens| known_tokens(tokens, vocabulary, top.count)).collect();
            tokens.resize(packed.selected.len(), Vec::new());
            return Ok(Some(TeacherPredictions::listed(tokens, beta, top.with_rest)));
        };
        let tokens = match top {
            None => ComparedTokens::All,
            Some(TopColumn { count, of_teacher: false, with_rest }) => ComparedTokens::OfPolicy(TopTokens { count, with_rest }),
            Some(TopColumn { count, of_teacher: true, with_rest }) => ComparedTokens::OfTeacher(TopTokens { count, with_rest }),
        };
        let compared = DivergenceOptions { temperature: self.plan.temperature, beta, tokens };
        let watch = watching.teacher.as_ref().map(|teacher| teacher as &dyn PassObserver);
        let PackedCompletions { forest, selected, .. } = packed.taught.as_deref().unwrap_or(packed);
        Ok(Some(teacher.teacher_predictions(forest, &selected.rows, vocabulary, compared, watch)?))
    }

    /// Returns the teacher as it is now, if it moves with the policy.
    pub(crate) fn moving_teacher(&self) -> Option<FrozenModel> {
        match self.moving_teacher.as_ref()? {
            MovingTeacher::Live => Some(self.policy.frozen()),
            MovingTeacher::Average(average) => Some(average.model().clone()),
        }
    }

    /// Returns the average's parameters that are trained, in host memory, if there is an average.
    ///
    /// # Errors
    /// If they can't be copied.
    pub(crate) fn averaged_weights(&self) -> Result<Option<Vec<(String, Tensor)>>> {
        let Some(MovingTeacher::Average(average)) = &self.moving_teacher else { return Ok(None) };
        let model = average.model().on_host()?;
        Ok(Some(model.weights().trained().into_iter().map(|(name, t)| (name, t.clone())).collect()))
    }

    /// Lets an average follow the policy after this step, if it is due.
    ///
    /// # Errors
    /// If an operation fails.
    pub(crate) fn update_teacher(&mut self, step: u64) -> Result<StepMetrics> {
        let mut figures = StepMetrics::start();
        if let Some(MovingTeacher::Average(average)) = &mut self.moving_teacher
            && average.follow(&self.policy, step)?
        {
            figures.lap("teacher");
        }
        Ok(figures)
    }

    /// Returns a moving teacher's log-probabilities of a micro-batch's tokens, if it may have moved since the completions were generated.
    pub(super) fn moved_teacher_logp(&self, micro_batch: &MicroBatch, needs: &NeededInputs) -> Result<Option<Vec<f32>>> {
        if !needs.has(TEACHER_LOGP) || !self.batching.sizes.trains_later || micro_batch.items.is_empty() {
            return Ok(None);
        }
        let Some(teacher) = self.moving_teacher() else { return Ok(None) };
        let read = PackedCompletions::read_by(PromptReader::Teacher, &micro_batch.experience, micro_batch.rows());
        Ok(Some(teacher.score(&read.forest, &read.selected, self.plan.temperature)?.logp))
    }
}

/// Returns the likeliest of a teacher's tokens that the policy has, too; the likeliest come first. A teacher may have rows that represent no
/// token.
fn known_tokens(tokens: &[LikelyToken], vocabulary: usize, count: usize) -> Vec<LikelyToken> {
    tokens.iter().copied().filter(|token| (token.id as usize) < vocabulary).take(count).collect()
}
