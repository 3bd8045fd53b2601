//! The learning rate's course.

use crate::config::Config;
use crate::optim::Schedule;
use crate::train::flow::Flow;

/// Parameters from which TRL's learning rate serves.
const FULL_SIZE: f64 = 1e8;
const FULL_SIZE_RATE: f64 = 1e-6;

/// The learning rate's course in a run of so many steps, and the configuration with its peak. Where it is not given it is TRL's
/// 1e-6 for models of full size, and more for smaller ones: in proportion where an algorithm learns from its own completions, by
/// the root of that from pairs, which say more of each token. An adapter takes ten times as much, as TRL's guide to LoRA has it.
pub(super) fn schedule(mut config: Config, flow: Flow, parameters: usize, adapter: bool, total: u64) -> (Config, Schedule) {
    let smaller = (FULL_SIZE / parameters as f64).max(1.0);
    let factor = if flow == Flow::Generated { smaller } else { smaller.sqrt() };
    let factor = if adapter { 10.0 * factor } else { factor };
    let peak = *config.learning_rate.get_or_insert(FULL_SIZE_RATE * factor);
    let warmup = if config.warmup_steps >= 1.0 {
        config.warmup_steps as u64
    } else {
        let fraction = if config.warmup_steps > 0.0 { config.warmup_steps } else { config.warmup_ratio };
        (fraction * total as f64).ceil() as u64
    };
    let kind = config.lr_scheduler_type;
    (config, Schedule { kind, peak, warmup, total })
}
