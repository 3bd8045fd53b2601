//! The folder of a run as all that write or read it know it: which files it has, and what stands in their lines.

mod checkpoint_files;
mod completions;
mod events;
mod files;
mod granted;
mod in_force;
mod lock;
mod metrics;
mod own;
mod requests;
mod rollouts;
mod version;
mod worked;

pub use checkpoint_files::CheckpointFiles;
pub use completions::{CompletionLine, EpisodeLine, Recorded, RecordedEpisode, ScoredCompletion, TokenValues, TurnRow};
pub use events::{Event, EventKind, EventLine, Figure, RunBegun, Scoring, Versions, is_completion_undone, is_undone};
pub use files::step_of;
pub use files::{RunFiles, is_checkpoint};
pub use granted::{Granted, accept};
pub use in_force::ConfigInForce;
pub use lock::{RunLock, Whereabouts, is_running, lock};
pub use metrics::{Metrics, MetricsRow, RowKind, each_metrics_row, metric_name};
pub use own::{each_own_line, must_be_own};
pub use requests::{PluginRequest, RunAction, RunRequest, TakenRequest, send_request, take_requests};
pub use rollouts::{Bound, Rollout, Rollouts, Seen, Selection, Steps, VALUES};
pub use version::{PluginVersion, short_hash};
pub use worked::Worked;
