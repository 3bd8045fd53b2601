//! Operations of all ranks of a run together. All ranks have the same experiences, in the order of a single process, and make the same
//! decisions; each generates, scores and trains on its share.

use super::{Error, Result};
use crate::config::{self, RunConfig};
use crate::data::DatasetRanks;
use crate::dist::{self, RankFailure, World};
use crate::metrics::MetricsWindow;
use crate::ops;
use crate::plugin::PluginSource;
use candle_core::Tensor;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

/// Settings of a rank, to be compared with the other ranks'.
#[derive(Deserialize, Serialize)]
struct RankSettings {
    #[serde(with = "dist::json")]
    config: RunConfig,
    /// Whether matrix products are computed in bf16, which not every processor supports.
    is_bf16: bool,
}

/// The processes of a run, which divide the rows of its datasets.
pub(super) struct RunRanks<'a>(pub &'a World);

impl DatasetRanks for RunRanks<'_> {
    type Error = Error;

    fn ranks(&self) -> (usize, usize) {
        (self.0.rank(), self.0.size())
    }

    fn gather<T: Serialize + DeserializeOwned>(&self, what: &'static str, own: T) -> Result<Vec<T>> {
        Ok(self.0.gather(what, own)?)
    }
}

/// Returns the first rank's plugin on all ranks, regardless of the other ranks' files.
pub(super) fn same_source(world: &World, open: impl FnOnce() -> Result<PluginSource>) -> Result<PluginSource> {
    if world.size() == 1 {
        return open();
    }
    let own = world.is_first().then(open).transpose()?;
    let name = world.broadcast("a plugin's name", || {
        own.as_ref().map(|source| source.name().to_owned()).ok_or_else(|| Error::Bug("a plugin has no name"))
    })?;
    let bytes = world.broadcast_bytes("a plugin", own.as_ref().map_or(&[], PluginSource::bytes))?;
    Ok(PluginSource::new(name, Cow::Owned(bytes)))
}

/// Runs `find`, which may download, on the first rank before the others, which then find the result in the cache.
pub(super) fn after_the_first<T>(world: &World, find: impl FnOnce() -> Result<T>) -> Result<T> {
    if !world.is_first() {
        world.barrier("what is fetched")?;
        return find();
    }
    let found = find()?;
    world.barrier("what is fetched")?;
    Ok(found)
}

/// Merges all ranks' metrics into one window.
pub(super) fn merged(world: &World, own: MetricsWindow) -> Result<MetricsWindow> {
    let mut windows = world.gather("figures", own)?.into_iter();
    let mut all = windows.next().unwrap_or_default();
    windows.for_each(|window| all.merge(&window));
    Ok(all)
}

/// Returns whether any rank was asked to stop.
pub(super) fn any(world: &World, stop: bool) -> Result<bool> {
    Ok(world.gather("signals", stop)?.contains(&true))
}

/// Checks that weights are bit-identical on all ranks after this step.
pub(super) fn compare_weights(world: &World, weights: &[(String, &Tensor)], step: u64) -> Result<()> {
    if world.size() == 1 {
        return Ok(());
    }
    let sums = weights.iter().map(|(_, weight)| ops::checksum(weight));
    let all = world.gather("weights", sums.collect::<ops::Result<Vec<u64>>>()?)?;
    match all.iter().position(|sums| *sums != all[0]) {
        None => Ok(()),
        Some(rank) => Err(Error::WeightsDiffer { step, rank }),
    }
}

/// Checks that all ranks compute in the same precision and have the same configuration.
pub(super) fn compare_settings(world: &World, config: &RunConfig, is_bf16: bool) -> Result<()> {
    let all = world.gather("settings", RankSettings { config: config.clone(), is_bf16 })?;
    let Some(first) = all.first() else { return Ok(()) };
    for (rank, RankSettings { config, is_bf16 }) in all.iter().enumerate() {
        // This is checked first, because default settings depend on it.
        if *is_bf16 != first.is_bf16 {
            let name = |is_bf16| if is_bf16 { "bf16" } else { "f32" };
            let (own, firsts) = (name(*is_bf16), name(first.is_bf16));
            let detail = format!("computes in {own}, and rank 0 in {firsts}; set bf16 to false on both");
            return Err(Error::SetUpsDiffer { rank, detail });
        }
        let keys = config::changes(&first.config, config).map_err(|e| Error::encoding("the configuration", &e))?;
        let own = |key: &str| config::key(key).is_some_and(|key| key.is_per_rank);
        // Each rank may have its files at another path, but must read the same ones.
        let read = |config: &RunConfig| [("dataset", config.dataset.is_some()), ("eval_dataset", config.eval_dataset.is_some())];
        let is_missing = |key: &str| read(config).into_iter().zip(read(&first.config)).any(|(a, b)| a.0 == key && a != b);
        let differ: Vec<&str> = keys.keys().map(String::as_str).filter(|key| !own(key) || is_missing(key)).collect();
        if !differ.is_empty() {
            let keys = differ.join(", ");
            return Err(Error::SetUpsDiffer { rank, detail: format!("was started with different settings from rank 0: {keys}") });
        }
    }
    Ok(())
}

/// Checks that all ranks have a dataset with the same hash.
pub(super) fn compare_datasets(world: &World, hash: &str) -> Result<()> {
    let all = world.gather("datasets", hash.to_owned())?;
    match all.iter().position(|other| *other != all[0]) {
        None => Ok(()),
        Some(rank) => Err(Error::SetUpsDiffer { rank, detail: "has read a different dataset from rank 0".into() }),
    }
}

/// Reports this rank's failure to all ranks and returns the failure that all agree on.
pub(super) fn known_to_all(world: &World, error: Error) -> Error {
    let plugin = error.plugin_at_fault().map(str::to_owned);
    // During a run, a file that can't be written is not the user's mistake.
    let mistake = error.is_mistake() && !matches!(error, Error::Write { .. });
    let of_saving = error.is_of_saving();
    match world.report_failure(&RankFailure { reason: error.to_string(), plugin, mistake, of_saving }) {
        Some(dist::Error::Failed { rank, failure }) if rank != world.rank() => dist::Error::Failed { rank, failure }.into(),
        _ => error,
    }
}
