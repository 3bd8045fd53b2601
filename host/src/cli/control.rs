//! `rlhost control`: pauses or continues a running run, or has it save, evaluate or stop, and reports its answer.

use super::failure::CommandFailure;
use super::swap::{log_wait, user, wait};
use crate::run::{RunAction, RunFiles, RunRequest, is_running, send_request};
use crate::train;
use anyhow::anyhow;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use std::path::{Path, PathBuf};

/// Arguments of `control`.
#[derive(clap::Args)]
pub(super) struct Args {
    /// Folder of the run
    run: PathBuf,
    /// What it does after the current step: wait, go on, save a checkpoint, evaluate, or stop with a checkpoint
    #[arg(value_parser = PossibleValuesParser::new(RunAction::ALL.map(RunAction::name)).try_map(|name| parse(&name)))]
    action: RunAction,
    /// Don't wait for the answer
    #[arg(long, alias = "no_wait")]
    no_wait: bool,
}

fn parse(name: &str) -> Result<RunAction, String> {
    RunAction::parse(name).ok_or_else(|| format!("{name} is no action"))
}

pub(super) fn run(args: &Args) -> Result<(), CommandFailure> {
    let end = RunFiles(&args.run).events().metadata().map_or(0, |m| m.len());
    let name = request(&args.run, args.action, &user()).map_err(CommandFailure::from_error)?;
    if args.no_wait {
        say!("sent");
        return Ok(());
    }
    let answer = wait(&args.run, end, &name, log_wait).map_err(CommandFailure::from_error)?;
    let step = answer.step.unwrap_or_default();
    match answer.text("refused") {
        "" => {
            say!("{} after step {step}", done(args.action));
            Ok(())
        }
        reason => Err(CommandFailure::failed(anyhow!("step {step}: {reason}"))),
    }
}

/// Describes what a run does after it accepted a request.
fn done(action: RunAction) -> &'static str {
    match action {
        RunAction::Pause => "paused",
        RunAction::Continue => "goes on",
        RunAction::Save => "saves a checkpoint",
        RunAction::Evaluate => "evaluates",
        RunAction::Stop => "stops, with a checkpoint,",
    }
}

/// Sends a request to a running run, without waiting for the answer. Returns the request's name.
pub(super) fn request(run: &Path, action: RunAction, by: &str) -> anyhow::Result<String> {
    match is_running(run) {
        Some(true) => {}
        None if RunFiles(run).lock().is_file() => {}
        Some(false) => return Err(anyhow!("{}: no rlhost process is running this run", run.display())),
        None => return Err(anyhow!("{} is not the folder of a run", run.display())),
    }
    let request = RunRequest { action, by: by.chars().take(LONGEST_NAME).collect() };
    Ok(send_request(run, &request).map_err(|source| train::Error::Write { path: RunFiles(run).requests(), source })?)
}

/// Maximum length of a user's name, in characters.
const LONGEST_NAME: usize = 100;
