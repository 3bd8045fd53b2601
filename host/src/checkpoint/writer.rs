//! Writes checkpoints in the background, on a thread that has at most one checkpoint at a time.

use super::{Error, save};
use crate::run::RunFiles;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Writes the checkpoints of one run.
#[derive(Debug)]
pub struct Writer {
    run: PathBuf,
    in_hand: Option<InHand>,
}

#[derive(Debug)]
struct InHand {
    step: u64,
    thread: JoinHandle<(Result<PathBuf, Error>, Duration)>,
}

/// The result of a save.
#[derive(Debug)]
pub struct Written {
    /// The step that was saved.
    pub step: u64,
    /// The checkpoint's folder.
    pub outcome: Result<PathBuf, Error>,
    /// How long writing took.
    pub took: Duration,
}

impl Writer {
    /// Creates a writer for the run in this folder.
    pub fn new(run: PathBuf) -> Self {
        Self { run, in_hand: None }
    }

    /// Starts writing. The previous save must have been waited for.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn begin(&mut self, step: u64, fill: impl FnOnce(&Path) -> Result<(), String> + Send + 'static) -> Result<(), Error> {
        debug_assert!(self.in_hand.is_none(), "two checkpoints in hand");
        let run = self.run.clone();
        let work = move || {
            let begun = Instant::now();
            (save(&run, step, fill), begun.elapsed())
        };
        let thread = std::thread::Builder::new().name("checkpoint".into()).spawn(work);
        let thread = thread.map_err(|e| Error::Write { path: RunFiles(&self.run).checkpoint(step), detail: e.to_string() })?;
        self.in_hand = Some(InHand { step, thread });
        Ok(())
    }

    /// Returns the result of a save that has finished since the last call.
    pub fn ended(&mut self) -> Option<Written> {
        self.in_hand.as_ref()?.thread.is_finished().then(|| self.wait())?
    }

    /// Waits for the current save, if there is one.
    pub fn wait(&mut self) -> Option<Written> {
        let InHand { step, thread } = self.in_hand.take()?;
        let (outcome, took) = thread.join().unwrap_or_else(|_| {
            let path = RunFiles(&self.run).checkpoint(step);
            (Err(Error::Write { path, detail: "the writing thread panicked".into() }), Duration::ZERO)
        });
        Some(Written { step, outcome, took })
    }
}
