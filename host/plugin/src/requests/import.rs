//! The imported interface through which a plugin sends requests.

use super::super::sandbox::Sandbox;
use super::request::{INTERFACES, OutboundRequest, OutboundResult};
use wasmtime::StoreContextMut;
use wasmtime::component::Linker;

/// Adds the import to a linker.
pub(crate) fn add_to_linker(linker: &mut Linker<Sandbox>) -> wasmtime::Result<()> {
    INTERFACES.into_iter().try_for_each(|interface| linker.instance(interface)?.func_wrap("fetch", fetch))
}

/// Answers a plugin's requests.
pub(super) fn fetch(
    mut store: StoreContextMut<'_, Sandbox>,
    (requests,): (Vec<OutboundRequest>,),
) -> wasmtime::Result<(Vec<OutboundResult>,)> {
    let line = store.data_mut().request_channel.as_mut().ok_or_else(|| wasmtime::Error::msg("it was granted no server"))?;
    let answers = line.fetch(requests).map_err(wasmtime::Error::msg)?;
    let ticks = line.clock.until(line.deadline);
    store.set_epoch_deadline(ticks + 1);
    Ok((answers,))
}
