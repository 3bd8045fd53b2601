//! State of a run of a sweep.

use crate::config::json_lines;
use crate::run::{EventKind, EventLine, RunFiles, is_running};
use std::path::Path;

/// State of a run, according to its folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SweepRunState {
    /// The run has not begun.
    New,
    /// The run completed its last step.
    Finished,
    /// The run began, and ended or died before its last step.
    Interrupted,
    /// Another process is running the run.
    Running,
}

impl SweepRunState {
    /// Reads a run's folder.
    pub(super) fn read(run: &Path) -> Self {
        let files = RunFiles(run);
        if is_running(run) == Some(true) {
            return Self::Running;
        }
        // The lock is the first file of a run's folder.
        if !files.lock().exists() {
            return Self::New;
        }
        let mut last = None;
        // A run whose events can't be read is taken as interrupted.
        let _ = json_lines::for_each_object(&files.events(), |line| {
            let kind = EventLine::from_fields(line).kind;
            last = kind.filter(|kind| kind.begins() || kind.ends()).or(last);
        });
        if last == Some(EventKind::Finished) { Self::Finished } else { Self::Interrupted }
    }

    pub(super) fn word(self) -> &'static str {
        match self {
            Self::New => "new",
            Self::Finished => "finished",
            Self::Interrupted => "interrupted",
            Self::Running => "running",
        }
    }
}

/// Returns why a run failed, according to its events.
pub(super) fn reason(run: &Path) -> Option<String> {
    let mut reason = None;
    let _ = json_lines::for_each_object(&RunFiles(run).events(), |line| {
        let event = EventLine::from_fields(line);
        match event.kind {
            Some(EventKind::Failed) => reason = Some(event.text("reason").to_owned()),
            Some(kind) if kind.begins() => reason = None,
            _ => {}
        }
    });
    reason
}
