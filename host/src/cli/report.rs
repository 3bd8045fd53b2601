//! `rlhost report`: writes an HTML report of a run.

use super::failure::Failure;
use crate::report;
use std::path::PathBuf;

/// Arguments of `report`.
#[derive(clap::Args)]
pub(super) struct Args {
    /// Folder of the run, which may still be running
    run: PathBuf,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let path = report::write(&args.run).map_err(Failure::of)?;
    say!("{}", path.display());
    Ok(())
}
