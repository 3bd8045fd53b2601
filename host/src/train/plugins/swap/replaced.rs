//! Predecessors in checkpoints: a run that resumes while a replacement is on trial can still roll it back.

use super::version::Version;
use super::{Before, Slot, TRIAL_STEPS};
use crate::config::{Grant, Limits, PluginEntry};
use crate::plugin::{AnyPlugin, Plugin, PluginState, Source};
use crate::run::{Granted, PluginVersion};
use crate::train::Result;
use crate::train::journal::{Journal, Versions, keep_bytes};
use crate::train::plugins::{Plugins, Reward};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};

/// What a checkpoint's JSON holds of a predecessor.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(in crate::train) struct Replaced {
    /// The step until which it is kept.
    pub until: u64,
    /// Hash of the plugin, or of the model's files.
    pub hash: String,
    /// Hash of what replaced it: another version, as a fork may have, has no predecessor.
    pub by: String,
    pub what: What,
}

impl Replaced {
    /// Returns what is wrong with it in the checkpoint of this step, if anything. Its settings become the run's when it is rolled back,
    /// so they must be such as a configuration can hold.
    pub(in crate::train) fn fault(&self, step: u64) -> Option<String> {
        let most = step.saturating_add(TRIAL_STEPS);
        if self.until > most {
            return Some(format!("it is kept until step {}, after {most}", self.until));
        }
        let What::Plugin { config, limits, .. } = &self.what else { return None };
        if let Err(wrong) = limits.check() {
            return Some(wrong.to_owned());
        }
        let entry = PluginEntry { config: config.clone(), limits: limits.clone(), ..PluginEntry::new(String::new()) };
        // As a configuration is read: by way of a table, whose whole numbers have a sign.
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

/// What was replaced.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(in crate::train) enum What {
    /// A plugin, whose file and state are beside the JSON.
    Plugin {
        config: Map<String, Value>,
        limits: Limits,
        /// Names of the settings that the user chose.
        chosen: BTreeSet<String>,
        /// Who wrote its state, if it has one.
        written_by: Option<String>,
    },
    /// A reward model, and its folder.
    Model { path: String },
}

/// A predecessor with all that opens it again.
#[derive(Clone)]
pub(in crate::train) struct Kept {
    pub replaced: Replaced,
    /// A plugin's file.
    pub source: Option<Source>,
    pub state: Option<PluginState>,
}

/// Predecessors, by name.
pub(in crate::train) type Predecessors = BTreeMap<String, Kept>;

impl Kept {
    fn of(before: &mut Before, by: &str) -> Result<Self> {
        let hash = before.version.hash().to_owned();
        let (what, source, state) = match &mut before.version {
            Version::Plugin { loaded, slot } => {
                let state = loaded.plugin_mut().snapshot()?;
                let what = What::Plugin {
                    config: slot.config.clone(),
                    limits: slot.limits.clone(),
                    chosen: slot.chosen.keys().cloned().collect(),
                    written_by: state.as_ref().map(|state| state.written_by.clone()),
                };
                (what, Some(slot.source.clone()), state)
            }
            Version::Model { path, .. } => (What::Model { path: path.clone() }, None, None),
        };
        Ok(Self { replaced: Replaced { until: before.until, hash, by: by.to_owned(), what }, source, state })
    }
}

impl Plugins {
    /// Returns the predecessors that a checkpoint keeps.
    pub(in crate::train) fn predecessors(&mut self) -> Result<Predecessors> {
        let mut all = self.swaps.earlier.clone();
        let now = self.hashes();
        let by = |name: &String| now.get(name).cloned().unwrap_or_default();
        for (name, before) in &mut self.swaps.before {
            all.insert(name.clone(), Kept::of(before, &by(name))?);
        }
        Ok(all)
    }

    /// Returns the hashes of all plugins and models that are in place, by name.
    pub(in crate::train) fn hashes(&mut self) -> BTreeMap<String, String> {
        let models = self.rewards.iter().filter_map(Reward::model).map(|asked| &asked.model);
        let models: Vec<(String, String)> = models.map(|model| (model.name().to_owned(), model.hash().to_owned())).collect();
        self.all_mut().map(|plugin| (plugin.name().to_owned(), plugin.hash().to_owned())).chain(models).collect()
    }

    /// Returns the versions of all plugins and models that are in place, by name.
    pub(in crate::train) fn versions(&mut self) -> Versions {
        let models = self.rewards.iter().filter_map(Reward::model).map(|asked| &asked.model);
        let models: Vec<(String, PluginVersion)> =
            models.map(|model| (model.name().to_owned(), PluginVersion::from_hash(model.hash()))).collect();
        let of = |plugin: &mut Plugin| (plugin.name().to_owned(), PluginVersion::new(plugin.hash(), &plugin.config()));
        self.all_mut().map(of).chain(models).collect()
    }

    /// Opens the predecessor that a checkpoint kept of this plugin or model, if it did: on all ranks, or on none.
    pub(super) fn open_earlier(&mut self, name: &str, journal: &Journal) -> Result<()> {
        let Some(kept) = self.swaps.earlier.remove(name) else { return Ok(()) };
        let source = kept.source.clone().filter(|_| self.world.is_first());
        // Marks are checked by the first rank, which may have the only key.
        let granted = if self.world.is_first() { self.check_granted(name, &kept, journal) } else { Ok(()) };
        if let Err(reason) = self.all_made(granted)? {
            tracing::warn!("{name} can't be rolled back: {reason}");
            return Ok(());
        }
        let opened = self.opened(name, kept);
        // A fork's folder does not have its file yet.
        let keep = |source| keep_bytes(journal.path(), &source).map_err(|e| e.to_string());
        let opened = opened.and_then(|opened| source.map_or(Ok(()), keep).map(|()| opened));
        match self.all_made(opened)? {
            Ok(before) => drop(self.swaps.before.insert(name.to_owned(), before)),
            Err(reason) => tracing::warn!("{name} can't be rolled back: {reason}"),
        }
        Ok(())
    }

    /// Refuses a predecessor whose limits are above those that the user granted this run.
    fn check_granted(&self, name: &str, kept: &Kept, journal: &Journal) -> std::result::Result<(), String> {
        let What::Plugin { limits, .. } = &kept.replaced.what else { return Ok(()) };
        let of = |entry: &PluginEntry| entry.name() == name;
        let table = match (self.config.plugin.iter().any(of), self.config.environment.iter().any(of)) {
            (true, _) => format!("plugin.{name}.limits"),
            (_, true) => format!("environment.{name}.limits"),
            _ => "loss_limits".to_owned(),
        };
        let (now, granted) = (self.config.grants(), Granted::load(journal.path()));
        let known = |grant: &Grant| granted.covers(grant) || now.iter().any(|own| own.covers(grant));
        match Grant::of_limits(&table, limits).iter().find(|grant| !known(grant)) {
            None => Ok(()),
            Some(grant) => Err(format!("the checkpoint gives its predecessor {grant}, which you have not granted")),
        }
    }

    fn opened(&self, name: &str, Kept { replaced, source, state }: Kept) -> std::result::Result<Before, String> {
        let Replaced { until, hash, what, .. } = replaced;
        let (engine, _) = self.swaps.loads.as_ref().ok_or("nothing loads plugins here")?;
        let (config, limits, chosen) = match what {
            What::Model { path } => {
                let version = self.open_model(name, &path, &hash, "has other files than when it was replaced")?;
                return Ok(Before { version, until });
            }
            What::Plugin { config, limits, chosen, .. } => (config, limits, chosen),
        };
        let source = source.ok_or("the checkpoint did not keep the file of its predecessor")?;
        if source.hash() != hash {
            return Err("the checkpoint's file of its predecessor is another than it says".to_owned());
        }
        let slot = self.swaps.with(|board| board.slots.iter().find(|slot| slot.name == name).cloned());
        let slot = slot.ok_or("this run has no plugin of that name")?;
        let loaded = AnyPlugin::load(engine, &source, slot.role, &config, &limits, self.config.seed);
        let mut loaded = loaded.map_err(|e| e.to_string())?;
        state.map_or(Ok(()), |state| loaded.plugin_mut().adopt(state)).map_err(|e| e.to_string())?;
        let beyond_defaults = loaded.plugin().settings_beyond_defaults();
        let slot = Slot { source, config, limits, beyond_defaults, ..slot };
        let slot = Box::new(slot.chosen_among(&BTreeMap::from([(name.to_owned(), chosen)])));
        Ok(Before { version: Version::Plugin { loaded, slot }, until })
    }
}
