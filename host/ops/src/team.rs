//! Threads that stay awake between small tasks.
//!
//! A generated token takes hundreds of products of a few microseconds each. Waking a sleeping thread for each would take longer
//! than many of the products do, so threads that work on a token together wait in a loop.

use rayon::prelude::*;
use std::cell::Cell;
use std::mem::transmute;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};

/// Polls for a task after which a waiting thread yields before each further one, since the thread it waits for may have no
/// processor.
const LOOKS: u32 = 1024;

/// In place of a part's number: no part is available.
const CLOSED: u64 = u32::MAX as u64;

/// In place of everything: the team's work is over.
const OVER: u64 = u64::MAX;

type Part<'a> = dyn Fn(usize) + Sync + 'a;

/// A task, readable by all threads. It is changed only while `next` is closed.
struct Team {
    /// The task's number in the upper half, its next part in the lower half. A part is taken by compare-and-swap, which fails if
    /// either has changed.
    next: AtomicU64,
    parts: AtomicUsize,
    /// Address of a reference to the function that does a part.
    task: AtomicPtr<&'static Part<'static>>,
    done: AtomicUsize,
}

thread_local! {
    /// The team that this thread leads.
    static LED: Cell<Option<&'static Team>> = const { Cell::new(None) };
}

/// Runs `work` and shares its calls of [`each`] among all threads, which stay awake until it ends.
pub fn together<T>(work: impl FnOnce() -> T) -> T {
    /// Ends the team, whether `work` returns or panics.
    struct Led<'a>(&'a Team);
    impl Drop for Led<'_> {
        fn drop(&mut self) {
            LED.set(None);
            self.0.next.store(OVER, Ordering::Release);
        }
    }

    let threads = rayon::current_num_threads();
    if threads == 1 || LED.get().is_some() {
        return work();
    }
    let team = Team {
        next: AtomicU64::new(CLOSED),
        parts: AtomicUsize::new(0),
        task: AtomicPtr::new(ptr::null_mut()),
        done: AtomicUsize::new(0),
    };
    rayon::in_place_scope(|scope| {
        for _ in 1..threads {
            scope.spawn(|_| team.help());
        }
        let led = Led(&team);
        // SAFETY: `led` removes the reference before the team is dropped.
        LED.set(Some(unsafe { transmute::<&Team, &'static Team>(&team) }));
        let result = work();
        drop(led);
        result
    })
}

/// Returns whether this thread leads a team.
pub(super) fn is_led() -> bool {
    LED.get().is_some()
}

/// Does parts `0..parts` of a task, in any order and on any thread.
pub(super) fn each(parts: usize, part: impl Fn(usize) + Sync) {
    match LED.take() {
        _ if parts == 0 => {}
        None if parts == 1 => part(0),
        None => (0..parts).into_par_iter().for_each(&part),
        Some(team) => {
            // A part with parts of its own does them alone or through rayon.
            struct Again(&'static Team);
            impl Drop for Again {
                fn drop(&mut self) {
                    LED.set(Some(self.0));
                }
            }
            let _again = Again(team);
            if parts == 1 { part(0) } else { team.lead(parts, &part) }
        }
    }
}

impl Team {
    /// Opens a task to all, takes part in it, and waits for the others' last parts.
    fn lead(&self, parts: usize, part: &Part<'_>) {
        /// Closes the task and waits for the parts already taken, whether all finished or one panicked.
        struct Open<'a>(&'a Team, usize);
        impl Drop for Open<'_> {
            fn drop(&mut self) {
                let Self(team, parts) = self;
                let taken = (team.next.fetch_or(CLOSED, Ordering::AcqRel) & CLOSED).min(*parts as u64);
                wait_until(|| team.done.load(Ordering::Acquire) as u64 == taken);
            }
        }

        assert!((parts as u64) < CLOSED);
        // SAFETY: `open` outlives every use of it by a part that was taken.
        let mut task: &'static Part<'static> = unsafe { transmute::<&Part<'_>, &'static Part<'static>>(part) };
        let number = (self.next.load(Ordering::Relaxed) >> 32) + 1;
        self.parts.store(parts, Ordering::Relaxed);
        self.task.store(&raw mut task, Ordering::Relaxed);
        self.done.store(0, Ordering::Relaxed);
        self.next.store(number << 32, Ordering::Release);
        let open = Open(self, parts);
        while self.take_part() {}
        drop(open);
    }

    /// Does parts of open tasks until the team's work is over.
    fn help(&self) {
        let over = || self.next.load(Ordering::Relaxed) == OVER;
        while !over() {
            wait_until(|| self.take_part() || over());
        }
    }

    /// Does the open task's next part. Returns whether there was one.
    fn take_part(&self) -> bool {
        /// Counts a part as done even if it panicked; the scope of all threads then panics too.
        struct Taken<'a>(&'a Team);
        impl Drop for Taken<'_> {
            fn drop(&mut self) {
                self.0.done.fetch_add(1, Ordering::Release);
            }
        }

        let next = self.next.load(Ordering::Acquire);
        let (part, parts) = (next & CLOSED, self.parts.load(Ordering::Relaxed));
        if part == CLOSED || part as usize >= parts {
            return false;
        }
        let task = self.task.load(Ordering::Relaxed);
        if self.next.compare_exchange(next, next + 1, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            return true;
        }
        let _taken = Taken(self);
        // SAFETY: the part belongs to this task, so its leader waits and `task` is this task's: it changes only while no part is
        // available.
        unsafe { (*task)(part as usize) };
        true
    }
}

fn wait_until(mut come: impl FnMut() -> bool) {
    let mut looks = 0;
    while !come() {
        if looks < LOOKS {
            looks += 1;
            std::hint::spin_loop();
        } else {
            std::thread::yield_now();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{each, together};
    use std::sync::atomic::{AtomicUsize, Ordering};

    fn count(parts: usize) {
        let done: Vec<AtomicUsize> = (0..parts).map(|_| AtomicUsize::new(0)).collect();
        each(parts, |part| {
            done[part].fetch_add(1, Ordering::Relaxed);
        });
        assert!(done.iter().all(|d| d.load(Ordering::Relaxed) == 1), "{parts}: {done:?}");
    }

    fn on_threads<T: Send>(threads: usize, work: impl FnOnce() -> T + Send) -> T {
        rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap().install(work)
    }

    #[test]
    fn every_part_is_done_once_before_the_next_task_begins() {
        for threads in [1, 2, 3, 8] {
            on_threads(threads, || {
                count(5);
                together(|| (0..3000).for_each(|task| count(task % 17)));
                together(|| ());
            });
        }
    }

    #[test]
    fn a_part_may_have_parts_of_its_own_and_a_team_may_be_asked_for_twice() {
        let sum = AtomicUsize::new(0);
        let add = |n: usize| {
            sum.fetch_add(n, Ordering::Relaxed);
        };
        on_threads(3, || together(|| together(|| each(10, |i| each(10, |j| add(i * j))))));
        assert_eq!(sum.into_inner(), 45 * 45);
    }

    #[test]
    fn a_part_that_panics_ends_all_of_it_and_leaves_the_threads_usable() {
        on_threads(3, || {
            for bad in [0, 3, 63] {
                let work = || together(|| each(64, |part| assert!(part != bad, "part {bad}")));
                assert!(std::panic::catch_unwind(work).is_err());
                together(|| count(64));
            }
        });
    }
}
