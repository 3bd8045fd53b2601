//! What this process is doing at the moment. The parts of the program report it, and the command line shows it.
//!
//! Like the log, this belongs to the process: whoever reads a dataset or generates completions says so here, and does not know
//! whether anybody watches. Nothing is ever decided by it.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A kind of work that can take long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Activity {
    /// Downloads a file.
    Downloading,
    /// Reads a checkpoint to compare it with its checksums.
    VerifyingCheckpoint,
    /// Reads a tokenizer.
    ReadingTokenizer,
    /// Reads or creates the weights of a model.
    LoadingModel,
    /// Reads the rows of a dataset, or looks at them.
    ReadingDataset,
    /// Finds where the rows of a dataset begin.
    FindingRows,
    /// Finds out which rows of a dataset can be used.
    JudgingRows,
    /// Counts the tokens of a dataset's rows.
    CountingTokens,
    /// Translates a plugin to machine code, or reads the result of an earlier translation.
    CompilingPlugin,
    /// Calls a plugin with samples before it is used.
    TryingPlugin,
    /// Computes the reference model's log-probabilities.
    ReferenceModel,
    /// Computes the teacher's log-probabilities.
    Teacher,
    /// Samples completions.
    Generating,
    /// Samples a completion before and after training, to be printed at the end.
    SamplingExample,
    /// Calls the rewards.
    Scoring,
    /// Computes the critic's values.
    ComputingValues,
    /// Runs micro-batches forward and backward, and updates the weights.
    Training,
    /// Evaluates on prompts that are not trained on.
    Evaluating,
    /// Waits until somebody requests that it goes on.
    Paused,
    /// Writes a checkpoint.
    Saving,
    /// Computes the checksums of a checkpoint that was written.
    Checksumming,
    /// Trains a tokenizer.
    TrainingTokenizer,
    /// Splits texts into words and counts them, for a tokenizer.
    CountingWords,
    /// Draws random weights for a new model.
    DrawingWeights,
    /// Writes the files of a model.
    WritingModel,
    /// Writes a file of tensors.
    WritingFile,
}

impl Activity {
    /// Returns the words that name it while it goes on.
    pub fn name(self) -> &'static str {
        match self {
            Self::Downloading => "downloading",
            Self::VerifyingCheckpoint => "verifying",
            Self::ReadingTokenizer => "reading the tokenizer",
            Self::LoadingModel => "loading the model",
            Self::ReadingDataset => "reading the dataset",
            Self::FindingRows => "finding the dataset's rows",
            Self::JudgingRows => "judging the dataset's rows",
            Self::CountingTokens => "counting tokens",
            Self::CompilingPlugin => "compiling",
            Self::TryingPlugin => "trying",
            Self::ReferenceModel => "reference model",
            Self::Teacher => "teacher",
            Self::Generating => "generating",
            Self::SamplingExample => "an example for the end",
            Self::Scoring => "scoring",
            Self::ComputingValues => "critic",
            Self::Training => "training",
            Self::Evaluating => "evaluating",
            Self::Paused => "paused",
            Self::Saving => "saving",
            Self::Checksumming => "computing the checksums of",
            Self::TrainingTokenizer => "training the tokenizer",
            Self::CountingWords => "counting words",
            Self::DrawingWeights => "drawing random weights",
            Self::WritingModel => "writing the model",
            Self::WritingFile => "writing",
        }
    }
}

/// What a task counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ProgressUnit {
    /// Things that need no name, such as completions that are generated.
    #[default]
    Things,
    /// Rows of a dataset.
    Rows,
    /// Bytes.
    Bytes,
}

/// The state of a task.
#[derive(Clone, Debug)]
pub struct ProgressStatus {
    /// What is done.
    pub activity: Activity,
    /// To what, as in the name of a plugin or file; may be empty.
    pub subject: Cow<'static, str>,
    /// When it began.
    pub began: Instant,
    /// How much is done.
    pub done: u64,
    /// How much there is to do, if known.
    pub total: Option<u64>,
    /// What both count.
    pub unit: ProgressUnit,
    /// Number of tokens generated.
    pub tokens: u64,
}

/// How often an activity has ended, and the time it took.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ActivityTime {
    /// Number of tasks that have ended.
    pub times: u32,
    /// Their time together.
    pub time: Duration,
}

/// The tasks of a process, and the time that earlier ones took.
#[derive(Default)]
struct ProgressRegistry {
    next: u64,
    /// In the order in which they began: a part of another task comes after it.
    open: BTreeMap<u64, ProgressStatus>,
    spent: BTreeMap<Activity, ActivityTime>,
}

static TASKS: Mutex<Option<ProgressRegistry>> = Mutex::new(None);

/// Runs `work` on the tasks. What a thread that panicked has left is as good as any.
fn with<T>(work: impl FnOnce(&mut ProgressRegistry) -> T) -> T {
    let mut guard: MutexGuard<'_, Option<ProgressRegistry>> = TASKS.lock().unwrap_or_else(PoisonError::into_inner);
    work(guard.get_or_insert_default())
}

/// A task in progress, which ends when this is dropped.
#[derive(Debug)]
#[must_use = "the task ends when this is dropped"]
pub struct ProgressTask(u64);

impl ProgressTask {
    /// Begins a task.
    pub fn new(activity: Activity) -> Self {
        let status = ProgressStatus {
            activity,
            subject: Cow::Borrowed(""),
            began: Instant::now(),
            done: 0,
            total: None,
            unit: ProgressUnit::default(),
            tokens: 0,
        };
        Self(with(|tasks| {
            tasks.next += 1;
            tasks.open.insert(tasks.next, status);
            tasks.next
        }))
    }

    /// Names what it is done to.
    pub fn with_subject(self, subject: impl Into<Cow<'static, str>>) -> Self {
        self.update(|status| status.subject = subject.into());
        self
    }

    /// Sets how much there is to do, or only the unit if that is not known.
    pub fn with_total(self, total: impl Into<Option<u64>>, unit: ProgressUnit) -> Self {
        self.update(|status| (status.total, status.unit) = (total.into(), unit));
        self
    }

    /// Adds to what is done.
    pub fn add(&self, more: u64) {
        self.update(|status| status.done += more);
    }

    /// Sets what is done.
    pub fn set(&self, done: u64) {
        self.update(|status| status.done = done);
    }

    /// Adds generated tokens.
    pub fn add_tokens(&self, more: u64) {
        self.update(|status| status.tokens += more);
    }

    fn update(&self, change: impl FnOnce(&mut ProgressStatus)) {
        with(|tasks| tasks.open.get_mut(&self.0).map(change));
    }
}

impl Drop for ProgressTask {
    fn drop(&mut self) {
        with(|tasks| {
            if let Some(status) = tasks.open.remove(&self.0) {
                let spent = tasks.spent.entry(status.activity).or_default();
                spent.times += 1;
                spent.time += status.began.elapsed();
            }
        });
    }
}

/// Returns the tasks in progress, a task before its parts.
pub fn current() -> Vec<ProgressStatus> {
    with(|tasks| tasks.open.values().cloned().collect())
}

/// Returns what the ended tasks of an activity took.
pub fn spent(activity: Activity) -> ActivityTime {
    with(|tasks| tasks.spent.get(&activity).copied().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_are_listed_outermost_first_until_they_end() {
        // Other tests of this process have tasks too, but none of these.
        let own = || {
            let of_writing =
                |status: &ProgressStatus| [Activity::WritingModel, Activity::TrainingTokenizer].contains(&status.activity);
            current().into_iter().filter(of_writing).collect::<Vec<_>>()
        };
        let before = spent(Activity::TrainingTokenizer);
        let outer = ProgressTask::new(Activity::WritingModel).with_total(10, ProgressUnit::Bytes);
        outer.add(3);
        {
            let inner = ProgressTask::new(Activity::TrainingTokenizer).with_subject("words").with_total(None, ProgressUnit::Rows);
            inner.add(5);
            inner.set(2);
            inner.add_tokens(7);
            let [first, second] = &own()[..] else { panic!("{:?}", own()) };
            assert_eq!(
                (first.activity, first.done, first.total, first.unit),
                (Activity::WritingModel, 3, Some(10), ProgressUnit::Bytes)
            );
            assert_eq!((&*second.subject, second.done, second.total, second.tokens), ("words", 2, None, 7));
        }
        assert_eq!(own().len(), 1);
        assert_eq!(spent(Activity::TrainingTokenizer).times, before.times + 1);
        drop(outer);
        assert!(own().is_empty());
    }
}
