//! The read-only view of a decoder, for generation and reference log-probabilities.

use super::critic::finite as finite_values;
use super::decoder::Decoder;
use super::pass_observer::{NoObserver, PassObserver};
use super::selected_predictions::finite;
use super::{Architecture, Error, IncrementalDecoder, Result, SelectedPredictions, Weights, critic};
use crate::config::RolloutDtype;
use crate::ops::logprob::{self, TokenStats};
use crate::ops::{self, Forest, linear};
use candle_core::{DType, Tensor};
use std::collections::HashMap;

/// A decoder that can be run but not changed.
#[derive(Clone, Debug)]
pub struct FrozenModel {
    decoder: Decoder,
}

impl FrozenModel {
    /// Creates a view of the decoder.
    pub fn new(decoder: Decoder) -> Self {
        Self { decoder }
    }

    /// Returns the decoder's sizes.
    pub fn architecture(&self) -> &Architecture {
        &self.decoder.architecture
    }

    pub(super) fn decoder(&self) -> &Decoder {
        &self.decoder
    }

    /// Computes the hidden states at the packed positions `rows` and stores no activations.
    pub(super) fn hidden(&self, forest: &Forest, rows: &[usize], watch: Option<&dyn PassObserver>) -> Result<Tensor> {
        let (how, watch) = (self.decoder.inference_options()?, watch.unwrap_or(&NoObserver));
        Ok(self.decoder.run_watched(forest, rows, &how, watch, |_, _| Ok(()))?.hidden)
    }

    /// Computes log-probabilities and entropies of the selected predictions.
    ///
    /// # Errors
    /// If an operation fails, or a log-probability is not finite.
    pub fn score(&self, forest: &Forest, selected: &SelectedPredictions, temperature: f32) -> Result<TokenStats> {
        self.score_watched(forest, selected, temperature, None)
    }

    /// Computes the result of [`FrozenModel::score`] in a pass with an observer.
    ///
    /// # Errors
    /// As [`FrozenModel::score`], or if the observer fails.
    pub fn score_watched(
        &self,
        forest: &Forest,
        selected: &SelectedPredictions,
        temperature: f32,
        watch: Option<&dyn PassObserver>,
    ) -> Result<TokenStats> {
        let hidden = self.hidden(forest, &selected.rows, watch)?;
        let scale = self.decoder.logits(temperature);
        let stats = logprob::forward(&hidden, self.decoder.weights.output(), &selected.targets, scale, selected.restriction())?;
        finite(&stats)?;
        Ok(stats)
    }

    /// Computes the values of the states at the packed positions `rows`; `None` without a value head.
    ///
    /// # Errors
    /// If an operation fails, or a value is not finite.
    pub fn values(&self, forest: &Forest, rows: &[usize]) -> Result<Option<Vec<f32>>> {
        self.values_watched(forest, rows, None)
    }

    /// Computes the result of [`FrozenModel::values`] in a pass with an observer.
    ///
    /// # Errors
    /// As [`FrozenModel::values`], or if the observer fails.
    pub fn values_watched(&self, forest: &Forest, rows: &[usize], watch: Option<&dyn PassObserver>) -> Result<Option<Vec<f32>>> {
        let Some(head) = &self.decoder.weights.value_head else { return Ok(None) };
        let hidden = self.hidden(forest, rows, watch)?;
        finite_values(critic::values(&hidden, head)?).map(Some)
    }

    /// Computes the logits `[M, V]` of the hidden states at `rows`.
    pub fn logits(&self, forest: &Forest, rows: &[usize]) -> Result<Tensor> {
        let hidden = self.hidden(forest, rows, None)?;
        Ok(self.architecture().logits_of(linear::forward_f32(&hidden, self.decoder.weights.output(), None)?)?)
    }

    /// Interpolates between two models of the same sizes: `alpha` times the other's weights plus `1 - alpha` times this one's.
    pub fn mixed(&self, other: &Weights, alpha: f64) -> Result<Self> {
        let theirs: HashMap<String, &Tensor> = other.named().into_iter().collect();
        // A mixture needs more digits than bf16 has; on a device it is rounded.
        let wide = |t: &Tensor| if t.device().is_cpu() { ops::cast(t, DType::F32) } else { Ok(t.clone()) };
        self.map(|name, own| match theirs.get(&name) {
            // Both share what is not trained.
            Some(new) if new.id() == own.id() => Ok(own.clone()),
            Some(new) => Ok(ops::interpolate(&wide(own)?, new, alpha)?),
            None => Err(Error::Weights { path: name.into(), detail: "the two models have different parameters".into() }),
        })
    }

    /// Returns the model with each parameter mapped by `f`, which gets its name.
    ///
    /// # Errors
    /// If `f` fails.
    pub fn map(&self, f: impl FnMut(String, &Tensor) -> Result<Tensor>) -> Result<Self> {
        let weights = self.decoder.weights.map(f)?;
        Ok(Self { decoder: Decoder { weights, ..self.decoder.clone() } })
    }

    /// Copies the model to host memory. Weights that are already in host memory are shared and never change.
    pub fn on_host(&self) -> Result<Self> {
        let host = |t: &Tensor| if t.device().is_cpu() { Ok(t.clone()) } else { ops::on_host(t) };
        self.map(|_, t| Ok(host(t)?))
    }

    /// Returns the parameters, for saving.
    pub fn weights(&self) -> &Weights {
        &self.decoder.weights
    }

    /// Prepares a generation with the current weights.
    pub fn decoding(&self) -> Result<IncrementalDecoder> {
        self.decoding_with(RolloutDtype::Auto)
    }

    /// Prepares a generation with copies of the current weights.
    pub fn decoding_with(&self, weights: RolloutDtype) -> Result<IncrementalDecoder> {
        IncrementalDecoder::new(self.decoder.clone(), weights)
    }
}
