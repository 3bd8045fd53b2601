//! Models that compute values of states instead of predicting tokens: a reward model, or a critic that is separate from the policy. Each is
//! a decoder with a value head instead of an output matrix.
//!
//! The folder has the format of transformers' sequence classification model with one label: the head is `score.weight`, `[1, hidden]`,
//! without a bias. An adapter's folder has the head next to the adapter, as `peft` saves it.

use super::companions::CompanionFiles;
use super::critic::finite;
use super::decoder::{Decoder, PassActivations};
use super::json::ConfigObject;
use super::pass_observer::{ModelPart, NoObserver, PassDirection, PassObserver};
use super::pass_options::PassOptions;
use super::random::{DEVIATION, NormalSampler};
use super::shards::SafetensorsReader;
use super::weights::SCORE;
use super::weights::SCORE_BIAS;
use super::weights::{Linear, is_critic_parameter};
use super::write::{torch_metadata, write_tensors};
use super::write_config::write_config;
use super::{Architecture, Error, ModelFolder, PolicyModel, Result, WeightDtype, Weights, critic, peft};
use crate::config::printable;
use crate::model::Gradients;
use crate::ops::{self, Forest};
use candle_core::{DType, Tensor};
use serde_json::{Value, json};
use std::path::Path;

/// Suffixes of the class names of models without an output matrix.
const CLASSIFIES: [&str; 2] = ["ForSequenceClassification", "ForTokenClassification"];

/// The initial head if the folder has none.
#[derive(Clone, Copy, Debug)]
pub enum ValueHeadInit {
    /// Zeros, so that every value is 0.
    Zero,
    /// Random with this seed, with the standard deviation that `config.json` gives for new weights, as in transformers.
    Drawn(u64),
}

/// A forward pass that waits for the loss's derivatives.
pub struct ValuePass<'a> {
    model: &'a Decoder,
    forest: &'a Forest,
    rows: &'a [usize],
    kept: PassActivations,
    hidden: Tensor,
    values: Vec<f32>,
    watch: &'a dyn PassObserver,
}

impl PolicyModel {
    /// Computes the values of the states at the packed positions `rows`, and stores the activations for the backward pass. With a `key`,
    /// adapter dropout and embedding noise apply; see [`PolicyModel::forward_learning`].
    ///
    /// # Errors
    /// If there is no value head, an operation fails, or a value is not finite.
    pub fn forward_values<'a>(
        &'a self,
        forest: &'a Forest,
        rows: &'a [usize],
        key: Option<u64>,
        watch: Option<&'a dyn PassObserver>,
    ) -> Result<ValuePass<'a>> {
        let watch = watch.unwrap_or(&NoObserver);
        let model = &self.decoder;
        let how = PassOptions { balances: false, ..self.pass_options(key, forest, rows)? };
        let (hidden, kept) = model.forward(forest, rows, how, watch)?;
        let values = finite(critic::values(&hidden, head(model)?)?)?;
        Ok(ValuePass { model, forest, rows, kept, hidden, values, watch })
    }

    /// Returns the model without its output matrix and adapter, in the same storage.
    pub fn shared_trunk(&self) -> Decoder {
        let model = self.decoder.clone();
        let weights = Weights { head: None, value_head: None, ..model.weights.without_adapter() };
        Decoder { architecture: model.architecture.trunk(), weights, ..model }
    }
}

impl ValuePass<'_> {
    /// Returns the bytes stored for the backward pass.
    pub fn kept_bytes(&self) -> usize {
        self.kept.bytes()
    }

    /// Returns the values, one per row.
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// Adds the gradients of the trained parameters to `grads`, given the loss's derivative with respect to each value.
    ///
    /// # Errors
    /// As [`super::PolicyPass::backward`].
    pub fn backward(self, d_values: &[f32], Gradients(grads): &Gradients) -> Result<()> {
        self.watch.enter(PassDirection::Backward, ModelPart::Top)?;
        let d_hidden = ops::zeros_like(&self.hidden)?;
        if let Some(d_head) = &grads.value_head {
            critic::backward(&self.hidden, head(self.model)?, d_values, &d_hidden, d_head)?;
        }
        self.model.backward(self.kept, self.forest, self.rows, &d_hidden, grads, self.watch)?;
        Ok(ops::device::wait_for(&d_hidden)?)
    }
}

fn head(decoder: &Decoder) -> Result<&Linear> {
    let missing = || ops::Error::Shape { op: "value model", detail: "a decoder without a value head".into() };
    Ok(decoder.weights.value_head.as_ref().ok_or_else(missing)?)
}

impl Architecture {
    /// Returns the sizes of the model without a separate output matrix.
    pub fn trunk(&self) -> Self {
        Self { tied: true, ..self.clone() }
    }
}

impl ModelFolder {
    /// Reads the model, or an adapter's base model, without its output matrix.
    ///
    /// # Errors
    /// As [`ModelFolder::decoder`].
    pub fn trunk(&self) -> Result<Decoder> {
        let head = format!("{}.weight", self.architecture().family.description().names.head);
        let left_out = |name: &str| name == head || name == SCORE_BIAS;
        self.decoder_with(&self.architecture().trunk(), SafetensorsReader::open_model(self.base())?, left_out)
    }

    /// Creates a value model on this folder's trunk, sharing its storage. Adds the folder's adapter, if any, and its head, or else a new
    /// one.
    ///
    /// # Errors
    /// If the head has another shape, or the adapter does not fit.
    pub fn value_model_over(&self, mut trunk: Decoder, new: ValueHeadInit) -> Result<Decoder> {
        let weight = match self.value_head()? {
            Some(weight) => weight,
            None => self.new_head(new)?,
        };
        let weight = weight.to_device(trunk.weights.embedding.device())?;
        trunk.weights.value_head = Some(Linear::new(weight, None));
        self.decoder_over(trunk)
    }

    /// Reads the folder's head, if it has one.
    ///
    /// # Errors
    /// If the head has another shape.
    pub fn value_head(&self) -> Result<Option<Tensor>> {
        let (shape, by) = ([1, self.architecture().hidden_size], "a value model's one output");
        let own = if self.lora().is_some() { peft::read_head(self.path(), &shape, by)? } else { None };
        if own.is_some() {
            return Ok(own);
        }
        SafetensorsReader::open_model(self.base())?.take(SCORE, &shape, by)
    }

    fn new_head(&self, new: ValueHeadInit) -> Result<Tensor> {
        let shape = (1, self.architecture().hidden_size);
        let ValueHeadInit::Drawn(seed) = new else { return Ok(Tensor::zeros(shape, DType::F32, &candle_core::Device::Cpu)?) };
        let deviation = self.read_config(|config| config.number("initializer_range"))?.unwrap_or(DEVIATION);
        let mut values = vec![0.0; shape.1];
        NormalSampler::new(seed, deviation).fill(&mut values);
        Ok(Tensor::from_vec(values, shape, &candle_core::Device::Cpu)?)
    }

    /// Returns the padding token in `config.json`, if any. A text's value is that of its last non-padding token.
    ///
    /// # Errors
    /// If the value is not a number.
    pub fn pad_token(&self) -> Result<Option<u32>> {
        let id = self.read_config(|config| config.number("pad_token_id"))?;
        Ok(id.filter(|id| id.fract() == 0.0 && (0.0..f64::from(u32::MAX)).contains(id)).map(|id| id as u32))
    }

    /// Returns whether the model computes values of texts instead of predicting tokens.
    ///
    /// # Errors
    /// If a file can't be read.
    pub fn values_texts(&self) -> Result<bool> {
        Ok(self.kind()?.is_some() || self.lora().is_some() && self.value_head()?.is_some())
    }

    /// Returns an error for a model that computes values of texts. Without an output matrix, it would predict with the wrong one.
    pub(super) fn check_predicts(&self) -> Result<()> {
        self.kind()?.map_or(Ok(()), |kind| {
            let detail =
                format!("{} is a reward model, which predicts no tokens; use it with --reward-model", printable(&kind, 80));
            Err(Error::Config { path: self.base().join("config.json"), detail })
        })
    }

    /// Returns the class that config.json names, if it is one without an output matrix.
    pub(super) fn kind(&self) -> Result<Option<String>> {
        self.read_config(|config| {
            let kinds = config.get("architectures").and_then(Value::as_array).into_iter().flatten();
            let kind = kinds.filter_map(Value::as_str).find(|kind| CLASSIFIES.iter().any(|end| kind.ends_with(end)));
            Ok(kind.map(str::to_owned))
        })
    }

    fn read_config<T>(&self, read: impl FnOnce(&ConfigObject) -> std::result::Result<T, String>) -> Result<T> {
        let path = self.base().join("config.json");
        let config = ConfigObject::read(&path)?.ok_or_else(|| Error::Missing { path: path.clone() })?;
        read(&config).map_err(|detail| Error::Config { path, detail })
    }
}

/// Writes a value model's weights and configuration into the existing folder `to`, in the format that transformers, or `peft` for an
/// adapter, opens for sequence classification. `source` is the folder it started from.
pub(super) fn save_value_model(weights: &Weights, source: &ModelFolder, companions: &CompanionFiles, to: &Path) -> Result<()> {
    if let Some(lora) = weights.lora {
        let head = weights.value_head.as_ref().map(|head| (SCORE, &head.weight));
        return peft::write(weights, lora, source.base(), head, to);
    }
    write_tensors(value_model_tensors(weights)?, torch_metadata(), &to.join("model.safetensors"))?;
    write_config(source, companions, to, WeightDtype::F32, |config| classifies(config, source.pads_with()))
}

/// Returns a value model's weights under their names in files.
pub(super) fn value_model_tensors(weights: &Weights) -> Result<Vec<(String, Tensor)>> {
    let in_file = |name: String| if is_critic_parameter(&name) { SCORE.to_owned() } else { name };
    Ok(weights.in_files()?.into_iter().map(|(name, t)| (in_file(name), t)).collect())
}

/// Turns the configuration of a causal language model into that of a sequence classification model with one label.
pub(super) fn classifies(config: &mut Value, pad: Option<u32>) {
    let name = config["architectures"][0].as_str();
    let architecture = name.and_then(|name| name.strip_suffix("ForCausalLM").or_else(|| name.strip_suffix("LMHeadModel")));
    if let Some(family) = architecture {
        config["architectures"] = json!([format!("{family}ForSequenceClassification")]);
    }
    config["id2label"] = json!({ "0": "LABEL_0" });
    config["label2id"] = json!({ "LABEL_0": 0 });
    if let Some(pad) = pad {
        config["pad_token_id"] = pad.into();
    }
}
