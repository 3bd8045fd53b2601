//! `rlhost export`: copies a model folder with its weights in another precision, or writes the model as a GGUF file.

use super::failure::CommandFailure;
use super::unfinished_output::{UnfinishedOutput, make_folder, nothing_written};
use crate::data::Tokenizer;
use crate::gguf::{self, GgufPrecision};
use crate::model::{self, ModelFolder, WeightDtype};
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
    format: ExportFormat,
    /// Precision of the weights: f32, bf16 or f16, and q8_0 for GGUF
    #[arg(long, default_value = "bf16", value_parser = precision)]
    dtype: GgufPrecision,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum ExportFormat {
    Safetensors,
    Gguf,
}

fn precision(name: &str) -> Result<GgufPrecision, String> {
    serde_json::from_value(name.into()).map_err(|_| "expected f32, bf16, f16 or, with --format gguf, q8_0".to_owned())
}

pub(super) fn run(args: &Args) -> Result<(), CommandFailure> {
    super::threads::start_threads().map_err(CommandFailure::from_error)?;
    let folder = check(args).map_err(CommandFailure::from_error)?;
    match args.format {
        ExportFormat::Safetensors => {
            let dtype = dtype(args.dtype).map_err(CommandFailure::from_error)?;
            make_folder(&args.to, |to| Ok(model::export(&folder, to, dtype)?)).map_err(CommandFailure::from_error)?;
        }
        ExportFormat::Gguf => {
            for note in write_gguf(&folder, args).map_err(CommandFailure::from_error)? {
                tracing::warn!("{note}");
            }
        }
    }
    say!("{}", args.to.display());
    Ok(())
}

fn check(args: &Args) -> anyhow::Result<ModelFolder> {
    let kind = if args.format == ExportFormat::Gguf { "file" } else { "folder" };
    ensure!(!args.to.exists(), "{} already exists; choose another {kind} or remove it", args.to.display());
    padded(ModelFolder::open(train::model_in(&args.from)?)?)
}

/// Returns the folder of a model. If it is a reward model's adapter, copies of it name the padding token of its training: the adapter's
/// value is read at the last token that is not padding.
pub(super) fn padded(folder: ModelFolder) -> anyhow::Result<ModelFolder> {
    let of_adapter = folder.lora().is_some() && folder.value_head()?.is_some();
    let pad = if of_adapter { Tokenizer::open(folder.tokenizer())?.pad_id() } else { None };
    Ok(folder.with_pad_token(pad))
}

fn dtype(precision: GgufPrecision) -> anyhow::Result<WeightDtype> {
    match precision {
        GgufPrecision::F32 => Ok(WeightDtype::F32),
        GgufPrecision::F16 => Ok(WeightDtype::F16),
        GgufPrecision::Bf16 => Ok(WeightDtype::Bf16),
        GgufPrecision::Q8 => {
            Err(anyhow!("--dtype q8_0 is a precision of GGUF files; add --format gguf, or choose f32, bf16 or f16"))
        }
    }
}

/// Writes the file under a temporary name and renames it once it is complete. A failure leaves nothing behind.
fn write_gguf(folder: &ModelFolder, args: &Args) -> anyhow::Result<Vec<String>> {
    let to = &args.to;
    let unwritten = |source| train::Error::Write { path: to.clone(), source };
    let parent = to.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    std::fs::create_dir_all(parent).map_err(unwritten)?;
    #[cfg_attr(not(unix), allow(unused_mut))]
    let mut builder = tempfile::Builder::new();
    // Unlike most temporary files, the file is meant to be shared.
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    let file = builder.prefix(".export-").suffix(".tmp").tempfile_in(parent).map_err(unwritten)?;
    let unfinished = UnfinishedOutput::new(file.path(), nothing_written(to)).map_err(unwritten)?;
    let warnings = gguf::export(folder, args.dtype, &mut BufWriter::with_capacity(1 << 20, file.as_file()))?;
    file.as_file().sync_all().map_err(unwritten)?;
    file.persist_noclobber(to).map_err(|e| unwritten(e.error))?;
    drop(unfinished);
    Ok(warnings)
}
