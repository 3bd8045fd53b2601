//! The slots of a run's plugins, shared by the watching thread and the training thread.

use super::trial::PluginTrial;
use crate::config::{PluginEntry, PluginLimits, RunConfig};
use crate::plugin::{Plugin, PluginFile, PluginSource, Role};
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

/// Hash of each plugin's file as last handled.
pub(crate) type HandledHashes = BTreeMap<String, String>;

/// Names of the settings that the user chose, by plugin.
pub(crate) type ChosenSettings = BTreeMap<String, BTreeSet<String>>;

/// The slot of a plugin with its current content.
#[derive(Clone, Debug)]
pub(crate) struct PluginSlot {
    pub(super) name: String,
    pub(super) role: Role,
    /// File of the plugin, unless it is embedded.
    pub(super) file: Option<PluginFile>,
    pub(super) source: PluginSource,
    pub(super) config: Map<String, Value>,
    /// The settings that differ from the defaults; a newer version has its own defaults.
    pub(super) beyond_defaults: Map<String, Value>,
    /// Settings beyond the defaults, and those that were explicitly set to the default, which a newer version need not have.
    pub(super) chosen: Map<String, Value>,
    pub(super) limits: PluginLimits,
}

impl PluginSlot {
    /// Creates the algorithm's slot.
    pub(crate) fn from_algorithm(config: &RunConfig, source: PluginSource, plugin: &Plugin, chosen: &ChosenSettings) -> Self {
        let slot = Self {
            name: source.name().to_owned(),
            role: Role::Algorithm,
            file: file(&config.algorithm),
            source,
            config: config.loss.clone(),
            beyond_defaults: plugin.non_default_settings(),
            chosen: Map::new(),
            limits: config.loss_limits.clone(),
        };
        slot.chosen_among(chosen)
    }

    /// Creates the slot of a reward or of the environment.
    pub(crate) fn from_entry(
        role: Role,
        entry: &PluginEntry,
        source: PluginSource,
        plugin: &Plugin,
        chosen: &ChosenSettings,
    ) -> Self {
        let slot = Self {
            name: entry.name().to_owned(),
            role,
            file: file(&entry.path),
            source,
            config: entry.config.clone(),
            beyond_defaults: plugin.non_default_settings(),
            chosen: Map::new(),
            limits: entry.limits.clone(),
        };
        slot.chosen_among(chosen)
    }

    /// Sets which settings were chosen by the user.
    pub(super) fn chosen_among(self, chosen: &ChosenSettings) -> Self {
        let named = chosen.get(&self.name);
        let is_chosen = |key: &String| self.beyond_defaults.contains_key(key) || named.is_some_and(|named| named.contains(key));
        let chosen =
            self.config.iter().filter(|(key, _)| is_chosen(key)).map(|(key, value)| (key.clone(), value.clone())).collect();
        Self { chosen, ..self }
    }
}

/// Returns the file of a plugin, unless it is embedded.
fn file(location: &str) -> Option<PluginFile> {
    let is_path = location.contains(['/', '\\']);
    let location = PluginFile::parse(location).absolute();
    (location.file().is_file() || is_path).then_some(location)
}

/// State shared by both threads.
pub(super) struct Board {
    pub slots: Vec<PluginSlot>,
    pub seen: HandledHashes,
    pub trial: PluginTrial,
    /// Current configuration of the run.
    pub config: RunConfig,
    /// The run's folder.
    pub run: PathBuf,
    /// Number of the next step.
    pub step: u64,
}

impl Board {
    pub(super) fn new(slots: Vec<PluginSlot>, trial: PluginTrial) -> Self {
        let seen = slots.iter().map(|slot| (slot.name.clone(), slot.source.hash().to_owned())).collect();
        Self { slots, seen, trial, config: RunConfig::default(), run: PathBuf::new(), step: 0 }
    }

    /// Returns the names of the settings that the user chose.
    pub(super) fn chosen(&self) -> ChosenSettings {
        self.slots.iter().map(|slot| (slot.name.clone(), slot.chosen.keys().cloned().collect())).collect()
    }

    /// Sets which settings were chosen by the user.
    pub(super) fn choose(&mut self, chosen: &ChosenSettings) {
        self.slots = std::mem::take(&mut self.slots).into_iter().map(|slot| slot.chosen_among(chosen)).collect();
    }

    /// Replaces the slot of the same name and returns the old one.
    pub(super) fn replace(&mut self, slot: PluginSlot) -> Option<PluginSlot> {
        let place = self.slots.iter_mut().find(|s| s.name == slot.name)?;
        Some(std::mem::replace(place, slot))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_setting_that_was_chosen_although_it_is_the_default_stays_chosen() {
        let map = |value: Value| value.as_object().cloned().unwrap_or_default();
        let slot = PluginSlot {
            name: "a".to_owned(),
            role: Role::Reward,
            file: None,
            source: PluginSource::open("grpo").unwrap(),
            config: map(json!({"target": 20, "unit": "tokens", "far": 3})),
            beyond_defaults: map(json!({"far": 3})),
            chosen: Map::new(),
            limits: PluginLimits::default(),
        };
        let chosen = ChosenSettings::from([("a".to_owned(), BTreeSet::from(["target".to_owned(), "gone".to_owned()]))]);
        let slot = slot.chosen_among(&chosen);
        assert_eq!(slot.chosen, map(json!({"target": 20, "far": 3})));
        let before_this_was_kept = slot.chosen_among(&ChosenSettings::new());
        assert_eq!(before_this_was_kept.chosen, map(json!({"far": 3})));
    }
}
