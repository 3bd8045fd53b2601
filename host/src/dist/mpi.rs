//! The ranks over MPI. Only the thread that joined may call in here.

use super::{Error, Result, launched};
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

/// Values that are summed at once.
const SUMMED_AT_ONCE: usize = 1 << 20;

pub(super) struct Ranks {
    world: SimpleCommunicator,
    /// Ends MPI when it goes.
    _universe: Universe,
}

impl Ranks {
    /// All processes that were started together; nobody, where this one was started by itself.
    pub(super) fn join() -> Result<Option<Self>> {
        // MPI's own way to serve a process that stands alone costs time and a daemon.
        if launched().is_none() {
            return Ok(None);
        }
        let (universe, _) = mpi::initialize_with_threading(Threading::Funneled).ok_or(Error::Joined)?;
        Ok(Some(Self { world: universe.world(), _universe: universe }))
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

    /// The sum of everybody's values, the same to the bit on each rank.
    pub(super) fn sum(&self, values: &mut [f32]) {
        let mut own = vec![0.0; values.len().min(SUMMED_AT_ONCE)];
        for values in values.chunks_mut(SUMMED_AT_ONCE) {
            let own = &mut own[..values.len()];
            own.copy_from_slice(values);
            self.world.all_reduce_into(&*own, values, SystemOperation::sum());
        }
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
