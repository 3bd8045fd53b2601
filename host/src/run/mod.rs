//! The folder of a run as all that write or read it know it: which files it has, and what stands in their lines.

mod completions;
mod events;
mod files;

pub use completions::{CompletionRow, EpisodeRow, Glance, GlanceMessage, Recorded, RecordedEpisode, TurnRow};
pub use events::{Event, EventKind, Figure, RunBegun, Scoring, is_undone};
pub use files::{CheckpointFiles, RunFiles, is_checkpoint, is_running, step_of};
