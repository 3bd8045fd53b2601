//! Requests of users to a running run, handled between two steps: to pause, resume, save, evaluate or stop.

use super::trainer::{Listener, Trainer};
use super::{Error, Result, ranks};
use crate::activity::{Activity, ProgressTask};
use crate::config::shell_word;
use crate::run::{RunAction, RunEvent, RunRequest, TakenRequest, take_requests};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Interval at which a paused run checks for requests.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Requests since the last step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct StepRequests {
    /// Whether to pause (true) or to resume (false); the last request counts.
    pub pauses: Option<bool>,
    pub saves: bool,
    pub evaluates: bool,
    pub stops: bool,
}

impl StepRequests {
    fn add(&mut self, action: RunAction) {
        match action {
            RunAction::Pause => self.pauses = Some(true),
            RunAction::Continue => self.pauses = Some(false),
            RunAction::Save => self.saves = true,
            RunAction::Evaluate => self.evaluates = true,
            RunAction::Stop => self.stops = true,
        }
    }
}

impl Trainer {
    /// Takes the requests, on all ranks, and records them. `waits` says whether the run is paused.
    pub(super) fn take_requests(&mut self, waits: bool) -> Result<StepRequests> {
        let taken = self.world.broadcast("requests", || Ok::<_, Error>(take_requests(self.journal.path())))?;
        let (mut requested, step) = (StepRequests::default(), self.state.global_step);
        for TakenRequest { name, request: RunRequest { action, by } } in taken {
            let paused = requested.pauses.unwrap_or(waits);
            let reason = match action {
                RunAction::Evaluate if self.evaluation.is_none() => Some("the run has no evaluation dataset"),
                RunAction::Pause if paused => Some("the run is already paused"),
                RunAction::Pause if self.is_over() => Some("the run has taken its last step"),
                RunAction::Continue if !paused => Some("the run is not paused"),
                _ => None,
            };
            if reason.is_none() {
                requested.add(action);
            }
            self.journal.event(&RunEvent::Requested { action: action.name(), by: &by, step, request: &name, refused: reason })?;
        }
        Ok(requested)
    }

    /// Waits until a request resumes or stops the run, or `stop` is set. Meanwhile swaps plugins, and saves and evaluates on request.
    /// Returns whether the run stops.
    pub(super) fn wait_while_paused(&mut self, stop: &AtomicBool, listener: &mut dyn Listener) -> Result<bool> {
        let (step, run) = (self.state.global_step, shell_word(self.journal.path()));
        tracing::info!("paused after step {step}; `rlhost control {run} continue` goes on");
        // It ends while the run evaluates or saves, which is not waiting.
        let mut waiting = None;
        loop {
            if waiting.is_none() {
                waiting = Some(ProgressTask::new(Activity::Paused));
            }
            self.record(listener, super::plugins::RunPlugins::swap)?;
            let requested = self.take_requests(true)?;
            if ranks::any(&self.world, stop.load(Ordering::Relaxed))? || requested.stops {
                return Ok(true);
            }
            if requested.evaluates || requested.saves {
                waiting = None;
            }
            if requested.evaluates {
                self.evaluate_as_requested(stop, listener)?;
            }
            if requested.saves {
                self.save_together(listener)?;
                self.journal.record_saves(true)?;
            }
            if requested.pauses == Some(false) {
                return Ok(false);
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_request_decides_whether_a_run_waits() {
        let of = |actions: &[RunAction]| {
            let mut requested = StepRequests::default();
            actions.iter().for_each(|action| requested.add(*action));
            requested
        };
        assert_eq!(of(&[]), StepRequests::default());
        assert_eq!(of(&[RunAction::Pause, RunAction::Continue]).pauses, Some(false));
        assert_eq!(
            of(&[RunAction::Continue, RunAction::Save, RunAction::Pause]),
            StepRequests { pauses: Some(true), saves: true, ..StepRequests::default() }
        );
        let all = of(&RunAction::ALL);
        assert!(all.stops && all.evaluates && all.saves);
    }
}
