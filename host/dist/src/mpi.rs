//! Communication through MPI. Only the thread that joined may call this, or the thread of collectives while that one does not.

use super::launcher::launched;
use super::{Error, Result};
use mpi::Threading;
use mpi::collective::SystemOperation;
use mpi::datatype::PartitionMut;
use mpi::environment::Universe;
use mpi::topology::SimpleCommunicator;
use mpi::traits::*;

/// Tag of header messages.
const HEADER: i32 = 1;

/// Most bytes gathered at once over all ranks: MPI counts in 32 bits.
const GATHERED_AT_ONCE: usize = 1 << 30;

pub(super) struct MpiRanks {
    world: SimpleCommunicator,
    /// Whether another thread may call MPI.
    serialized: bool,
    /// Finalises MPI when dropped.
    _universe: Universe,
}

/// Collectives on numbers, for the thread that makes them.
#[derive(Clone, Copy)]
pub(super) struct MpiChannel {
    rank: usize,
    size: usize,
}

impl MpiChannel {
    pub(super) fn rank(self) -> usize {
        self.rank
    }

    pub(super) fn size(self) -> usize {
        self.size
    }

    /// Sums every rank's values, with bit-identical results on each rank.
    pub(super) fn all_reduce(self, own: &[f32], sums: &mut [f32]) {
        SimpleCommunicator::world().all_reduce_into(own, sums, SystemOperation::sum());
    }

    /// Sends the first part of `own` to the first rank, the second to the second, and so on. `parts` receives those for this
    /// rank, by rank.
    pub(super) fn all_to_all(self, own: &[u16], parts: &mut [u16]) {
        SimpleCommunicator::world().all_to_all_into(own, parts);
    }

    /// Gathers every rank's values, by rank, equally many from each.
    pub(super) fn all_gather(self, own: &[u16], all: &mut [u16]) {
        SimpleCommunicator::world().all_gather_into(own, all);
    }

    /// Sums every rank's values into `sums` of one rank, the `owner`.
    pub(super) fn reduce(self, own: &[f32], sums: &mut [f32], owner: usize) {
        let world = SimpleCommunicator::world();
        let process = world.process_at_rank(owner as i32);
        if owner == self.rank {
            process.reduce_into_root(own, sums, SystemOperation::sum());
        } else {
            process.reduce_into(own, SystemOperation::sum());
        }
    }

    /// Gathers every rank's values, by rank, into `all` of one rank, the `owner`.
    pub(super) fn gather(self, own: &[u16], all: &mut [u16], owner: usize) {
        let world = SimpleCommunicator::world();
        let process = world.process_at_rank(owner as i32);
        if owner == self.rank {
            process.gather_into_root(own, all);
        } else {
            process.gather_into(own);
        }
    }

    /// Copies the bytes of one rank, the `owner`, to all.
    pub(super) fn broadcast(self, bytes: &mut [u8], owner: usize) {
        SimpleCommunicator::world().process_at_rank(owner as i32).broadcast_into(bytes);
    }
}

impl MpiRanks {
    /// Joins all processes that were started together; returns `None` if this one was started alone.
    pub(super) fn join() -> Result<Option<Self>> {
        // For a process that was started alone, MPI would start a daemon, which takes time.
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

    /// Returns every rank's header, by rank. The first rank collects them one by one, so it knows who `came` and who is missing.
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

    /// Returns every rank's bytes, by rank. All ranks know the `lengths`.
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

    /// Returns whether another thread may communicate while this one does not call MPI.
    pub(super) fn serialized(&self) -> bool {
        self.serialized
    }

    pub(super) fn channel(&self) -> MpiChannel {
        MpiChannel { rank: self.rank(), size: self.size() }
    }

    /// Finalises MPI when all ranks are here.
    pub(super) fn leave(self) {
        drop(self);
    }

    /// Ends all ranks.
    pub(super) fn abort(&self) -> ! {
        self.world.abort(1)
    }
}
