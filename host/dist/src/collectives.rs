//! Collectives on tensors, run in the order of their requests while the caller continues working.

use super::tensors::{self, OwnedTensor};
use super::{Channel, Error, Result, World};
use crate::config::ReduceDtype;
use candle_core::Tensor;
use std::cell::RefCell;
use std::sync::mpsc;

/// Precision and scheduling of gradient sums.
#[derive(Clone, Copy, Debug)]
pub struct ReductionSettings {
    /// Precision in which gradients are sent.
    pub dtype: ReduceDtype,
    /// Whether collectives run on a separate thread, overlapping with the caller's work. The results do not change.
    pub overlap: bool,
}

/// A requested collective.
pub(super) enum CollectiveJob {
    Sum(Vec<Tensor>),
    SumToOwners { tensors: Vec<OwnedTensor>, frees: bool, done: mpsc::Sender<()> },
    Broadcast { tensors: Vec<OwnedTensor>, done: mpsc::Sender<()> },
}

/// The place where collectives run.
enum CollectiveExecutor<'a> {
    /// Runs nothing, since there are no other ranks.
    NoPeers,
    /// Runs collectives in the calling thread. Keeps the first error and still runs the rest, since other ranks wait for them.
    Inline(&'a dyn Fn(CollectiveJob) -> Result<()>, RefCell<Result<()>>),
    /// Sends collectives to a thread that runs them.
    Thread(mpsc::Sender<CollectiveJob>),
}

/// Collectives on tensors, run in the order of the requests, which is the same on all ranks.
pub struct Collectives<'a>(CollectiveExecutor<'a>);

/// A collective that may not have finished yet.
#[must_use]
pub struct PendingCollective(mpsc::Receiver<()>);

impl PendingCollective {
    /// Waits until the collective has run. [`World::communicate`] returns the error if it failed.
    pub fn wait(self) {
        // An error drops the sender.
        let _ = self.0.recv();
    }
}

impl Collectives<'_> {
    /// Sums f32 tensors over the ranks in place. Results are bit-identical on all ranks.
    pub fn sum(&self, tensors: Vec<Tensor>) {
        self.run(CollectiveJob::Sum(tensors));
    }

    /// Sums f32 tensors over the ranks into the tensors of their owners. On other ranks, tensors keep their values, or are freed if `frees`
    /// is set. A rank whose tensor is already freed adds nothing.
    pub fn sum_to_owners(&self, tensors: Vec<OwnedTensor>, frees: bool) -> PendingCollective {
        let (done, ran) = mpsc::channel();
        self.run(CollectiveJob::SumToOwners { tensors, frees, done });
        PendingCollective(ran)
    }

    /// Copies tensors from their owners to all ranks, allocating freed ones.
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
            // The thread ends only after the last request.
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
            // The requester may have failed meanwhile.
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
    /// Runs `work`, which requests collectives on tensors as soon as they are ready; all of them have run when this returns.
    ///
    /// All ranks must have reported in a gathering directly before. All must request the same collectives even if `work` fails, so that no
    /// rank blocks; a rank where it fails reports that in the next gathering. `work` may call no other collective. Connected devices sum on
    /// the stream of their work.
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
            return done.ok_or(Error::Missing { what });
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
        done.ok_or(Error::Missing { what })
    }
}
