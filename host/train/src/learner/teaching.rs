//! What a teacher predicts for the policy's completions.

use super::Learner;
use super::combined_collectives::CombinedCollectives;
use crate::Result;
use crate::model::{DivergenceOptions, PassObserver, TeacherPredictions};
use crate::ops::top_divergence::TopTokens;
use crate::packed_completions::PackedCompletions;
use crate::plugin::NeededInputs;
use crate::plugin::columns::{DivergenceColumn, TopColumn};

impl Learner {
    /// Returns a teacher's predictions of packed completions, if the algorithm compares distributions and there is one.
    pub(super) fn teaching(
        &self,
        packed: &PackedCompletions,
        needs: &NeededInputs,
        watching: &CombinedCollectives<'_>,
    ) -> Result<Option<TeacherPredictions>> {
        let Some((_, DivergenceColumn { beta, top })) = needs.divergence() else { return Ok(None) };
        let own = self.plan.is_own_teacher.then(|| self.policy.frozen());
        let Some(teacher) = self.teacher.as_ref().map(|teacher| teacher.model()).or(own.as_ref()) else { return Ok(None) };
        let top = top.map(|TopColumn { count, with_rest }| TopTokens { count, with_rest });
        let compared = DivergenceOptions { temperature: self.plan.temperature, beta, top };
        let watch = watching.teacher.as_ref().map(|teacher| teacher as &dyn PassObserver);
        let PackedCompletions { forest, selected, .. } = packed.taught.as_deref().unwrap_or(packed);
        let vocabulary = self.policy.architecture().vocab_size;
        Ok(Some(teacher.teacher_predictions(forest, &selected.rows, vocabulary, compared, watch)?))
    }
}
