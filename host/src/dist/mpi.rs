//! The ranks over MPI. Only the thread that joined may call in here, and, while it does not, the
//! one that sums.

use super::launcher::launched;
use super::{Error, Result};
use mpi::Threading;
use mpi::collective::SystemOperation;
use mpi::datatype::PartitionMut;
use mpi::environment::Universe;
use mpi::topology::SimpleCommunicator;
use mpi::traits::*;

/// Tag of the messages in which ranks say what they come with.
const HEADER: i32 = 1;

/// Most bytes that all ranks gather at once: MPI counts in 32 bits.
const GATHERED_AT_ONCE: usize = 1 << 30;

pub(super) struct Ranks {
    world: SimpleCommunicator,
    /// Whether another thread may call MPI.
    serialized: bool,
    /// Ends MPI when it goes.
    _universe: Universe,
}

/// Sums over the ranks, for the thread that makes them.
#[derive(Clone, Copy)]
pub(super) struct Sums {
    size: usize,
}

impl Sums {
    pub(super) fn size(self) -> usize {
        self.size
    }

    /// The sums of everybody's values, the same to the bit on each rank.
    pub(super) fn all_reduce(self, own: &[f32], sums: &mut [f32]) {
        SimpleCommunicator::world().all_reduce_into(own, sums, SystemOperation::sum());
    }

    /// The first part of `own` goes to the first rank, the second to the second; `parts` are those
    /// that come to this one, by rank.
    pub(super) fn all_to_all(self, own: &[u16], parts: &mut [u16]) {
        SimpleCommunicator::world().all_to_all_into(own, parts);
    }

    /// Everybody's values, by rank, as many of each.
    pub(super) fn all_gather(self, own: &[u16], all: &mut [u16]) {
        SimpleCommunicator::world().all_gather_into(own, all);
    }
}

impl Ranks {
    /// All processes that were started together; nobody, where this one was started by itself.
    pub(super) fn join() -> Result<Option<Self>> {
        // MPI's own way to serve a process that stands alone costs time and a daemon.
        if launched().is_none() {
            return Ok(None);
        }
        let (universe, provided) = mpi::initialize_with_threading(Threading::Serialized).ok_or(Error::Joined)?;
        Ok(Some(Self { world: universe.world(), serialized: provided >= Threading::Serialized, _universe: universe }))
    }

    pub(super) fn rank(&self) -> usize {
        self.world.rank() as usize
    }

    pub(super) fn size(&self) -> usize {
        self.world.size() as usize
    }

    /// Everybody's header, by rank. The first rank collects them one by one, so that it knows who
    /// has `came` and who is missing.
    pub(super) fn headers(&self, own: [u64; 3], came: &dyn Fn(usize)) -> Vec<[u64; 3]> {
        let mut all = vec![0; 3 * self.size()];
        let first = self.world.process_at_rank(0);
        if self.rank() == 0 {
            all[..3].copy_from_slice(&own);
            for _ in 1..self.size() {
                let mut header = [0; 3];
                let status = self.world.any_process().receive_into_with_tag(&mut header[..], HEADER);
                let rank = status.source_rank() as usize;
                all[3 * rank..3 * rank + 3].copy_from_slice(&header);
                came(rank);
            }
        } else {
            first.send_with_tag(&own[..], HEADER);
        }
        first.broadcast_into(&mut all[..]);
        all.chunks_exact(3).map(|header| [header[0], header[1], header[2]]).collect()
    }

    /// Everybody's bytes, by rank, whose numbers all know.
    pub(super) fn bytes(&self, own: &[u8], lengths: &[usize]) -> Vec<Vec<u8>> {
        let mut all: Vec<Vec<u8>> = lengths.iter().map(|length| Vec::with_capacity(*length)).collect();
        let piece = (GATHERED_AT_ONCE / self.size()).max(1);
        let most = lengths.iter().copied().max().unwrap_or(0);
        for from in (0..most).step_by(piece) {
            let of = |length: usize| from.min(length)..(from + piece).min(length);
            let counts: Vec<i32> = lengths.iter().map(|length| of(*length).len() as i32).collect();
            let mut at = 0;
            let mut place = |count: &i32| {
                at += count;
                at - count
            };
            let places: Vec<i32> = counts.iter().map(&mut place).collect();
            let mut gathered = vec![0u8; at as usize];
            let mut into = PartitionMut::new(&mut gathered[..], &counts[..], &places[..]);
            self.world.all_gather_varcount_into(&own[of(own.len())], &mut into);
            for ((bytes, place), count) in all.iter_mut().zip(&places).zip(&counts) {
                bytes.extend_from_slice(&gathered[*place as usize..(*place + *count) as usize]);
            }
        }
        all
    }

    /// Whether sums may be made on another thread, while this one does not call in here.
    pub(super) fn serialized(&self) -> bool {
        self.serialized
    }

    pub(super) fn sums(&self) -> Sums {
        Sums { size: self.size() }
    }

    /// Ends MPI when all ranks are there.
    pub(super) fn leave(self) {
        drop(self);
    }

    /// Ends all ranks.
    pub(super) fn abort(&self) -> ! {
        self.world.abort(1)
    }
}
