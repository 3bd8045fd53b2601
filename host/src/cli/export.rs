//! `rlhost export`: copies a model folder with its weights in another precision.

use super::Failure;
use crate::model::{self, Dtype, ModelFolder};
use anyhow::ensure;
use std::path::PathBuf;

/// Arguments of `export`.
#[derive(clap::Args)]
pub(super) struct Args {
    /// Folder of a model or checkpoint
    from: PathBuf,
    /// Folder to create
    to: PathBuf,
    /// Precision of the weights: f32, bf16 or f16
    #[arg(long, default_value = "bf16", value_parser = dtype)]
    dtype: Dtype,
}

fn dtype(name: &str) -> Result<Dtype, String> {
    serde_json::from_value(name.into()).map_err(|_| "expected f32, bf16 or f16".to_owned())
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let folder = check(args).map_err(Failure::of)?;
    let exported = super::make_folder(&args.to, || Ok(model::export(&folder, &args.to, args.dtype)?));
    exported.map_err(Failure::of)?;
    say!("{}", args.to.display());
    Ok(())
}

fn check(args: &Args) -> anyhow::Result<ModelFolder> {
    ensure!(!args.to.exists(), "{} already exists; choose another folder or remove it", args.to.display());
    Ok(ModelFolder::open(&args.from)?)
}
