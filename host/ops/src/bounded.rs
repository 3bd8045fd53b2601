//! Work on what comes from outside, held to a time and to an amount of memory, whatever libraries do with it.
//!
//! A library that is told by a file what to compute, as a template engine is or a tokenizer, can be told to compute for ever or
//! to make a string of a hundred gigabytes. Such work runs on a thread apart. What takes too long is left to itself. What
//! asks for more memory than it may have is stopped in the middle of asking, and never goes on: an allocator may not unwind, and
//! a library that is refused memory ends the process. Either thread goes when the process does, which is soon: what fails so is
//! a mistake at the start of a command.

use std::alloc::{GlobalAlloc, Layout};
use std::any::Any;
use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{SendError, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, Once, PoisonError};
use std::time::{Duration, Instant};

/// Stack of the thread, in bytes. What is built within the memory can be nested as deep as it has room for pointers, and takes
/// stack as deep when it is dropped.
const STACK: usize = 1 << 30;

/// The smallest stack that is tried where address space is limited (`ulimit -v`, or memory that may not be overcommitted).
const SMALLEST_STACK: usize = 32 << 20;

/// Bytes of memory for each byte of stack, beyond which what is built could be nested too deeply for it.
const MEMORY_A_BYTE: usize = 2;

/// An allocator that holds a thread to a limit where there is one ([`within`]), and else is the one inside.
pub struct Limited<A>(pub A);

type Job = Box<dyn FnOnce() + Send>;

/// Threads that have done their work and wait for more; to make one for each text would take as long as a short text does.
static IDLE: Mutex<Vec<Sender<Job>>> = Mutex::new(Vec::new());

/// The stack of the next thread; 0 before the first.
static NEXT_STACK: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// Bytes that this thread may still have; none without a limit.
    static LEFT: Cell<Option<usize>> = const { Cell::new(None) };
    /// What it had when its work began.
    static MOST: Cell<usize> = const { Cell::new(0) };
    /// Its stack.
    static OWN_STACK: Cell<usize> = const { Cell::new(STACK) };
    /// Who waits for this thread.
    static WAITING: Cell<*const End> = const { Cell::new(std::ptr::null()) };
    /// Whether a panic of this thread is not printed.
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// How the work ended, for the one who waits for it.
#[derive(Default)]
struct End {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Clone, Copy, Default, PartialEq)]
enum State {
    #[default]
    Working,
    Done,
    /// It asked for more than so many bytes.
    MemoryFull(usize),
}

impl End {
    fn set(&self, state: State) {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner) = state;
        self.changed.notify_all();
    }

    fn wait(&self, most: Duration) -> State {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let outcome = self.changed.wait_timeout_while(state, most, |state| *state == State::Working);
        *outcome.unwrap_or_else(PoisonError::into_inner).0
    }
}

/// Takes bytes from what the thread may have.
fn take(bytes: usize) {
    let Some(left) = LEFT.get() else { return };
    match left.checked_sub(bytes) {
        Some(left) => LEFT.set(Some(left)),
        None => stop(),
    }
}

fn give_back(bytes: usize) {
    if let Some(left) = LEFT.get() {
        LEFT.set(Some(left.saturating_add(bytes)));
    }
}

/// Says that the memory is full, and never returns.
#[cold]
fn stop() -> ! {
    // What is said here may take memory.
    LEFT.set(None);
    // SAFETY: it lies in this thread's own frame of `within`, which has not ended.
    if let Some(end) = unsafe { WAITING.get().as_ref() } {
        end.set(State::MemoryFull(MOST.get()));
    }
    loop {
        std::thread::park();
    }
}

// SAFETY: everything is the inner allocator's; what comes before it counts, or never returns.
unsafe impl<A: GlobalAlloc> GlobalAlloc for Limited<A> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        take(layout.size());
        // SAFETY: the caller's.
        unsafe { self.0.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        take(layout.size());
        // SAFETY: the caller's.
        unsafe { self.0.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        give_back(layout.size());
        // SAFETY: the caller's.
        unsafe { self.0.dealloc(ptr, layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        match size.checked_sub(layout.size()) {
            Some(more) => take(more),
            None => give_back(layout.size() - size),
        }
        // SAFETY: the caller's.
        unsafe { self.0.realloc(ptr, layout, size) }
    }
}

/// Why bounded work gave nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unbounded {
    /// It took longer than it may.
    #[error("took longer than {} s", .0.as_secs())]
    Time(Duration),
    /// It asked for more memory than it may have.
    #[error("asked for more than {} MiB of memory", .0 >> 20)]
    Memory(usize),
    /// It panicked.
    #[error("failed: {0}")]
    Panic(String),
    /// There is no thread for it.
    #[error("got no thread with a stack of {} MiB ({}); the system or `ulimit -v` leaves too little memory", SMALLEST_STACK >> 20, .0)]
    Thread(String),
}

/// The most that work may take.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Bytes of memory at any one time. Counted where the program's allocator is [`Limited`].
    pub memory: usize,
    /// Time from its beginning.
    pub time: Duration,
}

/// Does some work on a thread apart; gives its result and the time that it took.
///
/// # Errors
/// If it exceeds its bounds, or panics, which is not printed.
pub fn within<T: Send + 'static>(bounds: Bounds, work: impl FnOnce() -> T + Send + 'static) -> Result<(T, Duration), Unbounded> {
    let begun = Instant::now();
    let (end, outcome) = (Arc::new(End::default()), Arc::new(Mutex::new(None)));
    let (theirs, their_outcome) = (Arc::clone(&end), Arc::clone(&outcome));
    give(Box::new(move || {
        WAITING.set(Arc::as_ptr(&theirs));
        MOST.set(granted(bounds.memory, OWN_STACK.get()));
        LEFT.set(Some(MOST.get()));
        let done = quietly(work);
        LEFT.set(None);
        WAITING.set(std::ptr::null());
        *their_outcome.lock().unwrap_or_else(PoisonError::into_inner) = Some(done);
        theirs.set(State::Done);
    }))?;
    match end.wait(bounds.time) {
        State::Working => Err(Unbounded::Time(bounds.time)),
        State::MemoryFull(most) => Err(Unbounded::Memory(most)),
        State::Done => {
            let done = outcome.lock().unwrap_or_else(PoisonError::into_inner).take();
            let done = done.unwrap_or_else(|| Err("it gave nothing".into()));
            done.map(|done| (done, begun.elapsed())).map_err(Unbounded::Panic)
        }
    }
}

/// Bytes of memory that work may have of what it is to have, on such a stack.
fn granted(memory: usize, stack: usize) -> usize {
    memory.min(stack.saturating_mul(MEMORY_A_BYTE))
}

/// Gives work to a thread that has none, or a new one. A thread that never ends its work is never given more.
fn give(job: Job) -> Result<(), Unbounded> {
    let idle = IDLE.lock().unwrap_or_else(PoisonError::into_inner).pop();
    match idle {
        None => begin(job),
        Some(thread) => thread.send(job).or_else(|SendError(job)| begin(job)),
    }
}

/// The largest stack that leaves as much address space for everything else.
fn roomy() -> usize {
    let fits = |stack: &usize| {
        let thread = std::thread::Builder::new().stack_size(2 * stack).spawn(|| {});
        thread.is_ok_and(|thread| thread.join().is_ok())
    };
    std::iter::successors(Some(STACK), |stack| Some(stack / 2))
        .take_while(|s| *s > SMALLEST_STACK)
        .find(fits)
        .unwrap_or(SMALLEST_STACK)
}

/// Begins a thread, with a smaller stack where there is no room for the largest.
fn begin(job: Job) -> Result<(), Unbounded> {
    let (own, jobs) = channel::<Job>();
    let jobs = Arc::new(Mutex::new(jobs));
    // It has a job before anybody can send it another.
    if own.send(job).is_err() {
        return Err(Unbounded::Thread("it ended".into()));
    }
    let mut stack = match NEXT_STACK.load(Ordering::Relaxed) {
        0 => roomy(),
        known => known,
    };
    loop {
        let (own, jobs) = (own.clone(), jobs.clone());
        let run = move || {
            OWN_STACK.set(stack);
            let jobs = jobs.lock().unwrap_or_else(PoisonError::into_inner);
            while let Ok(job) = jobs.recv() {
                job();
                IDLE.lock().unwrap_or_else(PoisonError::into_inner).push(own.clone());
            }
        };
        match std::thread::Builder::new().name("bounded".into()).stack_size(stack).spawn(run) {
            Ok(_) => {
                NEXT_STACK.store(stack, Ordering::Relaxed);
                return Ok(());
            }
            Err(_) if stack > SMALLEST_STACK => stack /= 2,
            Err(error) => return Err(Unbounded::Thread(error.to_string())),
        }
    }
}

/// Does some work that may panic. Nothing is printed then, and the error is what was to be.
///
/// # Errors
/// If it panics.
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
    // What `work` leaves half done goes with it.
    let outcome = panic::catch_unwind(AssertUnwindSafe(work));
    QUIET.set(before);
    outcome.map_err(said)
}

fn said(panic: Box<dyn Any + Send>) -> String {
    match panic.downcast::<String>() {
        Ok(text) => *text,
        Err(panic) => panic.downcast_ref::<&str>().copied().unwrap_or("without a word").to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::alloc::System;
    use std::collections::HashSet;

    #[global_allocator]
    static ALLOCATOR: Limited<System> = Limited(System);

    const BOUNDS: Bounds = Bounds { memory: 1 << 20, time: Duration::from_secs(60) };

    fn error<T: Send + 'static>(bounds: Bounds, work: impl FnOnce() -> T + Send + 'static) -> Unbounded {
        within(bounds, work).map(|_| ()).unwrap_err()
    }

    #[test]
    fn work_that_stays_within_its_bounds_gives_its_result() {
        // As much at once as it may have, a hundred times.
        let work = || (0..100).map(|i| vec![i as u8; 900_000][899_999] as usize).sum::<usize>();
        assert_eq!(within(BOUNDS, work).unwrap().0, 4950);
        let grown = within(BOUNDS, || (0..100_000u32).collect::<Vec<_>>().len());
        assert_eq!(grown.unwrap().0, 100_000);
        let threads: HashSet<_> = (0..100).map(|_| within(BOUNDS, || std::thread::current().id()).unwrap().0).collect();
        assert!(threads.len() < 100, "a thread does more than one work");
    }

    #[test]
    fn more_memory_than_allowed_ends_the_work_and_not_the_process() {
        assert_eq!(error(BOUNDS, || vec![1u8; 2 << 20].len()), Unbounded::Memory(1 << 20));
        assert_eq!(error(BOUNDS, || vec![0u8; 1 << 60].len()), Unbounded::Memory(1 << 20));
        let grow = || {
            let mut text = String::from("x");
            for _ in 0..50 {
                text = text.clone() + &text;
            }
            text
        };
        assert_eq!(error(BOUNDS, grow), Unbounded::Memory(1 << 20));
        assert_eq!(vec![1u8; 2 << 20].len(), 2 << 20, "other threads have no limit");
    }

    #[test]
    fn a_smaller_stack_comes_with_less_memory() {
        assert_eq!((granted(2 << 30, STACK), granted(2 << 30, SMALLEST_STACK)), (2 << 30, 64 << 20));
        assert_eq!(granted(1 << 20, SMALLEST_STACK), 1 << 20);
    }

    #[test]
    fn what_does_not_end_is_not_waited_for_and_a_panic_is_an_error() {
        let short = Bounds { time: Duration::from_millis(50), ..BOUNDS };
        assert_eq!(error(short, std::thread::park), Unbounded::Time(short.time));
        assert!(error(BOUNDS, || -> u8 { [1, 2][std::hint::black_box(7)] }).to_string().contains("index"));
        assert_eq!(quietly(|| panic!("{}", 7)), Err::<(), _>("7".into()));
    }
}
