//! Writes checkpoints in the background, on a thread that handles at most one checkpoint at a time.

use super::{Error, JointSave, save, write_part};
use crate::run::RunFiles;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Writes the checkpoints of one run.
#[derive(Debug)]
pub struct CheckpointWriter {
    run: PathBuf,
    pending: Option<PendingSave>,
}

#[derive(Debug)]
struct PendingSave {
    step: u64,
    work: SaveJob,
}

/// The result of a write and its duration.
type TimedSave = (Result<PathBuf, Error>, Duration);

#[derive(Debug)]
enum SaveJob {
    Background(JoinHandle<TimedSave>),
    /// Written on the calling thread, since no thread could be started.
    Inline(TimedSave),
}

/// The result of a save.
#[derive(Debug)]
pub struct SaveOutcome {
    /// Step that was saved.
    pub step: u64,
    /// Folder of the checkpoint.
    pub outcome: Result<PathBuf, Error>,
    /// Duration of the write.
    pub took: Duration,
}

impl CheckpointWriter {
    /// Creates a writer for the run in this folder.
    pub fn new(run: PathBuf) -> Self {
        Self { run, pending: None }
    }

    /// Writes to this folder from now on.
    pub fn set_run(&mut self, run: PathBuf) {
        self.run = run;
    }

    /// Starts writing, or writes synchronously if no thread can be started. Wait for the previous save first.
    pub fn begin(&mut self, step: u64, fill: impl FnOnce(&Path) -> Result<(), String> + Send + 'static) {
        self.begin_with(step, move |run: &Path| save(run, step, fill));
    }

    /// Starts writing a rank's part of a checkpoint, like [`CheckpointWriter::begin`].
    pub fn begin_part(&mut self, save: JointSave, rank: usize, fill: impl FnOnce(&Path) -> Result<(), String> + Send + 'static) {
        self.begin_with(save.step, move |run: &Path| write_part(run, save, rank, fill));
    }

    fn begin_with(&mut self, step: u64, write: impl FnOnce(&Path) -> Result<PathBuf, Error> + Send + 'static) {
        debug_assert!(self.pending.is_none(), "two checkpoints in hand");
        // Starting a thread consumes the closure even if it fails.
        let (run, write) = (self.run.clone(), Arc::new(Mutex::new(Some(write))));
        let of_thread = write.clone();
        let thread = std::thread::Builder::new().name("checkpoint".into()).spawn(move || write_once(&run, step, &of_thread));
        let work = thread.map_or_else(|_| SaveJob::Inline(write_once(&self.run, step, &write)), SaveJob::Background);
        self.pending = Some(PendingSave { step, work });
    }

    /// Returns the result of a save that has finished since the last call.
    pub fn take_finished(&mut self) -> Option<SaveOutcome> {
        let is_done = match &self.pending.as_ref()?.work {
            SaveJob::Background(thread) => thread.is_finished(),
            SaveJob::Inline(_) => true,
        };
        is_done.then(|| self.wait())?
    }

    /// Waits for the current save, if there is one.
    pub fn wait(&mut self) -> Option<SaveOutcome> {
        let PendingSave { step, work } = self.pending.take()?;
        let panicked = |_| {
            let path = RunFiles(&self.run).checkpoint(step);
            (Err(Error::Write { path, detail: "the writing thread panicked".into() }), Duration::ZERO)
        };
        let (outcome, took) = match work {
            SaveJob::Background(thread) => thread.join().unwrap_or_else(panicked),
            SaveJob::Inline(done) => done,
        };
        Some(SaveOutcome { step, outcome, took })
    }
}

/// Writes a checkpoint with the closure, which is taken out so that it runs only once.
fn write_once(run: &Path, step: u64, write: &Mutex<Option<impl FnOnce(&Path) -> Result<PathBuf, Error>>>) -> TimedSave {
    let begun = Instant::now();
    let write = write.lock().unwrap_or_else(PoisonError::into_inner).take();
    let nothing = || Err(Error::Write { path: RunFiles(run).checkpoint(step), detail: "it was written before".into() });
    (write.map_or_else(nothing, |write| write(run)), begun.elapsed())
}
