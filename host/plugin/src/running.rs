//! An instance that is ready for calls.

use super::contract::types;
use super::limits::Share;
use super::sandbox::Sandbox;
use wasmtime::Store;
use wasmtime::component::Instance as Linked;

/// An instance.
pub(super) struct Running {
    pub store: Store<Sandbox>,
    pub linked: Linked,
}

impl Running {
    /// Returns what it and its cells may take together.
    pub(super) fn share(&self) -> &Share {
        self.store.data().ceiling.share()
    }
}

/// A place for an instance: a ready one, or the share of the memory that a new one may take.
pub(super) struct Slot {
    pub running: Option<Running>,
    pub share: Share,
}

/// The result of a call into an instance: the plugin's answer or its own error.
pub(super) type Answer<R> = wasmtime::Result<std::result::Result<R, types::Error>>;
