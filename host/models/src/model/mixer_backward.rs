//! The gradients of attention and of recurrences over a forest.

use super::Result;
use super::backward::GradientSlot;
use super::decoder::{BackwardContext, Decoder};
use super::layer_projections::LayerProjections;
use super::masked_linear::MaskedLinear;
use super::mixer::{self, MixerActivations, MixerResult};
use super::mixer_projections::two;
use super::recurrent_weights::RecurrentWeights;
use super::weights::LayerWeights;
use crate::ops::attention;
use crate::ops::convolution;
use crate::ops::recurrent_network;
use crate::ops::rope::Positions;
use crate::ops::{self, Forest, columns, output_gate, rope, sinks};
use candle_core::Tensor;

impl Decoder {
    /// Returns the query and key heads of layer `i` as attention reads them, from its activations.
    pub(super) fn heads<'p>(
        &self,
        i: usize,
        kept: &mixer::AttentionActivations,
        positions: impl Into<Positions<'p>>,
    ) -> Result<(Tensor, Tensor)> {
        let layer = self.layer_of(i, self.weights.layers[i].maps());
        let missing = || ops::Error::Shape { op: "attention", detail: "a forward pass that kept no heads".into() };
        let (q, k) = kept.heads.as_ref().or(kept.unnormed.as_ref()).ok_or_else(missing)?;
        if kept.heads.is_some() {
            return Ok((q.clone(), k.clone()));
        }
        let (q, k) = layer.placed((self.in_f32(q)?, self.in_f32(k)?), positions)?;
        Ok((self.attended(q)?, self.attended(k)?))
    }

    /// Returns only the key heads.
    pub(super) fn keys<'p>(
        &self,
        i: usize,
        kept: &mixer::AttentionActivations,
        positions: impl Into<Positions<'p>>,
    ) -> Result<Tensor> {
        let layer = self.layer_of(i, self.weights.layers[i].maps());
        let (None, Some((_, k))) = (&kept.heads, &kept.unnormed) else { return Ok(self.heads(i, kept, positions)?.1) };
        let norm = layer.head_norms(k)?.map(|(_, norm)| norm);
        Ok(self.attended(layer.placed_one(self.in_f32(k)?, norm.as_ref(), positions)?)?)
    }

    /// Returns key and value heads of prompts as attention reads them.
    pub(super) fn known_heads(
        &self,
        i: usize,
        maps: &LayerProjections<MaskedLinear<'_>>,
        kept: &mixer::AttentionActivations,
        prompts: &Forest,
    ) -> Result<(Tensor, Tensor)> {
        match &kept.compressed {
            Some([_, joined]) => self.expanded_keys(i, maps, joined, prompts),
            None => Ok((self.keys(i, kept, prompts)?, kept.values()?.clone())),
        }
    }

    /// Returns the gradients of the projections' results, given that of the result of attention or a recurrence.
    pub(super) fn mixed_backward(
        &self,
        here: &BackwardContext<'_>,
        kept: MixerResult<'_>,
        d_out: &Tensor,
        forest: &Forest,
        g: &LayerWeights<GradientSlot>,
    ) -> Result<Vec<Tensor>> {
        let &BackwardContext { i, maps, .. } = here;
        let (a, w) = (&self.architecture, &self.weights.layers[i]);
        let of_heads = match kept.mixed {
            MixerActivations::Attention(of_heads) => of_heads,
            MixerActivations::Borrowing(own) => return self.borrowed_backward(here, (own, kept.out), d_out, forest, g),
            MixerActivations::SideBySide(both) => {
                let widths = a.side_widths();
                let out = two(columns::split(&self.in_f32(kept.out)?, &widths)?)?;
                let out = [ops::cast(&out[0], kept.out.dtype())?, out[1].clone()];
                let d_out = two(columns::split(d_out, &widths)?)?;
                let part =
                    |i: usize| self.mixed_backward(here, MixerResult { mixed: &both[i], out: &out[i] }, &d_out[i], forest, g);
                return Ok([part(0)?, part(1)?].concat());
            }
            MixerActivations::Network(inputs) => {
                let own = w.recurrent.as_ref().and_then(|own| own.operation(a));
                let gradient = g.recurrent.as_ref().and_then(RecurrentWeights::gradient);
                let (own, gradient) = own.zip(gradient).ok_or_else(mixer::other_kind)?;
                return Ok(recurrent_network::backward(inputs, own, d_out, forest, gradient)?);
            }
            MixerActivations::Absent => return Ok(Vec::new()),
            MixerActivations::Convolution(joined) => {
                let (own, gradient) = w.recurrent.as_ref().zip(g.recurrent.as_ref()).ok_or_else(mixer::other_kind)?;
                let gradient = gradient.convolution.gradient();
                return Ok(vec![convolution::backward(joined, own.convolution.operation(), d_out, forest, gradient)?]);
            }
        };
        if let (Some(rows), Some(latent)) = (&of_heads.compressed, &a.latent) {
            let (q, (k, v)) = (self.expanded_queries(i, maps, &rows[0], forest)?, self.expanded_keys(i, maps, &rows[1], forest)?);
            let wide = |t: &Tensor| latent.heads.filled_up(&self.in_f32(t)?);
            let outputs = [&wide(kept.out)?, &wide(d_out)?];
            let [dq, dk, dv] = self.attention_backward(here, (of_heads, [&q, &k, &v]), outputs, forest, g)?;
            return self.expanded_backward(i, maps, rows, [&dq, &dk, &dv], g);
        }
        let (q, k) = self.heads(i, of_heads, forest)?;
        let heads = (of_heads, [&q, &k, of_heads.values()?]);
        let Some((gate, out)) = &of_heads.gated else {
            return self.values_backward(i, of_heads, self.attention_backward(here, heads, [kept.out, d_out], forest, g)?);
        };
        let (d_out, d_gate) = output_gate::backward(out, gate, d_out)?;
        let [dq, dk, dv] = self.attention_backward(here, heads, [out, &d_out], forest, g)?;
        Ok(vec![columns::join(&[&dq, &d_gate], &[a.heads.head_dim; 2])?, dk, dv])
    }

    /// Returns the gradients of query, key and value heads, given them, the result of attention and its gradient.
    fn attention_backward(
        &self,
        here: &BackwardContext<'_>,
        (kept, [q, k, v]): (&mixer::AttentionActivations, [&Tensor; 3]),
        [out, d_out]: [&Tensor; 2],
        forest: &Forest,
        g: &LayerWeights<GradientSlot>,
    ) -> Result<[Tensor; 3]> {
        let i = here.i;
        let (a, w) = (&self.architecture, &self.weights.layers[i]);
        if let Some((logits, d_logits)) = w.attention.sinks.as_ref().zip(g.attention.sinks.as_ref().and_then(Option::as_ref)) {
            sinks::backward(&self.in_f32(out)?, kept.log_sum()?, d_out, logits, d_logits)?;
        }
        let from = attention::AttentionTensors { q, k, v, out, log_sum: kept.log_sum()? };
        let (mut dq, mut dk, dv) = attention::backward(&from, d_out, forest, self.attention(i))?;
        if let Some([more_k, more_v]) = here.sources.heads.take_gradients(i) {
            ops::add_into(&dk, &more_k)?;
            ops::add_into(&dv, &more_v)?;
        }
        if let Some(scale) = a.query_scale_of(i) {
            ops::scale_rows(&dq, &scale.factors(forest.positions()))?;
        }
        let turned_back = |dq: &Tensor, dk: &Tensor| match self.rotation(i) {
            Some(rotation) => rope::backward(dq, rotation, forest).and_then(|()| rope::backward(dk, rotation, forest)),
            None => Ok(()),
        };
        if !a.rotates_first() {
            turned_back(&dq, &dk)?;
        }
        let norms = self.layer_of(i, w.maps()).head_norms(&dq)?;
        if let (Some((q, k)), Some((q_norm, k_norm))) = (&kept.unnormed, &norms) {
            let (dq_norm, dk_norm) = g.attention.qk_norm.as_ref().unwrap_or(&(None, None));
            dq = a.normed_heads_backward(q, q_norm, &dq, dq_norm)?;
            dk = a.normed_heads_backward(k, k_norm, &dk, dk_norm)?;
        }
        if a.rotates_first() {
            turned_back(&dq, &dk)?;
        }
        Ok([dq, dk, dv])
    }
}
