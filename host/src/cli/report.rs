//! `rlhost report`: writes the current page of `rlhost ui` to one HTML file.

use super::compare::page_path;
use super::failure::CommandFailure;
use super::ui::PagePlugins;
use crate::report::RunComparison;
use crate::run::RunFiles;
use rlhost_ui::FrozenPage;
use std::path::PathBuf;

/// Arguments of `report`.
#[derive(clap::Args)]
#[command(after_help = "The file is the page of `rlhost ui` as it is now. It loads nothing, and can be mailed.")]
pub(super) struct Args {
    /// Folder of the run, which may still be running; of several, one page compares them
    #[arg(required = true, value_name = "RUN")]
    runs: Vec<PathBuf>,
    /// File of the page [default: report.html in the run's folder; of several runs, comparison.html here]
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
}

pub(super) fn run(args: &Args) -> Result<(), CommandFailure> {
    let page = match &args.runs[..] {
        [run] => FrozenPage::from_run(run, PagePlugins),
        runs => RunComparison::load(runs).and_then(|comparison| FrozenPage::from_comparison(&comparison, PagePlugins)),
    };
    let page = page.map_err(CommandFailure::from_error)?;
    let default = || match &args.runs[..] {
        [run] => RunFiles(run).report(),
        runs => page_path(runs),
    };
    let path = args.output.clone().unwrap_or_else(default);
    page.write(&path).map_err(CommandFailure::from_error)?;
    say!("{}", path.display());
    Ok(())
}

/// Returns the report of a run as text; `None` if it can't be read.
#[cfg(any(test, fuzzing))]
pub fn report_text(run: &std::path::Path) -> Option<String> {
    FrozenPage::from_run(run, PagePlugins).ok().map(|page| page.to_html())
}
