//! A plugin of any role.

use super::algorithm::AlgorithmPlugin;
use super::compiler::CompiledPlugin;
use super::engine::PluginEngine;
use super::error::LONGEST_TEXT;
use super::instance::Plugin;
use super::loaded_plugin::{LoadedPlugin, compile};
use super::script;
use super::world::Role;
use super::{EnvironmentPlugin, RewardPlugin};
use super::{Error, PluginSource, Result, wrap};
use crate::config::{PluginLimits, printable};
use serde_json::{Map, Value};
use std::borrow::Cow;

/// A loaded plugin.
pub enum AnyPlugin {
    /// Scores completions.
    Reward(Box<RewardPlugin>),
    /// Computes a loss, and advantages or pairs.
    Algorithm(Box<AlgorithmPlugin>),
    /// Plays episodes with several turns.
    Environment(Box<EnvironmentPlugin>),
}

impl AnyPlugin {
    /// Loads and configures a plugin in a role.
    pub fn load(
        engine: &PluginEngine,
        source: &PluginSource,
        role: Role,
        config: &Map<String, Value>,
        limits: &PluginLimits,
        seed: u64,
    ) -> Result<Self> {
        Ok(match role {
            Role::Reward => Self::Reward(Box::new(RewardPlugin::load(engine, source, config, limits, seed)?)),
            Role::Algorithm => Self::Algorithm(Box::new(AlgorithmPlugin::load(engine, source, config, limits, seed)?)),
            Role::Environment => Self::Environment(Box::new(EnvironmentPlugin::load(engine, source, config, limits, seed)?)),
        })
    }

    /// Returns the part that all roles have in common.
    pub fn plugin(&self) -> &Plugin {
        match self {
            Self::Reward(plugin) => plugin,
            Self::Algorithm(plugin) => plugin,
            Self::Environment(plugin) => plugin,
        }
    }

    /// Returns the part that all roles have in common, mutably.
    pub fn plugin_mut(&mut self) -> &mut Plugin {
        match self {
            Self::Reward(plugin) => plugin,
            Self::Algorithm(plugin) => plugin,
            Self::Environment(plugin) => plugin,
        }
    }
}

/// Facts about a plugin that are known from its bytes, before it runs.
#[derive(Debug)]
pub struct PluginOutline {
    /// Whether the plugin is a core module, which rlhost wraps into a component.
    pub wrapped: bool,
    /// Size of the plugin's file, in bytes.
    pub bytes: usize,
    /// Role that the exports match.
    pub role: Option<Role>,
    /// Names of the imported interfaces.
    pub imports: Vec<String>,
    /// Names of the exported interfaces.
    pub exports: Vec<String>,
}

impl PluginOutline {
    /// Reads a plugin's bytes and compiles them, within `limits`.
    pub fn read(engine: &PluginEngine, source: &PluginSource, limits: &PluginLimits) -> Result<Self> {
        let CompiledPlugin { component, .. } = compile(engine, source, limits)?;
        let role = match source.script() {
            None => Role::from_component(&component, &engine.wasmtime),
            Some(script) => {
                let wrong = |detail| Error::Config { name: source.name().to_owned(), detail };
                Some(script::role_of(LoadedPlugin::functions(engine, source, limits)?, script).map_err(wrong)?)
            }
        };
        let ty = component.component_type();
        let shown = |name: &str| printable(name, LONGEST_TEXT);
        Ok(Self {
            wrapped: wrap::is_core(source.bytes()),
            bytes: source.bytes().len(),
            role,
            imports: ty.imports(&engine.wasmtime).map(|(name, _)| shown(name)).collect(),
            exports: ty.exports(&engine.wasmtime).map(|(name, _)| shown(name)).collect(),
        })
    }

    /// Returns the role, or an error that lists the plugin's exports.
    pub fn role(&self, source: &PluginSource) -> Result<Role> {
        let exports =
            || format!("it exports neither a reward, an algorithm nor an environment; it exports {}", self.exports.join(", "));
        self.role.ok_or_else(|| wrong_world(source, "a plugin", &exports()))
    }

    /// Returns the error for a plugin that does not have the wanted role.
    pub fn role_mismatch(&self, wanted: Role, source: &PluginSource) -> Error {
        let what = self.role.map_or_else(|| "no plugin".to_owned(), |role| role.name().to_owned());
        let missing = wanted.exported();
        wrong_world(
            source,
            wanted.name(),
            &format!("it is {what} and does not export {missing}; it exports {}", self.exports.join(", ")),
        )
    }
}

fn wrong_world(source: &PluginSource, wanted: &'static str, detail: &str) -> Error {
    Error::WrongWorld { name: source.name().to_owned(), wanted, detail: printable(detail, LONGEST_TEXT) }
}

/// Returns a component's bytes: the plugin's own, or those of the component that wraps a core module.
pub fn as_component(source: &PluginSource) -> Result<Vec<u8>> {
    let damaged =
        |detail: String| Error::NotComponent { name: source.name().to_owned(), detail: printable(&detail, LONGEST_TEXT) };
    wrap::as_component(source.bytes()).map(Cow::into_owned).map_err(damaged)
}
