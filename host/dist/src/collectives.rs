//! Collectives on tensors, in the order in which they are requested, beside the work that requests them.

use super::tensors::{self, Owned};
use super::{Channel, Error, Result, World};
use crate::config::ReduceDtype;
use candle_core::Tensor;
use std::cell::RefCell;
use std::sync::mpsc;

/// How gradients are summed.
#[derive(Clone, Copy, Debug)]
pub struct Reduction {
    /// The precision in which they are sent.
    pub dtype: ReduceDtype,
    /// Whether collectives run on a thread of their own, while the work goes on. The results are the same.
    pub beside: bool,
}

/// A collective.
pub(super) enum Job {
    Sum(Vec<Tensor>),
    SumToOwners { tensors: Vec<Owned>, frees: bool, done: mpsc::Sender<()> },
    Broadcast { tensors: Vec<Owned>, done: mpsc::Sender<()> },
}

/// Where collectives run.
enum Run<'a> {
    /// Nowhere: there are no other ranks.
    Alone,
    /// In the calling thread. The first error is kept, and what follows runs all the same: other ranks wait for it.
    Here(&'a dyn Fn(Job) -> Result<()>, RefCell<Result<()>>),
    /// In a thread that takes jobs.
    Beside(mpsc::Sender<Job>),
}

/// Collectives on tensors, which run in the order in which they are requested: the same on all ranks.
pub struct Collectives<'a>(Run<'a>);

/// A collective that may not have run yet.
#[must_use]
pub struct Pending(mpsc::Receiver<()>);

impl Pending {
    /// Waits until it has run. Whether it could, [`World::communicate`] returns.
    pub fn wait(self) {
        // An error drops the sender.
        let _ = self.0.recv();
    }
}

impl Collectives<'_> {
    /// Sums f32 tensors over the ranks, in place, with bit-identical results on each.
    pub fn sum(&self, tensors: Vec<Tensor>) {
        self.run(Job::Sum(tensors));
    }

    /// Sums f32 tensors over the ranks into those of their owners. The others' keep their values, or are freed with `frees`; of freed
    /// ones, a rank adds nothing.
    pub fn sum_to_owners(&self, tensors: Vec<Owned>, frees: bool) -> Pending {
        let (done, ran) = mpsc::channel();
        self.run(Job::SumToOwners { tensors, frees, done });
        Pending(ran)
    }

    /// Copies tensors from their owners to all ranks, where they are allocated if they were freed.
    pub fn broadcast(&self, tensors: Vec<Owned>) -> Pending {
        let (done, arrived) = mpsc::channel();
        self.run(Job::Broadcast { tensors, done });
        Pending(arrived)
    }

    fn run(&self, job: Job) {
        match &self.0 {
            Run::Alone => {}
            Run::Here(run, outcome) => {
                let done = run(job);
                let mut outcome = outcome.borrow_mut();
                if outcome.is_ok() {
                    *outcome = done;
                }
            }
            // The thread ends after the last of these.
            Run::Beside(jobs) => drop(jobs.send(job)),
        }
    }
}

/// Runs a collective between processes.
fn between_processes(by: Channel, dtype: ReduceDtype, job: Job) -> Result<()> {
    match job {
        Job::Sum(all) => tensors::sum(by, dtype, &all.iter().collect::<Vec<_>>()),
        Job::SumToOwners { tensors, frees, done } => {
            tensors::sum_to_owners(by, dtype, &tensors, frees)?;
            // Whoever asked may have failed meanwhile.
            let _ = done.send(());
            Ok(())
        }
        Job::Broadcast { tensors, done } => {
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
    pub fn communicate<R>(&self, what: &'static str, how: Reduction, work: impl FnOnce(&Collectives<'_>) -> R) -> Result<R> {
        let here = |run: &dyn Fn(Job) -> Result<()>, work: &mut dyn FnMut(&Collectives<'_>)| {
            let collectives = Collectives(Run::Here(run, RefCell::new(Ok(()))));
            work(&collectives);
            match collectives.0 {
                Run::Here(_, outcome) => outcome.into_inner(),
                Run::Alone | Run::Beside(_) => Ok(()),
            }
        };
        let Some((ranks, watchdog)) = &self.others else { return Ok(work(&Collectives(Run::Alone))) };
        let (mut work, mut done) = (Some(work), None);
        let mut once = |collectives: &Collectives<'_>| done = work.take().map(|work| work(collectives));
        #[cfg(feature = "nccl")]
        if let Some(devices) = self.devices.get() {
            here(&|job| watchdog.watch(what, Vec::new(), || devices.run(how.dtype, job)), &mut once)?;
            return done.ok_or(Error::Astray { rank: self.rank, here: what });
        }
        let by = ranks.channel();
        let run = |job| watchdog.watch(what, Vec::new(), || between_processes(by, how.dtype, job));
        if how.beside && ranks.serialized() {
            std::thread::scope(|scope| {
                let (requests, jobs) = mpsc::channel::<Job>();
                let running = scope.spawn(move || {
                    let mut outcome = Ok(());
                    for job in jobs {
                        outcome = outcome.and(run(job));
                    }
                    outcome
                });
                once(&Collectives(Run::Beside(requests)));
                running.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            })?;
        } else {
            here(&run, &mut once)?;
        }
        done.ok_or(Error::Astray { rank: self.rank, here: what })
    }
}
