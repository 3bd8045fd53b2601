//! The slots of a run's plugins, shared by the watching thread and the training thread.

use super::trial::Trial;
use crate::config::{Config, Limits, PluginEntry};
use crate::plugin::{Plugin, Role, Source};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Hash of each plugin's file when it was last handled.
pub(in crate::train) type Seen = BTreeMap<String, String>;

/// The slot of a plugin and its content.
#[derive(Clone, Debug)]
pub(in crate::train) struct Slot {
    pub(super) name: String,
    pub(super) role: Role,
    /// Its file, unless it is embedded.
    pub(super) file: Option<PathBuf>,
    pub(super) source: Source,
    pub(super) config: Map<String, Value>,
    /// The settings that differ from the defaults; a newer version has its own defaults.
    pub(super) chosen: Map<String, Value>,
    pub(super) limits: Limits,
}

impl Slot {
    /// Creates the algorithm's slot.
    pub(in crate::train) fn algorithm(config: &Config, source: Source, role: Role, plugin: &Plugin) -> Self {
        Self {
            name: source.name().to_owned(),
            role,
            file: file(&config.algorithm),
            source,
            config: config.loss.clone(),
            chosen: plugin.settings_beyond_defaults(),
            limits: config.loss_limits.clone(),
        }
    }

    /// Creates the slot of a reward or of the environment.
    pub(in crate::train) fn entry(role: Role, entry: &PluginEntry, source: Source, plugin: &Plugin) -> Self {
        Self {
            name: entry.name().to_owned(),
            role,
            file: file(&entry.path),
            source,
            config: entry.config.clone(),
            chosen: plugin.settings_beyond_defaults(),
            limits: entry.limits.clone(),
        }
    }
}

fn file(location: &str) -> Option<PathBuf> {
    let path = std::path::absolute(location).ok()?;
    (path.is_file() || location.contains(['/', '\\'])).then_some(path)
}

/// The state that both threads share.
pub(super) struct Board {
    pub slots: Vec<Slot>,
    pub seen: Seen,
    pub trial: Trial,
    /// The run's current configuration.
    pub config: Config,
    /// The next step.
    pub step: u64,
}

impl Board {
    pub(super) fn new(slots: Vec<Slot>, trial: Trial) -> Self {
        let seen = slots.iter().map(|slot| (slot.name.clone(), slot.source.hash().to_owned())).collect();
        Self { slots, seen, trial, config: Config::default(), step: 0 }
    }

    /// Replaces the slot of that name and returns the old one.
    pub(super) fn replace(&mut self, slot: Slot) -> Option<Slot> {
        let place = self.slots.iter_mut().find(|s| s.name == slot.name)?;
        Some(std::mem::replace(place, slot))
    }
}
