//! An instance that is ready for calls.

use super::contract::types;
use super::limits::MemoryShare;
use super::sandbox::Sandbox;
use wasmtime::Store;
use wasmtime::component::Instance as Linked;

/// An instance.
pub(super) struct PluginInstance {
    pub store: Store<Sandbox>,
    pub linked: Linked,
}

impl PluginInstance {
    /// Returns what it and its cells may take together.
    pub(super) fn share(&self) -> &MemoryShare {
        self.store.data().ceiling.share()
    }
}

/// A place for an instance: a ready one, or the share of the memory that a new one may take.
pub(super) struct InstanceSlot {
    pub running: Option<PluginInstance>,
    pub share: MemoryShare,
}

/// The result of a call into an instance: the plugin's answer or its own error.
pub(super) type CallResult<R> = wasmtime::Result<std::result::Result<R, types::Error>>;
