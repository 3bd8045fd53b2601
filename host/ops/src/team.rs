//! A team of threads that spin between small tasks instead of sleeping.
//!
//! A generated token takes hundreds of products of a few microseconds each. Waking a sleeping thread would take longer than many of these
//! products, so threads that work on a token together wait in a loop. While they wait, they prefetch the weights that come next
//! ([`set_prefetch`]).

use candle_core::Tensor;
use rayon::prelude::*;
use std::cell::Cell;
use std::mem::transmute;
use std::ops::{Deref, Range};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};

/// Number of unsuccessful polls for a task. After that many, a thread that waits for others yields its processor before each further poll,
/// since the others may have none. A thread that is only kept awake goes to sleep.
const LOOKS: u32 = 1024;

/// In place of a part's number: no part is available.
const CLOSED: u64 = u32::MAX as u64;

/// In place of the entire word: the team's work has ended.
const OVER: u64 = u64::MAX;

/// Maximum number of address ranges that a thread prefetches from at a time.
const SPANS: usize = 8;

/// Maximum number of bytes that a waiting thread prefetches. What does not fit into the L2 cache is then in the L3 cache.
const AHEAD: usize = 3 << 19;

/// Size of a cache line, in bytes.
const LINE: usize = 64;

/// Number of lines that a waiting thread prefetches between two polls.
const LINES_PER_LOOK: usize = 4;

/// Returns the `i`-th of `count` shares of `total` items. Shares differ in size by at most one, as do sums of equally many neighbouring
/// shares.
pub(super) fn share(total: usize, i: usize, count: usize) -> Range<usize> {
    total * i / count..total * (i + 1) / count
}

/// Runs `work` with tensors like `t`; for CPU tensors, on a thread of the pool. If the caller is outside the pool, the pool's other threads
/// are kept awake for a while, so that operations don't wait for one to wake up.
pub fn on_pool<T: Send>(t: &Tensor, work: impl FnOnce() -> T + Send) -> T {
    // On a thread of the pool or in a team, other threads may be busy with their own parts, which this one must not wait for.
    let outside = t.device().is_cpu() && rayon::current_thread_index().is_none() && !is_leader();
    if outside { keep_awake(work) } else { work() }
}

type TeamTask<'a> = dyn Fn(usize) + Sync + 'a;

/// A team and its task, readable by all threads. The task is changed only while all shares are closed.
struct Team {
    /// Each thread's share of the task's parts. Threads that have finished their own take parts of others. So a thread mostly reads
    /// contiguous memory, and what it prefetched is in its own cache.
    shares: Vec<ThreadShare>,
    parts: AtomicUsize,
    /// Address of a reference to the function that runs a part.
    task: AtomicPtr<&'static TeamTask<'static>>,
    done: AtomicUsize,
}

/// A thread's share of a task's parts, and the memory that it prefetches while it waits.
struct ThreadShare {
    /// The task's number in the upper half, the share's next part in the lower half. A part is taken by compare-and-swap, which
    /// fails if either has changed.
    next: CachePaddedWord,
    /// Counts the changes of `prefetch_spans`.
    prefetch_version: AtomicUsize,
    /// First addresses and lengths in bytes of the ranges that the thread prefetches while it waits. A mixture of old and new ranges, or
    /// freed memory, is harmless.
    prefetch_spans: [(AtomicUsize, AtomicUsize); SPANS],
}

/// A word on separate cache lines, since a thread polls it all the time.
#[repr(align(128))]
struct CachePaddedWord(AtomicU64);

impl Deref for CachePaddedWord {
    type Target = AtomicU64;
    fn deref(&self) -> &AtomicU64 {
        &self.0
    }
}

thread_local! {
    /// The team that this thread leads.
    static LED: Cell<Option<&'static Team>> = const { Cell::new(None) };
}

/// Runs `work` and shares its calls of [`for_each_part`] among all threads, which spin until it ends.
pub fn with_team<T>(work: impl FnOnce() -> T) -> T {
    /// Ends the team, whether `work` returns or panics.
    struct TeamGuard<'a>(&'a Team);
    impl Drop for TeamGuard<'_> {
        fn drop(&mut self) {
            LED.set(None);
            self.0.shares.iter().for_each(|share| share.next.store(OVER, Ordering::Release));
        }
    }

    let threads = rayon::current_num_threads();
    if threads == 1 || LED.get().is_some() {
        return work();
    }
    let team = Team {
        shares: (0..threads).map(|_| ThreadShare::new()).collect(),
        parts: AtomicUsize::new(0),
        task: AtomicPtr::new(ptr::null_mut()),
        done: AtomicUsize::new(0),
    };
    rayon::in_place_scope(|scope| {
        for own in 1..threads {
            let team = &team;
            scope.spawn(move |_| team.help(own));
        }
        let led = TeamGuard(&team);
        // SAFETY: `led` removes the reference before the team is dropped.
        LED.set(Some(unsafe { transmute::<&Team, &'static Team>(&team) }));
        let result = work();
        drop(led);
        result
    })
}

/// Runs `work` on a thread of the pool. The other threads keep polling rayon for parts of it instead of sleeping.
pub(super) fn keep_awake<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    /// Releases the other threads, whether `work` returns or panics.
    struct AwakeGuard(Arc<AtomicBool>);
    impl Drop for AwakeGuard {
        fn drop(&mut self) {
            self.0.store(false, Ordering::Relaxed);
        }
    }

    rayon::scope(|scope| {
        let working = AwakeGuard(Arc::new(AtomicBool::new(true)));
        let (own, goes_on) = (rayon::current_thread_index(), Arc::clone(&working.0));
        // Spawns one job per thread, which no other thread can take; otherwise a thread in the middle of a wait would take several.
        scope.spawn_broadcast(move |_, thread| {
            // The job gives up eventually, since it may run on top of a part that waits for others and that the work waits for.
            let mut looks = 0;
            while Some(thread.index()) != own && looks < LOOKS && goes_on.load(Ordering::Relaxed) {
                let executed = rayon::yield_now() == Some(rayon::Yield::Executed);
                looks = if executed { 0 } else { looks + 1 };
                std::hint::spin_loop();
            }
        });
        work()
    })
}

/// Returns whether this thread leads a team.
pub(super) fn is_leader() -> bool {
    LED.get().is_some()
}

/// Returns the number of threads of the team that this thread leads, or one.
pub(super) fn threads() -> usize {
    LED.get().map_or(1, |team| team.shares.len())
}

/// Sets the addresses that a thread of this thread's team prefetches while it waits.
pub(super) fn set_prefetch<'a>(thread: usize, spans: impl Iterator<Item = &'a Range<usize>>) {
    if let Some(team) = LED.get() {
        team.shares[thread].set_prefetch(spans);
    }
}

/// Runs the parts `0..parts` of a task, in any order and on any thread.
pub(super) fn for_each_part(parts: usize, part: impl Fn(usize) + Sync) {
    match LED.take() {
        _ if parts == 0 => {}
        None if parts == 1 => part(0),
        None => (0..parts).into_par_iter().for_each(&part),
        Some(team) => {
            // A part that has parts itself runs them alone or through rayon.
            struct LeaderGuard(&'static Team);
            impl Drop for LeaderGuard {
                fn drop(&mut self) {
                    LED.set(Some(self.0));
                }
            }
            let _again = LeaderGuard(team);
            if parts == 1 { part(0) } else { team.lead(parts, &part) }
        }
    }
}

impl ThreadShare {
    fn new() -> Self {
        Self {
            next: CachePaddedWord(AtomicU64::new(CLOSED)),
            prefetch_version: AtomicUsize::new(0),
            prefetch_spans: Default::default(),
        }
    }

    fn set_prefetch<'a>(&self, spans: impl Iterator<Item = &'a Range<usize>>) {
        for ((at, count), span) in self.prefetch_spans.iter().zip(spans.chain(std::iter::repeat(&(0..0)))) {
            at.store(span.start, Ordering::Relaxed);
            count.store(span.len(), Ordering::Relaxed);
        }
        self.prefetch_version.fetch_add(1, Ordering::Release);
    }

    /// Closes the share. Returns how many of these parts were taken.
    fn close(&self, parts: &Range<usize>) -> usize {
        let next = self.next.fetch_or(CLOSED, Ordering::AcqRel) & CLOSED;
        (next as usize).clamp(parts.start, parts.end) - parts.start
    }
}

/// A waiting thread's progress in prefetching.
#[derive(Default)]
struct Prefetcher {
    version: usize,
    /// The next span, and the offset in it.
    span: usize,
    at: usize,
    prefetched: usize,
}

impl Prefetcher {
    /// Prefetches some lines. Returns whether there were any.
    fn prefetch(&mut self, share: &ThreadShare) -> bool {
        if !cfg!(target_arch = "x86_64") {
            return false;
        }
        let told = share.prefetch_version.load(Ordering::Acquire);
        if told != self.version {
            *self = Self { version: told, ..Self::default() };
        }
        let Some((at, count)) = share.prefetch_spans.get(self.span).filter(|_| self.prefetched < AHEAD) else { return false };
        let (at, count) = (at.load(Ordering::Relaxed), count.load(Ordering::Relaxed));
        let to = count.min(self.at + LINES_PER_LOOK * LINE);
        (self.at..to).step_by(LINE).for_each(|i| prefetch_line(at.wrapping_add(i)));
        // The spans may have changed since.
        self.prefetched += to.saturating_sub(self.at);
        self.at = to;
        if to == count {
            (self.span, self.at) = (self.span + 1, 0);
        }
        true
    }
}

/// Prefetches a line of memory into the L2 cache. The address may be invalid.
#[inline(always)]
fn prefetch_line(address: usize) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the instruction has no effect but on caches, whatever the address.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T1>(ptr::without_provenance(address));
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

impl Team {
    /// Returns a thread's share of `parts` parts.
    fn share(&self, parts: usize, thread: usize) -> Range<usize> {
        share(parts, thread, self.shares.len())
    }

    /// Opens a task to all threads, takes part in it, and waits for the others' last parts.
    fn lead(&self, parts: usize, part: &TeamTask<'_>) {
        /// Closes the task and waits for the parts already taken, whether all finished or one panicked.
        struct OpenTaskGuard<'a>(&'a Team, usize);
        impl Drop for OpenTaskGuard<'_> {
            fn drop(&mut self) {
                let Self(team, parts) = self;
                let closed = team.shares.iter().enumerate().map(|(i, share)| share.close(&team.share(*parts, i)));
                let taken: usize = closed.sum();
                wait_until(|| team.done.load(Ordering::Acquire) == taken, || false);
            }
        }

        assert!((parts as u64) < CLOSED);
        // SAFETY: `open` outlives every use of it by a part that was taken.
        let mut task: &'static TeamTask<'static> = unsafe { transmute::<&TeamTask<'_>, &'static TeamTask<'static>>(part) };
        let number = (self.shares[0].next.load(Ordering::Relaxed) >> 32) + 1;
        self.parts.store(parts, Ordering::Relaxed);
        self.task.store(&raw mut task, Ordering::Relaxed);
        self.done.store(0, Ordering::Relaxed);
        let open = OpenTaskGuard(self, parts);
        for (i, share) in self.shares.iter().enumerate().rev() {
            share.next.store(number << 32 | self.share(parts, i).start as u64, Ordering::Release);
        }
        while self.take_part(0) {}
        drop(open);
    }

    /// Runs parts of open tasks, from the thread's own share first, until the team's work ends.
    fn help(&self, own: usize) {
        let over = || self.shares[own].next.load(Ordering::Relaxed) == OVER;
        let mut ahead = Prefetcher::default();
        while !over() {
            wait_until(|| self.take_part(own) || over(), || ahead.prefetch(&self.shares[own]));
        }
    }

    /// Runs the open task's next part, from thread `own`'s share while it has any. Returns whether there was one.
    fn take_part(&self, own: usize) -> bool {
        let all = self.shares.len();
        let is_open = self.shares[own].next.load(Ordering::Relaxed) & CLOSED != CLOSED;
        is_open && (own..all).chain(0..own).any(|of| self.take_part_of(of))
    }

    /// Runs the next part of a thread's share. Returns whether there was one.
    fn take_part_of(&self, of: usize) -> bool {
        /// Counts a part as done even if it panicked; the scope of all threads then panics too.
        struct TakenPartGuard<'a>(&'a Team);
        impl Drop for TakenPartGuard<'_> {
            fn drop(&mut self) {
                self.0.done.fetch_add(1, Ordering::Release);
            }
        }

        let share = &self.shares[of].next;
        let next = share.load(Ordering::Acquire);
        let part = next & CLOSED;
        if part == CLOSED || part as usize >= self.share(self.parts.load(Ordering::Relaxed), of).end {
            return false;
        }
        let task = self.task.load(Ordering::Relaxed);
        if share.compare_exchange(next, next + 1, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            return true;
        }
        let _taken = TakenPartGuard(self);
        // SAFETY: the part belongs to this task, so its leader waits and `task` is this task's: it changes only while no part is
        // available.
        unsafe { (*task)(part as usize) };
        true
    }
}

/// Waits until `come` returns true, running `meanwhile` in between.
fn wait_until(mut come: impl FnMut() -> bool, mut meanwhile: impl FnMut() -> bool) {
    let mut looks = 0;
    while !come() {
        if meanwhile() {
            looks = 0;
            continue;
        }
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
    use super::{for_each_part, keep_awake, set_prefetch, threads, with_team};
    use rayon::prelude::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    fn count(parts: usize) {
        let done: Vec<AtomicUsize> = (0..parts).map(|_| AtomicUsize::new(0)).collect();
        for_each_part(parts, |part| {
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
                with_team(|| (0..3000).for_each(|task| count(task % 17)));
                with_team(|| ());
            });
        }
    }

    #[test]
    fn a_part_may_have_parts_of_its_own_and_a_team_may_be_asked_for_twice() {
        let sum = AtomicUsize::new(0);
        let add = |n: usize| {
            sum.fetch_add(n, Ordering::Relaxed);
        };
        on_threads(3, || with_team(|| with_team(|| for_each_part(10, |i| for_each_part(10, |j| add(i * j))))));
        assert_eq!(sum.into_inner(), 45 * 45);
    }

    #[test]
    fn threads_that_stay_awake_take_parts_and_end_with_the_work() {
        for threads in [1, 2, 3, 8] {
            on_threads(threads, || {
                let sum = |n: u64| {
                    keep_awake(|| (0..n).into_par_iter().map(|i| keep_awake(|| (0..i).into_par_iter().sum::<u64>())).sum::<u64>())
                };
                assert!((0..50).all(|n| sum(n) == (0..n).map(|i| (0..i).sum::<u64>()).sum::<u64>()));
                assert!(std::panic::catch_unwind(|| keep_awake(|| panic!("bad"))).is_err());
                assert_eq!(sum(9), 84);
            });
        }
        // A thread outside the pool can call it too.
        assert_eq!(keep_awake(|| (0..100).into_par_iter().sum::<u32>()), 4950);
    }

    #[test]
    fn what_threads_are_told_to_ask_for_need_not_exist() {
        let values = vec![1u8; 1 << 16];
        let own = values.as_ptr().addr()..values.as_ptr().addr() + values.len();
        on_threads(3, || {
            with_team(|| {
                for round in 0..200 {
                    for thread in 0..threads() {
                        set_prefetch(thread, [own.clone(), 0..round, usize::MAX - round..usize::MAX].iter());
                    }
                    count(round % 13);
                }
            });
            set_prefetch(7, std::iter::once(&(0..1)));
            assert_eq!(threads(), 1);
        });
    }

    #[test]
    fn a_part_that_panics_ends_all_of_it_and_leaves_the_threads_usable() {
        on_threads(3, || {
            for bad in [0, 3, 63] {
                let work = || with_team(|| for_each_part(64, |part| assert!(part != bad, "part {bad}")));
                assert!(std::panic::catch_unwind(work).is_err());
                with_team(|| count(64));
            }
        });
    }
}
