//! Plugin instances that are ready for calls.

use super::contract::types;
use super::limits::MemoryShare;
use super::sandbox::Sandbox;
use wasmtime::Store;
use wasmtime::component::Instance as Linked;

/// A plugin instance with its store.
pub(super) struct PluginInstance {
    pub store: Store<Sandbox>,
    pub linked: Linked,
}

impl PluginInstance {
    /// Returns the memory share of the instance and its cells.
    pub(super) fn share(&self) -> &MemoryShare {
        self.store.data().ceiling.share()
    }
}

/// A slot for an instance: a ready instance, or the memory share for a new one.
pub(super) struct InstanceSlot {
    pub running: Option<PluginInstance>,
    pub share: MemoryShare,
}

/// The result of calling an instance: the plugin's answer or its own error.
pub(super) type CallResult<R> = wasmtime::Result<std::result::Result<R, types::Error>>;
