//! Names and paths of the files of a run.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The files of a run's folder.
#[derive(Clone, Copy, Debug)]
pub struct RunFiles<'a>(pub &'a Path);

impl RunFiles<'_> {
    /// Names of the files and folders that a run creates before its first step.
    pub const INITIAL: [&'static str; 17] = [
        Self::AGENT_KEY,
        Self::FAILED,
        Self::ANSWERS,
        Self::GRANTS,
        Self::LOCK,
        Self::WRITTEN_CONFIG,
        Self::CONFIG,
        Self::METRICS,
        Self::EVENTS,
        Self::COMPLETIONS,
        Self::PLUGINS,
        Self::TENSORBOARD,
        Self::REPORT,
        Self::INBOX,
        Self::REQUESTS,
        Self::MADE_MODEL,
        Self::ROLLOUTS,
    ];

    /// The configuration, which users may edit.
    pub const CONFIG: &'static str = "config.toml";
    /// Metrics: one line for each logged step and kind of row.
    pub const METRICS: &'static str = "metrics.jsonl";
    /// Events: one line for each [`RunEvent`](super::RunEvent).
    pub const EVENTS: &'static str = "events.jsonl";
    /// Completions: one line for each [`CompletionLine`](super::CompletionLine).
    const COMPLETIONS: &'static str = "completions.jsonl";
    /// Completions that a reward failed on, in the format of completions.jsonl.
    const FAILED: &'static str = "failed.jsonl";
    /// The page that `rlhost report` writes.
    const REPORT: &'static str = "report.html";
    /// File that is locked while a process runs the run.
    const LOCK: &'static str = ".lock";
    /// Folder of all plugins that the run has used.
    pub(super) const PLUGINS: &'static str = "plugins";
    /// Folder of the events for TensorBoard.
    const TENSORBOARD: &'static str = "tensorboard";
    /// Folder into which `rlhost swap` puts plugins.
    const INBOX: &'static str = "swap";
    /// Folder into which `rlhost control` puts requests.
    const REQUESTS: &'static str = "requests";
    /// Folder of a model that was created for the run.
    const MADE_MODEL: &'static str = "model";
    /// Folder of the rollout log.
    const ROLLOUTS: &'static str = "rollouts";
    const WRITTEN_CONFIG: &'static str = ".config.toml";
    const ANSWERS: &'static str = "answers";
    /// Grants that the user gave the run, one per line.
    const GRANTS: &'static str = "granted.jsonl";
    /// Key for external drivers, which play an agent's episodes.
    const AGENT_KEY: &'static str = "agent_key";

    /// Returns the path of the configuration.
    pub fn config(self) -> PathBuf {
        self.0.join(Self::CONFIG)
    }

    /// Returns the path of the configuration as the run last wrote it, used to detect edits when the run resumes.
    pub fn written_config(self) -> PathBuf {
        self.0.join(Self::WRITTEN_CONFIG)
    }

    /// Returns the path of the user's grants, each with a mark that only that user can create.
    pub fn grants(self) -> PathBuf {
        self.0.join(Self::GRANTS)
    }

    /// Returns the path of the key for external drivers.
    pub fn agent_key(self) -> PathBuf {
        self.0.join(Self::AGENT_KEY)
    }

    /// Returns the path of the metrics.
    pub fn metrics(self) -> PathBuf {
        self.0.join(Self::METRICS)
    }

    /// Returns the path of the events.
    pub fn events(self) -> PathBuf {
        self.0.join(Self::EVENTS)
    }

    /// Returns the path of the completions.
    pub fn completions(self) -> PathBuf {
        self.0.join(Self::COMPLETIONS)
    }

    /// Returns the path of the report.
    pub fn report(self) -> PathBuf {
        self.0.join(Self::REPORT)
    }

    /// Returns the path of the completions that a reward failed on.
    pub fn failed(self) -> PathBuf {
        self.0.join(Self::FAILED)
    }

    /// Returns the path of the lock.
    pub fn lock(self) -> PathBuf {
        self.0.join(Self::LOCK)
    }

    /// Returns the folder of plugins.
    pub fn plugins(self) -> PathBuf {
        self.0.join(Self::PLUGINS)
    }

    /// Returns the path of a version of a plugin. Its hash has at least 16 characters.
    pub fn plugin(self, name: &str, hash: &str) -> PathBuf {
        self.plugins().join(format!("{name}-{}.wasm", &hash[..16]))
    }

    /// Returns the folder into which `rlhost swap` puts plugins.
    pub fn inbox(self) -> PathBuf {
        self.0.join(Self::INBOX)
    }

    /// Returns the folder into which `rlhost control` puts requests.
    pub fn requests(self) -> PathBuf {
        self.0.join(Self::REQUESTS)
    }

    /// Returns the folder of a model that was created for the run.
    pub fn made_model(self) -> PathBuf {
        self.0.join(Self::MADE_MODEL)
    }

    /// Returns the folder of the rollout log.
    pub fn rollouts(self) -> PathBuf {
        self.0.join(Self::ROLLOUTS)
    }

    /// Returns the folder of the events for TensorBoard.
    pub fn tensorboard(self) -> PathBuf {
        self.0.join(Self::TENSORBOARD)
    }

    /// Returns the folder of servers' recorded answers.
    pub fn answers(self) -> PathBuf {
        self.0.join(Self::ANSWERS)
    }

    /// Returns the folder of the recorded answers of a teacher on a server.
    pub fn teacher_answers(self) -> PathBuf {
        self.answers().join("teacher")
    }

    /// Returns the path of servers' recorded answers to the plugin of this name.
    pub fn answers_of(self, plugin: &str) -> PathBuf {
        self.answers().join(format!("{plugin}.jsonl"))
    }

    /// Returns the folder of a step's checkpoint.
    pub fn checkpoint(self, step: u64) -> PathBuf {
        self.0.join(format!("{CHECKPOINT}{step}"))
    }

    /// Returns the steps of the run's checkpoints, oldest first.
    ///
    /// # Errors
    /// If the folder can't be read.
    pub fn steps(self) -> io::Result<Vec<u64>> {
        let mut steps: Vec<u64> =
            fs::read_dir(self.0)?.filter_map(Result::ok).filter_map(|entry| step_of(&entry.path())).collect();
        steps.sort_unstable();
        Ok(steps)
    }

    /// Returns whether this is a run's folder, judging by its files.
    pub fn exist(self) -> bool {
        self.config().is_file() || self.events().is_file()
    }
}

/// Prefix of the names of checkpoints.
const CHECKPOINT: &str = "checkpoint-";

/// Returns the step in the name of a checkpoint's folder; `None` for other names, such as `checkpoint-007`.
pub fn step_of(path: &Path) -> Option<u64> {
    let digits = path.file_name()?.to_str()?.strip_prefix(CHECKPOINT)?;
    let step: u64 = digits.parse().ok()?;
    (step.to_string() == digits).then_some(step)
}

/// Returns whether a path is a checkpoint's rather than a run's, judging by its name, to which a user may have added a suffix.
pub fn is_checkpoint(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(CHECKPOINT))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_that_a_run_gives_are_checkpoints() {
        let run = Path::new("runs/a");
        assert_eq!(step_of(&RunFiles(run).checkpoint(70)), Some(70));
        for other in ["checkpoint-007", "checkpoint-+8", "checkpoint-", "superseded-checkpoint-3", "checkpoint-3x", "a"] {
            assert_eq!(step_of(&run.join(other)), None, "{other}");
        }
    }
}
