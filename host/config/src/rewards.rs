//! Rewards from the command line.

use super::values::reworded;
use super::{Error, Overrides, PluginEntry, Result, RunConfig};

/// Replaces the files' plugins and reward models with those of the command line. An entry with the same name keeps its settings.
pub(super) fn replace(config: &mut RunConfig, overrides: &Overrides) -> Result<()> {
    let kept = std::mem::take(&mut config.plugin);
    let before: Vec<String> = kept.iter().map(|entry| entry.name().to_owned()).collect();
    let (models, plugins): (Vec<_>, Vec<_>) = kept.iter().cloned().partition(|entry| entry.model);
    let given = |paths: &[String], new: fn(String) -> PluginEntry, kept: Vec<PluginEntry>| {
        if paths.is_empty() {
            return kept;
        }
        let entry = |path: &String| {
            let new = new(path.clone());
            match kept.iter().find(|entry| entry.name() == new.name()) {
                Some(same) if path.contains(",weight=") => {
                    PluginEntry { path: new.path, name: new.name, weight: new.weight, ..same.clone() }
                }
                Some(same) => PluginEntry { path: new.path, name: new.name, ..same.clone() },
                None => new,
            }
        };
        paths.iter().map(entry).collect()
    };
    if overrides.plugins.is_empty() && overrides.reward_models.is_empty() {
        config.plugin = kept;
        return Ok(());
    }
    config.plugin = given(&overrides.plugins, PluginEntry::from_plugin_argument, plugins);
    config.plugin.extend(given(&overrides.reward_models, PluginEntry::from_model_argument, models));
    let replaced: Vec<&str> =
        before.iter().filter(|name| config.plugin.iter().all(|entry| entry.name() != *name)).map(String::as_str).collect();
    if !replaced.is_empty() {
        tracing::info!("the command line's rewards replace the configuration's: {}", replaced.join(", "));
    }
    // Rewards from TRL's options on the command line.
    for entry in overrides.foreign.iter().flat_map(|(option, value)| option.rewards(value)) {
        let place = || "command line".to_owned();
        let entry: PluginEntry =
            entry.try_into().map_err(|e: toml::de::Error| Error::Invalid { place: place(), detail: reworded(e.message()) })?;
        if config.plugin.iter().all(|other| other.name() != entry.name()) {
            config.plugin.push(entry);
        }
    }
    Ok(())
}
