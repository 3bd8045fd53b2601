//! What the ranks of a run do together. All have the same experiences, in the order that one process
//! would have them in, and take the same decisions; each generates, scores and trains on its share.

use super::step::{Learn, Share};
use super::trainer::Trainer;
use super::{Error, Result};
use crate::config::{self, Config};
use crate::dist::{self, Failure, World};
use crate::metrics::{Metric, Window};
use crate::model;
use crate::ops;
use crate::plugin::Source;
use candle_core::Tensor;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

/// Keys that ranks need not agree on: files, whose contents are compared, and what is each rank's own.
const OWN: [&str; 6] = ["model", "dataset", "eval_dataset", "device", "num_threads", "dist_timeout_s"];

/// What a rank was told and has read.
#[derive(Deserialize, Serialize)]
struct SetUp {
    #[serde(with = "dist::json")]
    config: Config,
    /// Its hash.
    dataset: String,
}

/// A plugin of the first rank's, whatever the others find under its name.
pub(super) fn same_source(world: &World, open: impl FnOnce() -> Result<Source>) -> Result<Source> {
    if world.size() == 1 {
        return open();
    }
    let own = world.is_first().then(open).transpose()?;
    let name = world.broadcast("a plugin's name", || {
        own.as_ref().map(|source| source.name().to_owned()).ok_or_else(|| Error::Unfit("a plugin without a name".into()))
    })?;
    let bytes = world.broadcast_bytes("a plugin", own.as_ref().map_or(&[], Source::bytes))?;
    Ok(Source::new(name, Cow::Owned(bytes)))
}

/// Finds what may have to be fetched: the first rank fetches it, and the others then find it there.
pub(super) fn after_the_first<T>(world: &World, find: impl FnOnce() -> Result<T>) -> Result<T> {
    if !world.is_first() {
        world.barrier("what is fetched")?;
        return find();
    }
    let found = find()?;
    world.barrier("what is fetched")?;
    Ok(found)
}

impl Trainer {
    /// What this rank trains on of a micro-batch of all.
    pub(super) fn own(&self, share: &Share) -> Share {
        let part = self.world.share(share.rows.len());
        let first = share.rows.start;
        Share { experience: share.experience.clone(), rows: first + part.start..first + part.end }
    }

    /// Adds figures of what all ranks have alike, which count once.
    pub(super) fn note(&mut self, figures: impl IntoIterator<Item = Metric>) {
        if self.world.is_first() {
            self.figures.extend(figures);
        }
    }

    /// Runs a backward `pass`, and with the step's last one sums the ranks' gradients. One that has
    /// failed before says so where the others wait for it to come that far.
    pub(super) fn backward(&self, learn: Learn, pass: impl FnOnce(&dyn Fn()) -> model::Result<()>) -> Result<()> {
        let pass = |done: &dyn Fn()| {
            let passed = pass(done);
            self.phases.lap("backward");
            passed
        };
        match learn {
            Learn::Nothing => Ok(()),
            Learn::AddAndSum if self.world.size() > 1 => {
                self.world.barrier("the last backward pass")?;
                self.phases.lap("reduce");
                let how = (self.config.reduce_dtype, self.config.overlap_comm);
                let passed = self.world.sum_beside("gradients", how, &self.gradients.in_backward_order(), pass)?;
                self.phases.lap("reduce");
                Ok(passed?)
            }
            Learn::Add | Learn::AddAndSum => Ok(pass(&|| ())?),
        }
    }

    /// The sum of the ranks' losses, once each has come through its last backward pass.
    pub(super) fn sum_losses(&self, own: f64) -> Result<f64> {
        if self.world.size() == 1 {
            return Ok(own);
        }
        let loss = self.world.sum("losses", own)?;
        self.phases.lap("reduce");
        Ok(loss)
    }

    /// All ranks' figures in one window.
    pub(super) fn merged(&self, own: Window) -> Result<Window> {
        let mut windows = self.world.gather("figures", own)?.into_iter();
        let mut all = windows.next().unwrap_or_default();
        windows.for_each(|window| all.merge(&window));
        Ok(all)
    }

    /// Whether any rank was asked to stop.
    pub(super) fn any(&self, stop: bool) -> Result<bool> {
        Ok(self.world.gather("signals", stop)?.contains(&true))
    }

    /// Makes sure that what is trained is the same on all ranks, to the bit.
    pub(super) fn compare_weights(&self) -> Result<()> {
        self.compare(&self.policy.weights().trained())
    }

    fn compare(&self, weights: &[(String, &Tensor)]) -> Result<()> {
        if self.world.size() == 1 {
            return Ok(());
        }
        let sums = weights.iter().map(|(_, weight)| ops::checksum(weight));
        let all = self.world.gather("weights", sums.collect::<ops::Result<Vec<u64>>>()?)?;
        match all.iter().position(|sums| *sums != all[0]) {
            None => Ok(()),
            Some(rank) => {
                let step = self.state.global_step;
                let detail = "a processor, a library or the network does not compute or carry what the others do";
                Err(Error::Unfit(format!("after step {step} the weights of rank {rank} are not those of rank 0: {detail}")))
            }
        }
    }

    /// Makes sure that all ranks were told the same and read the same.
    pub(super) fn compare_set_ups(&self) -> Result<()> {
        let set_ups = self.world.gather("set-ups", SetUp { config: self.config.clone(), dataset: self.dataset.clone() })?;
        let Some(first) = set_ups.first() else { return Ok(()) };
        for (rank, SetUp { config, dataset }) in set_ups.iter().enumerate() {
            let keys = config::changes(&first.config, config).map_err(|e| Error::Unfit(e.to_string()))?;
            let differ: Vec<&str> = keys.keys().map(String::as_str).filter(|key| !OWN.contains(key)).collect();
            if !differ.is_empty() {
                let keys = differ.join(", ");
                return Err(Error::Unfit(format!("rank {rank} was started with other settings than rank 0: {keys}")));
            }
            if *dataset != first.dataset {
                return Err(Error::Unfit(format!("rank {rank} has read another dataset than rank 0")));
            }
        }
        // What an adapter leaves as it is, too.
        self.compare(&self.policy.weights().named())
    }

    /// Makes this rank's failure known to all, and gives the failure that all then know of.
    pub(super) fn known_to_all(&self, error: Error) -> Error {
        let plugin = error.plugin_at_fault().map(str::to_owned);
        match self.world.tell(&Failure { reason: error.to_string(), plugin }) {
            Some(dist::Error::Failed { rank, failure }) if rank != self.world.rank() => {
                dist::Error::Failed { rank, failure }.into()
            }
            _ => error,
        }
    }
}
