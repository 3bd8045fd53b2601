//! `rlhost resume`: resumes a run from its newest intact checkpoint.

use super::config_sources::ConfigSources;
use super::failure::CommandFailure;
use super::stop_signals::StopSignals;
use super::train::resume_from;
use crate::config::KeyAssignment;
use crate::dist::World;
use crate::run::{RunFiles, is_running};
use crate::train::{CheckpointOrigin, ResumeTerms};
use anyhow::anyhow;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// Arguments of `resume`.
#[derive(clap::Args)]
pub(super) struct Args {
    /// Folder of the run or of one of its checkpoints
    run: PathBuf,
    /// Step of the checkpoint to resume from [default: the newest intact one]
    #[arg(long)]
    step: Option<u64>,
    /// New total number of optimizer steps
    #[arg(long, alias = "max_steps", allow_negative_numbers = true)]
    max_steps: Option<i64>,
    /// Change a key, as in --set save_steps=100; may be repeated
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Allow settings that change results
    #[arg(long, alias = "allow_changed")]
    allow_changed: bool,
    /// Drop edits of config.toml that the run has not taken up, such as one that it refused
    #[arg(long, alias = "discard_edits")]
    discard_edits: bool,
    /// Allow what the run's folder sets beyond the defaults: servers, secrets, folders, ports and limits of plugins
    #[arg(long, alias = "accept_grants")]
    accept_grants: bool,
}

pub(super) fn run(args: &Args) -> Result<(), CommandFailure> {
    let stopping = StopSignals::listen()?;
    super::rank::on_this_rank(|world| resume_run(args, &stopping, world))
}

/// Adds to an error how to restart a run that ended before its first checkpoint.
fn without_checkpoint(run: &Path, error: anyhow::Error) -> CommandFailure {
    let files = RunFiles(run);
    // A checkpoint's folder has no events.
    if files.events().is_file() && files.steps().is_ok_and(|steps| steps.is_empty()) {
        if is_running(run) == Some(true) {
            return CommandFailure::mistake(anyhow!("{}: another rlhost process is running this run", run.display()));
        }
        let advice = "it ended before its first; to start it over, give its first command again, with --resume-from-checkpoint";
        return CommandFailure::mistake(anyhow!("{error}; {advice}"));
    }
    CommandFailure::from_error(error)
}

fn resume_run(args: &Args, stopping: &StopSignals, world: &Rc<World>) -> Result<(), CommandFailure> {
    if args.run.as_os_str().is_empty() {
        return Err(CommandFailure::mistake(anyhow!("the path of the run is empty")));
    }
    let path = args.step.map_or_else(|| args.run.clone(), |step| RunFiles(&args.run).checkpoint(step));
    let origin = CheckpointOrigin::find(&path).map_err(|error| without_checkpoint(&args.run, error.into()))?;
    let steps = args.max_steps.map(|steps| format!("max_steps={steps}"));
    let sets = KeyAssignment::parse_all(args.set.iter().chain(&steps)).map_err(CommandFailure::from_error)?;
    if sets.iter().any(|set| set.sets("output_dir")) {
        let advice = "to start a new run from a checkpoint, use rlhost train --resume-from-checkpoint with another --output-dir";
        return Err(CommandFailure::mistake(anyhow!("resume continues in the run's own folder; {advice}")));
    }
    let terms = ResumeTerms { allow_changed: args.allow_changed, discard_edits: args.discard_edits, ..ResumeTerms::default() };
    resume_from(&ConfigSources::from_assignments(sets, args.accept_grants), origin, terms, (stopping, world))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{Args as _, Command, FromArgMatches};

    #[test]
    fn the_number_of_steps_may_be_that_of_the_epochs() {
        for flag in ["--max-steps", "--max_steps"] {
            let matches = Args::augment_args(Command::new("resume")).try_get_matches_from(["resume", "run", flag, "-1"]).unwrap();
            assert_eq!(Args::from_arg_matches(&matches).unwrap().max_steps, Some(-1));
        }
    }
}
