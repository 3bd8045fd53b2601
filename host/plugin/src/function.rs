//! A function that a component exports.

use super::contract::types;
use super::plugin_instance::CallResult;
use super::sandbox::Sandbox;
use wasmtime::Store;
use wasmtime::component::{Component, ComponentExportIndex, ComponentNamedList, Instance as Linked, Lift, Lower};

/// A function that a component exports.
#[derive(Clone, Copy)]
pub(super) struct ExportedFunction(ComponentExportIndex);

impl ExportedFunction {
    /// Looks up a function of an interface.
    pub(super) fn find(component: &Component, interface: &str, name: &str) -> Option<Self> {
        let interface = component.get_export_index(None, interface)?;
        component.get_export_index(Some(&interface), name).map(Self)
    }

    /// Calls the function of an instance; the types are checked.
    pub(super) fn call<Given, Answered>(
        self,
        store: &mut Store<Sandbox>,
        linked: &Linked,
        given: Given,
    ) -> wasmtime::Result<Answered>
    where
        Given: ComponentNamedList + Lower,
        Answered: ComponentNamedList + Lift + 'static,
    {
        linked.get_typed_func::<Given, Answered>(&mut *store, &self.0)?.call(store, given)
    }

    /// Calls a function that returns an answer or the plugin's own error.
    pub(super) fn ask<Given, Answered>(self, store: &mut Store<Sandbox>, linked: &Linked, given: Given) -> CallResult<Answered>
    where
        Given: ComponentNamedList + Lower,
        Answered: Lift + 'static,
    {
        let (answer,) = self.call::<Given, (Result<Answered, types::Error>,)>(store, linked, given)?;
        Ok(answer)
    }
}
