//! A value model: a decoder with a value head instead of an output matrix, trained apart from the policy.
//!
//! Its folder is that of a sequence classification model of transformers with one label: the head is `score.weight`, `[1, hidden]`,
//! without a bias. An adapter's folder has the head beside the adapter, as `peft` saves it.

use super::decoder::{Decoder, Kept};
use super::dropped::Dropout;
use super::save::{copy_all_companions, write_config, write_tensors};
use super::shards::Shards;
use super::weights::{Linear, of_adapter, of_critic};
use super::{Architecture, Dtype, Error, ModelFolder, Passed, Place, Policy, Result, Selected, Weights, critic, peft};
use crate::model::Gradients;
use crate::ops::{self, Forest};
use candle_core::{DType, Tensor};
use serde_json::{Value, json};
use std::path::Path;

/// The head's name in files.
pub(super) const SCORE: &str = "score.weight";

/// See the module documentation. An optimizer may change its parameters.
#[derive(Debug)]
pub struct ValueModel(Policy);

/// A forward pass that waits for the loss's derivatives.
pub struct ValuePass<'a> {
    model: &'a Decoder,
    forest: &'a Forest,
    selected: &'a Selected,
    kept: Kept,
    hidden: Tensor,
    values: Vec<f32>,
}

impl ValueModel {
    /// Makes a decoder from [`ModelFolder::value_model_over`] trainable at a place; see [`Policy::at`] and
    /// [`Policy::with_gradient_checkpointing`].
    pub fn new(decoder: Decoder, place: &Place, gradient_checkpointing: bool) -> Result<Self> {
        Ok(Self(Policy::new(decoder).at(place)?.with_gradient_checkpointing(gradient_checkpointing)))
    }

    /// Does what [`Policy::with_dropout`] does.
    pub fn with_dropout(self, p: f64) -> Self {
        Self(self.0.with_dropout(p))
    }

    /// Returns its parameters as an optimizer sees them.
    pub fn trainable(&self) -> &Policy {
        &self.0
    }

    /// Counts a pass over a forest; see [`Weights::passed`].
    pub fn passed(&self, forest: &Forest, selected: usize) -> Result<Passed> {
        let model = &self.0.decoder;
        Ok(model.weights.passed_to(&head(model)?.weight, &model.architecture, forest, selected))
    }

    /// Computes the values of the states in which the selected tokens were chosen.
    ///
    /// # Errors
    /// If an operation fails, or a value is not finite.
    pub fn values(&self, forest: &Forest, selected: &Selected) -> Result<Vec<f32>> {
        let (hidden, _) = self.0.decoder.run(forest, &selected.rows, None, |_, _| Ok(()))?;
        finite(critic::values(&hidden, head(&self.0.decoder)?)?)
    }

    /// Does the same and keeps what the backward pass needs.
    ///
    /// # Errors
    /// As [`ValueModel::values`].
    pub fn forward<'a>(&'a self, forest: &'a Forest, selected: &'a Selected) -> Result<ValuePass<'a>> {
        self.forward_with(forest, selected, None)
    }

    /// Does the same with the adapter's dropout, whose random numbers follow from `key`.
    ///
    /// # Errors
    /// As [`ValueModel::values`].
    pub fn forward_dropping<'a>(&'a self, forest: &'a Forest, selected: &'a Selected, key: u64) -> Result<ValuePass<'a>> {
        let p = self.0.weights().lora.map_or(0.0, |lora| lora.dropout);
        self.forward_with(forest, selected, Dropout::new(p, key, forest, &selected.rows))
    }

    fn forward_with<'a>(&'a self, forest: &'a Forest, selected: &'a Selected, dropout: Option<Dropout>) -> Result<ValuePass<'a>> {
        let model = &self.0.decoder;
        let (hidden, kept) = model.forward(forest, &selected.rows, self.0.gradient_checkpointing, dropout)?;
        let values = finite(critic::values(&hidden, head(model)?)?)?;
        Ok(ValuePass { model, forest, selected, kept, hidden, values })
    }
}

impl ValuePass<'_> {
    /// Returns the values, one per selected token.
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// Adds the gradients of the trained parameters to `grads`, given the loss's derivative with respect to each value. Calls
    /// `done` when the next group of [`Gradients::in_backward_order`] is complete.
    pub fn backward(self, d_values: &[f32], Gradients(grads): &Gradients, done: &dyn Fn()) -> Result<()> {
        let d_hidden = ops::zeros_like(&self.hidden)?;
        if let Some(d_head) = &grads.value_head {
            critic::backward(&self.hidden, head(self.model)?, d_values, &d_hidden, d_head)?;
        }
        self.model.backward(self.kept, self.forest, &self.selected.rows, &d_hidden, grads, done)?;
        Ok(ops::device::wait_for(&d_hidden)?)
    }
}

fn head(decoder: &Decoder) -> Result<&Linear> {
    let missing = || ops::Error::Shape { op: "value model", detail: "a decoder without a value head".into() };
    Ok(decoder.weights.value_head.as_ref().ok_or_else(missing)?)
}

fn finite(values: Vec<f32>) -> Result<Vec<f32>> {
    if values.iter().all(|value| value.is_finite()) { Ok(values) } else { Err(Error::ValuesNotFinite) }
}

impl Architecture {
    /// Returns the sizes of the same model without an output matrix of its own.
    fn trunk(&self) -> Self {
        Self { tied: true, ..self.clone() }
    }
}

impl Policy {
    /// Returns the model without its output matrix and adapter, in the same storage.
    pub fn shared_trunk(&self) -> Decoder {
        let model = self.decoder.clone();
        let weights = Weights { head: None, value_head: None, ..model.weights.without_adapter() };
        Decoder { architecture: model.architecture.trunk(), weights, ..model }
    }
}

impl ModelFolder {
    /// Reads the model, or an adapter's base model, without its output matrix.
    ///
    /// # Errors
    /// As [`ModelFolder::decoder`].
    pub fn trunk(&self) -> Result<Decoder> {
        self.decoder_with(&self.architecture().trunk(), Shards::of_model(self.base())?)
    }

    /// Makes a value model of this folder's trunk, sharing its storage: adds the folder's adapter, if any, and its head, or one
    /// that values everything at zero.
    ///
    /// # Errors
    /// If the head has another shape, or the adapter does not fit.
    pub fn value_model_over(&self, mut trunk: Decoder) -> Result<Decoder> {
        let shape = [1, self.architecture().hidden_size];
        let by = "a value model's one output";
        let weight = Shards::of_model(self.base())?.take(SCORE, &shape, by)?;
        let own = if self.lora().is_some() { peft::read_head(self.path(), &shape, by)? } else { None };
        let weight = match own.or(weight) {
            Some(weight) => weight.to_device(trunk.weights.embedding.device())?,
            None => Tensor::zeros(&shape, DType::F32, trunk.weights.embedding.device())?,
        };
        trunk.weights.value_head = Some(Linear { weight, bias: None, adapter: None });
        self.decoder_over(trunk)
    }
}

/// Writes a value model into the existing folder `to`: what transformers, or `peft` for an adapter, opens for sequence
/// classification. `source` is the folder it started from.
pub fn save_value_model(weights: &Weights, source: &ModelFolder, to: &Path) -> Result<()> {
    let named = || weights.named().into_iter().filter(|(name, _)| !of_adapter(name));
    let in_file = |name: String| if of_critic(&name) { SCORE.to_owned() } else { name };
    match weights.lora {
        Some(lora) => {
            let head = weights.value_head.as_ref().map(|head| (SCORE, &head.weight));
            peft::write(weights, lora, source.base(), head, to)?;
        }
        None => {
            let tensors = named().map(|(name, t)| (in_file(name), t.clone())).collect();
            write_tensors(tensors, super::save::of_torch(), &to.join("model.safetensors"))?;
            write_config(source, to, Dtype::F32, classifies)?;
        }
    }
    copy_all_companions(source, to)
}

/// Turns the configuration of a causal language model into that of a sequence classification model with one label.
fn classifies(config: &mut Value) {
    let architecture = config["architectures"][0].as_str().and_then(|name| name.strip_suffix("ForCausalLM"));
    if let Some(family) = architecture {
        config["architectures"] = json!([format!("{family}ForSequenceClassification")]);
    }
    config["id2label"] = json!({ "0": "LABEL_0" });
    config["label2id"] = json!({ "LABEL_0": 0 });
}
