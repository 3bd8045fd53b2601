//! `rlhost checkpoint`: lists, verifies and consolidates a run's checkpoints.

use super::failure::CommandFailure;
use super::{consolidate, output};
use crate::checkpoint::{self, Manifest};
use crate::config::{files, printable};
use crate::run::{CheckpointFiles, RunFiles, is_checkpoint};
use anyhow::anyhow;
use jiff::Timestamp;
use serde_json::Value;
use std::path::{Path, PathBuf};

/// Arguments of `checkpoint`.
#[derive(clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    action: CheckpointCommand,
}

#[derive(clap::Subcommand)]
enum CheckpointCommand {
    /// List the checkpoints of a run
    List {
        /// Folder of the run
        run: PathBuf,
    },
    /// Verify every byte of a checkpoint, or of all checkpoints of a run
    Verify {
        /// Folder of the run or of one checkpoint
        path: PathBuf,
    },
    /// Join what several processes have written of a checkpoint into single files, in its place
    ///
    /// Processes that share a model (zero_stage) write their parts into files of their own, with the index that transformers reads. This
    /// joins the parts, a piece at a time, so that no model must fit into memory; any number of processes resumes either form.
    Consolidate {
        /// Folder of a checkpoint, or of a run that is not running, which means all of its checkpoints
        path: PathBuf,
    },
}

pub(super) fn run(args: &Args) -> Result<(), CommandFailure> {
    match &args.action {
        CheckpointCommand::List { run } => list(run),
        CheckpointCommand::Verify { path } => verify(path),
        CheckpointCommand::Consolidate { path } => consolidate::run(&checkpoints(path)?),
    }
}

/// Maximum length of a printed note, in bytes.
const NOTE: usize = 512;

/// Maximum size of a trainer_state.json, in bytes.
const LARGEST_STATE: u64 = 4 << 20;

/// Returns the steps and folders of a run's checkpoints, oldest first.
fn folders(run: &Path) -> Result<Vec<(u64, PathBuf)>, CommandFailure> {
    let steps = RunFiles(run).steps().map_err(|e| CommandFailure::mistake(anyhow!("{}: {e}", run.display())))?;
    if steps.is_empty() {
        return Err(CommandFailure::mistake(anyhow!("{}: no checkpoint found", run.display())));
    }
    Ok(steps.into_iter().map(|step| (step, RunFiles(run).checkpoint(step))).collect())
}

/// Returns the folder of one checkpoint, or the folders of all checkpoints of a run.
fn checkpoints(path: &Path) -> Result<Vec<PathBuf>, CommandFailure> {
    Ok(match is_checkpoint(path) {
        true => vec![path.to_owned()],
        false => folders(path)?.into_iter().map(|(_, folder)| folder).collect(),
    })
}

fn list(run: &Path) -> Result<(), CommandFailure> {
    say!("{:>10}  {:>10}  {:<20}  notes", "step", "size", "written");
    for (step, folder) in folders(run)? {
        let manifest = Manifest::read(&folder).and_then(|manifest| {
            manifest.check_sizes(&folder)?;
            manifest.check_complete(&folder)?;
            Ok(manifest)
        });
        let manifest = match manifest {
            Ok(manifest) => manifest,
            Err(error) => {
                output::row(&format!("{step:>10}  {:>10}  {:<20}  {error}", "-", "-"), 46);
                continue;
            }
        };
        let written = folder.metadata().and_then(|m| m.modified()).ok().and_then(|t| Timestamp::try_from(t).ok());
        let written = written.map_or_else(|| "-".to_owned(), |t| t.strftime("%Y-%m-%d %H:%M:%SZ").to_string());
        let cells = format!("{:>10}  {:>10}  {written:<20}  {}", manifest.step, size(manifest.bytes()), notes(&folder));
        output::row(&cells, 46);
    }
    Ok(())
}

/// Summarises a checkpoint's trainer_state.json.
fn notes(folder: &Path) -> String {
    let text = files::read(&CheckpointFiles::find(folder).summary(), LARGEST_STATE).unwrap_or_default();
    let state: Value = serde_json::from_slice(&text).unwrap_or_default();
    let mut notes = Vec::new();
    if let Some(epoch) = state["epoch"].as_f64() {
        notes.push(format!("epoch {epoch:.2}"));
    }
    if let (Some(step), Some(value)) = (state["best_global_step"].as_u64(), state["best_metric"].as_f64()) {
        notes.push(format!("best so far: step {step} ({value:.4})"));
    }
    if let Some(parent) = state["parents"].as_array().and_then(|p| p.last()) {
        notes.push(format!("forked from {}", printable(parent["checkpoint"].as_str().unwrap_or_default(), NOTE)));
    }
    if !CheckpointFiles::find(folder).has_optimizer() {
        notes.push("model only".to_owned());
    }
    notes.join(", ")
}

fn size(bytes: u64) -> String {
    indicatif::HumanBytes(bytes).to_string()
}

fn verify(path: &Path) -> Result<(), CommandFailure> {
    let all = checkpoints(path)?;
    let mut damaged = 0;
    for folder in &all {
        match checkpoint::verify(folder) {
            Ok(manifest) => say!("{}: intact, {} files, {}", folder.display(), manifest.files.len(), size(manifest.bytes())),
            Err(error) => {
                damaged += 1;
                say!("{error}");
            }
        }
    }
    if damaged > 0 {
        return Err(CommandFailure::failed(anyhow!("{damaged} of {} checkpoints can't be used", all.len())));
    }
    Ok(())
}
