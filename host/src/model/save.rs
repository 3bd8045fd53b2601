//! Writes model folders that transformers can open, and adapter folders that `peft` can open.

use super::companions::Companions;
use super::value_model::{classifies, of_value_model, save_value_model};
use super::weights::of_critic;
use super::{Error, ModelFolder, NewHead, Result, Weights, peft};
use crate::config::json;
use crate::ops;
use candle_core::{DType, Tensor};
use safetensors::SafeTensorError;
use serde::Deserialize;
use std::collections::HashMap;
use std::fs::File;
use std::path::Path;

fn unwritten(path: &Path) -> impl FnOnce(std::io::Error) -> Error + '_ {
    |source| Error::Write { path: path.to_owned(), source }
}

/// Writes `model.safetensors` in f32, the source's `config.json` with a matching dtype, and the tokenizer's files into the
/// existing folder `to`. For a model with an adapter, writes the adapter instead of the first two. A value model becomes one for
/// sequence classification. A critic's head is left out.
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
            write_config(source, &companions, to, Dtype::F32, |config| untie(config, weights, source))?;
        }
    }
    write_companions(&companions, source, to)
}

/// Writes the files beside a model's weights, and those that replace any.
fn write_companions(companions: &Companions, source: &ModelFolder, to: &Path) -> Result<()> {
    companions.write(to, source.replaced())?;
    for (name, text) in source.replaced() {
        std::fs::write(to.join(name), text).map_err(unwritten(&to.join(name)))?;
    }
    Ok(())
}

/// A precision of stored weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Dtype {
    /// 32 bits.
    F32,
    /// 16 bits with the range of 32.
    Bf16,
    /// 16 bits.
    F16,
}

impl Dtype {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::F32 => "float32",
            Self::Bf16 => "bfloat16",
            Self::F16 => "float16",
        }
    }

    pub(super) fn candle(self) -> DType {
        match self {
            Self::F32 => DType::F32,
            Self::Bf16 => DType::BF16,
            Self::F16 => DType::F16,
        }
    }

    /// Returns the precision of a weight's values.
    pub(super) fn of(dtype: DType) -> Self {
        match dtype {
            DType::BF16 => Self::Bf16,
            DType::F16 => Self::F16,
            _ => Self::F32,
        }
    }
}

/// Writes a model, or a reward model, into the existing folder `to` with its weights rounded to a precision; an adapter is merged in.
///
/// # Errors
/// If a weight does not fit that precision, or something can't be read or written.
pub fn export(source: &ModelFolder, to: &Path, dtype: Dtype) -> Result<()> {
    let weights = merged(source)?;
    let rounded = |(name, tensor): (String, Tensor)| {
        let rounded = tensor.to_dtype(dtype.candle())?;
        if !ops::all_finite(&rounded)? {
            return Err(Error::OutOfRange { path: source.path().to_owned(), tensor: name, dtype: dtype.name() });
        }
        Ok((name, rounded))
    };
    let values = weights.is_value_model();
    let tensors = if values { of_value_model(&weights)? } else { weights.in_files()? };
    let tensors: Vec<(String, Tensor)> = tensors.into_iter().map(rounded).collect::<Result<_>>()?;
    write_tensors(tensors, of_torch(), &to.join("model.safetensors"))?;
    let companions = source.companions()?;
    write_config(source, &companions, to, dtype, |config| match values {
        true => classifies(config, source.pads_with()),
        false => untie(config, &weights, source),
    })?;
    write_companions(&companions, source, to)
}

/// Returns the weights of a model, or of a reward model, with an adapter merged in.
fn merged(source: &ModelFolder) -> Result<Weights> {
    let decoder = match source.value_head()? {
        Some(_) => source.value_model_over(source.trunk()?, NewHead::Zero)?,
        None => source.decoder()?,
    };
    let merged = decoder.weights().merged()?;
    if source.lora().is_none() {
        return Ok(merged);
    }
    // Values of an adapter may be finite where those of their product are not.
    for (name, tensor) in merged.in_files()? {
        if !ops::all_finite(&tensor)? {
            return Err(Error::OutOfRange {
                path: source.path().to_owned(),
                tensor: name,
                dtype: Dtype::of(tensor.dtype()).name(),
            });
        }
    }
    Ok(merged)
}

/// Writes the model of an adapter's folder, with the adapter merged in, into the existing folder `to`.
pub fn merge(adapter: &ModelFolder, to: &Path) -> Result<()> {
    save(&merged(adapter)?, adapter, to)
}

/// Writes a critic's head, if the model has one, into a file of its own.
///
/// # Errors
/// If it can't be written.
pub fn write_critic(weights: &Weights, file: &Path) -> Result<()> {
    let tensors: Vec<(String, Tensor)> =
        weights.named().into_iter().filter(|(name, _)| of_critic(name)).map(|(n, t)| (n, t.clone())).collect();
    if tensors.is_empty() {
        return Ok(());
    }
    write_tensors(tensors, None, file)
}

/// Writes one safetensors file, without a critic's head or an adapter.
pub fn write_weights(weights: &Weights, file: &Path) -> Result<()> {
    let tensors = weights.in_files()?.into_iter().filter(|(name, _)| !of_critic(name)).collect();
    // transformers refuses a file that does not say whose tensors it holds.
    write_tensors(tensors, of_torch(), file)
}

/// Returns the metadata that transformers and peft expect in a file of tensors.
pub(super) fn of_torch() -> Option<HashMap<String, String>> {
    Some(HashMap::from([("format".to_owned(), "pt".to_owned())]))
}

/// Writes a safetensors file with the permissions of any new file.
///
/// # Errors
/// If it can't be written.
pub fn write_tensors(tensors: Vec<(String, Tensor)>, metadata: Option<HashMap<String, String>>, file: &Path) -> Result<()> {
    let on_host = |(name, t): (String, Tensor)| Ok((name, if t.device().is_cpu() { t } else { ops::on_host(&t)? }));
    let tensors: Vec<(String, Tensor)> = tensors.into_iter().map(on_host).collect::<Result<_>>()?;
    // The library's own file is for its owner alone.
    let rights = File::create(file).and_then(|file| file.metadata()).map_err(unwritten(file))?.permissions();
    safetensors::serialize_to_file(tensors, metadata, file).map_err(|e| match e {
        SafeTensorError::IoError(source) => Error::Write { path: file.to_owned(), source },
        other => Error::Weights { path: file.to_owned(), detail: format!("can't write: {other}") },
    })?;
    // Some filesystems refuse any change of permissions; the file is written all the same.
    drop(std::fs::set_permissions(file, rights));
    Ok(())
}

/// Says in a configuration that the output matrix is not the embedding, if an adapter's modules have parted them.
fn untie(config: &mut serde_json::Value, weights: &Weights, source: &ModelFolder) {
    if source.architecture().tied && weights.head.is_some() {
        config["tie_word_embeddings"] = false.into();
    }
}

/// Writes the source's `config.json` with another dtype and what `edit` changes.
pub(super) fn write_config(
    source: &ModelFolder,
    companions: &Companions,
    to: &Path,
    dtype: Dtype,
    edit: impl FnOnce(&mut serde_json::Value),
) -> Result<()> {
    let fail = |detail: String| Error::Config { path: source.base().join("config.json"), detail };
    let mut config = json::value(&companions.config).map_err(|e| fail(e.to_string()))?;
    if let (true, Some(whole)) = (source.architecture().text_part, config.as_object()) {
        let text = super::text_part::config(whole.iter().map(|(key, value)| (key.as_str(), value)));
        config = text.map_err(fail)?.into();
    }
    for key in ["dtype", "torch_dtype"] {
        if let Some(value) = config.get_mut(key) {
            *value = dtype.name().into();
        }
    }
    edit(&mut config);
    let to = to.join("config.json");
    std::fs::write(&to, format!("{config:#}\n")).map_err(unwritten(&to))
}
