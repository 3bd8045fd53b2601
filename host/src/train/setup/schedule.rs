//! Sets the learning rate schedule.

use crate::config::Config;
use crate::optim::Schedule;
use crate::train::flow::Flow;

/// Number of parameters from which an algorithm's own learning rate is used.
const FULL_SIZE: f64 = 1e8;

/// What is trained.
pub(super) struct Size {
    pub parameters: usize,
    /// Whether only an adapter is.
    pub adapter: bool,
}

/// Returns the schedule of a run, and the configuration with the peak rate set. The default is the algorithm's own `rate` for
/// full-size models. Smaller ones get more, in inverse proportion to their size if the policy's own completions are learned one by
/// one, otherwise by the square root of that, since pairs and given completions carry more information per token. An adapter gets
/// ten times as much, as in TRL's LoRA guide.
pub(super) fn schedule(mut config: Config, flow: Flow, rate: f64, size: Size, total: u64) -> (Config, Schedule) {
    let Size { parameters, adapter } = size;
    let smaller = (FULL_SIZE / parameters as f64).max(1.0);
    let factor = if flow == Flow::Generated { smaller } else { smaller.sqrt() };
    let factor = if adapter { 10.0 * factor } else { factor };
    let peak = *config.learning_rate.get_or_insert(rate * factor);
    let warmup = if config.warmup_steps >= 1.0 {
        config.warmup_steps as u64
    } else {
        let fraction = if config.warmup_steps > 0.0 { config.warmup_steps } else { config.warmup_ratio };
        (fraction * total as f64).ceil() as u64
    };
    let kind = config.lr_scheduler_type;
    (config, Schedule { kind, peak, warmup, total })
}
