//! Predecessors in checkpoints: a run that resumes while a replacement is on trial can still roll it back.

use super::models::ModelBefore;
use super::{Before, Slot};
use crate::config::Limits;
use crate::plugin::{AnyPlugin, Memory, Source};
use crate::train::Result;
use crate::train::journal::{Journal, keep_bytes};
use crate::train::plugins::Plugins;
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
    pub what: What,
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
    pub memory: Option<Memory>,
}

/// Predecessors, by name.
pub(in crate::train) type Predecessors = BTreeMap<String, Kept>;

impl Kept {
    fn of(before: &mut Before) -> Result<Self> {
        let (memory, slot) = (before.loaded.plugin_mut().remember()?, &before.slot);
        let what = What::Plugin {
            config: slot.config.clone(),
            limits: slot.limits.clone(),
            chosen: slot.chosen.keys().cloned().collect(),
            written_by: memory.as_ref().map(|memory| memory.written_by.clone()),
        };
        let replaced = Replaced { until: before.until, hash: slot.source.hash().to_owned(), what };
        Ok(Self { replaced, source: Some(slot.source.clone()), memory })
    }

    fn of_model(before: &ModelBefore) -> Self {
        let hash = before.asked.model.hash().to_owned();
        let replaced = Replaced { until: before.until, hash, what: What::Model { path: before.path.clone() } };
        Self { replaced, source: None, memory: None }
    }
}

/// A predecessor that was opened again.
enum Opened {
    Plugin(Box<Before>),
    Model(Box<ModelBefore>),
}

impl Plugins {
    /// Returns the predecessors that a checkpoint keeps.
    pub(in crate::train) fn predecessors(&mut self) -> Result<Predecessors> {
        let mut all = self.swaps.earlier.clone();
        for (name, before) in &mut self.swaps.before {
            all.insert(name.clone(), Kept::of(before)?);
        }
        all.extend(self.swaps.models_before.iter().map(|(name, before)| (name.clone(), Kept::of_model(before))));
        Ok(all)
    }

    /// Opens the predecessor that a checkpoint kept of this plugin or model, if it did: on all ranks, or on none.
    pub(super) fn open_earlier(&mut self, name: &str, journal: &Journal) -> Result<()> {
        let Some(kept) = self.swaps.earlier.remove(name) else { return Ok(()) };
        // A fork's folder does not have its file yet.
        let source = kept.source.as_ref().filter(|_| self.world.is_first());
        let there = source.map_or(Ok(()), |source| keep_bytes(journal.path(), source).map_err(|e| e.to_string()));
        let opened = there.and_then(|()| self.opened(name, kept));
        match self.all_made(opened)? {
            Ok(Opened::Plugin(before)) => drop(self.swaps.before.insert(name.to_owned(), *before)),
            Ok(Opened::Model(before)) => drop(self.swaps.models_before.insert(name.to_owned(), *before)),
            Err(reason) => tracing::warn!("{name} can't be rolled back: {reason}"),
        }
        Ok(())
    }

    fn opened(&self, name: &str, Kept { replaced, source, memory }: Kept) -> std::result::Result<Opened, String> {
        let Replaced { until, hash, what } = replaced;
        let (engine, opener) = self.swaps.loads.as_ref().ok_or("nothing loads plugins here")?;
        let (config, limits, chosen) = match what {
            What::Model { path } => {
                let entry = self.config.plugin.iter().find(|entry| entry.model && entry.name() == name);
                let entry = entry.ok_or("this run has no reward model of that name")?;
                let (asked, path) = opener.open(entry, &path).map_err(|e| e.to_string())?;
                return match asked.model.hash() == hash {
                    true => Ok(Opened::Model(Box::new(ModelBefore { asked, path, until }))),
                    false => Err(format!("the files in {path} have changed since they were replaced")),
                };
            }
            What::Plugin { config, limits, chosen, .. } => (config, limits, chosen),
        };
        let source = source.ok_or("the checkpoint did not keep the file of its predecessor")?;
        let slot = self.swaps.with(|board| board.slots.iter().find(|slot| slot.name == name).cloned());
        let slot = slot.ok_or("this run has no plugin of that name")?;
        let loaded = AnyPlugin::load(engine, &source, slot.role, &config, &limits, self.config.seed);
        let mut loaded = loaded.map_err(|e| e.to_string())?;
        memory.map_or(Ok(()), |memory| loaded.plugin_mut().recall(memory)).map_err(|e| e.to_string())?;
        let beyond_defaults = loaded.plugin().settings_beyond_defaults();
        let slot = Slot { source, config, limits, beyond_defaults, ..slot };
        let slot = slot.chosen_among(&BTreeMap::from([(name.to_owned(), chosen)]));
        Ok(Opened::Plugin(Box::new(Before { loaded, slot, until })))
    }
}
