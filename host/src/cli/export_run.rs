//! `rlhost export-run`: exports a run for experiment trackers.

use super::failure::Failure;
use crate::report;
use crate::trackers::{self, Error, Format};
use std::path::{Path, PathBuf};

/// Arguments of `export-run`.
#[derive(clap::Args)]
pub(super) struct Args {
    /// Folder of the run, which may still be running
    run: PathBuf,
    /// Tracker to export for
    #[arg(long, value_enum)]
    format: Format,
    /// Folder to export into; several runs may share one [default: the run's folder]
    #[arg(long, value_name = "FOLDER")]
    output: Option<PathBuf>,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    report::check(&args.run).map_err(Failure::of)?;
    let to = args.output.as_deref().unwrap_or(&args.run);
    let (path, command) = export(&args.run, args.format, to).map_err(Failure::of)?;
    say!("{}", path.display());
    tracing::info!("to show it: {command}");
    Ok(())
}

/// Exports a run. Returns the path, and a command that shows it.
pub(super) fn export(run: &Path, format: Format, to: &Path) -> Result<(PathBuf, String), Error> {
    let (path, notes) = trackers::export(run, format, to)?;
    notes.iter().for_each(|note| tracing::warn!("{note}"));
    let command = format.next(&path);
    Ok((path, command))
}
