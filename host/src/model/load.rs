//! Reading a Hugging Face model folder.

use super::weights::{Linear, VALUE_BIAS, VALUE_WEIGHT};
use super::{Architecture, Decoder, Error, Lora, Result, Weights, peft};

use candle_core::{DType, Device, Tensor};
use serde::Deserialize;
use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};

/// A folder with config.json, tokenizer.json and safetensors weights, or with an adapter for such a
/// model.
#[derive(Clone, Debug)]
pub struct ModelFolder {
    path: PathBuf,
    /// Where config.json and the weights lie.
    base: PathBuf,
    architecture: Architecture,
    lora: Option<Lora>,
}

#[derive(Deserialize)]
struct Index {
    weight_map: HashMap<String, String>,
}

/// File of a critic's head.
pub(super) const CRITIC: &str = "critic.safetensors";

pub(super) fn read_text(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).map_err(|source| match source.kind() {
        std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory => Error::Missing { path: path.to_owned() },
        _ => Error::Io { path: path.to_owned(), source },
    })
}

impl ModelFolder {
    /// Reads the configuration; weights are read by [`ModelFolder::decoder`].
    pub fn open(path: impl Into<PathBuf>) -> Result<Self> {
        let path = path.into();
        if !peft::is_adapter(&path) {
            let architecture = Architecture::read(&path)?;
            return Ok(Self { base: path.clone(), path, architecture, lora: None });
        }
        let (lora, base) = peft::read_config(&path)?;
        let architecture = Architecture::read(&base).map_err(|e| Error::Config {
            path: path.clone(),
            detail: format!("the adapter's base_model_name_or_path must be the folder of a model: {e}"),
        })?;
        Ok(Self { path, base, architecture, lora: Some(lora) })
    }

    /// This folder's model with the adapter that lies in another, whatever model that names.
    pub fn with_adapter_in(&self, path: &Path) -> Result<Self> {
        let (lora, _) = peft::read_config(path)?;
        Ok(Self { path: path.to_owned(), lora: Some(lora), ..self.clone() })
    }

    /// Where it lies.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where the model lies that an adapter is for; the same as [`ModelFolder::path`] without one.
    pub fn base(&self) -> &Path {
        &self.base
    }

    /// Where the tokenizer lies: an adapter's folder may leave it to the model's.
    pub fn tokenizer(&self) -> &Path {
        if self.path.join("tokenizer.json").exists() { &self.path } else { &self.base }
    }

    /// Settings of the adapter, where it holds one.
    pub fn lora(&self) -> Option<Lora> {
        self.lora
    }

    /// Its sizes.
    pub fn architecture(&self) -> &Architecture {
        &self.architecture
    }

    /// Reads all weights, from f32, f16 or bf16, as f32.
    pub fn decoder(&self) -> Result<Decoder> {
        self.decoder_over(self.decoder_of(self.read_tensors()?)?)
    }

    /// The adapter that lies here, if one does, on a model that is loaded already, whose storage is
    /// shared.
    pub fn decoder_over(&self, model: Decoder) -> Result<Decoder> {
        let Some(lora) = self.lora else { return Ok(model) };
        Ok(Decoder { weights: peft::read(&self.path, lora, model.weights)?, ..model })
    }

    /// A model of the same sizes whose weights lie in another file.
    pub fn decoder_in(&self, file: &Path) -> Result<Decoder> {
        self.decoder_of(read_shard(file)?)
    }

    fn decoder_of(&self, mut tensors: HashMap<String, Tensor>) -> Result<Decoder> {
        let weights = Weights::build(&self.architecture, |name, shape| {
            let fail = |detail: String| Error::Weights { path: self.base.clone(), detail };
            let t =
                tensors.remove(name).ok_or_else(|| fail(format!("the weights hold no {name}, which config.json asks for")))?;
            if t.dims() != shape {
                return Err(fail(format!("{name} has shape {:?}; by config.json it should have {shape:?}", t.dims())));
            }
            if !matches!(t.dtype(), DType::F32 | DType::F16 | DType::BF16) {
                return Err(fail(format!("{name} has type {:?}; f32, f16 and bf16 are supported", t.dtype())));
            }
            Ok(t.to_dtype(DType::F32)?)
        })?;
        Ok(Decoder::new(self.architecture.clone(), weights))
    }

    /// A decoder with a critic's head: the folder's own, or one that values everything at zero.
    pub fn with_critic(&self, mut decoder: Decoder) -> Result<Decoder> {
        let hidden = self.architecture.hidden_size;
        decoder.weights = decoder.weights.with_value_head(hidden)?;
        let path = self.path.join(CRITIC);
        if path.exists() {
            let mut tensors = read_shard(&path)?;
            let mut take = |name: &str, shape: &[usize]| match tensors.remove(name) {
                Some(t) if t.dims() == shape => Ok(t.to_dtype(DType::F32)?),
                _ => Err(Error::Weights { path: path.clone(), detail: format!("there is no {name} of shape {shape:?}") }),
            };
            let (weight, bias) = (take(VALUE_WEIGHT, &[1, hidden])?, take(VALUE_BIAS, &[1])?);
            decoder.weights.value_head = Some(Linear { weight, bias: Some(bias), adapter: None });
        }
        Ok(decoder)
    }

    fn read_tensors(&self) -> Result<HashMap<String, Tensor>> {
        let (index, single) = (self.base.join("model.safetensors.index.json"), self.base.join("model.safetensors"));
        if !index.exists() {
            return read_shard(&single);
        }
        let parsed: Index = serde_json::from_str(&read_text(&index)?)
            .map_err(|e| Error::Weights { path: index.clone(), detail: format!("not an index of shards: {e}") })?;
        let shards: BTreeSet<&String> = parsed.weight_map.values().collect();
        let mut all = HashMap::new();
        for shard in shards {
            all.extend(read_shard(&self.base.join(shard))?);
        }
        Ok(all)
    }
}

pub(super) fn read_shard(path: &Path) -> Result<HashMap<String, Tensor>> {
    if !path.exists() {
        return Err(Error::Missing { path: path.to_owned() });
    }
    candle_core::safetensors::load(path, &Device::Cpu)
        .map_err(|e| Error::Weights { path: path.to_owned(), detail: format!("not a readable safetensors file: {e}") })
}
