//! Predecessors in checkpoints: a run that resumes while a replacement is on trial can still roll it back.

use super::version::LoadedVersion;

use crate::Result;
use crate::config::{PluginEntry, PluginLimits};
use crate::plugin::{PluginSource, PluginState};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};

/// A predecessor in a checkpoint's JSON.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct PredecessorEntry {
    /// Step until which the predecessor is kept.
    pub until: u64,
    /// Hash of the plugin, or of the model's files.
    pub hash: String,
    /// Hash of the replacement. A fork may have another version, which has no predecessor.
    pub by: String,
    pub what: PredecessorKind,
}

impl PredecessorEntry {
    /// Returns the fault of the entry in the checkpoint of this step, if any. Its settings become the run's after a rollback, so a
    /// configuration must be able to hold them.
    pub(crate) fn fault(&self, step: u64) -> Option<String> {
        let most = step.saturating_add(TRIAL_STEPS);
        if self.until > most {
            return Some(format!("it is kept until step {}, after {most}", self.until));
        }
        let PredecessorKind::Plugin { config, limits, .. } = &self.what else { return None };
        if let Err(wrong) = limits.check() {
            return Some(wrong.to_owned());
        }
        let entry = PluginEntry { config: config.clone(), limits: limits.clone(), ..PluginEntry::new(String::new()) };
        // The entry is converted as a configuration is read: via a TOML table, whose integers are signed.
        let text = toml::to_string(&entry).map_err(|e| e.to_string());
        let table = text.and_then(|text| toml::from_str::<toml::Table>(&text).map_err(|e| e.message().to_owned()));
        let again = table.and_then(|table| table.try_into::<PluginEntry>().map_err(|e| e.message().to_owned()));
        match again {
            Ok(again) if again == entry => None,
            Ok(_) => Some("its settings are others when they are read again".to_owned()),
            Err(wrong) => Some(wrong),
        }
    }
}

/// A replaced version.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) enum PredecessorKind {
    /// A plugin, whose file and state are stored next to the JSON.
    Plugin {
        config: Map<String, Value>,
        limits: PluginLimits,
        /// Names of the settings that the user chose.
        chosen: BTreeSet<String>,
        /// Name and version of the plugin that wrote its state, if it has one.
        written_by: Option<String>,
    },
    /// A reward model, with its folder.
    Model { path: String },
}

/// A predecessor with everything that is needed to open it again.
#[derive(Clone)]
pub(crate) struct Predecessor {
    pub replaced: PredecessorEntry,
    /// File of a plugin.
    pub source: Option<PluginSource>,
    pub state: Option<PluginState>,
}

/// Predecessors, by name.
pub(crate) type Predecessors = BTreeMap<String, Predecessor>;

impl Predecessor {
    pub(super) fn from_previous(before: &mut PreviousVersion, by: &str) -> Result<Self> {
        let hash = before.version.hash().to_owned();
        let (what, source, state) = match &mut before.version {
            LoadedVersion::Plugin { loaded, slot } => {
                let state = loaded.plugin_mut().snapshot()?;
                let what = PredecessorKind::Plugin {
                    config: slot.config.clone(),
                    limits: slot.limits.clone(),
                    chosen: slot.chosen.keys().cloned().collect(),
                    written_by: state.as_ref().map(|state| state.written_by.clone()),
                };
                (what, Some(slot.source.clone()), state)
            }
            LoadedVersion::Model { path, .. } => (PredecessorKind::Model { path: path.clone() }, None, None),
        };
        Ok(Self { replaced: PredecessorEntry { until: before.until, hash, by: by.to_owned(), what }, source, state })
    }
}

/// Number of steps during which a failing plugin is rolled back.
pub(super) const TRIAL_STEPS: u64 = 8;

/// The previous version, kept while its replacement is on trial.
pub(super) struct PreviousVersion {
    pub(super) version: LoadedVersion,
    /// Step until which the version is kept.
    pub(super) until: u64,
}
