//! Reading a Hugging Face model folder.

use super::{Architecture, Decoder, Error, Result, Weights};
use candle_core::{DType, Device, Tensor};
use serde::Deserialize;
use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};

/// A folder with config.json, tokenizer.json and safetensors weights.
#[derive(Clone, Debug)]
pub struct ModelFolder {
    path: PathBuf,
    architecture: Architecture,
}

#[derive(Deserialize)]
struct Index {
    weight_map: HashMap<String, String>,
}

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
        let architecture = Architecture::read(&path)?;
        Ok(Self { path, architecture })
    }

    /// Where it lies.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its sizes.
    pub fn architecture(&self) -> &Architecture {
        &self.architecture
    }

    /// Reads all weights, from f32, f16 or bf16, as f32.
    pub fn decoder(&self) -> Result<Decoder> {
        let mut tensors = self.read_tensors()?;
        let weights = Weights::build(&self.architecture, |name, shape| {
            let fail = |detail: String| Error::Weights { path: self.path.clone(), detail };
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

    fn read_tensors(&self) -> Result<HashMap<String, Tensor>> {
        let (index, single) = (self.path.join("model.safetensors.index.json"), self.path.join("model.safetensors"));
        if !index.exists() {
            return read_shard(&single);
        }
        let parsed: Index = serde_json::from_str(&read_text(&index)?)
            .map_err(|e| Error::Weights { path: index.clone(), detail: format!("not an index of shards: {e}") })?;
        let shards: BTreeSet<&String> = parsed.weight_map.values().collect();
        let mut all = HashMap::new();
        for shard in shards {
            all.extend(read_shard(&self.path.join(shard))?);
        }
        Ok(all)
    }
}

fn read_shard(path: &Path) -> Result<HashMap<String, Tensor>> {
    if !path.exists() {
        return Err(Error::Missing { path: path.to_owned() });
    }
    candle_core::safetensors::load(path, &Device::Cpu)
        .map_err(|e| Error::Weights { path: path.to_owned(), detail: format!("not a readable safetensors file: {e}") })
}
