//! The format of a run's folder, shared by everything that writes or reads it: its files and the contents of their lines.

mod checkpoint_files;
mod completions;
mod effective_config;
mod events;
mod files;
mod grants;
mod lock;
mod metrics;
mod own_files;
mod requests;
mod rollouts;
mod version;
mod work_time;

pub use checkpoint_files::CheckpointFiles;
pub use completions::{CompletionLine, EpisodeLine, RecordedCompletion, RecordedEpisode, ScoredCompletion, TokenValues, TurnRow};
pub use effective_config::EffectiveConfig;
pub use events::{
    EventKind, EventLine, FindingFigure, RunEvent, RunStart, ScoringSettings, SwapVersions, is_completion_undone, is_undone,
};
pub use files::step_of;
pub use files::{RunFiles, is_checkpoint};
pub use grants::{RunGrants, record_grants};
pub use lock::{RunLock, Whereabouts, is_running, lock};
pub use metrics::{MetricsRow, RowKind, RunMetrics, each_metrics_row, metric_name};
pub use own_files::{each_own_line, ensure_own_file};
pub use requests::{PluginRequest, RunAction, RunRequest, TakenRequest, send_request, take_requests};
pub use rollouts::{LoggedRollout, RolloutFilter, RolloutInventory, RolloutReader, StepSelection, VALUES, ValueBound};
pub use version::{PluginVersion, short_hash};
pub use work_time::WorkTime;
