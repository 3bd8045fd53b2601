//! The folder of a run as all that write or read it know it: which files it has, and what stands in their lines.

mod completions;
mod events;
mod files;

pub use completions::{CompletionLine, EpisodeLine, Glance, GlanceMessage, Recorded, RecordedEpisode, TurnRow};
pub use events::{Event, EventKind, Figure, RunBegun, Scoring, is_undone};
#[cfg(any(test, fuzzing))]
pub use files::step_of;
pub use files::{CheckpointFiles, RunFiles, is_checkpoint, is_running};
