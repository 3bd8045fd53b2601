//! Lowers the learning rate when evaluations stop improving, for a schedule that does.

use super::trainer::Trainer;
use super::{Error, Result};
use crate::config::{self, LrShape};
use std::collections::BTreeMap;

impl Trainer {
    /// Takes the figures of an evaluation into account.
    ///
    /// # Errors
    /// If the metric is not one of them.
    pub(super) fn follow_evaluation(&mut self, figures: &BTreeMap<String, f64>) -> Result<()> {
        // As in transformers, the one before training only shows where it starts.
        let (Ok(LrShape::ReduceLrOnPlateau(settings)), true) = (self.settings.lr_shape(), self.state.global_step > 0) else {
            return Ok(());
        };
        let by_default = if self.collector.flow().generates() { ("reward", true) } else { ("loss", false) };
        let (metric, greater) = self.settings.best_by().unwrap_or(by_default);
        let name = format!("eval_{}", metric.trim_start_matches("eval_"));
        let Some(value) = figures.get(&name) else {
            let meant = config::did_you_mean(&name, figures.keys().map(String::as_str));
            let detail = format!("reduce_lr_on_plateau follows metric_for_best_model, and no metric is named {name:?}{meant}");
            return Err(Error::Unfit(format!("lr_scheduler_type: {detail}")));
        };
        self.state.plateau.observe(*value, settings, greater);
        self.learner.reduce_rates(self.state.plateau.plateaus);
        Ok(())
    }
}
