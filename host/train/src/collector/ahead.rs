//! Generates ahead: while training learns from a generation, servers write the next ones.

use super::source::PolicyVersion;
use super::{Collector, Streaks, With};
use crate::Result;
use crate::data::Cursor;
use crate::dataset::Prompt;
use crate::figures::Figures;
use std::sync::Arc;

/// A generation that was begun and not trained on.
pub(super) struct Ahead {
    prompts: Vec<Arc<Prompt>>,
    /// The place in the data before its prompts.
    before: (Cursor, Streaks),
    /// Whether its prompts begin an epoch.
    begins_epoch: bool,
}

impl Collector {
    /// Returns how many generations may be begun before training begins to learn from the one before them.
    fn generations_ahead(&self) -> usize {
        let most = self.rollout.servers.as_ref().map_or(0, |servers| servers.max_staleness);
        usize::try_from(most).unwrap_or(usize::MAX) / self.batching.updates_per_generation()
    }

    /// Returns the prompts of the next generation. If some are generated ahead, begins so many with the present policy.
    pub(super) fn next_prompts(&mut self, figures: &mut Figures, with: &mut With<'_>) -> Result<Vec<Arc<Prompt>>> {
        let most = self.generations_ahead();
        if most == 0 {
            return self.draw(figures, with);
        }
        while self.ahead.len() <= most {
            let (before, begins_epoch) = ((self.data.cursor(), self.data.streaks()), self.data.is_at_end()?);
            let prompts = self.draw(figures, with)?;
            let generation = self.counters.generation + self.ahead.len() as u64;
            let policy = PolicyVersion { policy: with.learner.policy(), version: with.at.step };
            let request = self.request(&prompts, generation, with.phase);
            self.source.begin(&request, policy)?;
            self.ahead.push_back(Ahead { prompts, before, begins_epoch });
        }
        Ok(self.ahead.pop_front().map(|next| next.prompts).unwrap_or_default())
    }

    /// Returns whether the next generation begins another epoch.
    pub(super) fn is_at_end(&self) -> Result<bool> {
        self.ahead.front().map_or_else(|| self.data.is_at_end(), |next| Ok(next.begins_epoch))
    }

    /// Returns the place in the data from which a resumed run draws: what was begun is generated again there, so that no prompt is
    /// skipped or repeated.
    pub(super) fn place_in_data(&self) -> (Cursor, Streaks) {
        self.ahead.front().map_or_else(|| (self.data.cursor(), self.data.streaks()), |next| next.before.clone())
    }

    /// Forgets what was begun.
    pub(super) fn forget_ahead(&mut self) {
        self.ahead.clear();
        self.source.forget_begun();
    }
}
