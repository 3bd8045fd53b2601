//! What of a checkpoint's state a run with other settings takes over.

use super::Restored;
use crate::config::{Config, PluginEntry, Rule};
use crate::patience::Patience;

impl Restored {
    /// Returns the state without what means nothing under other `settings` than it was `written` with: rollouts that another algorithm
    /// has prepared, the moments of another optimizer, and values of another metric.
    pub(crate) fn adapted(mut self, written: &Config, settings: &Config) -> Self {
        let learns = |config: &Config| (PluginEntry::new(config.algorithm.clone()).name().to_owned(), config.learn_from);
        let (was, now) = (learns(written), learns(settings));
        if was != now {
            let waiting: usize = self.waiting.iter().map(|waiting| waiting.rollouts.len()).sum();
            if waiting > 0 {
                tracing::info!("dropped {waiting} completions that {} had prepared and not yet trained on", was.0);
            }
            (self.rest.pending, self.waiting) = Default::default();
            (self.rest.window, self.rest.since_save) = Default::default();
        }
        let kind = |config: &Config| config.rule().ok().map(|rule: Rule| std::mem::discriminant(&rule));
        if kind(written) != kind(settings) {
            tracing::info!("optim was {} and is {}; it starts without moments", written.optim_name(), settings.optim_name());
            self.moments = None;
        }
        if written.metric_for_best_model.is_some() && written.best_by() != settings.best_by() {
            self.rest.best = None;
            self.rest.state.patience = Patience::default();
            self.rest.state.plateau = self.rest.state.plateau.of_another_metric();
        }
        self
    }
}
