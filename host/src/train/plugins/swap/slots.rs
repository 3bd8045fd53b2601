//! The places of a run's plugins, as the thread beside training and the training thread share them.

use super::trial::Trial;
use crate::config::{Config, Limits, PluginEntry};
use crate::plugin::{Plugin, Role, Source};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Hash of each plugin's file when it was last dealt with.
pub(in crate::train) type Seen = BTreeMap<String, String>;

/// The place of a plugin and what is in it.
#[derive(Clone, Debug)]
pub(in crate::train) struct Slot {
    pub(super) name: String,
    pub(super) role: Role,
    /// Its file, unless the binary brought it.
    pub(super) file: Option<PathBuf>,
    pub(super) source: Source,
    pub(super) config: Map<String, Value>,
    /// Of that what is not by default: a newer version has defaults of its own.
    pub(super) chosen: Map<String, Value>,
    pub(super) limits: Limits,
}

impl Slot {
    /// The algorithm's place.
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

    /// A reward's.
    pub(in crate::train) fn reward(entry: &PluginEntry, source: Source, plugin: &Plugin) -> Self {
        Self {
            name: entry.name().to_owned(),
            role: Role::Reward,
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

/// What both threads know.
pub(super) struct Board {
    pub slots: Vec<Slot>,
    pub seen: Seen,
    pub trial: Trial,
    /// The run's configuration as it is now.
    pub config: Config,
    /// The step that is next.
    pub step: u64,
}

impl Board {
    pub(super) fn new(slots: Vec<Slot>, trial: Trial) -> Self {
        let seen = slots.iter().map(|slot| (slot.name.clone(), slot.source.hash().to_owned())).collect();
        Self { slots, seen, trial, config: Config::default(), step: 0 }
    }

    /// Puts a slot in the place of that name and gives the one that was there.
    pub(super) fn replace(&mut self, slot: Slot) -> Option<Slot> {
        let place = self.slots.iter_mut().find(|s| s.name == slot.name)?;
        Some(std::mem::replace(place, slot))
    }
}
