//! The lines of events.jsonl.

use crate::config::OnError;
use serde::Serialize;
use serde_json::{Map, Value};

/// What happened in a run. Steps are those that were done when it did.
#[derive(Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(in crate::train) enum Event<'a> {
    /// A run began.
    Started(Begun<'a>),
    /// A run went on from a checkpoint of its own.
    Resumed(Begun<'a>),
    /// A run began with the state of another.
    Forked(Begun<'a>),
    /// A plugin took its place at the beginning.
    PluginLoaded { role: &'a str, plugin: &'a str, version: &'a str, hash: &'a str, config: &'a Value },
    /// A plugin took another's place.
    PluginSwapped {
        plugin: &'a str,
        /// Hashes.
        from: &'a str,
        to: &'a str,
        step: u64,
        /// The step that was under way when it was seen.
        noticed_at_step: u64,
        /// The name under which `rlhost swap` sent it.
        request: Option<&'a str>,
        config: &'a Map<String, Value>,
        state_handed_over: bool,
        /// How its scores of the newest batch differ from those of the one before.
        shadow: Value,
        /// How long training waited.
        pause_ms: f64,
    },
    /// A plugin that failed in its trial steps gave its place back.
    PluginRolledBack { plugin: &'a str, from: &'a str, to: &'a str, step: u64, reason: String },
    /// A plugin did not get the place that it was meant for.
    PluginRefused { plugin: &'a str, hash: Option<&'a str>, step: u64, request: Option<&'a str>, reason: &'a str },
    /// A reward failed, if only at first.
    PluginError {
        plugin: &'a str,
        step: u64,
        reason: &'a str,
        /// Rows without a score.
        rows: Vec<usize>,
        /// The first few of their own errors.
        row_reasons: Vec<&'a str>,
    },
    /// A reward's weight or error policy changed.
    SettingsChanged { plugin: &'a str, step: u64, from: Scoring, to: Scoring },
    /// A checkpoint is on the disk.
    CheckpointSaved { step: u64, path: String, seconds: f64 },
    /// A checkpoint stays beside those that `save_total_limit` keeps.
    CheckpointKept { step: u64, path: String, reason: String },
    /// Checkpoints were removed, as `save_total_limit` has it.
    CheckpointsRemoved { steps: Vec<u64> },
    /// A checkpoint could not be written.
    CheckpointFailed { step: u64, reason: String },
    /// A checkpoint of a future that the run does not have any more was set aside.
    CheckpointSuperseded { step: u64, path: String },
    /// Something that a person should know.
    Warning { text: &'a str },
    /// The run ended with an error.
    Failed { step: u64, reason: String },
    /// The run was stopped, after a checkpoint.
    Stopped { step: u64, seconds: f64 },
    /// The run took its last step.
    Finished { step: u64, seconds: f64 },
}

/// How a run begins.
#[derive(Serialize)]
pub(in crate::train) struct Begun<'a> {
    pub step: u64,
    /// The checkpoint that it begins from.
    pub checkpoint: Option<String>,
    /// Keys that differ from those that the checkpoint was written under, with both values.
    pub changed: Map<String, Value>,
    pub version: &'a str,
    pub model: String,
    pub max_steps: u64,
    pub device: &'a str,
}

/// What a reward's scores count, and what happens when it fails.
#[derive(Serialize)]
pub(in crate::train) struct Scoring {
    pub weight: f64,
    pub on_error: OnError,
}
