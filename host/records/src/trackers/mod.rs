//! Exports a run for other experiment trackers, in files that their own clients read without a network: MLflow's file store, an offline run
//! of Weights & Biases, and a table with a script that logs it with Trackio.
//!
//! Only the run's folder is read, within bounds: it may be damaged, still growing, or somebody else's.

mod mlflow;
mod run;
mod trackio;
mod wandb;

pub use run::Error;

use crate::config::shell_word;
use run::ExportedRun;
use std::path::{Path, PathBuf};

/// A program that tracks experiments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum TrackerFormat {
    /// An offline run for `wandb sync`
    Wandb,
    /// A file store for `mlflow ui`
    Mlflow,
    /// A table and a script that logs it with Trackio
    Trackio,
}

impl TrackerFormat {
    /// Returns the name, as `--format` and `report_to` spell it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Wandb => "wandb",
            Self::Mlflow => "mlflow",
            Self::Trackio => "trackio",
        }
    }

    /// Returns a command for a POSIX shell that shows what was exported to `path`.
    #[must_use]
    pub fn view_command(self, path: &Path) -> String {
        let path = shell_word(path);
        match self {
            Self::Wandb => format!("wandb sync {path}"),
            Self::Mlflow => format!("MLFLOW_ALLOW_FILE_STORE=true mlflow ui --backend-store-uri {path}"),
            Self::Trackio => format!("python {path} && trackio show --project rlhost"),
        }
    }
}

/// Exports a run's metrics and settings into a folder: the run's own, or one that several runs share. Replaces an earlier export of the
/// same run. Returns the path to pass to the tracker, and notes on parts that could not be read.
///
/// # Errors
/// If the run has no metrics, or something can't be read or written.
pub fn export(run: &Path, format: TrackerFormat, to: &Path) -> Result<(PathBuf, Vec<String>), Error> {
    let run = ExportedRun::read(run)?;
    let path = match format {
        TrackerFormat::Wandb => wandb::write(&run, to)?,
        TrackerFormat::Mlflow => mlflow::write(&run, to)?,
        TrackerFormat::Trackio => trackio::write(&run, to)?,
    };
    Ok((path, run.notes))
}
