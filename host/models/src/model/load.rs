//! Reads a Hugging Face model folder.

use super::companions::CompanionFiles;
use super::names::FileForm;
use super::shards::SafetensorsReader;
use super::weights::{Linear, VALUE_BIAS, VALUE_WEIGHT};
use super::{
    Architecture, Decoder, Error, Family, LoraSettings, Result, WeightDtype, WeightStorage, parameter_layouts, peft, text_part,
};
use crate::activity::{Activity, ProgressTask};
use crate::ops;
use candle_core::Tensor;
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A folder with config.json, tokenizer.json and safetensors weights, or with an adapter of such a model.
#[derive(Clone, Debug)]
pub struct ModelFolder {
    path: PathBuf,
    /// Folder of config.json and the weights.
    base: PathBuf,
    architecture: Architecture,
    lora: Option<LoraSettings>,
    /// Name and text of the files that replace the folder's own in copies of the model.
    replaced: Arc<[(&'static str, String)]>,
    /// Padding token with which value models are saved, if not the folder's.
    pad: Option<u32>,
    held: WeightStorage,
    /// Companion files of copies, if already read.
    companions: Option<Arc<CompanionFiles>>,
    /// Names of the matrices whose values stay in memory; `None` for all.
    kept: Option<Arc<HashSet<String>>>,
}

/// Suffixes of the names of tensors without effect: tables computed from the configuration, masks, and the head of a value model, which a
/// policy does not use.
const UNUSED: [&str; 6] = [
    ".rotary_emb.inv_freq",
    ".attention.bias",
    ".attention.masked_bias",
    ".attn.bias",
    ".attn.masked_bias",
    super::weights::SCORE,
];

impl ModelFolder {
    /// Reads the configuration; [`ModelFolder::decoder`] reads the weights.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self> {
        let path = path.into();
        let (lora, base, architecture) = if peft::is_adapter(&path) {
            let (lora, modules, base) = peft::read_config(&path)?;
            let architecture = Architecture::read(&base).map_err(|e| Error::Config {
                path: path.clone(),
                detail: format!("the adapter's base_model_name_or_path must be the folder of a model: {e}"),
            })?;
            (Some(modules.resolve(lora, &architecture)?), base, architecture)
        } else {
            (None, path.clone(), Architecture::read(&path)?)
        };
        let (replaced, held) = (Arc::default(), WeightStorage::default());
        Ok(Self { path, base, architecture, lora, replaced, pad: None, held, companions: None, kept: None })
    }

    /// Returns this folder's model with the adapter in another folder, whatever base model that adapter names.
    pub fn with_adapter_in(&self, path: &Path) -> Result<Self> {
        let (lora, modules, _) = peft::read_config(path)?;
        let lora = Some(modules.resolve(lora, &self.architecture)?);
        Ok(Self { path: path.to_owned(), lora, companions: None, ..self.clone() })
    }

    /// Reads the companion files of copies now, so that copies can be written after the folder is gone.
    ///
    /// # Errors
    /// If a file is not a regular one, is too large, or can't be read.
    pub fn with_companions(self) -> Result<Self> {
        let companions = Some(self.companions()?);
        Ok(Self { companions, ..self })
    }

    /// Returns the companion files of copies.
    pub(super) fn companions(&self) -> Result<Arc<CompanionFiles>> {
        self.companions.clone().map_or_else(|| CompanionFiles::read(self.base(), self.path()).map(Arc::new), Ok)
    }

    /// Sets files, as name and text, that copies get instead of the folder's own.
    #[must_use]
    pub fn with_replaced_files(self, files: Vec<(&'static str, String)>) -> Self {
        Self { replaced: files.into(), ..self }
    }

    /// Sets the padding token with which value models are saved.
    #[must_use]
    pub fn with_pad_token(self, pad: Option<u32>) -> Self {
        Self { pad, ..self }
    }

    /// Sets the form in which weights are held in memory.
    #[must_use]
    pub fn with_weight_storage(self, held: WeightStorage) -> Self {
        Self { held, ..self }
    }

    /// Sets the names of the matrices that stay in memory. Others are read, checked, and freed ([`ops::free_values`]). The embedding always
    /// stays, since an output matrix in the files is compared with it.
    #[must_use]
    pub fn with_resident_matrices(self, names: HashSet<String>) -> Self {
        Self { kept: Some(names.into()), ..self }
    }

    /// Returns the form in which weights are held in memory.
    pub fn weight_storage(&self) -> WeightStorage {
        self.held
    }

    /// Returns the precision of the matrices in the base model's files, if all have the same.
    ///
    /// # Errors
    /// If a file can't be read.
    pub fn stored_in(&self) -> Result<Option<WeightDtype>> {
        Ok(SafetensorsReader::open_model(&self.base)?.stored_in())
    }

    /// Returns the padding token with which value models are saved, if not the folder's.
    pub(super) fn pads_with(&self) -> Option<u32> {
        self.pad
    }

    /// Returns the files that copies get instead of the folder's own.
    pub(super) fn replaced(&self) -> &[(&'static str, String)] {
        &self.replaced
    }

    /// Returns the folder's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the path of the adapter's base model. Without an adapter, this is [`ModelFolder::path`].
    pub fn base(&self) -> &Path {
        &self.base
    }

    /// Returns the model that the folder's adapter, if any, applies to.
    #[must_use]
    pub fn without_adapter(&self) -> Self {
        Self { lora: None, ..self.clone() }
    }

    /// Returns the path of the tokenizer. If an adapter's folder lacks one, this is the base model's.
    pub fn tokenizer(&self) -> &Path {
        if self.path.join("tokenizer.json").exists() { &self.path } else { &self.base }
    }

    /// Returns the settings of the folder's adapter, if it has one.
    pub fn lora(&self) -> Option<LoraSettings> {
        self.lora
    }

    /// Returns the model's sizes.
    pub fn architecture(&self) -> &Architecture {
        &self.architecture
    }

    /// Reads all weights (f32, f16 or bf16). They become f32 unless [`ModelFolder::with_weight_storage`] says otherwise.
    ///
    /// # Errors
    /// If the files lack what `config.json` requires or hold values that are not finite, or the model does not predict tokens.
    pub fn decoder(&self) -> Result<Decoder> {
        self.check_predicts()?;
        self.decoder_over(self.decoder_of(SafetensorsReader::open_model(&self.base)?)?)
    }

    /// Returns this folder's adapter, if any, on a loaded model, sharing its storage.
    pub fn decoder_over(&self, model: Decoder) -> Result<Decoder> {
        let Some(lora) = self.lora else { return Ok(model) };
        Ok(Decoder { weights: peft::read(&self.path, lora, model.weights)?, ..model })
    }

    /// Reads a model of the same sizes from another weight file, without rounding it.
    pub fn decoder_in(&self, file: &Path) -> Result<Decoder> {
        self.clone().with_weight_storage(self.held.unrounded()).decoder_of(SafetensorsReader::open_file(file)?)
    }

    fn decoder_of(&self, shards: SafetensorsReader) -> Result<Decoder> {
        self.decoder_with(&self.architecture, shards, |_| false)
    }

    /// Reads a model of these sizes. Unused tensors must be known to have no effect, or be omitted on purpose.
    pub(super) fn decoder_with(
        &self,
        architecture: &Architecture,
        shards: SafetensorsReader,
        left_out: impl Fn(&str) -> bool,
    ) -> Result<Decoder> {
        let mut shards = shards.counted_by(ProgressTask::new(Activity::LoadingModel));
        if architecture.text_part {
            shards = shards.renamed(text_part::name);
        }
        if architecture.family == Family::Gpt2 {
            shards = shards.renamed(parameter_layouts::with_prefix);
        }
        let names = architecture.family.description().names;
        if matches!(names.in_files, FileForm::Renamed(_)) {
            shards = shards.renamed(|name| names.in_memory(name));
        }
        let left_out = |name: &str| {
            left_out(name)
                || architecture.text_part && text_part::is_vision_tensor(name)
                || architecture.predicts_more(name)
                || architecture.is_dropped(name)
        };
        let missing = |name: &str| {
            let detail = format!("the weights have no {}, which config.json requires", names.to_file(name.to_owned()));
            Error::Weights { path: self.base.clone(), detail }
        };
        // Checks all tensors before reading the first.
        for (name, shape) in architecture.parameters() {
            if !parameter_layouts::check(&shards, names, &name, &shape)? {
                return Err(missing(&parameter_layouts::missing(&shards, names, &name, &shape)));
            }
        }
        let weights = self.held.read(architecture, |name, shape, dtype| {
            let t =
                parameter_layouts::take((&self.base, &mut shards), names, (name, shape), dtype)?.ok_or_else(|| missing(name))?;
            let is_embedding = || name.strip_suffix(".weight") == Some(names.embedding);
            let is_kept = |kept: &Arc<HashSet<String>>| shape.len() < 2 || kept.contains(name) || is_embedding();
            if !self.kept.as_ref().is_none_or(is_kept) {
                ops::free_values(&t)?;
            }
            Ok(t)
        })?;
        let head = format!("{}.weight", names.head);
        if architecture.tied && !left_out(&head) {
            self.check_tied(&mut shards, &head, &weights.embedding)?;
        }
        if let Some(name) = shards.left_except(|name| left_out(name) || UNUSED.iter().any(|unused| name.ends_with(unused))) {
            let name = names.to_file(name);
            let detail = format!("the weights also have {name}, which a model of this config.json does not have");
            return Err(Error::Weights { path: self.base.clone(), detail });
        }
        Ok(Decoder::new(architecture.clone(), weights))
    }

    /// Returns an error if the output matrix differs from the embedding although the configuration ties them. transformers would use the
    /// matrix.
    fn check_tied(&self, shards: &mut SafetensorsReader, head: &str, embedding: &Tensor) -> Result<()> {
        let dtype = Some(WeightDtype::from_candle(embedding.dtype()));
        match shards.take_in(head, embedding.dims(), "tie_word_embeddings in config.json", dtype)? {
            Some(own) if ops::to_vec(&own)? != ops::to_vec(embedding)? => {
                let detail = format!(
                    "{head} differs from the embedding, but config.json has tie_word_embeddings true; set it to false to use \
                     {head}, or remove the tensor"
                );
                Err(Error::Weights { path: self.base.clone(), detail })
            }
            _ => Ok(()),
        }
    }

    /// Adds a critic's head to a decoder: the one in a file, or one with zero values if the file does not exist.
    ///
    /// # Errors
    /// If the file holds something else.
    pub fn with_critic(&self, mut decoder: Decoder, file: &Path) -> Result<Decoder> {
        let hidden = self.architecture.hidden_size;
        decoder.weights = decoder.weights.with_value_head(hidden)?;
        let shards = match SafetensorsReader::open_file(file) {
            Err(Error::Missing { .. }) => return Ok(decoder),
            shards => &mut shards?,
        };
        let mut take = |name: &str, shape: &[usize]| {
            let missing = || Error::Weights { path: file.to_owned(), detail: format!("there is no {name} of shape {shape:?}") };
            shards.take(name, shape, "config.json")?.ok_or_else(missing)
        };
        let (weight, bias) = (take(VALUE_WEIGHT, &[1, hidden])?, take(VALUE_BIAS, &[1])?);
        decoder.weights.value_head = Some(Linear::new(weight, Some(bias)));
        Ok(decoder)
    }
}
