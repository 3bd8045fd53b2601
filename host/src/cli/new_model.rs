//! `rlhost new-model`: creates a model folder with random weights, for training from scratch.

use super::Failure;
use crate::config::files;
use crate::data::{Tokenizer, train_tokenizer};
use crate::model::{Architecture, copy_companions, write_random};
use anyhow::{anyhow, ensure};
use serde_json::Value;
use std::path::PathBuf;

/// Most bytes of a model's config.json.
pub(super) const LARGEST_CONFIG: u64 = 4 << 20;

/// Arguments of `new-model`.
#[derive(clap::Args)]
pub(super) struct Args {
    /// Folder to create
    folder: PathBuf,
    /// config.json of a model of a family that `rlhost models` lists, for the sizes
    #[arg(long)]
    config: PathBuf,
    /// Folder to copy the tokenizer from
    #[arg(long, conflicts_with = "corpus")]
    tokenizer: Option<PathBuf>,
    /// Dataset to train a byte-level BPE tokenizer on; may be repeated
    #[arg(long, required_unless_present = "tokenizer")]
    corpus: Vec<PathBuf>,
    /// Vocabulary size of the trained tokenizer
    #[arg(long, alias = "vocab_size", default_value_t = 4096)]
    vocab_size: usize,
    /// Random seed for the weights
    #[arg(long, default_value_t = 42)]
    seed: u64,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let parameters = make(args).map_err(Failure::mistake)?;
    say!("{}: {:.2} million random parameters", args.folder.display(), parameters as f64 / 1e6);
    Ok(())
}

fn make(args: &Args) -> anyhow::Result<usize> {
    let folder = &args.folder;
    ensure!(!folder.exists(), "{} already exists; choose another folder or remove it", folder.display());
    let text =
        files::read_text(&args.config, LARGEST_CONFIG).map_err(|e| anyhow!("can't read {}: {e}", args.config.display()))?;
    let mut config: Value = serde_json::from_str(&text).map_err(|e| anyhow!("{}: {e}", args.config.display()))?;
    ensure!(config.is_object(), "{}: expected a JSON object with a model's sizes", args.config.display());
    if args.tokenizer.is_none() {
        config["vocab_size"] = args.vocab_size.into();
    }
    Architecture::parse(&config.to_string()).map_err(|e| anyhow!("{}: {e}", args.config.display()))?;
    match &args.tokenizer {
        Some(from) => {
            let (tokens, rows) = (Tokenizer::open(from)?.vocab_size(), config["vocab_size"].as_u64().unwrap_or_default());
            ensure!(
                tokens as u64 <= rows,
                "the tokenizer has {tokens} tokens, more than the vocab_size {rows} of the configuration"
            );
            super::make_folder(folder, || {
                copy_companions(from, folder)?;
                Ok(write_random(&config, folder, args.seed)?)
            })
        }
        None => {
            let tokenizer = train_tokenizer(&args.corpus, args.vocab_size)?;
            config["vocab_size"] = tokenizer.vocab_size().into();
            config["eos_token_id"] = tokenizer.eos_id().into();
            super::make_folder(folder, || {
                tokenizer.write(folder)?;
                Ok(write_random(&config, folder, args.seed)?)
            })
        }
    }
}
