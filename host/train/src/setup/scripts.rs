//! Expands entries of scripts with several functions: each function is a plugin.

use crate::config::{PluginEntry, RunConfig, ScriptPath};
use crate::dist::World;
use crate::origin::StartMode;
use crate::plugin::{PluginEngine, PluginSource, Role, ScriptFunction, functions_of};
use crate::ranks::same_source;
use crate::{Error, Result};
use std::path::Path;

/// Replaces an entry that names none of a script's several rewards with an entry for each.
///
/// # Errors
/// If a script can't be read, or its entry has a name, which only one reward could have, or a setting that none has.
pub(super) fn expand(config: &mut RunConfig, engine: &PluginEngine, beginning: &StartMode, world: &World) -> Result<()> {
    // A resumed run already has an entry for each, whatever its files contain now.
    if matches!(beginning, StartMode::Resume { .. }) {
        return Ok(());
    }
    let mut entries = Vec::with_capacity(config.plugin.len());
    for entry in std::mem::take(&mut config.plugin) {
        let is_whole = ScriptPath::parse(&entry.path).is_some_and(|script| script.function.is_none());
        if entry.model || !is_whole || !Path::new(&entry.path).is_file() {
            entries.push(entry);
            continue;
        }
        let source = same_source(world, || Ok(PluginSource::open(&entry.path)?.with_name(entry.name())))?;
        // Errors are reported when the script is loaded with its granted folders.
        let functions = functions_of(engine, &source, &entry.limits).unwrap_or_default();
        let rewards: Vec<&ScriptFunction> = functions.iter().filter(|function| function.kind.role() == Role::Reward).collect();
        if rewards.len() < 2 {
            entries.push(entry);
            continue;
        }
        entries.extend(entries_of(&entry, &rewards)?);
    }
    config.plugin = entries;
    config.check_plugins().map_err(|(key, detail)| Error::setting(key, detail))
}

/// Returns an entry for each of a script's rewards, with the settings that the reward defines.
fn entries_of(entry: &PluginEntry, rewards: &[&ScriptFunction]) -> Result<Vec<PluginEntry>> {
    let names = rewards.iter().map(|function| function.name.as_str()).collect::<Vec<_>>().join(", ");
    if let Some(name) = &entry.name {
        let (file, first) = (&entry.path, &rewards[0].name);
        let detail = format!("{file} has several rewards: {names}; name one, as in path = \"{file}:{first}\"");
        return Err(Error::setting("plugin", format!("{name}: {detail}")));
    }
    let schemas: Vec<serde_json::Value> =
        rewards.iter().map(|function| serde_json::from_str(&function.settings_schema).unwrap_or_default()).collect();
    let has = |schema: &serde_json::Value, key: &str| schema["properties"].get(key).is_some();
    if let Some(key) = entry.config.keys().find(|key| !schemas.iter().any(|schema| has(schema, key))) {
        let detail = format!("none of its rewards has this setting; they are {names}");
        return Err(Error::setting("plugin", format!("{}.config.{key}: {detail}", entry.name())));
    }
    let of = |(function, schema): (&&ScriptFunction, &serde_json::Value)| PluginEntry {
        path: format!("{}:{}", entry.path, function.name),
        config: entry
            .config
            .iter()
            .filter(|(key, _)| has(schema, key))
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect(),
        ..entry.clone()
    };
    Ok(rewards.iter().zip(&schemas).map(of).collect())
}

/// Makes the paths of scripts absolute, so that a run that resumes from another folder watches the same files.
pub(super) fn locate(config: &mut RunConfig, beginning: &StartMode) {
    if matches!(beginning, StartMode::Resume { .. }) {
        return;
    }
    for entry in config.plugin.iter_mut().chain(&mut config.environment).filter(|entry| !entry.model) {
        let Some(script) = ScriptPath::parse(&entry.path) else { continue };
        let Ok(file) = std::path::absolute(script.file) else { continue };
        let function = script.function.map(|function| format!(":{function}")).unwrap_or_default();
        entry.path = format!("{}{function}", file.display());
    }
}
