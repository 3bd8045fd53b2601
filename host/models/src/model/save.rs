//! Writes model folders that transformers can open, and adapter folders that `peft` can open.

use super::companions::CompanionFiles;
use super::dtype::WeightDtype;
use super::value_model::{classifies, save_value_model, value_model_tensors};
use super::write::{torch_metadata, unwritten, write_tensors, write_weights};
use super::write_config::write_config;
use super::{Error, ModelFolder, Result, ValueHeadInit, Weights, peft};
use crate::ops;
use candle_core::Tensor;
use std::path::Path;

/// Writes `model.safetensors` in f32, the source's `config.json` with a matching dtype, and the tokenizer's files into the existing folder
/// `to`. For a model with an adapter, writes the adapter instead of the first two. A value model is saved for sequence classification. A
/// critic's head is omitted.
pub fn save(weights: &Weights, source: &ModelFolder, to: &Path) -> Result<()> {
    let companions = source.companions()?;
    match weights.lora {
        _ if weights.is_value_model() => {
            save_value_model(weights, source, &companions, to)?;
            return write_companions(&companions, source, to);
        }
        Some(lora) => peft::write(weights, lora, source.base(), None, to)?,
        None => {
            write_weights(weights, &to.join("model.safetensors"))?;
            write_config(source, &companions, to, WeightDtype::F32, |config| untie(config, weights, source))?;
        }
    }
    write_companions(&companions, source, to)
}

/// Writes the files that [`save`] writes for a model without an adapter, except the weights. Only the weights' shapes are read.
///
/// # Errors
/// If a file can't be read or written.
pub fn describe(weights: &Weights, source: &ModelFolder, to: &Path) -> Result<()> {
    let companions = source.companions()?;
    write_config(source, &companions, to, WeightDtype::F32, |config| match weights.is_value_model() {
        true => classifies(config, source.pads_with()),
        false => untie(config, weights, source),
    })?;
    write_companions(&companions, source, to)
}

/// Writes the companion files of a model's weights and their replacements.
fn write_companions(companions: &CompanionFiles, source: &ModelFolder, to: &Path) -> Result<()> {
    companions.write(to, source.replaced())?;
    for (name, text) in source.replaced() {
        std::fs::write(to.join(name), text).map_err(unwritten(&to.join(name)))?;
    }
    Ok(())
}

/// Writes a model or a reward model into the existing folder `to`, with its weights rounded to a precision and an adapter merged in.
///
/// # Errors
/// If a weight does not fit the precision, or a file can't be read or written.
pub fn export(source: &ModelFolder, to: &Path, dtype: WeightDtype) -> Result<()> {
    let weights = merged(source)?;
    // As in transformers: a rounded correction would choose other experts.
    let correction = weights.names.experts.and_then(|names| names.correction);
    let rounded = |(name, tensor): (String, Tensor)| {
        if correction.is_some_and(|correction| name.ends_with(correction)) {
            return Ok((name, tensor));
        }
        let rounded = tensor.to_dtype(dtype.candle())?;
        if !ops::all_finite(&rounded)? {
            return Err(Error::OutOfRange { path: source.path().to_owned(), tensor: name, dtype: dtype.name() });
        }
        Ok((name, rounded))
    };
    let values = weights.is_value_model();
    let tensors = if values { value_model_tensors(&weights)? } else { weights.in_files()? };
    let tensors: Vec<(String, Tensor)> = tensors.into_iter().map(rounded).collect::<Result<_>>()?;
    write_tensors(tensors, torch_metadata(), &to.join("model.safetensors"))?;
    let companions = source.companions()?;
    write_config(source, &companions, to, dtype, |config| match values {
        true => classifies(config, source.pads_with()),
        false => untie(config, &weights, source),
    })?;
    write_companions(&companions, source, to)
}

/// Returns the weights of a model or a reward model with its adapter merged in.
fn merged(source: &ModelFolder) -> Result<Weights> {
    let decoder = match source.value_head()? {
        Some(_) => source.value_model_over(source.trunk()?, ValueHeadInit::Zero)?,
        None => source.decoder()?,
    };
    let merged = decoder.weights().merged()?;
    if source.lora().is_none() {
        return Ok(merged);
    }
    // An adapter's values may be finite where those of their product are not.
    for (name, tensor) in merged.in_files()? {
        if !ops::all_finite(&tensor)? {
            return Err(Error::OutOfRange {
                path: source.path().to_owned(),
                tensor: name,
                dtype: WeightDtype::from_candle(tensor.dtype()).name(),
            });
        }
    }
    Ok(merged)
}

/// Merges an adapter into its base model and writes the result into the existing folder `to`.
pub fn merge(adapter: &ModelFolder, to: &Path) -> Result<()> {
    save(&merged(adapter)?, adapter, to)
}

/// Marks the output matrix as untied in a configuration, if an adapter trained it or the embedding separately.
fn untie(config: &mut serde_json::Value, weights: &Weights, source: &ModelFolder) {
    if source.architecture().tied && weights.head.is_some() {
        config["tie_word_embeddings"] = false.into();
    }
}
