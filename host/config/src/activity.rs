//! Current activities of this process. The parts of the program report them, and the command line shows them.
//!
//! Like the log, this state is global: code that reads a dataset or generates completions reports it without knowing whether anybody
//! watches. No decision depends on it.

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
    /// Reads the optimizer's moments from a checkpoint.
    ReadingOptimizer,
    /// Reads or scans the rows of a dataset.
    ReadingDataset,
    /// Finds the offsets of a dataset's rows.
    FindingRows,
    /// Checks which rows of a dataset are usable.
    CheckingRows,
    /// Counts the tokens of a dataset's rows.
    CountingTokens,
    /// Compiles a plugin to machine code, or reads an earlier result from the cache.
    CompilingPlugin,
    /// Calls a plugin with samples before it is used.
    TryingPlugin,
    /// Computes the reference model's log-probabilities.
    ReferenceModel,
    /// Computes the teacher's log-probabilities.
    Teacher,
    /// Samples completions.
    Generating,
    /// Samples a completion before and after training, to print both at the end.
    SamplingExample,
    /// Calls the rewards.
    Scoring,
    /// Computes the critic's values.
    ComputingValues,
    /// Runs micro-batches forward and backward.
    Training,
    /// Updates the weights with the gradients of all micro-batches.
    UpdatingWeights,
    /// Evaluates on prompts that are not trained on.
    Evaluating,
    /// Waits for a request to continue.
    Paused,
    /// Writes a checkpoint.
    Saving,
    /// Computes the checksums of a written checkpoint.
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
    /// Returns the name of the activity while it is in progress.
    pub fn name(self) -> &'static str {
        match self {
            Self::Downloading => "downloading",
            Self::VerifyingCheckpoint => "verifying",
            Self::ReadingTokenizer => "reading the tokenizer",
            Self::LoadingModel => "loading the model",
            Self::ReadingOptimizer => "reading the optimizer's state",
            Self::ReadingDataset => "reading the dataset",
            Self::FindingRows => "finding the dataset's rows",
            Self::CheckingRows => "checking the dataset's rows",
            Self::CountingTokens => "counting tokens",
            Self::CompilingPlugin => "compiling",
            Self::TryingPlugin => "trying",
            Self::ReferenceModel => "reference model",
            Self::Teacher => "teacher",
            Self::Generating => "generating",
            Self::SamplingExample => "sampling an example",
            Self::Scoring => "scoring",
            Self::ComputingValues => "critic",
            Self::Training => "training",
            Self::UpdatingWeights => "updating weights",
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

/// The unit of a task's progress.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ProgressUnit {
    /// Items without a name, such as generated completions.
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
    /// Activity of the task.
    pub activity: Activity,
    /// Object of the activity, such as the name of a plugin or file; may be empty.
    pub subject: Cow<'static, str>,
    /// When the task began.
    pub began: Instant,
    /// Completed amount, in `unit`.
    pub done: u64,
    /// Total amount, in `unit`, if known.
    pub total: Option<u64>,
    /// Unit of `done` and `total`.
    pub unit: ProgressUnit,
    /// Number of tokens generated.
    pub tokens: u64,
}

/// Number and total duration of an activity's completed tasks.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ActivityTime {
    /// Number of completed tasks.
    pub times: u32,
    /// Total duration of the completed tasks.
    pub time: Duration,
}

/// The tasks of the process, and the durations of completed ones.
#[derive(Default)]
struct ProgressRegistry {
    next: u64,
    /// Open tasks in the order in which they began: a subtask comes after its task.
    open: BTreeMap<u64, ProgressStatus>,
    spent: BTreeMap<Activity, ActivityTime>,
}

static TASKS: Mutex<Option<ProgressRegistry>> = Mutex::new(None);

/// Runs `work` on the tasks. The tasks are usable even if a thread panicked while it held them.
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

    /// Sets the object of the activity.
    pub fn with_subject(self, subject: impl Into<Cow<'static, str>>) -> Self {
        self.update(|status| status.subject = subject.into());
        self
    }

    /// Sets the total, or only the unit if the total is not known.
    pub fn with_total(self, total: impl Into<Option<u64>>, unit: ProgressUnit) -> Self {
        self.update(|status| (status.total, status.unit) = (total.into(), unit));
        self
    }

    /// Adds to the completed amount.
    pub fn add(&self, more: u64) {
        self.update(|status| status.done += more);
    }

    /// Sets the completed amount.
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

/// Returns the tasks in progress, each before its subtasks.
pub fn current() -> Vec<ProgressStatus> {
    with(|tasks| tasks.open.values().cloned().collect())
}

/// Returns the number and duration of an activity's completed tasks.
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
