//! Several processes that train as one: who is there, and what they say to each other.
//!
//! Every rank takes the same decisions from the same facts, so that little has to be said: what
//! each rank found out goes to all ([`World::gather`]), what one alone can know comes from the
//! first ([`World::broadcast`]), and gradients are added up ([`World::sum_beside`]).
//!
//! **No rank waits for one that has failed.** All talk but the sums goes through one place
//! ([`World::exchange`]), in which a rank may also say that it has failed ([`World::tell`]),
//! wherever the others are; and sums follow only where all have said that they are ready. A rank
//! that dies is the launcher's to notice (`mpirun` and `srun` end the others), and one that hangs
//! the watchdog's.

mod launcher;
#[cfg(feature = "mpi")]
mod mpi;
#[cfg(feature = "nccl")]
mod nccl;
mod sums;
mod watchdog;
#[cfg(not(feature = "mpi"))]
mod without;

#[cfg(feature = "mpi")]
use self::mpi::{Ranks, Sums};
#[cfg(not(feature = "mpi"))]
use self::without::{Ranks, Sums};

use crate::ops;
use candle_core::Device;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::cell::Cell;
use std::ops::Range;
use watchdog::Watchdog;

/// Why a rank gave up, as the others hear of it.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct Failure {
    /// In words.
    pub reason: String,
    /// The plugin whose call failed, if it was one's.
    pub plugin: Option<String>,
}

/// Why ranks can't work together.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A rank failed.
    #[error("rank {rank}: {}", failure.reason)]
    Failed {
        /// Which.
        rank: usize,
        /// Why.
        failure: Failure,
    },
    /// This build knows no ranks.
    #[error(
        "this rlhost was built without the feature mpi, and it was started as rank {rank} of {size}; build it with --features rlhost/mpi"
    )]
    Without {
        /// Its rank.
        rank: usize,
        /// How many were started.
        size: usize,
    },
    /// MPI has been begun already: a bug.
    #[error("MPI can be begun once in a process")]
    Joined,
    /// A thread could not be started.
    #[error("can't watch over the ranks: {0}")]
    Watchdog(#[from] std::io::Error),
    /// Ranks are at different places of the program: a bug.
    #[error("rank {rank} has lost step with the others, which are at {here:?}; this is a bug of rlhost's")]
    Astray {
        /// Which.
        rank: usize,
        /// Where this one is.
        here: &'static str,
    },
    /// What was said can't be written down or read.
    #[error("{what:?} can't be sent to the other ranks: {source}")]
    Encoding {
        /// What it was.
        what: &'static str,
        /// Why not.
        source: postcard::Error,
    },
    /// Some ranks compute on a device and others don't.
    #[error("rank {rank} computes on {there} and rank 0 on {first}; device = \"cuda\" or \"cpu\" has all do the same")]
    Apart {
        /// Which.
        rank: usize,
        /// Where it does.
        there: &'static str,
        /// Where the first does.
        first: &'static str,
    },
    /// NCCL is missing or failed.
    #[error("NCCL can't {what}: {detail}")]
    Nccl {
        /// What it was to do.
        what: &'static str,
        /// What it says.
        detail: String,
    },
    /// A tensor can't be summed.
    #[error(transparent)]
    Op(#[from] ops::Error),
}

/// Result of what ranks do together.
pub type Result<T> = std::result::Result<T, Error>;

/// The processes of a run, as one of them sees them.
pub struct World {
    rank: usize,
    size: usize,
    /// Nobody, where the process is alone.
    others: Option<(Ranks, Watchdog)>,
    /// Where each rank computes on a device of its own.
    #[cfg(feature = "nccl")]
    devices: std::cell::OnceCell<nccl::Devices>,
    /// Whether some rank has failed, which all know.
    failed: Cell<bool>,
}

impl World {
    fn new(rank: usize, size: usize, others: Option<(Ranks, Watchdog)>) -> Self {
        Self {
            rank,
            size,
            others,
            #[cfg(feature = "nccl")]
            devices: std::cell::OnceCell::new(),
            failed: Cell::new(false),
        }
    }

    /// A process by itself.
    pub fn alone() -> Self {
        Self::new(0, 1, None)
    }

    /// The processes that were started together with this one; just this one where there are none.
    ///
    /// # Errors
    /// If there are others and this build can't talk to them.
    pub fn join() -> Result<Self> {
        let Some(ranks) = Ranks::join()? else { return Ok(Self::alone()) };
        let (rank, size) = (ranks.rank(), ranks.size());
        if size == 1 {
            // MPI ends when its last value goes, which is now.
            return Ok(Self::alone());
        }
        let watchdog = Watchdog::new(rank)?;
        Ok(Self::new(rank, size, Some((ranks, watchdog))))
    }

    /// Whether this process was started as the first of several, or by itself: the one that speaks
    /// to the user. Known before [`World::join`].
    pub fn speaks() -> bool {
        launcher::launched().is_none_or(|(rank, _)| rank == 0)
    }

    /// Has the ranks' devices meet, where they compute on such, so that sums go from one to the other
    /// without the processes. Without the feature `nccl` they go through the processes.
    ///
    /// # Errors
    /// If some ranks compute on a device and others don't, or NCCL is missing.
    pub fn meet_on(&self, device: &Device) -> Result<()> {
        let all = self.gather("devices", device.is_cuda())?;
        let name = |on_device: bool| if on_device { "an NVIDIA device" } else { "the CPU" };
        if let Some(rank) = all.iter().position(|other| *other != all[0]) {
            return Err(Error::Apart { rank, there: name(all[rank]), first: name(all[0]) });
        }
        #[cfg(feature = "nccl")]
        if let (Device::Cuda(device), Some((_, watchdog))) = (device, &self.others) {
            let id = self.broadcast("NCCL's id", nccl::Devices::id)?;
            let meet = || nccl::Devices::meet(device, self.rank, self.size, &id);
            let devices = watchdog.watch("NCCL's beginning", Vec::new(), meet)?;
            let _ = self.devices.set(devices);
        }
        Ok(())
    }

    /// Number of this process among those on its machine.
    pub fn local_rank(&self) -> usize {
        launcher::local_rank()
    }

    /// Number of this process, from 0.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Number of processes.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Whether this is the rank that writes files and speaks to the user.
    pub fn is_first(&self) -> bool {
        self.rank == 0
    }

    /// This rank's part of so many things: whole ones, in order, as equal as can be.
    pub fn share(&self, things: usize) -> Range<usize> {
        things * self.rank / self.size..things * (self.rank + 1) / self.size
    }

    /// What all ranks have alike, on the first one alone, so that it counts once.
    pub fn once<T>(&self, things: impl IntoIterator<Item = T>) -> impl Iterator<Item = T> {
        let first = self.is_first();
        things.into_iter().filter(move |_| first)
    }

    /// Sets how long, in seconds, the others are waited for.
    pub fn set_patience(&self, seconds: f64) {
        if let Some((_, watchdog)) = &self.others {
            watchdog.set_patience(seconds, self.rank);
        }
    }

    /// Sets the step that is named where the others are waited for in vain.
    pub fn at_step(&self, step: u64) {
        if let Some((_, watchdog)) = &self.others {
            watchdog.at_step(step);
        }
    }

    /// Everybody's bytes, by rank. All meet here: a rank that has failed says so instead.
    fn exchange(&self, what: &'static str, own: std::result::Result<&[u8], &Failure>) -> Result<Vec<Vec<u8>>> {
        let Some((ranks, watchdog)) = &self.others else { return Ok(own.into_iter().map(<[u8]>::to_vec).collect()) };
        if self.failed.get() {
            let failure = Failure { reason: format!("{what:?} after a failure that all knew of"), plugin: None };
            return Err(Error::Failed { rank: self.rank, failure });
        }
        let encoding = |source| Error::Encoding { what, source };
        let told = own.err().map(postcard::to_allocvec).transpose().map_err(encoding)?;
        let sent = told.as_deref().or(own.ok()).unwrap_or_default();
        let header = [sent.len() as u64, u64::from(told.is_some()), name_hash(what)];
        let missing = if self.is_first() { (1..self.size).collect() } else { Vec::new() };
        let (headers, all) = watchdog.watch(what, missing, || {
            let headers = ranks.headers(header, &|rank| watchdog.came(rank));
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
            // All find that out.
            Some(rank) => {
                self.failed.set(true);
                Err(Error::Astray { rank, here: what })
            }
            None => Ok(all),
        }
    }

    /// What each rank has found out, by rank. It goes as postcard has it: numbers of many digits in
    /// the bytes that they have in memory, small whole ones in one or two. Values that say themselves
    /// what they are, JSON's for one, need [`json`].
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

    /// The ranks' parts of a list, one behind the other.
    ///
    /// # Errors
    /// If a rank has failed.
    pub fn concat<T: Serialize + DeserializeOwned>(&self, what: &'static str, own: Vec<T>) -> Result<Vec<T>> {
        Ok(self.gather(what, own)?.into_iter().flatten().collect())
    }

    /// What the first rank makes, which the others don't.
    ///
    /// # Errors
    /// If it can't be made, or a rank has failed.
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
        made.ok_or_else(|| Error::Astray { rank: 0, here: what }.into())
    }

    /// The first rank's bytes.
    ///
    /// # Errors
    /// If a rank has failed.
    pub fn broadcast_bytes(&self, what: &'static str, own: &[u8]) -> Result<Vec<u8>> {
        let own = if self.is_first() { own } else { &[] };
        let first = self.exchange(what, Ok(own))?.into_iter().next();
        first.ok_or(Error::Astray { rank: 0, here: what })
    }

    /// Waits until all ranks are here.
    ///
    /// # Errors
    /// If a rank has failed.
    pub fn barrier(&self, what: &'static str) -> Result<()> {
        self.exchange(what, Ok(&[])).map(drop)
    }

    /// Sums numbers over the ranks, in their order.
    ///
    /// # Errors
    /// If a rank has failed.
    pub fn sum(&self, what: &'static str, own: f64) -> Result<f64> {
        if self.others.is_none() {
            return Ok(own);
        }
        Ok(self.gather(what, own)?.into_iter().sum())
    }

    /// Tells the others that this rank has failed, unless some rank's failure is known already, and
    /// gives what all now know: the failure of the first rank that has one.
    pub fn tell(&self, failure: &Failure) -> Option<Error> {
        if self.others.is_none() || self.failed.get() {
            return None;
        }
        self.exchange("a failure", Err(failure)).err()
    }

    /// All go on after a failure that all have dealt with.
    pub fn go_on(&self) {
        self.failed.set(false);
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let Some((ranks, watchdog)) = self.others.take() else { return };
        if std::thread::panicking() {
            ranks.abort();
        }
        // MPI ends when all ranks are there.
        watchdog.watch("the end", Vec::new(), || ranks.leave());
    }
}

/// For serde's `with`: a field whose value is JSON, or can only be read where its text says what
/// it is, goes as that text.
pub mod json {
    use serde::de::{DeserializeOwned, Deserializer, Error as _};
    use serde::ser::{Error as _, Serializer};
    use serde::{Deserialize, Serialize};

    /// The value's JSON.
    ///
    /// # Errors
    /// If it has none.
    pub fn serialize<T: Serialize, S: Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
        serde_json::to_string(value).map_err(S::Error::custom)?.serialize(serializer)
    }

    /// The value of a JSON text.
    ///
    /// # Errors
    /// If there is no text, or it is not such a value's.
    pub fn deserialize<'de, T: DeserializeOwned, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
        serde_json::from_str(&String::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

/// FNV-1a of a name.
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
        let world = World::alone();
        assert!(world.is_first());
        assert_eq!(world.gather("numbers", 7).unwrap(), [7]);
        assert_eq!(world.concat("lists", vec![1, 2]).unwrap(), [1, 2]);
        assert_eq!(world.broadcast("a number", || Ok::<_, Error>(f64::NAN)).unwrap().to_bits(), f64::NAN.to_bits());
        assert_eq!(world.broadcast_bytes("bytes", b"abc").unwrap(), b"abc");
        assert_eq!(world.sum("numbers", 0.1).unwrap(), 0.1);
        world.barrier("nothing").unwrap();
        // Nobody is there to be told.
        assert!(world.tell(&Failure { reason: "it broke".into(), plugin: None }).is_none());
        world.barrier("nothing").unwrap();
    }
}
