//! `rlhost merge`: merges an adapter into its base model.

use super::Failure;
use super::export::padded;
use crate::model::{self, ModelFolder};
use crate::train;
use anyhow::ensure;
use std::path::PathBuf;

/// Arguments of `merge`.
#[derive(clap::Args)]
pub(super) struct Args {
    /// Folder of the adapter: a checkpoint of a LoRA run, the run, which means its newest checkpoint, or an adapter saved by peft
    adapter: PathBuf,
    /// Folder to create
    to: PathBuf,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let to = &args.to;
    let prepare = || {
        ensure!(!to.exists(), "{} already exists; choose another folder or remove it", to.display());
        let folder = ModelFolder::open(train::model_in(&args.adapter)?)?;
        ensure!(folder.lora().is_some(), "{}: not an adapter; there is nothing to merge", args.adapter.display());
        padded(folder)
    };
    let folder = prepare().map_err(Failure::of)?;
    super::make_folder(to, || Ok(model::merge(&folder, to)?)).map_err(Failure::of)?;
    say!("{}: {} with its adapter merged in", to.display(), folder.base().display());
    Ok(())
}
