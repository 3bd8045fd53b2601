//! Periods of a run's regular actions, in steps.

use crate::config::{IntervalStrategy, Period, RunConfig};

/// Periods in steps; actions that never happen have more than the run's steps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Periods {
    /// Steps between log rows.
    pub log: u64,
    /// Steps between checkpoints.
    pub save: u64,
    /// Steps between evaluations.
    pub evaluate: u64,
    /// Steps before the first evaluation.
    pub evaluate_from: u64,
}

impl Periods {
    /// Returns the periods of a run of `max_steps` steps, with `epoch` steps per epoch.
    pub(super) fn new(config: &RunConfig, max_steps: u64, epoch: u64) -> Self {
        let every = |strategy: IntervalStrategy, period: Period| match strategy {
            IntervalStrategy::No => u64::MAX,
            IntervalStrategy::Steps => period.in_steps(max_steps),
            IntervalStrategy::Epoch => epoch.max(1),
        };
        let strategy = config.evaluation_strategy();
        // As in transformers: counted in epochs with that strategy, otherwise in steps.
        let of_delay = if strategy == IntervalStrategy::Epoch { epoch.max(1) } else { 1 };
        Self {
            log: every(config.logging_strategy, config.logging_steps),
            save: every(config.save_strategy, config.save_steps),
            evaluate: every(strategy, config.eval_steps.unwrap_or(config.save_steps)),
            evaluate_from: (config.eval_delay * of_delay as f64).ceil() as u64,
        }
    }
}

/// The steps of a run, and those after which it evaluates and saves.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Calendar {
    /// Number of steps that were taken before this process.
    pub first: u64,
    /// Number of the last step.
    pub last: u64,
    /// Evaluations during training, if any.
    pub evaluations: Option<RecurringAction>,
    /// Checkpoints.
    pub saves: Option<RecurringAction>,
    /// Number of an evaluation's completions, relative to those of a step.
    pub evaluation_in_steps: f64,
}

/// An action that recurs, and also happens after the last step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RecurringAction {
    /// Number of steps between occurrences.
    pub every: u64,
    /// Number of steps before the first occurrence.
    pub from: u64,
}

impl RecurringAction {
    /// Counts the occurrences after step `after`, up to step `last`.
    fn times(self, after: u64, last: u64) -> u64 {
        let every = self.every.max(1);
        let before_end = |step: u64| step.saturating_sub(1) / every;
        let skipped = after.max(self.from.saturating_sub(1));
        let regular = before_end(last).saturating_sub(skipped / every);
        regular + u64::from(after < last)
    }
}

impl Calendar {
    /// Returns the seconds from the end of `step` to the end of the run, if a step takes `a_step` seconds. `pauses` are the durations of an
    /// evaluation and of a checkpoint; before the first evaluation, it is assumed to take as long as steps with as many completions.
    pub fn seconds_left(&self, step: u64, a_step: f64, pauses: [Option<f64>; 2]) -> f64 {
        let usual = [a_step * self.evaluation_in_steps, 0.0];
        let of_pauses = [self.evaluations, self.saves].into_iter().zip(pauses).zip(usual).map(|((recurring, pause), usual)| {
            let times = recurring.map_or(0, |recurring| recurring.times(step, self.last));
            times as f64 * pause.unwrap_or(usual)
        });
        self.last.saturating_sub(step) as f64 * a_step + of_pauses.sum::<f64>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_left_counts_evaluations_and_checkpoints() {
        for (every, from) in [(1, 0), (3, 0), (3, 7), (4, 4), (10, 0), (u64::MAX, 0), (5, 100)] {
            let recurring = RecurringAction { every, from };
            for after in 0..=20 {
                let due = |step: &u64| *step == 20 || step.is_multiple_of(every) && *step >= from;
                let expected = (after + 1..=20).filter(due).count() as u64;
                assert_eq!(recurring.times(after, 20), expected, "every {every} from {from}, after {after}");
            }
        }
        let recurring = |every| Some(RecurringAction { every, from: 0 });
        let calendar =
            Calendar { first: 0, last: 100, evaluations: recurring(20), saves: recurring(50), evaluation_in_steps: 3.0 };
        // 60 steps, evaluations after 60, 80 and 100, checkpoints after 50 and 100.
        assert_eq!(calendar.seconds_left(40, 2.0, [Some(7.0), Some(1.0)]), 120.0 + 21.0 + 2.0);
        assert_eq!(calendar.seconds_left(40, 2.0, [None, None]), 120.0 + 3.0 * 6.0);
        assert_eq!(Calendar { evaluations: None, ..calendar }.seconds_left(100, 2.0, [Some(7.0), Some(1.0)]), 0.0);
    }

    #[test]
    fn periods_are_of_steps_of_epochs_or_never_end() {
        let config = RunConfig {
            save_strategy: IntervalStrategy::Epoch,
            eval_strategy: Some(IntervalStrategy::No),
            ..RunConfig::default()
        };
        assert_eq!(Periods::new(&config, 100, 7), Periods { log: 10, save: 7, evaluate: u64::MAX, evaluate_from: 0 });
        let config =
            RunConfig { logging_strategy: IntervalStrategy::Epoch, save_steps: Period::from_steps(3), ..RunConfig::default() };
        assert_eq!(Periods::new(&config, 100, 0), Periods { log: 1, save: 3, evaluate: 3, evaluate_from: 0 });
        let config = RunConfig { eval_delay: 1.5, ..config };
        assert_eq!(Periods::new(&config, 100, 4).evaluate_from, 2);
        let config = RunConfig { eval_strategy: Some(IntervalStrategy::Epoch), ..config };
        assert_eq!(Periods::new(&config, 100, 4).evaluate_from, 6);
    }
}
