//! Periods, in steps, of a run's regular actions.

use crate::config::{Config, Period, Strategy};

/// Numbers of steps; for actions that never happen, more than a run has.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Periods {
    /// Between lines of the log.
    pub log: u64,
    /// Between checkpoints.
    pub save: u64,
    /// Between evaluations.
    pub evaluate: u64,
    /// Before the first evaluation.
    pub evaluate_from: u64,
}

impl Periods {
    /// Returns the periods of a run of `max_steps` whose epoch has this many.
    pub(super) fn of(config: &Config, max_steps: u64, epoch: u64) -> Self {
        let every = |strategy: Strategy, period: Period| match strategy {
            Strategy::No => u64::MAX,
            Strategy::Steps => period.of(max_steps),
            Strategy::Epoch => epoch.max(1),
        };
        let strategy = config.eval_strategy.unwrap_or(Strategy::Steps);
        // As in transformers: epochs of the strategy by epochs, steps otherwise.
        let of_delay = if strategy == Strategy::Epoch { epoch.max(1) } else { 1 };
        Self {
            log: every(config.logging_strategy, config.logging_steps),
            save: every(config.save_strategy, config.save_steps),
            evaluate: every(strategy, config.eval_steps.unwrap_or(config.save_steps)),
            evaluate_from: (config.eval_delay * of_delay as f64).ceil() as u64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn periods_are_of_steps_of_epochs_or_never_end() {
        let config = Config { save_strategy: Strategy::Epoch, eval_strategy: Some(Strategy::No), ..Config::default() };
        assert_eq!(Periods::of(&config, 100, 7), Periods { log: 10, save: 7, evaluate: u64::MAX, evaluate_from: 0 });
        let config = Config { logging_strategy: Strategy::Epoch, save_steps: Period::steps(3), ..Config::default() };
        assert_eq!(Periods::of(&config, 100, 0), Periods { log: 1, save: 3, evaluate: 3, evaluate_from: 0 });
        let config = Config { eval_delay: 1.5, ..config };
        assert_eq!(Periods::of(&config, 100, 4).evaluate_from, 2);
        let config = Config { eval_strategy: Some(Strategy::Epoch), ..config };
        assert_eq!(Periods::of(&config, 100, 4).evaluate_from, 6);
    }
}
