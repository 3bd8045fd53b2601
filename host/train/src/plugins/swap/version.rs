//! A loaded plugin or reward model that is swapped in or out.

use super::slots::PluginSlot;
use crate::plugin::{AnyPlugin, PluginSource};
use crate::plugins::ScoringModel;
use crate::run::PluginVersion;
use serde_json::{Map, Value};
use std::any::Any;

/// A version of a plugin or of a reward model.
pub(super) enum LoadedVersion {
    Plugin {
        loaded: AnyPlugin,
        slot: Box<PluginSlot>,
    },
    Model {
        model: Box<ScoringModel>,
        /// Folder of the model.
        path: String,
    },
}

impl LoadedVersion {
    pub(super) fn name(&self) -> &str {
        match self {
            Self::Plugin { slot, .. } => &slot.name,
            Self::Model { model: asked, .. } => asked.model.name(),
        }
    }

    /// Returns the hash of the plugin, or of the model's files.
    pub(super) fn hash(&self) -> &str {
        match self {
            Self::Plugin { slot, .. } => slot.source.hash(),
            Self::Model { model: asked, .. } => asked.model.hash(),
        }
    }

    /// Returns the identity of the version.
    pub(super) fn identity(&self) -> PluginVersion {
        match self {
            Self::Plugin { loaded, slot } => PluginVersion::new(slot.source.hash(), &loaded.plugin().config()),
            Self::Model { model: asked, .. } => PluginVersion::from_hash(asked.model.hash()),
        }
    }

    /// Returns the version that a plugin states; empty for a model.
    pub(super) fn stated_version(&self) -> String {
        match self {
            Self::Plugin { loaded, .. } => loaded.plugin().info().version.clone(),
            Self::Model { .. } => String::new(),
        }
    }

    /// Returns the bytes of a plugin.
    pub(super) fn source(&self) -> Option<&PluginSource> {
        match self {
            Self::Plugin { slot, .. } => Some(&slot.source),
            Self::Model { .. } => None,
        }
    }

    /// Returns the settings as recorded in events.
    pub(super) fn settings(&self) -> Map<String, Value> {
        match self {
            Self::Plugin { slot, .. } => slot.config.clone(),
            Self::Model { path, .. } => Map::from_iter([("path".to_owned(), path.clone().into())]),
        }
    }

    /// Takes out what is needed only while the version is in use. Dropping it may take time.
    pub(super) fn release(&mut self) -> Box<dyn Any + Send> {
        match self {
            Self::Plugin { loaded, .. } => Box::new(loaded.plugin_mut().release()),
            Self::Model { .. } => Box::new(()),
        }
    }
}
