//! Stores predecessors, and opens them again.

use super::super::{RunPlugins, RunReward};
use super::PluginSlot;
use super::predecessor::PreviousVersion;
use super::predecessor::{Predecessor, PredecessorEntry, PredecessorKind, Predecessors};
use super::version::LoadedVersion;
use crate::Result;
use crate::config::{Grant, PluginEntry};
use crate::journal::{Journal, PluginVersions, keep_bytes};
use crate::plugin::{AnyPlugin, Plugin};
use crate::run::{PluginVersion, RunGrants};
use std::collections::BTreeMap;

impl RunPlugins {
    /// Returns the predecessors to store in a checkpoint.
    pub(crate) fn predecessors(&mut self) -> Result<Predecessors> {
        let mut all = self.swaps.earlier.clone();
        let now = self.hashes();
        let by = |name: &String| now.get(name).cloned().unwrap_or_default();
        for (name, before) in &mut self.swaps.previous {
            all.insert(name.clone(), Predecessor::from_previous(before, &by(name))?);
        }
        Ok(all)
    }

    /// Returns the hashes of all plugins and models in use, by name.
    pub(crate) fn hashes(&mut self) -> BTreeMap<String, String> {
        let models = self.rewards.iter().filter_map(RunReward::model).map(|asked| &asked.model);
        let models: Vec<(String, String)> = models.map(|model| (model.name().to_owned(), model.hash().to_owned())).collect();
        self.all_mut().map(|plugin| (plugin.name().to_owned(), plugin.hash().to_owned())).chain(models).collect()
    }

    /// Returns the versions of all plugins and models in use, by name.
    pub(crate) fn versions(&mut self) -> PluginVersions {
        let models = self.rewards.iter().filter_map(RunReward::model).map(|asked| &asked.model);
        let models: Vec<(String, PluginVersion)> =
            models.map(|model| (model.name().to_owned(), PluginVersion::from_hash(model.hash()))).collect();
        let of = |plugin: &mut Plugin| (plugin.name().to_owned(), PluginVersion::new(plugin.hash(), &plugin.config()));
        self.all_mut().map(of).chain(models).collect()
    }

    /// Opens the predecessor of this plugin or model from a checkpoint, if it has one: on all ranks, or on none.
    pub(super) fn open_earlier(&mut self, name: &str, journal: &Journal) -> Result<()> {
        let Some(kept) = self.swaps.earlier.remove(name) else { return Ok(()) };
        let source = kept.source.clone().filter(|_| self.world.is_first());
        // The first rank checks grants, since it may be the only one with the key that verifies them.
        let granted = if self.world.is_first() { self.check_granted(name, &kept, journal) } else { Ok(()) };
        if let Err(reason) = self.all_made(granted)? {
            tracing::warn!("{name} can't be rolled back: {reason}");
            return Ok(());
        }
        let opened = self.opened(name, kept);
        // A fork's folder lacks this file until now.
        let keep = |source| keep_bytes(journal.path(), &source).map_err(|e| e.to_string());
        let opened = opened.and_then(|opened| source.map_or(Ok(()), keep).map(|()| opened));
        match self.all_made(opened)? {
            Ok(before) => drop(self.swaps.previous.insert(name.to_owned(), before)),
            Err(reason) => tracing::warn!("{name} can't be rolled back: {reason}"),
        }
        Ok(())
    }

    /// Refuses a predecessor whose limits exceed those that the user granted this run.
    fn check_granted(&self, name: &str, kept: &Predecessor, journal: &Journal) -> std::result::Result<(), String> {
        let PredecessorKind::Plugin { limits, .. } = &kept.replaced.what else { return Ok(()) };
        let of = |entry: &PluginEntry| entry.name() == name;
        let table = match (self.config.plugin.iter().any(of), self.config.environment.iter().any(of)) {
            (true, _) => format!("plugin.{name}.limits"),
            (_, true) => format!("environment.{name}.limits"),
            _ => "loss_limits".to_owned(),
        };
        let (now, granted) = (self.config.grants(), RunGrants::load(journal.path()));
        let known = |grant: &Grant| granted.covers(grant) || now.iter().any(|own| own.covers(grant));
        match Grant::from_limits(&table, limits).iter().find(|grant| !known(grant)) {
            None => Ok(()),
            Some(grant) => Err(format!("the checkpoint gives its predecessor {grant}, which you have not granted")),
        }
    }

    fn opened(
        &self,
        name: &str,
        Predecessor { replaced, source, state }: Predecessor,
    ) -> std::result::Result<PreviousVersion, String> {
        let PredecessorEntry { until, hash, what, .. } = replaced;
        let (engine, _) = self.swaps.loaders.as_ref().ok_or("nothing loads plugins here")?;
        let (config, limits, chosen) = match what {
            PredecessorKind::Model { path } => {
                let version = self.open_model(name, &path, &hash, "has other files than when it was replaced")?;
                return Ok(PreviousVersion { version, until });
            }
            PredecessorKind::Plugin { config, limits, chosen, .. } => (config, limits, chosen),
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
        let beyond_defaults = loaded.plugin().non_default_settings();
        let slot = PluginSlot { source, config, limits, beyond_defaults, ..slot };
        let slot = Box::new(slot.chosen_among(&BTreeMap::from([(name.to_owned(), chosen)])));
        Ok(PreviousVersion { version: LoadedVersion::Plugin { loaded, slot }, until })
    }
}
