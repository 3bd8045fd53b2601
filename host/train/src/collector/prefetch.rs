//! Generates ahead: while training learns from one generation, servers or agents write the next ones.

use super::source::PolicyVersion;
use super::{CollectionContext, Collector};
use crate::Result;
use crate::dataset::Prompt;
use crate::step_metrics::StepMetrics;
use std::sync::Arc;

impl Collector {
    /// Returns how many generations may be begun before training starts on the one before them.
    fn generations_ahead(&self) -> usize {
        usize::try_from(self.rollout.off_policy.max_staleness).unwrap_or(usize::MAX) / self.batching.updates_per_generation()
    }

    /// Returns the prompts of the next generation. If generations are written ahead, also begins as many as allowed with the current
    /// policy. A resumed run draws and begins them again, so that no prompt is skipped or repeated.
    pub(super) fn next_prompts(
        &mut self,
        figures: &mut StepMetrics,
        with: &mut CollectionContext<'_>,
    ) -> Result<Vec<Arc<Prompt>>> {
        let most = self.generations_ahead();
        if most == 0 {
            return self.draw(figures, with);
        }
        while self.data.ahead() <= most {
            let place = self.data.mark()?;
            let prompts = self.draw(figures, with)?;
            let generation = self.counters.generation + self.data.ahead() as u64;
            let policy = PolicyVersion { policy: with.learner.policy(), version: with.at.step };
            let request = self.request(&prompts, generation, with.phase);
            self.source.begin(&request, policy)?;
            self.data.push_ahead(place, prompts);
        }
        Ok(self.data.pop_ahead().unwrap_or_default())
    }
}
