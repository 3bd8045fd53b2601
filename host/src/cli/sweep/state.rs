//! What has become of a run of a sweep so far.

use crate::config::json_lines;
use crate::run::{EventKind, EventLine, RunFiles, is_running};
use std::path::Path;

/// What a run's folder says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SweepRunState {
    /// It has not begun.
    New,
    /// It took its last step.
    Finished,
    /// It has begun, and ended or died before its last step.
    Interrupted,
    /// Another process runs it.
    Running,
}

impl SweepRunState {
    /// Reads a run's folder.
    pub(super) fn read(run: &Path) -> Self {
        let files = RunFiles(run);
        if is_running(run) == Some(true) {
            return Self::Running;
        }
        // The lock is the first thing that a run puts into its folder.
        if !files.lock().exists() {
            return Self::New;
        }
        let mut last = None;
        // Without events it has not come far.
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

/// Returns why a run failed, by its events.
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
