//! Exports a run for other programs that track experiments, in files that their own clients read without a network: MLflow's file
//! store, an offline run of Weights & Biases, and a table that Trackio imports.
//!
//! Only the run's folder is read, within bounds: it may be damaged, still growing, or somebody else's.

mod mlflow;
mod run;
mod trackio;
mod wandb;

pub use run::Error;

use run::Run;
use std::path::{Path, PathBuf};

/// A program that tracks experiments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// An offline run for `wandb sync`
    Wandb,
    /// A file store for `mlflow ui`
    Mlflow,
    /// A CSV file for `trackio.import_csv`
    Trackio,
}

impl Format {
    /// Returns a command that shows what was exported to `path` under the run's name.
    #[must_use]
    pub fn next(self, path: &Path, run: &str) -> String {
        let path = path.display();
        match self {
            Self::Wandb => format!("wandb sync {path}"),
            Self::Mlflow => format!("MLFLOW_ALLOW_FILE_STORE=true mlflow ui --backend-store-uri {path}"),
            Self::Trackio => {
                format!(
                    "python -c 'import trackio; trackio.import_csv(\"{path}\", project=\"rlhost\", name=\"{run}\")'; trackio show"
                )
            }
        }
    }
}

/// Exports a run's metrics and settings into a folder: that of the run, or one that several runs share. Replaces an earlier export of
/// the same run. Returns the path that the program is given, the run's name, and what could not be read.
///
/// # Errors
/// If the run has no metrics, or something can't be read or written.
pub fn export(run: &Path, format: Format, to: &Path) -> Result<(PathBuf, String, Vec<String>), Error> {
    let run = Run::read(run)?;
    let path = match format {
        Format::Wandb => wandb::write(&run, to)?,
        Format::Mlflow => mlflow::write(&run, to)?,
        Format::Trackio => trackio::write(&run, to)?,
    };
    Ok((path, run.name, run.notes))
}
