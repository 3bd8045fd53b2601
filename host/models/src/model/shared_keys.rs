//! Attention of a layer that reads the keys and values of an earlier layer, and its gradient.

use super::Result;
use super::backward::GradientSlot;
use super::decoder::{BackwardContext, Decoder};
use super::layer::{DecoderLayer, LinearMap};
use super::mixer::{AttentionActivations, AttentionOutput, BorrowingActivations, MixerActivations, TokenMixer, other_kind};
use super::weights::LayerWeights;
use crate::ops::rope::Positions;
use crate::ops::{self, Forest, attention, rope};
use candle_core::{DType, Tensor};

impl<P: LinearMap> DecoderLayer<'_, P> {
    /// Runs attention on the results of the query projection. Returns the activations that the gradient needs, and the result.
    pub(super) fn mixed_with_shared(
        &self,
        inputs: Vec<Tensor>,
        weight: &Tensor,
        positions: Positions<'_>,
        mixing: &mut impl TokenMixer,
    ) -> Result<(MixerActivations, Tensor)> {
        let [unnormed] = <[Tensor; 1]>::try_from(inputs).map_err(|_| other_kind())?;
        if self.rounds {
            ops::round_in_place(&unnormed)?;
        }
        let q = self.placed_one(unnormed.clone(), Some(weight), positions)?;
        let q = if self.halves { ops::cast(&q, DType::BF16)? } else { q };
        let AttentionOutput { out, log_sum } = mixing.attend_to_shared(&q)?;
        Ok((MixerActivations::Borrowing(BorrowingActivations { unnormed, log_sum }), out))
    }
}

impl<P> DecoderLayer<'_, P> {
    /// Returns value heads before their norm, if they have one and are not the keys before theirs, and as attention reads them.
    pub(super) fn normed_values(&self, v: Tensor) -> Result<(Option<Tensor>, Tensor)> {
        let a = self.architecture;
        if a.varied.is_none() {
            return Ok((None, v));
        }
        if self.rounds {
            ops::round_in_place(&v)?;
        }
        let ones = Tensor::ones(a.heads_of(self.number).head_dim, DType::F32, v.device())?;
        let normed = a.normed_heads(&v, &ones)?;
        Ok(((!a.values_are_keys(self.number)).then_some(v), normed))
    }
}

impl Decoder {
    /// Returns the gradients of the results of a layer's projections, given those of its heads; those of values are before their norm.
    pub(super) fn values_backward(
        &self,
        i: usize,
        kept: &AttentionActivations,
        [dq, dk, dv]: [Tensor; 3],
    ) -> Result<Vec<Tensor>> {
        let a = &self.architecture;
        if a.varied.is_none() {
            return Ok(vec![dq, dk, dv]);
        }
        let ones = Tensor::ones(a.heads_of(i).head_dim, DType::F32, dv.device())?;
        let keys = kept.unnormed.as_ref().map(|(_, k)| k).filter(|_| a.values_are_keys(i));
        let read = keys.or(kept.unnormed_v.as_ref()).ok_or_else(other_kind)?;
        let dv = a.normed_heads_backward(&self.in_f32(read)?, &ones, &dv, &None)?;
        match keys {
            None => Ok(vec![dq, dk, dv]),
            Some(_) => {
                ops::add_into(&dk, &dv)?;
                Ok(vec![dq, dk])
            }
        }
    }

    /// Returns the gradients of the results of a layer's query projection, given that of attention's result. Keeps those of the keys and
    /// values for the layer that made them.
    pub(super) fn borrowed_backward(
        &self,
        here: &BackwardContext<'_>,
        (own, out): (&BorrowingActivations, &Tensor),
        d_out: &Tensor,
        forest: &Forest,
        g: &LayerWeights<GradientSlot>,
    ) -> Result<Vec<Tensor>> {
        let (i, a) = (here.i, &self.architecture);
        let weight = self.weights.layers[i].attention.query_norm.as_ref().ok_or_else(other_kind)?;
        let [k, v] = here.sources.heads.read_by(a, i).ok_or_else(other_kind)?;
        let unnormed = self.in_f32(&own.unnormed)?;
        let layer = self.layer_of(i, self.weights.layers[i].maps());
        let q = self.attended(layer.placed_one(unnormed.clone(), Some(weight), forest)?)?;
        let log_sum = own.log_sum.as_ref().ok_or_else(other_kind)?;
        let from = attention::AttentionTensors { q: &q, k: &k, v: &v, out, log_sum };
        let (dq, dk, dv) = attention::backward(&from, d_out, forest, self.attention(i))?;
        here.sources.heads.add_gradients(a.key_source(i).ok_or_else(other_kind)?, [dk, dv])?;
        if let Some(rotation) = self.rotation(i) {
            rope::backward(&dq, rotation, forest)?;
        }
        let d_weight = g.attention.query_norm.as_ref().unwrap_or(&None);
        Ok(vec![a.normed_heads_backward(&unnormed, weight, &dq, d_weight)?])
    }
}
