//! Writing a model folder that transformers opens as it is.

use super::load::CRITIC;
use super::weights::{VALUE_BIAS, VALUE_WEIGHT};
use super::{Error, ModelFolder, Result, Weights};
use candle_core::Tensor;
use std::collections::HashMap;
use std::path::Path;

/// Files beside the weights that make the folder whole; copied where the source has them.
const COMPANIONS: [&str; 9] = [
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "chat_template.jinja",
    "generation_config.json",
];

fn io(path: &Path) -> impl FnOnce(std::io::Error) -> Error + '_ {
    |source| Error::Io { path: path.to_owned(), source }
}

/// Writes `model.safetensors` in f32, the source's `config.json` with its dtype set to match,
/// and the tokenizer's files into the existing folder `to`.
pub fn save(weights: &Weights, source: &ModelFolder, to: &Path) -> Result<()> {
    write_weights(weights, &to.join("model.safetensors"))?;
    write_critic(weights, to)?;
    write_config(source, to)?;
    copy_companions(source.path(), to)
}

/// Copies the tokenizer's files, and what else stands beside a model's weights.
pub fn copy_companions(from: &Path, to: &Path) -> Result<()> {
    for name in COMPANIONS {
        let from = from.join(name);
        if from.exists() {
            let to = to.join(name);
            std::fs::copy(&from, &to).map_err(io(&to))?;
        }
    }
    Ok(())
}

fn of_critic(name: &str) -> bool {
    name == VALUE_WEIGHT || name == VALUE_BIAS
}

/// The critic's head goes into a file of its own, which no other program minds.
fn write_critic(weights: &Weights, to: &Path) -> Result<()> {
    let tensors: HashMap<String, Tensor> =
        weights.named().into_iter().filter(|(name, _)| of_critic(name)).map(|(n, t)| (n, t.clone())).collect();
    if tensors.is_empty() {
        return Ok(());
    }
    Ok(candle_core::safetensors::save(&tensors, to.join(CRITIC))?)
}

/// Writes one safetensors file, a critic's head left out.
pub fn write_weights(weights: &Weights, file: &Path) -> Result<()> {
    let named = weights.named().into_iter();
    let tensors: Vec<(String, Tensor)> = named.filter(|(name, _)| !of_critic(name)).map(|(n, t)| (n, t.clone())).collect();
    // transformers refuses a file that does not say whose tensors it holds.
    let metadata = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    safetensors::serialize_to_file(tensors, Some(metadata), file)
        .map_err(|e| Error::Weights { path: file.to_owned(), detail: format!("can't write: {e}") })
}

fn write_config(source: &ModelFolder, to: &Path) -> Result<()> {
    let path = source.path().join("config.json");
    let text = super::load::read_text(&path)?;
    let mut config: serde_json::Value =
        serde_json::from_str(&text).map_err(|e| Error::Config { path: path.clone(), detail: e.to_string() })?;
    for key in ["dtype", "torch_dtype"] {
        if let Some(value) = config.get_mut(key) {
            *value = "float32".into();
        }
    }
    let to = to.join("config.json");
    std::fs::write(&to, format!("{config:#}\n")).map_err(io(&to))
}
