//! `rlhost export`: copies a model folder with its weights in another precision, or writes the model as a GGUF file.

use super::failure::Failure;
use super::made::{Unfinished, make_folder, nothing_written};
use crate::data::Tokenizer;
use crate::gguf::{self, Precision};
use crate::model::{self, Dtype, ModelFolder};
use crate::train;
use anyhow::{anyhow, ensure};
use std::io::BufWriter;
use std::path::{Path, PathBuf};

/// Arguments of `export`.
#[derive(clap::Args)]
pub(super) struct Args {
    /// Folder of a model, a reward model, an adapter, a checkpoint or a run, which means its newest checkpoint
    from: PathBuf,
    /// Folder to create, or file to write with --format gguf
    to: PathBuf,
    /// Output format: a folder for transformers, or a GGUF file for llama.cpp; both contain the tokenizer and chat template
    #[arg(long, value_enum, default_value = "safetensors")]
    format: Format,
    /// Precision of the weights: f32, bf16 or f16, and q8_0 for GGUF
    #[arg(long, default_value = "bf16", value_parser = precision)]
    dtype: Precision,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    Safetensors,
    Gguf,
}

fn precision(name: &str) -> Result<Precision, String> {
    serde_json::from_value(name.into()).map_err(|_| "expected f32, bf16, f16 or, with --format gguf, q8_0".to_owned())
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    super::threads::start_threads().map_err(Failure::of)?;
    let folder = check(args).map_err(Failure::of)?;
    match args.format {
        Format::Safetensors => {
            let dtype = dtype(args.dtype).map_err(Failure::of)?;
            make_folder(&args.to, |to| Ok(model::export(&folder, to, dtype)?)).map_err(Failure::of)?;
        }
        Format::Gguf => {
            for note in write_gguf(&folder, args).map_err(Failure::of)? {
                tracing::warn!("{note}");
            }
        }
    }
    say!("{}", args.to.display());
    Ok(())
}

fn check(args: &Args) -> anyhow::Result<ModelFolder> {
    let kind = if args.format == Format::Gguf { "file" } else { "folder" };
    ensure!(!args.to.exists(), "{} already exists; choose another {kind} or remove it", args.to.display());
    padded(ModelFolder::open(train::model_in(&args.from)?)?)
}

/// Returns a folder whose copies, if it is a reward model's adapter, name the padding token that the adapter was trained with: its value
/// is that of the last other token.
pub(super) fn padded(folder: ModelFolder) -> anyhow::Result<ModelFolder> {
    let of_adapter = folder.lora().is_some() && folder.value_head()?.is_some();
    let pad = if of_adapter { Tokenizer::open(folder.tokenizer())?.pad_id() } else { None };
    Ok(folder.padding_with(pad))
}

fn dtype(precision: Precision) -> anyhow::Result<Dtype> {
    match precision {
        Precision::F32 => Ok(Dtype::F32),
        Precision::F16 => Ok(Dtype::F16),
        Precision::Bf16 => Ok(Dtype::Bf16),
        Precision::Q8 => Err(anyhow!("--dtype q8_0 is a precision of GGUF files; add --format gguf, or choose f32, bf16 or f16")),
    }
}

/// Writes the file under a temporary name and renames it once it is complete. Leaves nothing behind after a failure.
fn write_gguf(folder: &ModelFolder, args: &Args) -> anyhow::Result<Vec<String>> {
    let to = &args.to;
    let unwritten = |source| train::Error::Write { path: to.clone(), source };
    let parent = to.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    std::fs::create_dir_all(parent).map_err(unwritten)?;
    #[cfg_attr(not(unix), allow(unused_mut))]
    let mut builder = tempfile::Builder::new();
    // Unlike most temporary files, it is meant to be shared.
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    let file = builder.prefix(".export-").suffix(".tmp").tempfile_in(parent).map_err(unwritten)?;
    let unfinished = Unfinished::new(file.path(), nothing_written(to)).map_err(unwritten)?;
    let warnings = gguf::export(folder, args.dtype, &mut BufWriter::with_capacity(1 << 20, file.as_file()))?;
    file.as_file().sync_all().map_err(unwritten)?;
    file.persist_noclobber(to).map_err(|e| unwritten(e.error))?;
    drop(unfinished);
    Ok(warnings)
}
