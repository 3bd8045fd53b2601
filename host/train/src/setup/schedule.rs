//! Sets the learning rate schedule.

use crate::Result;
use crate::config::{self, LrShape, RunConfig};
use crate::optim::LearningRateSchedule;

/// Number of parameters from which an algorithm's own learning rate applies unscaled.
const FULL_SIZE: f64 = 1e8;

/// Learning rate of a critic of that size, from OpenRLHF.
pub(super) const CRITIC_LEARNING_RATE: f64 = 9e-6;

/// Size and kind of what is trained.
#[derive(Clone, Copy)]
pub(super) struct TrainedSize {
    pub parameters: usize,
    /// Whether only an adapter is trained.
    pub adapter: bool,
    /// Whether the policy's own completions are learned individually.
    pub learns_samples: bool,
}

impl TrainedSize {
    /// Returns the factor on a learning rate for full-size models. Smaller models get more: in inverse proportion to their size if the
    /// policy's completions are learned individually, otherwise by the square root of that, since pairs and given completions carry more
    /// information per token. An adapter gets ten times as much, as in TRL's LoRA guide.
    fn factor(self) -> f64 {
        let smaller = (FULL_SIZE / self.parameters as f64).max(1.0);
        let factor = if self.learns_samples { smaller } else { smaller.sqrt() };
        if self.adapter { 10.0 * factor } else { factor }
    }
}

/// Returns the default peak rate of a model: a full-size model's `rate`, such as the algorithm's own, scaled for its size.
pub(super) fn usual(rate: f64, size: TrainedSize) -> f64 {
    rate * size.factor()
}

/// Returns the schedule of a run's policy with this peak. Warns if its warmup has no effect.
pub(super) fn of_policy(config: &RunConfig, peak: f64, total: u64) -> Result<LearningRateSchedule> {
    let schedule = with_peak(config, peak, total)?;
    warn_of_warmup(config, &schedule);
    Ok(schedule)
}

/// Returns a run's schedule with this peak.
pub(super) fn with_peak(config: &RunConfig, peak: f64, total: u64) -> Result<LearningRateSchedule> {
    let invalid = |place: &str, detail: String| config::Error::Invalid { place: place.to_owned(), detail };
    let shape = config.lr_shape().map_err(|(key, detail)| invalid(key, detail))?;
    let warmup = if config.warmup_steps >= 1.0 {
        config.warmup_steps as u64
    } else {
        let fraction = if config.warmup_steps > 0.0 { config.warmup_steps } else { config.warmup_ratio };
        (fraction * total as f64).ceil() as u64
    };
    let schedule = LearningRateSchedule { shape, peak, warmup, total, plateaus: 0 };
    match schedule.fault() {
        Some(fault) => Err(invalid("lr_scheduler_kwargs", fault).into()),
        None => Ok(schedule),
    }
}

/// Warns about a warmup that the schedule does not use.
fn warn_of_warmup(config: &RunConfig, schedule: &LearningRateSchedule) {
    if schedule.warmup > 0 && matches!(schedule.shape, LrShape::Constant | LrShape::ReduceLrOnPlateau(_)) {
        let key = if config.warmup_steps > 0.0 { "warmup_steps" } else { "warmup_ratio" };
        let advice = "the schedule has no warmup, as in transformers; constant_with_warmup has one";
        tracing::warn!("{key} has no effect: {advice}");
    }
}
