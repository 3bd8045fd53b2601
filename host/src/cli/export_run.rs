//! `rlhost export-run`: exports a run for experiment trackers.

use super::failure::CommandFailure;
use crate::report;
use crate::trackers::{self, Error, TrackerFormat};
use std::path::{Path, PathBuf};

/// Arguments of `export-run`.
#[derive(clap::Args)]
pub(super) struct Args {
    /// Folder of the run, which may still be running
    run: PathBuf,
    /// Tracker to export for
    #[arg(long, value_enum)]
    format: TrackerFormat,
    /// Folder to export into; several runs may share one [default: the run's folder]
    #[arg(long, value_name = "FOLDER")]
    output: Option<PathBuf>,
}

pub(super) fn run(args: &Args) -> Result<(), CommandFailure> {
    report::check(&args.run).map_err(CommandFailure::from_error)?;
    let to = args.output.as_deref().unwrap_or(&args.run);
    let (path, command) = export(&args.run, args.format, to).map_err(CommandFailure::from_error)?;
    say!("{}", path.display());
    tracing::info!("to show it: {command}");
    Ok(())
}

/// Exports a run. Returns the path, and a command that shows it.
pub(super) fn export(run: &Path, format: TrackerFormat, to: &Path) -> Result<(PathBuf, String), Error> {
    let (path, notes) = trackers::export(run, format, to)?;
    notes.iter().for_each(|note| tracing::warn!("{note}"));
    let command = format.view_command(&path);
    Ok((path, command))
}
