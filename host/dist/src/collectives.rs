//! Collectives on tensors, in the order in which they are requested, beside the work that requests them.

use super::tensors::{self, OwnedTensor};
use super::{Channel, Error, Result, World};
use crate::config::ReduceDtype;
use candle_core::Tensor;
use std::cell::RefCell;
use std::sync::mpsc;

/// How gradients are summed.
#[derive(Clone, Copy, Debug)]
pub struct ReductionSettings {
    /// The precision in which they are sent.
    pub dtype: ReduceDtype,
    /// Whether collectives run on a thread of their own, while the work goes on. The results are the same.
    pub overlap: bool,
}

/// A collective.
pub(super) enum CollectiveJob {
    Sum(Vec<Tensor>),
    SumToOwners { tensors: Vec<OwnedTensor>, frees: bool, done: mpsc::Sender<()> },
    Broadcast { tensors: Vec<OwnedTensor>, done: mpsc::Sender<()> },
}

/// Where collectives run.
enum CollectiveExecutor<'a> {
    /// Nowhere: there are no other ranks.
    NoPeers,
    /// In the calling thread. The first error is kept, and what follows runs all the same: other ranks wait for it.
    Inline(&'a dyn Fn(CollectiveJob) -> Result<()>, RefCell<Result<()>>),
    /// In a thread that takes jobs.
    Thread(mpsc::Sender<CollectiveJob>),
}

/// Collectives on tensors, which run in the order in which they are requested: the same on all ranks.
pub struct Collectives<'a>(CollectiveExecutor<'a>);

/// A collective that may not have run yet.
#[must_use]
pub struct PendingCollective(mpsc::Receiver<()>);

impl PendingCollective {
    /// Waits until it has run. Whether it could, [`World::communicate`] returns.
    pub fn wait(self) {
        // An error drops the sender.
        let _ = self.0.recv();
    }
}

impl Collectives<'_> {
    /// Sums f32 tensors over the ranks, in place, with bit-identical results on each.
    pub fn sum(&self, tensors: Vec<Tensor>) {
        self.run(CollectiveJob::Sum(tensors));
    }

    /// Sums f32 tensors over the ranks into those of their owners. The others' keep their values, or are freed with `frees`; of freed
    /// ones, a rank adds nothing.
    pub fn sum_to_owners(&self, tensors: Vec<OwnedTensor>, frees: bool) -> PendingCollective {
        let (done, ran) = mpsc::channel();
        self.run(CollectiveJob::SumToOwners { tensors, frees, done });
        PendingCollective(ran)
    }

    /// Copies tensors from their owners to all ranks, where they are allocated if they were freed.
    pub fn broadcast(&self, tensors: Vec<OwnedTensor>) -> PendingCollective {
        let (done, arrived) = mpsc::channel();
        self.run(CollectiveJob::Broadcast { tensors, done });
        PendingCollective(arrived)
    }

    fn run(&self, job: CollectiveJob) {
        match &self.0 {
            CollectiveExecutor::NoPeers => {}
            CollectiveExecutor::Inline(run, outcome) => {
                let done = run(job);
                let mut outcome = outcome.borrow_mut();
                if outcome.is_ok() {
                    *outcome = done;
                }
            }
            // The thread ends after the last of these.
            CollectiveExecutor::Thread(jobs) => drop(jobs.send(job)),
        }
    }
}

/// Runs a collective between processes.
fn between_processes(by: Channel, dtype: ReduceDtype, job: CollectiveJob) -> Result<()> {
    match job {
        CollectiveJob::Sum(all) => tensors::sum(by, dtype, &all.iter().collect::<Vec<_>>()),
        CollectiveJob::SumToOwners { tensors, frees, done } => {
            tensors::sum_to_owners(by, dtype, &tensors, frees)?;
            // Whoever asked may have failed meanwhile.
            let _ = done.send(());
            Ok(())
        }
        CollectiveJob::Broadcast { tensors, done } => {
            tensors::broadcast(by, &tensors)?;
            let _ = done.send(());
            Ok(())
        }
    }
}

impl World {
    /// Runs `work`, which requests collectives on tensors as far as it has come. They have run when this returns.
    ///
    /// All ranks must have reported in a gathering directly before, and all must request the same collectives, even where the work
    /// fails, so that no rank waits; a rank where it failed reports that in the next gathering. No other collective may be called
    /// meanwhile. Connected devices sum on the stream of their work.
    ///
    /// # Errors
    /// If a collective fails: a tensor has the wrong type, or NCCL fails.
    #[cfg_attr(
        not(feature = "mpi"),
        expect(unreachable_code, unused_mut, unused_variables, reason = "there are no others without MPI")
    )]
    pub fn communicate<R>(
        &self,
        what: &'static str,
        how: ReductionSettings,
        work: impl FnOnce(&Collectives<'_>) -> R,
    ) -> Result<R> {
        let here = |run: &dyn Fn(CollectiveJob) -> Result<()>, work: &mut dyn FnMut(&Collectives<'_>)| {
            let collectives = Collectives(CollectiveExecutor::Inline(run, RefCell::new(Ok(()))));
            work(&collectives);
            match collectives.0 {
                CollectiveExecutor::Inline(_, outcome) => outcome.into_inner(),
                CollectiveExecutor::NoPeers | CollectiveExecutor::Thread(_) => Ok(()),
            }
        };
        let Some((ranks, watchdog)) = &self.others else { return Ok(work(&Collectives(CollectiveExecutor::NoPeers))) };
        let (mut work, mut done) = (Some(work), None);
        let mut once = |collectives: &Collectives<'_>| done = work.take().map(|work| work(collectives));
        #[cfg(feature = "nccl")]
        if let Some(devices) = self.devices.get() {
            here(&|job| watchdog.watch(what, Vec::new(), || devices.run(how.dtype, job)), &mut once)?;
            return done.ok_or(Error::OutOfStep { rank: self.rank, here: what });
        }
        let by = ranks.channel();
        let run = |job| watchdog.watch(what, Vec::new(), || between_processes(by, how.dtype, job));
        if how.overlap && ranks.serialized() {
            std::thread::scope(|scope| {
                let (requests, jobs) = mpsc::channel::<CollectiveJob>();
                let running = scope.spawn(move || {
                    let mut outcome = Ok(());
                    for job in jobs {
                        outcome = outcome.and(run(job));
                    }
                    outcome
                });
                once(&Collectives(CollectiveExecutor::Thread(requests)));
                running.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            })?;
        } else {
            here(&run, &mut once)?;
        }
        done.ok_or(Error::OutOfStep { rank: self.rank, here: what })
    }
}
