//! Communication through MPI. Only the thread that joined may call it, or the collectives' thread while the former does not.

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

/// Maximum bytes of one MPI call that gathers from all ranks, since MPI counts in 32 bits; more take several calls.
const GATHERED_AT_ONCE: usize = 1 << 30;

pub(super) struct MpiRanks {
    world: SimpleCommunicator,
    /// Whether another thread may call MPI (`MPI_THREAD_SERIALIZED`).
    serialized: bool,
    /// Finalises MPI when dropped.
    _universe: Universe,
}

/// Collectives on numbers, for the thread that runs collectives.
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

    /// Sends the first part of `own` to the first rank, the second to the second, and so on. `parts` receives this rank's part from each
    /// rank, in rank order.
    pub(super) fn all_to_all(self, own: &[u16], parts: &mut [u16]) {
        SimpleCommunicator::world().all_to_all_into(own, parts);
    }

    /// Gathers every rank's values, by rank. Each rank has the same number of values.
    pub(super) fn all_gather(self, own: &[u16], all: &mut [u16]) {
        SimpleCommunicator::world().all_gather_into(own, all);
    }

    /// Sums every rank's values into `sums` on the rank `owner`.
    pub(super) fn reduce(self, own: &[f32], sums: &mut [f32], owner: usize) {
        let world = SimpleCommunicator::world();
        let process = world.process_at_rank(owner as i32);
        if owner == self.rank {
            process.reduce_into_root(own, sums, SystemOperation::sum());
        } else {
            process.reduce_into(own, SystemOperation::sum());
        }
    }

    /// Gathers every rank's values, by rank, into `all` on the rank `owner`.
    pub(super) fn gather(self, own: &[u16], all: &mut [u16], owner: usize) {
        let world = SimpleCommunicator::world();
        let process = world.process_at_rank(owner as i32);
        if owner == self.rank {
            process.gather_into_root(own, all);
        } else {
            process.gather_into(own);
        }
    }

    /// Copies the bytes of the rank `owner` to all ranks.
    pub(super) fn broadcast(self, bytes: &mut [u8], owner: usize) {
        SimpleCommunicator::world().process_at_rank(owner as i32).broadcast_into(bytes);
    }
}

impl MpiRanks {
    /// Joins all processes that were started together. Returns `None` if this process was started alone.
    pub(super) fn join() -> Result<Option<Self>> {
        // MPI would start a daemon for a process that was started alone, which takes time.
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

    /// Returns every rank's header, by rank. The first rank collects them one by one and calls `came` for each, so it knows who is missing.
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

    /// Finalises MPI once all ranks have reached this call.
    pub(super) fn leave(self) {
        drop(self);
    }

    /// Ends all ranks.
    pub(super) fn abort(&self) -> ! {
        self.world.abort(1)
    }
}
