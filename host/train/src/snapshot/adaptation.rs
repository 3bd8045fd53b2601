//! Adapts a checkpoint's state to a run with other settings.

use super::RestoredState;
use crate::config::{OptimizerRule, PluginEntry, RunConfig};
use crate::patience::EarlyStoppingState;

impl RestoredState {
    /// Returns the state without what does not apply under other `settings` than it was `written` with: rollouts prepared by another
    /// algorithm, the moments of another optimizer, and values of another metric.
    pub(crate) fn adapted(mut self, written: &RunConfig, settings: &RunConfig) -> Self {
        let learns =
            |config: &RunConfig| (PluginEntry::new(config.algorithm.clone()).name().to_owned(), config.completion_source());
        let (was, now) = (learns(written), learns(settings));
        if was != now {
            let waiting: usize = self.waiting.iter().map(|waiting| waiting.rollouts.len()).sum();
            if waiting > 0 {
                tracing::info!("dropped {waiting} completions that {} had prepared and not yet trained on", was.0);
            }
            (self.rest.pending, self.waiting) = Default::default();
            (self.rest.window, self.rest.since_save) = Default::default();
        }
        let kind = |config: &RunConfig| config.rule().ok().map(|rule: OptimizerRule| std::mem::discriminant(&rule));
        if kind(written) != kind(settings) {
            tracing::info!("optim was {} and is {}; it starts without moments", written.optim_name(), settings.optim_name());
            self.moments = None;
        }
        if written.metric_for_best_model.is_some() && written.best_model_metric() != settings.best_model_metric() {
            self.rest.best = None;
            self.rest.state.patience = EarlyStoppingState::default();
            self.rest.state.plateau = self.rest.state.plateau.for_new_metric();
        }
        self
    }
}
