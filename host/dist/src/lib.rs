//! The processes (ranks) of a run and their communication.
//!
//! All ranks make the same decisions from the same data, so they exchange little. [`World::gather`] gathers each rank's findings on all
//! ranks, [`World::broadcast`] sends what only the first rank knows, and collectives on tensors sum gradients and copy weights
//! ([`World::communicate`]).
//!
//! **No rank waits for a failed one.** Everything except tensors goes through one collective ([`World::exchange`]). A failed rank reports
//! there ([`World::report_failure`]), wherever the others are. Tensors are exchanged only after all ranks have reported that they are
//! ready. If a rank dies, the launcher ends the others (`mpirun` and `srun` do); if one hangs, the watchdog ends the run.

mod collectives;
mod error;
mod launcher;
#[cfg(feature = "mpi")]
mod mpi;
#[cfg(not(feature = "mpi"))]
mod mpi_stub;
#[cfg(feature = "nccl")]
mod nccl;
mod tensors;
mod watchdog;

use rlhost_config as config;
use rlhost_ops as ops;

pub use collectives::{Collectives, PendingCollective, ReductionSettings};
pub use error::{Error, RankFailure, Result};
pub use tensors::OwnedTensor;

#[cfg(feature = "mpi")]
use self::mpi::{MpiChannel as Channel, MpiRanks as Ranks};
#[cfg(not(feature = "mpi"))]
use self::mpi_stub::{StubChannel as Channel, StubRanks as Ranks};

use candle_core::Device;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::cell::Cell;
use std::ops::Range;
use std::time::Duration;
use watchdog::RankWatchdog;

/// Time for which a silent process waits, so that the first one can print its error.
const TIME_TO_SPEAK: Duration = Duration::from_secs(5);

/// The processes of a run, as seen from one of them.
pub struct World {
    rank: usize,
    size: usize,
    /// The other ranks; `None` with a single process.
    others: Option<(Ranks, RankWatchdog)>,
    /// NCCL, if each rank computes on its own device.
    #[cfg(feature = "nccl")]
    devices: std::cell::OnceCell<nccl::NcclCommunicator>,
    /// Whether a rank has failed and all ranks know it.
    failed: Cell<bool>,
}

impl World {
    fn new(rank: usize, size: usize, others: Option<(Ranks, RankWatchdog)>) -> Self {
        Self {
            rank,
            size,
            others,
            #[cfg(feature = "nccl")]
            devices: std::cell::OnceCell::new(),
            failed: Cell::new(false),
        }
    }

    /// Creates a world of one process.
    pub fn single_process() -> Self {
        Self::new(0, 1, None)
    }

    /// Joins the processes that the launcher started together with this one, if any.
    ///
    /// # Errors
    /// If there are other processes and this build can't communicate with them.
    pub fn join() -> Result<Self> {
        let Some(ranks) = Ranks::join()? else { return Ok(Self::single_process()) };
        let (rank, size) = (ranks.rank(), ranks.size());
        if size == 1 {
            // Dropping the last value here finalises MPI.
            return Ok(Self::single_process());
        }
        let watchdog = RankWatchdog::new(rank)?;
        Ok(Self::new(rank, size, Some((ranks, watchdog))))
    }

    /// Returns whether this process prints to the user: the first of several, or the only one. Can be called before [`World::join`].
    pub fn prints_output() -> bool {
        launcher::launched().is_none_or(|(rank, _)| rank == 0)
    }

    /// Waits, unless this process prints to the user. A launcher ends all processes of a run when one fails, so a silent process that fails
    /// first would keep the first one from printing the error. Can be called before [`World::join`].
    pub fn wait_for_first_rank() {
        if !Self::prints_output() {
            std::thread::sleep(TIME_TO_SPEAK);
        }
    }

    /// Connects the ranks' devices, so that gradients are summed between them directly. Without the feature `nccl`, sums go
    /// through the processes.
    ///
    /// # Errors
    /// If some ranks compute on a device and others don't, or NCCL is missing.
    pub fn connect_devices(&self, device: &Device) -> Result<()> {
        let all = self.gather("devices", device.is_cuda())?;
        let name = |on_device: bool| if on_device { "an NVIDIA device" } else { "the CPU" };
        if let Some(rank) = all.iter().position(|other| *other != all[0]) {
            return Err(Error::MixedDevices { rank, there: name(all[rank]), first: name(all[0]) });
        }
        #[cfg(feature = "nccl")]
        if let (Device::Cuda(device), Some((_, watchdog))) = (device, &self.others) {
            let id = self.broadcast("NCCL's id", nccl::NcclCommunicator::id)?;
            let meet = || nccl::NcclCommunicator::meet(device, self.rank, self.size, &id);
            let devices = watchdog.watch("the start of NCCL", Vec::new(), meet)?;
            let _ = self.devices.set(devices);
        }
        Ok(())
    }

    /// Returns this process's rank on its machine.
    pub fn local_rank(&self) -> usize {
        launcher::local_rank()
    }

    /// Returns this process's rank, from 0.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Returns the number of processes.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Returns whether this is the rank that writes files and prints to the user.
    pub fn is_first(&self) -> bool {
        self.rank == 0
    }

    /// Returns this rank's share of `things` items: contiguous, in rank order, as equal as possible.
    pub fn share(&self, things: usize) -> Range<usize> {
        things * self.rank / self.size..things * (self.rank + 1) / self.size
    }

    /// Returns the items on the first rank and nothing on others. Used for metrics that are the same on all ranks and must count once.
    pub fn once<T>(&self, things: impl IntoIterator<Item = T>) -> impl Iterator<Item = T> {
        let first = self.is_first();
        things.into_iter().filter(move |_| first)
    }

    /// Sets the timeout for other ranks, in seconds.
    pub fn set_patience(&self, seconds: f64) {
        if let Some((_, watchdog)) = &self.others {
            watchdog.set_patience(seconds, self.rank);
        }
    }

    /// Sets the step that a timeout's message names.
    pub fn set_step(&self, step: u64) {
        if let Some((_, watchdog)) = &self.others {
            watchdog.set_step(step);
        }
    }

    /// Returns every rank's bytes, by rank. All ranks synchronise in this call; a failed rank reports its failure instead of bytes.
    fn exchange(&self, what: &'static str, own: std::result::Result<&[u8], &RankFailure>) -> Result<Vec<Vec<u8>>> {
        let Some((ranks, watchdog)) = &self.others else { return Ok(own.into_iter().map(<[u8]>::to_vec).collect()) };
        if self.failed.get() {
            let failure = RankFailure {
                reason: format!("{what:?} after a failure that all ranks know of"),
                plugin: None,
                mistake: false,
                of_saving: false,
            };
            return Err(Error::Failed { rank: self.rank, failure });
        }
        let encoding = |source| Error::Encoding { what, source };
        let told = own.err().map(postcard::to_allocvec).transpose().map_err(encoding)?;
        let sent = told.as_deref().or(own.ok()).unwrap_or_default();
        let header = [sent.len() as u64, u64::from(told.is_some()), name_hash(what)];
        let missing = if self.is_first() { (1..self.size).collect() } else { Vec::new() };
        let (headers, all) = watchdog.watch(what, missing, || {
            let headers = ranks.headers(header, &|rank| watchdog.record_arrival(rank));
            let lengths: Vec<usize> = headers.iter().map(|[length, ..]| *length as usize).collect();
            let all = ranks.bytes(sent, &lengths);
            (headers, all)
        });
        if let Some(rank) = headers.iter().position(|[_, failed, _]| *failed != 0) {
            self.failed.set(true);
            let failure = postcard::from_bytes(&all[rank]).map_err(encoding)?;
            return Err(Error::Failed { rank, failure });
        }
        match headers.iter().position(|header| header[2] != headers[0][2]) {
            // All ranks see this mismatch, so all exchange names once more.
            Some(rank) => {
                self.failed.set(true);
                let lengths: Vec<usize> =
                    ranks.headers([what.len() as u64, 0, 0], &|_| ()).iter().map(|[length, ..]| *length as usize).collect();
                let names = ranks.bytes(what.as_bytes(), &lengths);
                let name = |rank: usize| String::from_utf8_lossy(&names[rank]).into_owned();
                Err(Error::OutOfStep { rank, there: name(rank), first: name(0) })
            }
            None => Ok(all),
        }
    }

    /// Gathers a value from each rank, by rank. Values are encoded by postcard: floats in full, small integers in one or two bytes.
    /// Self-describing values such as JSON, and types that omit fields (`skip_serializing_if`), need [`json`].
    ///
    /// # Errors
    /// If a rank has failed.
    pub fn gather<T: Serialize + DeserializeOwned>(&self, what: &'static str, own: T) -> Result<Vec<T>> {
        if self.others.is_none() {
            return Ok(vec![own]);
        }
        let encoding = |source| Error::Encoding { what, source };
        let bytes = postcard::to_allocvec(&own).map_err(encoding)?;
        let all = self.exchange(what, Ok(&bytes))?;
        all.iter().map(|bytes| postcard::from_bytes(bytes).map_err(encoding)).collect()
    }

    /// Concatenates the ranks' parts of a list.
    ///
    /// # Errors
    /// If a rank has failed.
    pub fn concat<T: Serialize + DeserializeOwned>(&self, what: &'static str, own: Vec<T>) -> Result<Vec<T>> {
        Ok(self.gather(what, own)?.into_iter().flatten().collect())
    }

    /// Computes a value on the first rank only and broadcasts it.
    ///
    /// # Errors
    /// If computing the value fails, or a rank has failed.
    pub fn broadcast<T, E>(
        &self,
        what: &'static str,
        make: impl FnOnce() -> std::result::Result<T, E>,
    ) -> std::result::Result<T, E>
    where
        T: Serialize + DeserializeOwned,
        E: From<Error>,
    {
        let own = self.is_first().then(make).transpose()?;
        let made = self.gather(what, own)?.into_iter().next().flatten();
        made.ok_or_else(|| Error::Missing { what }.into())
    }

    /// Broadcasts the first rank's bytes.
    ///
    /// # Errors
    /// If a rank has failed.
    pub fn broadcast_bytes(&self, what: &'static str, own: &[u8]) -> Result<Vec<u8>> {
        let own = if self.is_first() { own } else { &[] };
        let first = self.exchange(what, Ok(own))?.into_iter().next();
        first.ok_or(Error::Missing { what })
    }

    /// Waits until all ranks have reached this call.
    ///
    /// # Errors
    /// If a rank has failed.
    pub fn barrier(&self, what: &'static str) -> Result<()> {
        self.exchange(what, Ok(&[])).map(drop)
    }

    /// Sums a number over the ranks, in rank order.
    ///
    /// # Errors
    /// If a rank has failed.
    pub fn sum(&self, what: &'static str, own: f64) -> Result<f64> {
        if self.others.is_none() {
            return Ok(own);
        }
        Ok(self.gather(what, own)?.into_iter().sum())
    }

    /// Reports this rank's failure to the others, unless a failure is already known. Returns the failure that all ranks agree on, which is
    /// the one of the lowest failed rank.
    pub fn report_failure(&self, failure: &RankFailure) -> Option<Error> {
        if self.others.is_none() || self.failed.get() {
            return None;
        }
        self.exchange("a failure", Err(failure)).err()
    }

    /// Continues after a failure that all ranks have handled.
    pub fn clear_failure(&self) {
        self.failed.set(false);
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let Some((ranks, watchdog)) = self.others.take() else { return };
        if std::thread::panicking() {
            ranks.abort();
        }
        // MPI can be finalised only by all ranks together.
        watchdog.watch("the end", Vec::new(), || ranks.leave());
    }
}

/// Encodes a field as JSON text, for serde's `with`. Needed by values that are JSON or need a self-describing format.
pub mod json {
    use serde::de::{DeserializeOwned, Deserializer, Error as _};
    use serde::ser::{Error as _, Serializer};
    use serde::{Deserialize, Serialize};

    /// Encodes a value as JSON.
    ///
    /// # Errors
    /// If the value can't be encoded as JSON.
    pub fn serialize<T: Serialize, S: Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
        serde_json::to_string(value).map_err(S::Error::custom)?.serialize(serializer)
    }

    /// Decodes a value from JSON.
    ///
    /// # Errors
    /// If the text is missing or does not decode to the type.
    pub fn deserialize<'de, T: DeserializeOwned, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
        serde_json::from_str(&String::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

/// Returns the FNV-1a hash of a name.
fn name_hash(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_cover_everything_once_in_order() {
        for (things, size) in [(8, 4), (7, 3), (2, 5), (0, 3), (5, 1)] {
            let world = |rank| World::new(rank, size, None);
            let shares: Vec<usize> = (0..size).flat_map(|rank| world(rank).share(things)).collect();
            assert_eq!(shares, (0..things).collect::<Vec<_>>(), "{things} over {size}");
            let lengths: Vec<usize> = (0..size).map(|rank| world(rank).share(things).len()).collect();
            assert!(lengths.iter().max().unwrap() - lengths.iter().min().unwrap() <= 1, "{lengths:?}");
        }
    }

    #[test]
    fn a_process_alone_hears_itself() {
        let world = World::single_process();
        assert!(world.is_first());
        assert_eq!(world.gather("numbers", 7).unwrap(), [7]);
        assert_eq!(world.concat("lists", vec![1, 2]).unwrap(), [1, 2]);
        assert_eq!(world.broadcast("a number", || Ok::<_, Error>(f64::NAN)).unwrap().to_bits(), f64::NAN.to_bits());
        assert_eq!(world.broadcast_bytes("bytes", b"abc").unwrap(), b"abc");
        assert_eq!(world.sum("numbers", 0.1).unwrap(), 0.1);
        world.barrier("nothing").unwrap();
        // There is nobody to tell.
        assert!(
            world
                .report_failure(&RankFailure { reason: "it broke".into(), plugin: None, mistake: false, of_saving: false })
                .is_none()
        );
        world.barrier("nothing").unwrap();
    }
}
