//! `rlhost merge`: merges an adapter into its base model.

use super::export::padded;
use super::failure::CommandFailure;
use super::unfinished_output::make_folder;
use crate::config::files;
use crate::model::{self, ModelFolder};
use crate::run::CheckpointFiles;
use crate::train;
use anyhow::ensure;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Arguments of `merge`.
#[derive(clap::Args)]
pub(super) struct Args {
    /// Folder of the adapter: a checkpoint of a LoRA run, the run, which means its newest checkpoint, or an adapter saved by peft
    adapter: PathBuf,
    /// Folder to create
    to: PathBuf,
}

pub(super) fn run(args: &Args) -> Result<(), CommandFailure> {
    super::threads::start_threads().map_err(CommandFailure::from_error)?;
    let to = &args.to;
    let prepare = || {
        ensure!(!to.exists(), "{} already exists; choose another folder or remove it", to.display());
        let folder = ModelFolder::open(train::model_in(&args.adapter)?)?;
        ensure!(folder.lora().is_some(), "{}: not an adapter; there is nothing to merge", args.adapter.display());
        padded(folder)
    };
    let folder = prepare().map_err(CommandFailure::from_error)?;
    make_folder(to, |to| {
        model::merge(&folder, to)?;
        copy_critic(folder.path(), to)
    })
    .map_err(CommandFailure::from_error)?;
    say!("{}: {} with its adapter merged in", to.display(), folder.base().display());
    Ok(())
}

/// Copies the critic's head of a checkpoint with an adapter, if it has one, for a run that starts from the merged model.
fn copy_critic(from: &Path, to: &Path) -> anyhow::Result<()> {
    let (from, to) = (CheckpointFiles::find(from).critic(), CheckpointFiles::new(to));
    match files::open(&from) {
        Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => return Ok(()),
        opened => drop(opened.map_err(|source| model::Error::Io { path: from.clone(), source })?),
    }
    let copied = fs::create_dir(to.folder()).and_then(|()| fs::copy(&from, to.critic()));
    copied.map_err(|source| train::Error::Write { path: to.critic(), source })?;
    Ok(())
}
