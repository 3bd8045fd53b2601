//! The lines of events.jsonl.

use crate::config::OnError;
use crate::diagnosis::Figure;
use serde::Serialize;
use serde_json::{Map, Value};

/// An event of a run. `step` is the number of steps done at that time.
#[derive(Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(in crate::train) enum Event<'a> {
    /// A run started.
    Started(Begun<'a>),
    /// A run resumed from its own checkpoint.
    Resumed(Begun<'a>),
    /// A run started from another run's state.
    Forked(Begun<'a>),
    /// A plugin was loaded at the start.
    PluginLoaded {
        role: &'a str,
        plugin: &'a str,
        version: &'a str,
        hash: &'a str,
        config: &'a Value,
        /// Its grants.
        #[serde(skip_serializing_if = "Option::is_none")]
        granted: Option<String>,
    },
    /// A plugin replaced another.
    PluginSwapped {
        plugin: &'a str,
        /// Hashes.
        from: &'a str,
        to: &'a str,
        step: u64,
        /// The step during which it was detected.
        noticed_at_step: u64,
        /// The name under which `rlhost swap` sent it.
        request: Option<&'a str>,
        config: &'a Map<String, Value>,
        state_handed_over: bool,
        /// The difference between its scores of the newest batch and its predecessor's.
        shadow: Value,
        /// How long training waited.
        pause_ms: f64,
    },
    /// A plugin that failed in its trial steps was rolled back.
    PluginRolledBack { plugin: &'a str, from: &'a str, to: &'a str, step: u64, reason: String },
    /// A plugin was rejected.
    PluginRefused { plugin: &'a str, hash: Option<&'a str>, step: u64, request: Option<&'a str>, reason: &'a str },
    /// A reward failed, even if a retry succeeded.
    PluginError {
        plugin: &'a str,
        step: u64,
        reason: &'a str,
        /// Rows without a score.
        rows: Vec<usize>,
        /// Their first few errors.
        row_reasons: Vec<&'a str>,
    },
    /// A reward's weight or error policy changed.
    SettingsChanged { plugin: &'a str, step: u64, from: Scoring, to: Scoring },
    /// A checkpoint is on disk.
    CheckpointSaved { step: u64, path: String, seconds: f64 },
    /// A checkpoint was kept in addition to those of `save_total_limit`.
    CheckpointKept { step: u64, path: String, reason: String },
    /// Checkpoints were removed because of `save_total_limit`.
    CheckpointsRemoved { steps: Vec<u64> },
    /// A checkpoint could not be written.
    CheckpointFailed { step: u64, reason: String },
    /// A checkpoint of an abandoned branch was set aside.
    CheckpointSuperseded { step: u64, path: String },
    /// A sign of why the run does not learn begins to hold.
    Finding { finding: &'a str, step: u64, text: &'a str, figures: &'a [Figure], advice: &'a [String] },
    /// A warning to the user.
    Warning { text: &'a str },
    /// Evaluations did not improve for as long as `early_stopping_patience` allows.
    StoppedEarly { step: u64, evaluations: u64, metric: &'a str },
    /// The run ended with an error.
    Failed { step: u64, reason: String },
    /// The run was stopped, after a checkpoint.
    Stopped { step: u64, seconds: f64 },
    /// The run took its last step.
    Finished { step: u64, seconds: f64 },
}

/// How a run starts.
#[derive(Serialize)]
pub(in crate::train) struct Begun<'a> {
    pub step: u64,
    /// The checkpoint that it starts from.
    pub checkpoint: Option<String>,
    /// Keys that differ from the checkpoint's configuration, with both values.
    pub changed: Map<String, Value>,
    pub version: &'a str,
    pub model: String,
    pub max_steps: u64,
    pub device: &'a str,
    /// The run's default learning rate.
    pub usual_learning_rate: f64,
}

/// The weight of a reward's scores, and its error policy.
#[derive(Serialize)]
pub(in crate::train) struct Scoring {
    pub weight: f64,
    pub on_error: OnError,
}
