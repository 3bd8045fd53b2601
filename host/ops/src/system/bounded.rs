//! Runs work on untrusted input within limits of time and memory, whatever libraries it calls.
//!
//! A file can make a library such as a template engine or a tokenizer compute forever or build a string of a hundred gigabytes. Such work
//! runs on a separate thread. If it takes too long, it is abandoned. If it requests too much memory, it is blocked inside that request
//! forever, since an allocator may not unwind, and a library that is denied memory aborts the process. In both cases the thread ends with
//! the process, which is soon, because such failures are errors at the start of a command. Work that recurses too deeply is blocked in the
//! same way, when it allocates memory with little stack left.

use std::alloc::{GlobalAlloc, Layout};
use std::any::Any;
use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{SendError, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, Once, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// Stack of the thread, in bytes. Values built within the memory limit can be nested as deeply as there is memory for pointers, and
/// dropping them takes stack for each level.
const STACK: usize = 1 << 30;

/// Minimum stack size that is tried if address space is limited (`ulimit -v`, or memory that can't be overcommitted).
const SMALLEST_STACK: usize = 32 << 20;

/// Bytes of memory allowed per byte of stack. With more, a value could be nested too deeply for the stack.
const MEMORY_PER_STACK_BYTE: usize = 2;

/// Divisor of the stack size that gives the reserve required when work allocates memory.
const STACK_RESERVE: usize = 8;

/// Factor of the time limit for which work may wait for the processor, or for anything else.
const STARVED: u32 = 20;

/// An allocator that enforces the current thread's limit, if it has one ([`within`]), and allocates through the inner allocator.
pub struct LimitedAllocator<A>(pub A);

/// A job, which returns where to report its end.
type BoundedJob = Box<dyn FnOnce() -> Arc<BoundedJobEnd> + Send>;

/// Threads that have finished their work and wait for more. Starting a thread takes as long as processing a short text.
static IDLE: Mutex<Vec<Sender<BoundedJob>>> = Mutex::new(Vec::new());

/// Stack size of the next thread; 0 before the first.
static NEXT_STACK: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// Bytes that this thread may still allocate; `None` without a limit.
    static LEFT: Cell<Option<usize>> = const { Cell::new(None) };
    /// Memory limit of this thread when its work started.
    static MOST: Cell<usize> = const { Cell::new(0) };
    /// Stack size of this thread.
    static OWN_STACK: Cell<usize> = const { Cell::new(STACK) };
    /// Lowest stack address at which work may allocate memory.
    static LOWEST: Cell<usize> = const { Cell::new(0) };
    /// Receiver of the end of this thread's work.
    static WAITING: Cell<*const BoundedJobEnd> = const { Cell::new(std::ptr::null()) };
    /// Whether panics of this thread are not printed.
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// The end of a job, for the waiting thread.
#[derive(Default)]
struct BoundedJobEnd {
    state: Mutex<BoundedJobState>,
    changed: Condvar,
    /// Clock of the working thread; unset before it has begun.
    clock: OnceLock<ThreadClock>,
}

/// Time that a thread has worked since the clock was created. On Linux this is the thread's processor time, so a busy machine does not
/// count against it.
struct ThreadClock {
    #[cfg(target_os = "linux")]
    thread: Option<(libc::clockid_t, Duration)>,
    begun: Instant,
}

impl ThreadClock {
    /// Creates the clock of the current thread.
    fn new() -> Self {
        #[cfg(target_os = "linux")]
        let thread = {
            let mut clock = 0;
            // SAFETY: the thread is this one, and the place for the answer is valid.
            let found = unsafe { libc::pthread_getcpuclockid(libc::pthread_self(), &raw mut clock) } == 0;
            found.then(|| processor_time(clock)).flatten().map(|now| (clock, now))
        };
        Self {
            #[cfg(target_os = "linux")]
            thread,
            begun: Instant::now(),
        }
    }

    fn worked(&self) -> Duration {
        #[cfg(target_os = "linux")]
        if let Some((clock, begun)) = self.thread
            && let Some(now) = processor_time(clock)
        {
            return now.saturating_sub(begun);
        }
        self.begun.elapsed()
    }
}

/// Reads a thread's clock. Returns `None` if the thread has ended.
#[cfg(target_os = "linux")]
fn processor_time(clock: libc::clockid_t) -> Option<Duration> {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the place for the answer is valid.
    let read = unsafe { libc::clock_gettime(clock, &raw mut now) } == 0;
    read.then(|| Duration::new(now.tv_sec as u64, now.tv_nsec as u32))
}

#[derive(Clone, Copy, Default, PartialEq)]
enum BoundedJobState {
    #[default]
    Working,
    Done,
    /// The work requested more than this many bytes.
    MemoryFull(usize),
    /// The work recursed too deeply.
    StackFull,
}

impl BoundedJobEnd {
    fn set(&self, state: BoundedJobState) {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner) = state;
        self.changed.notify_all();
    }

    /// Waits until the work has ended or has used up its time.
    fn wait(&self, most: Duration) -> BoundedJobState {
        let (begun, longest) = (Instant::now(), most.saturating_mul(STARVED));
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let left = most.saturating_sub(self.clock.get().map_or(Duration::ZERO, ThreadClock::worked));
            if *state != BoundedJobState::Working || left.is_zero() || begun.elapsed() >= longest {
                return *state;
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// Subtracts bytes from the thread's remaining memory.
fn take(bytes: usize) {
    let Some(left) = LEFT.get() else { return };
    if stack_position() < LOWEST.get() {
        stop(BoundedJobState::StackFull);
    }
    match left.checked_sub(bytes) {
        Some(left) => LEFT.set(Some(left)),
        None => stop(BoundedJobState::MemoryFull(MOST.get())),
    }
}

/// Returns the current stack address of this thread. Stacks grow towards lower addresses.
#[inline(never)]
fn stack_position() -> usize {
    let here = 0_u8;
    std::ptr::from_ref(std::hint::black_box(&here)).addr()
}

/// Returns how many bytes this thread's work has allocated and not freed; `None` for a thread without a limit.
pub fn in_use() -> Option<usize> {
    LEFT.get().map(|left| MOST.get().saturating_sub(left))
}

fn give_back(bytes: usize) {
    if let Some(left) = LEFT.get() {
        LEFT.set(Some(left.saturating_add(bytes)));
    }
}

/// Reports that a limit was reached, and never returns.
#[cold]
fn stop(limit: BoundedJobState) -> ! {
    // Reporting may allocate memory.
    LEFT.set(None);
    // SAFETY: it is in this thread's own frame of `within`, which has not returned.
    if let Some(end) = unsafe { WAITING.get().as_ref() } {
        end.set(limit);
    }
    loop {
        std::thread::park();
    }
}

// SAFETY: everything is delegated to the inner allocator; the code before that only counts, or never returns.
unsafe impl<A: GlobalAlloc> GlobalAlloc for LimitedAllocator<A> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        take(layout.size());
        // SAFETY: as for the caller.
        unsafe { self.0.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        take(layout.size());
        // SAFETY: as for the caller.
        unsafe { self.0.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        give_back(layout.size());
        // SAFETY: as for the caller.
        unsafe { self.0.dealloc(ptr, layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        match size.checked_sub(layout.size()) {
            Some(more) => take(more),
            None => give_back(layout.size() - size),
        }
        // SAFETY: as for the caller.
        unsafe { self.0.realloc(ptr, layout, size) }
    }
}

/// The reason why bounded work has no result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BoundsError {
    /// The work took too long.
    #[error("took longer than {} s", .0.as_secs())]
    Time(Duration),
    /// The work requested too much memory.
    #[error("asked for more than {} MiB of memory", .0 >> 20)]
    Memory(usize),
    /// The work recursed too deeply.
    #[error("nests or recurses too deeply")]
    Stack,
    /// The work panicked.
    #[error("failed: {0}")]
    Panic(String),
    /// No thread could be started for the work.
    #[error("can't start a thread with a stack of {} MiB ({}); limits on memory or threads (`ulimit -v`, `ulimit -u`) leave no room for it", SMALLEST_STACK >> 20, .0)]
    Thread(String),
}

/// Limits of bounded work.
#[derive(Clone, Copy, Debug)]
pub struct WorkBounds {
    /// Maximum memory in use at a time, in bytes. Enforced if the program's allocator is [`LimitedAllocator`].
    pub memory: usize,
    /// Time limit: processor time on Linux, elapsed time elsewhere. The work may also wait twenty times as long.
    pub time: Duration,
}

/// Runs work on a separate thread. Returns its result and the time that it worked.
///
/// # Errors
/// If the work exceeds its limits or panics. The panic is not printed.
pub fn within<T: Send + 'static>(
    bounds: WorkBounds,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<(T, Duration), BoundsError> {
    let (end, outcome) = (Arc::new(BoundedJobEnd::default()), Arc::new(Mutex::new(None)));
    let (theirs, their_outcome) = (Arc::clone(&end), Arc::clone(&outcome));
    dispatch(Box::new(move || {
        let clock = theirs.clock.get_or_init(ThreadClock::new);
        WAITING.set(Arc::as_ptr(&theirs));
        MOST.set(granted(bounds.memory, OWN_STACK.get()));
        LEFT.set(Some(MOST.get()));
        let done = quietly(work);
        LEFT.set(None);
        WAITING.set(std::ptr::null());
        *their_outcome.lock().unwrap_or_else(PoisonError::into_inner) = Some(done.map(|done| (done, clock.worked())));
        theirs
    }))?;
    match end.wait(bounds.time) {
        BoundedJobState::Working => Err(BoundsError::Time(bounds.time)),
        BoundedJobState::MemoryFull(most) => Err(BoundsError::Memory(most)),
        BoundedJobState::StackFull => Err(BoundsError::Stack),
        BoundedJobState::Done => {
            let done = outcome.lock().unwrap_or_else(PoisonError::into_inner).take();
            let done = done.unwrap_or_else(|| Err("it returned nothing".into()));
            done.map_err(BoundsError::Panic)
        }
    }
}

/// Returns how much of the requested memory work may use with this stack, in bytes.
fn granted(memory: usize, stack: usize) -> usize {
    memory.min(stack.saturating_mul(MEMORY_PER_STACK_BYTE))
}

/// Gives work to an idle thread or a new one. A thread that never finishes gets no more work.
fn dispatch(job: BoundedJob) -> Result<(), BoundsError> {
    let idle = IDLE.lock().unwrap_or_else(PoisonError::into_inner).pop();
    match idle {
        None => spawn_thread(job),
        Some(thread) => thread.send(job).or_else(|SendError(job)| spawn_thread(job)),
    }
}

/// Returns the largest stack that leaves at least as much address space for everything else.
fn largest_stack() -> usize {
    let fits = |stack: &usize| {
        let thread = std::thread::Builder::new().stack_size(2 * stack).spawn(|| {});
        thread.is_ok_and(|thread| thread.join().is_ok())
    };
    std::iter::successors(Some(STACK), |stack| Some(stack / 2))
        .take_while(|s| *s > SMALLEST_STACK)
        .find(fits)
        .unwrap_or(SMALLEST_STACK)
}

/// Starts a thread, with a smaller stack if there is not enough memory for the largest.
fn spawn_thread(job: BoundedJob) -> Result<(), BoundsError> {
    let (own, jobs) = channel::<BoundedJob>();
    let jobs = Arc::new(Mutex::new(jobs));
    // The thread has a job before anyone can send it another.
    if own.send(job).is_err() {
        return Err(BoundsError::Thread("it ended".into()));
    }
    let mut stack = match NEXT_STACK.load(Ordering::Relaxed) {
        0 => largest_stack(),
        known => known,
    };
    loop {
        let (own, jobs) = (own.clone(), jobs.clone());
        let run = move || {
            OWN_STACK.set(stack);
            LOWEST.set(stack_position().saturating_sub(stack - stack / STACK_RESERVE));
            let jobs = jobs.lock().unwrap_or_else(PoisonError::into_inner);
            while let Ok(job) = jobs.recv() {
                let end = job();
                // Whoever waits for the end may have more work at once, and should find this thread rather than start another.
                IDLE.lock().unwrap_or_else(PoisonError::into_inner).push(own.clone());
                end.set(BoundedJobState::Done);
            }
        };
        match std::thread::Builder::new().name("bounded".into()).stack_size(stack).spawn(run) {
            Ok(_) => {
                NEXT_STACK.store(stack, Ordering::Relaxed);
                return Ok(());
            }
            Err(_) if stack > SMALLEST_STACK => stack /= 2,
            Err(error) => return Err(BoundsError::Thread(error.to_string())),
        }
    }
}

/// Runs work that may panic, without printing the panic.
///
/// # Errors
/// The panic's message.
pub fn quietly<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let loud = panic::take_hook();
        panic::set_hook(Box::new(move |panic| {
            if !QUIET.get() {
                loud(panic);
            }
        }));
    });
    let before = QUIET.replace(true);
    // Values that `work` leaves incomplete are dropped.
    let outcome = panic::catch_unwind(AssertUnwindSafe(work));
    QUIET.set(before);
    outcome.map_err(panic_message)
}

fn panic_message(panic: Box<dyn Any + Send>) -> String {
    match panic.downcast::<String>() {
        Ok(text) => *text,
        Err(panic) => panic.downcast_ref::<&str>().copied().unwrap_or("no message").to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::alloc::System;
    use std::collections::HashSet;

    #[global_allocator]
    static ALLOCATOR: LimitedAllocator<System> = LimitedAllocator(System);

    const BOUNDS: WorkBounds = WorkBounds { memory: 1 << 20, time: Duration::from_secs(60) };

    fn error<T: Send + 'static>(bounds: WorkBounds, work: impl FnOnce() -> T + Send + 'static) -> BoundsError {
        within(bounds, work).map(|_| ()).unwrap_err()
    }

    #[test]
    fn work_that_stays_within_its_bounds_gives_its_result() {
        // Uses the full limit, a hundred times in succession.
        let work = || (0..100).map(|i| vec![i as u8; 900_000][899_999] as usize).sum::<usize>();
        assert_eq!(within(BOUNDS, work).unwrap().0, 4950);
        let grown = within(BOUNDS, || (0..100_000u32).collect::<Vec<_>>().len());
        assert_eq!(grown.unwrap().0, 100_000);
        let threads: HashSet<_> = (0..100).map(|_| within(BOUNDS, || std::thread::current().id()).unwrap().0).collect();
        // Other tests may take the thread in between.
        assert!(threads.len() < 20, "{} threads: one that is done takes the next work", threads.len());
    }

    #[test]
    fn more_memory_than_allowed_ends_the_work_and_not_the_process() {
        assert_eq!(error(BOUNDS, || vec![1u8; 2 << 20].len()), BoundsError::Memory(1 << 20));
        assert_eq!(error(BOUNDS, || vec![0u8; 1 << 60].len()), BoundsError::Memory(1 << 20));
        let grow = || {
            let mut text = String::from("x");
            for _ in 0..50 {
                text = text.clone() + &text;
            }
            text
        };
        assert_eq!(error(BOUNDS, grow), BoundsError::Memory(1 << 20));
        assert_eq!(vec![1u8; 2 << 20].len(), 2 << 20, "other threads have no limit");
    }

    /// Simulates a machine that gives the thread no processor time for a while.
    #[cfg(target_os = "linux")]
    #[test]
    fn what_waits_takes_no_time() {
        let bounds = WorkBounds { time: Duration::from_millis(100), ..BOUNDS };
        let ((), took) = within(bounds, || std::thread::sleep(Duration::from_millis(300))).unwrap();
        assert!(took < bounds.time, "{took:?}");
    }

    #[test]
    fn recursion_that_allocates_ends_the_work_and_not_the_process() {
        fn descend(depth: u64) -> u64 {
            let room = std::hint::black_box(vec![depth; 8]);
            // The addition after the call prevents a tail call.
            if depth == u64::MAX { 0 } else { descend(depth + 1) + room[0] }
        }
        let bounds = WorkBounds { memory: 2 << 30, ..BOUNDS };
        assert_eq!(error(bounds, || descend(0)), BoundsError::Stack);
        assert_eq!(within(BOUNDS, || in_use().map(|bytes| bytes < 4096)).unwrap().0, Some(true));
        assert_eq!(in_use(), None);
    }

    #[test]
    fn a_smaller_stack_comes_with_less_memory() {
        assert_eq!((granted(2 << 30, STACK), granted(2 << 30, SMALLEST_STACK)), (2 << 30, 64 << 20));
        assert_eq!(granted(1 << 20, SMALLEST_STACK), 1 << 20);
    }

    #[test]
    fn what_does_not_end_is_not_waited_for_and_a_panic_is_an_error() {
        let short = WorkBounds { time: Duration::from_millis(50), ..BOUNDS };
        assert_eq!(error(short, || while std::hint::black_box(true) {}), BoundsError::Time(short.time));
        assert_eq!(error(short, std::thread::park), BoundsError::Time(short.time));
        assert!(error(BOUNDS, || -> u8 { [1, 2][std::hint::black_box(7)] }).to_string().contains("index"));
        assert_eq!(quietly(|| panic!("{}", 7)), Err::<(), _>("7".into()));
    }
}
