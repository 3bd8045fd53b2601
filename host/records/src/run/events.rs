//! The lines of events.jsonl, their kinds, and which of them a later resume undid.

use super::PluginVersion;
use crate::config::RewardErrorAction;
use jiff::Timestamp;
use serde::de::value::StrDeserializer;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// An event of a run as it is written, except its [`EventKind`] and time. `step` is the number of steps done at that time.
#[derive(Serialize)]
#[serde(untagged)]
#[allow(missing_docs, reason = "most fields are what their variant's text and their name say")]
pub enum RunEvent<'a> {
    /// A run started.
    Started(RunStart<'a>),
    /// A run resumed from its own checkpoint.
    Resumed(RunStart<'a>),
    /// A run started from another run's state.
    Forked(RunStart<'a>),
    /// A plugin was loaded at the start.
    PluginLoaded {
        role: &'a str,
        plugin: &'a str,
        version: &'a str,
        hash: &'a str,
        /// Digest of the plugin's settings, as in [`PluginVersion`].
        settings: Option<&'a str>,
        config: &'a Value,
        /// Grants of the plugin.
        #[serde(skip_serializing_if = "Option::is_none")]
        granted: Option<String>,
    },
    /// A plugin replaced another.
    PluginSwapped {
        plugin: &'a str,
        #[serde(flatten)]
        versions: SwapVersions<'a>,
        step: u64,
        /// Step during which the swap was detected.
        noticed_at_step: u64,
        /// Name under which `rlhost swap` sent the plugin.
        request: Option<&'a str>,
        /// Who sent the plugin.
        #[serde(skip_serializing_if = "Option::is_none")]
        by: Option<&'a str>,
        /// Version that the new plugin gives itself.
        version: &'a str,
        config: &'a Map<String, Value>,
        state_handed_over: bool,
        /// Comparison of its scores of the newest batch with its predecessor's.
        shadow: Value,
        /// Time that training paused, in milliseconds.
        pause_ms: f64,
    },
    /// A plugin that failed in its trial steps was rolled back.
    PluginRolledBack {
        plugin: &'a str,
        #[serde(flatten)]
        versions: SwapVersions<'a>,
        step: u64,
        /// Settings that are in use again.
        config: &'a Map<String, Value>,
        reason: String,
    },
    /// A plugin was rejected.
    PluginRefused {
        plugin: &'a str,
        hash: Option<&'a str>,
        step: u64,
        request: Option<&'a str>,
        /// Who sent the plugin.
        #[serde(skip_serializing_if = "Option::is_none")]
        by: Option<&'a str>,
        reason: &'a str,
    },
    /// An edit of config.toml was rejected.
    SettingsRefused {
        /// Plugin whose new settings were tried.
        #[serde(skip_serializing_if = "Option::is_none")]
        plugin: Option<&'a str>,
        step: u64,
        reason: &'a str,
    },
    /// A reward failed, even if a retry succeeded.
    PluginError {
        plugin: &'a str,
        step: u64,
        reason: &'a str,
        /// Rows without a score.
        rows: Vec<usize>,
        /// Errors of the first few of those rows.
        row_reasons: Vec<&'a str>,
    },
    /// A reward's weight or error policy changed.
    SettingsChanged {
        plugin: &'a str,
        step: u64,
        from: ScoringSettings,
        to: ScoringSettings,
        /// Name of the request, if there was one.
        #[serde(skip_serializing_if = "Option::is_none")]
        request: Option<&'a str>,
        /// Who requested the change.
        #[serde(skip_serializing_if = "Option::is_none")]
        by: Option<&'a str>,
    },
    /// Somebody made a request to the run, which carries it out or refuses it.
    Requested {
        /// Requested action; see [`RunAction`](super::RunAction).
        action: &'a str,
        by: &'a str,
        step: u64,
        /// Name of the request.
        request: &'a str,
        /// Why the request is refused.
        #[serde(skip_serializing_if = "Option::is_none")]
        refused: Option<&'a str>,
    },
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
    Finding { finding: &'a str, step: u64, text: &'a str, figures: &'a [FindingFigure], advice: &'a [String] },
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

/// The kind of an event: the value of `event` in its line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum EventKind {
    /// A run started.
    Started,
    /// A run resumed from its own checkpoint.
    Resumed,
    /// A run started from another run's state.
    Forked,
    /// A plugin was loaded at the start.
    PluginLoaded,
    /// A plugin replaced another.
    PluginSwapped,
    /// A plugin that failed in its trial steps was rolled back.
    PluginRolledBack,
    /// A plugin was rejected.
    PluginRefused,
    /// An edit of config.toml was rejected.
    SettingsRefused,
    /// A reward failed, even if a retry succeeded.
    PluginError,
    /// A reward's weight or error policy changed.
    SettingsChanged,
    /// Somebody made a request to the run.
    Requested,
    /// A checkpoint is on disk.
    CheckpointSaved,
    /// A checkpoint was kept in addition to those of `save_total_limit`.
    CheckpointKept,
    /// Checkpoints were removed because of `save_total_limit`.
    CheckpointsRemoved,
    /// A checkpoint could not be written.
    CheckpointFailed,
    /// A checkpoint of an abandoned branch was set aside.
    CheckpointSuperseded,
    /// A sign of why the run does not learn begins to hold.
    Finding,
    /// A warning to the user.
    Warning,
    /// Evaluations did not improve for as long as `early_stopping_patience` allows.
    StoppedEarly,
    /// The run ended with an error.
    Failed,
    /// The run was stopped, after a checkpoint.
    Stopped,
    /// The run took its last step.
    Finished,
}

impl RunEvent<'_> {
    /// Returns the kind of the event.
    pub fn kind(&self) -> EventKind {
        match self {
            Self::Started(_) => EventKind::Started,
            Self::Resumed(_) => EventKind::Resumed,
            Self::Forked(_) => EventKind::Forked,
            Self::PluginLoaded { .. } => EventKind::PluginLoaded,
            Self::PluginSwapped { .. } => EventKind::PluginSwapped,
            Self::PluginRolledBack { .. } => EventKind::PluginRolledBack,
            Self::PluginRefused { .. } => EventKind::PluginRefused,
            Self::SettingsRefused { .. } => EventKind::SettingsRefused,
            Self::PluginError { .. } => EventKind::PluginError,
            Self::SettingsChanged { .. } => EventKind::SettingsChanged,
            Self::Requested { .. } => EventKind::Requested,
            Self::CheckpointSaved { .. } => EventKind::CheckpointSaved,
            Self::CheckpointKept { .. } => EventKind::CheckpointKept,
            Self::CheckpointsRemoved { .. } => EventKind::CheckpointsRemoved,
            Self::CheckpointFailed { .. } => EventKind::CheckpointFailed,
            Self::CheckpointSuperseded { .. } => EventKind::CheckpointSuperseded,
            Self::Finding { .. } => EventKind::Finding,
            Self::Warning { .. } => EventKind::Warning,
            Self::StoppedEarly { .. } => EventKind::StoppedEarly,
            Self::Failed { .. } => EventKind::Failed,
            Self::Stopped { .. } => EventKind::Stopped,
            Self::Finished { .. } => EventKind::Finished,
        }
    }
}

impl EventKind {
    /// Returns the kind of this name; `None` for a kind of another version.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::deserialize(StrDeserializer::<serde::de::value::Error>::new(name)).ok()
    }

    /// Returns whether a process started working on the run.
    pub fn begins(self) -> bool {
        matches!(self, Self::Started | Self::Resumed | Self::Forked)
    }

    /// Returns whether a process reported its end.
    pub fn ends(self) -> bool {
        matches!(self, Self::Finished | Self::Stopped | Self::Failed)
    }

    /// Returns whether the run's plugins, or the weights or error policies of its rewards, change at this event.
    pub fn changes_plugins(self) -> bool {
        matches!(self, Self::PluginSwapped | Self::PluginRolledBack | Self::SettingsChanged)
    }
}

/// Returns whether an event at `step` is undone by a resume `from` a step, which repeats the steps after it. For a swap at exactly that
/// step, which the checkpoint may precede, the report checks which plugins were loaded from the checkpoint.
pub fn is_undone(step: u64, from: u64) -> bool {
    step > from
}

/// Returns whether a completion generated in the step after `step` is undone by a resume `from` a step, which repeats that step.
pub fn is_completion_undone(step: u64, from: u64) -> bool {
    step >= from
}

/// An event as it is read.
#[derive(Clone, Debug)]
pub struct EventLine {
    /// Time of the event.
    pub time: Option<Timestamp>,
    /// Kind of the event; `None` if this version does not know it.
    pub kind: Option<EventKind>,
    /// Name of the kind.
    pub name: String,
    /// Number of steps done, if the event has it.
    pub step: Option<u64>,
    /// All other fields, and the step.
    pub fields: Map<String, Value>,
}

impl EventLine {
    /// Reads a line.
    pub fn from_fields(mut fields: Map<String, Value>) -> Self {
        let mut text = |key: &str| fields.shift_remove(key).and_then(|v| v.as_str().map(str::to_owned)).unwrap_or_default();
        let (time, name) = (text("time"), text("event"));
        let step = fields.get("step").and_then(Value::as_u64);
        Self { time: time.parse().ok(), kind: EventKind::from_name(&name), name, step, fields }
    }

    /// Returns a field that is a string; empty if there is none.
    pub fn text(&self, key: &str) -> &str {
        self.fields.get(key).and_then(Value::as_str).unwrap_or_default()
    }

    /// Returns the version of a plugin: of the loaded one (`hash`), or of either side of a swap (`from`, `to`). Runs of older versions did
    /// not record digests of settings, but the new plugin's settings.
    pub fn version(&self, key: &str) -> PluginVersion {
        let (settings, hash) = match key {
            "hash" => ("settings".to_owned(), self.text("hash")),
            side => (format!("{side}_settings"), self.text(side)),
        };
        match (self.fields.get(&settings), self.fields.get("config").and_then(Value::as_object)) {
            (Some(digest), _) => PluginVersion::from_hash(hash).with_digest(digest.as_str()),
            (None, Some(config)) if key != "from" => PluginVersion::new(hash, config),
            _ => PluginVersion::from_hash(hash),
        }
    }

    /// Returns a field that is a number.
    pub fn number(&self, key: &str) -> Option<f64> {
        self.fields.get(key).and_then(Value::as_f64)
    }

    /// Returns whether a process started working on the run.
    pub fn begins(&self) -> bool {
        self.kind.is_some_and(EventKind::begins)
    }

    /// Returns whether a process reported its end.
    pub fn ends(&self) -> bool {
        self.kind.is_some_and(EventKind::ends)
    }
}

/// The two versions of a swap, as its event has them: hashes, and digests of the settings.
#[derive(Serialize)]
pub struct SwapVersions<'a> {
    from: &'a str,
    to: &'a str,
    from_settings: Option<&'a str>,
    to_settings: Option<&'a str>,
}

impl<'a> SwapVersions<'a> {
    /// Returns the versions of a swap from one to another.
    pub fn new(from: &'a PluginVersion, to: &'a PluginVersion) -> Self {
        Self { from: from.hash(), to: to.hash(), from_settings: from.settings(), to_settings: to.settings() }
    }
}

/// The start of a run's process.
#[derive(Serialize)]
pub struct RunStart<'a> {
    /// Number of steps done.
    pub step: u64,
    /// Checkpoint that the run starts from.
    pub checkpoint: Option<String>,
    /// Keys that differ from the checkpoint's configuration, with both values.
    pub changed: Map<String, Value>,
    /// Keys of the configuration that the user set, in files or by flags.
    pub set: Vec<&'a str>,
    /// Version of rlhost.
    pub version: &'a str,
    /// Name of the model.
    pub model: String,
    /// Total number of steps.
    pub max_steps: u64,
    /// Device that the run computes on.
    pub device: &'a str,
    /// Default learning rate of the run.
    pub usual_learning_rate: f64,
}

/// The weight of a reward's scores, and its error policy.
#[derive(Serialize)]
pub struct ScoringSettings {
    /// Weight of the scores.
    pub weight: f64,
    /// Action when the reward fails.
    pub on_error: RewardErrorAction,
}

/// A figure that supports a finding.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FindingFigure {
    /// Name of the metric or setting.
    pub name: String,
    /// Value, as text.
    pub value: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_swap_of_settings_is_one_of_versions() {
        let settings = |target: u64| Map::from_iter([("target".to_owned(), target.into())]);
        let [from, to] = [20, 3].map(|target| PluginVersion::new("abcd", &settings(target)));
        let (versions, config) = (SwapVersions::new(&from, &to), settings(3));
        let event = RunEvent::PluginRolledBack { plugin: "r", versions, step: 4, config: &config, reason: String::new() };
        let line = |event: &Value| EventLine::from_fields(event.as_object().cloned().unwrap_or_default());
        let mut written = serde_json::to_value(&event).unwrap();
        let read = line(&written);
        assert_eq!((read.version("from"), read.version("to"), read.text("to")), (from, to.clone(), "abcd"));
        // An older run's event.
        let fields = written.as_object_mut().unwrap();
        fields.retain(|key, _| !key.ends_with("_settings"));
        let read = line(&written);
        assert_eq!((read.version("from"), read.version("to")), (PluginVersion::from_hash("abcd"), to));
    }

    #[test]
    fn a_kind_is_read_by_the_name_that_is_written() {
        for kind in [EventKind::Started, EventKind::PluginSwapped, EventKind::CheckpointsRemoved, EventKind::StoppedEarly] {
            let name = serde_json::to_value(kind).unwrap();
            assert_eq!(EventKind::from_name(name.as_str().unwrap()), Some(kind));
        }
        assert_eq!(
            (EventKind::from_name("plugin_rolled_back"), EventKind::from_name("resumed")),
            (Some(EventKind::PluginRolledBack), Some(EventKind::Resumed))
        );
        assert_eq!((EventKind::from_name("something_newer"), EventKind::from_name("")), (None, None));
    }
}
