//! `rlhost new-model`: creates a model folder with random weights, for training from scratch.

use super::failure::CommandFailure;
use super::unfinished_output::make_folder;
use crate::config::{files, json};
use crate::data::{Dataset, Tokenizer, train_tokenizer};
use crate::model::{Architecture, copy_companions, write_random};
use crate::train::local_dataset;
use anyhow::{anyhow, ensure};
use serde_json::Value;
use std::path::PathBuf;

/// Maximum size of a model's config.json, in bytes.
pub(super) const LARGEST_CONFIG: u64 = 4 << 20;

/// Arguments of `new-model`.
#[derive(clap::Args)]
pub(super) struct Args {
    /// Folder to create
    folder: PathBuf,
    /// config.json with the sizes, of a family that `rlhost models` lists
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

pub(super) fn run(args: &Args) -> Result<(), CommandFailure> {
    let parameters = make(args).map_err(CommandFailure::from_error)?;
    say!("{}: {:.2} million random parameters", args.folder.display(), parameters as f64 / 1e6);
    Ok(())
}

/// Reads the configuration of the model to create; for a multimodal model, that of its text part.
fn config(args: &Args) -> anyhow::Result<Value> {
    let within = |e: String| anyhow!("{}: {e}", args.config.display());
    let text =
        files::read_text(&args.config, LARGEST_CONFIG).map_err(|e| anyhow!("can't read {}: {e}", args.config.display()))?;
    let given = json::value(&text).map_err(|e| within(e.to_string()))?;
    ensure!(given.is_object(), "{}: expected a JSON object with a model's sizes", args.config.display());
    let mut config = Architecture::config(given).map_err(within)?;
    if args.tokenizer.is_none() {
        config["vocab_size"] = args.vocab_size.into();
    }
    Architecture::parse(&config.to_string()).map_err(within)?;
    Ok(config)
}

fn make(args: &Args) -> anyhow::Result<usize> {
    let folder = &args.folder;
    ensure!(!folder.exists(), "{} already exists; choose another folder or remove it", folder.display());
    let mut config = config(args)?;
    match &args.tokenizer {
        Some(from) => {
            let (tokens, rows) = (Tokenizer::open(from)?.vocab_size(), config["vocab_size"].as_u64().unwrap_or_default());
            ensure!(
                tokens as u64 <= rows,
                "the tokenizer has {tokens} tokens, more than the vocab_size {rows} of the configuration"
            );
            make_folder(folder, |folder| {
                copy_companions(from, folder)?;
                Ok(write_random(&config, folder, args.seed)?)
            })
        }
        None => {
            let corpus: Vec<Dataset> = args.corpus.iter().map(|path| local_dataset(path)).collect::<Result<_, _>>()?;
            let corpus: Vec<PathBuf> = corpus.into_iter().flat_map(|dataset| dataset.files).collect();
            // Training takes long, and a signal meanwhile is answered as one while the folder is written.
            make_folder(folder, |folder| {
                let tokenizer = train_tokenizer(&corpus, args.vocab_size)?;
                config["vocab_size"] = tokenizer.vocab_size().into();
                config["eos_token_id"] = tokenizer.eos_id().into();
                tokenizer.write(folder)?;
                Ok(write_random(&config, folder, args.seed)?)
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_model_of_a_text_part_has_the_trained_vocabulary() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let whole = json!({
            "model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"], "vision_config": { "hidden_size": 8 },
            "eos_token_id": [1, 106], "text_config": {
                "model_type": "gemma3_text", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
                "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "vocab_size": 512, "sliding_window": 16,
            },
        });
        std::fs::write(at("config.json"), whole.to_string()).unwrap();
        std::fs::write(at("rows.jsonl"), "{\"prompt\": \"a b\", \"completion\": \"c d\"}\n").unwrap();
        let mut args = Args {
            folder: at("trained"),
            config: at("config.json"),
            tokenizer: None,
            corpus: vec![at("rows.jsonl")],
            vocab_size: 300,
            seed: 1,
        };
        make(&args).unwrap();
        let read = |name: &str| Architecture::read(&at(name)).unwrap();
        let tokens = Tokenizer::open(&at("trained")).unwrap().vocab_size();
        let trained = read("trained");
        assert!(tokens < 512 && trained.vocab_size == tokens && trained.eos_token_ids.len() == 1, "{tokens}, {trained:?}");
        (args.folder, args.tokenizer) = (at("copied"), Some(at("trained")));
        make(&args).unwrap();
        assert_eq!(read("copied").vocab_size, 512);
    }
}
