//! The projections before and after a layer's attention or recurrence, or after both side by side (Falcon-H1): then both read the layer's
//! normalised input, their results are one row, first that of attention, and the sum of their projections is added to the residual.

use super::backward::{GradientSlot, apply_backward, products_backward};
use super::decoder::{BackwardContext, Decoder};
use super::layer::{DecoderLayer, LinearMap, all_round, multiplied, products};
use super::layer_projections::LayerProjections;
use super::masked_linear::MaskedLinear;
use super::mixer::other_kind;
use super::recurrence::SideBySide;
use super::weights::{LayerWeights, Linear};
use super::{Architecture, Result};
use crate::ops::{self, columns};
use candle_core::Tensor;

impl Architecture {
    /// Returns the factors of attention and state spaces side by side, if the model's layers have both.
    pub(super) fn side_by_side(&self) -> Option<SideBySide> {
        self.recurrence.as_ref()?.beside
    }

    /// Returns the widths of the results of attention and of the state space beside it.
    pub(super) fn side_widths(&self) -> [usize; 2] {
        [self.mixed_width(false), self.mixed_width(true)]
    }

    /// Returns the factor of each column of a state space's projection.
    fn column_factors(&self, factors: SideBySide) -> Vec<f32> {
        let heads = self.recurrence.as_ref().and_then(|all| all.kind.heads());
        let widths = heads.map_or([0; 5], |h| [h.value_width(), h.value_width(), h.key_width(), h.key_width(), h.values]);
        factors.projected.into_iter().zip(widths).flat_map(|(factor, width)| vec![factor; width]).collect()
    }
}

impl<P: LinearMap> DecoderLayer<'_, P> {
    /// Returns what attention or a recurrence reads, or both side by side, given the layer's input `x`.
    pub(super) fn mixer_inputs(&self, x: &Tensor) -> Result<Vec<Tensor>> {
        let (maps, norm, a) = (&self.maps.qkv, self.norms.input_norm.as_ref(), self.architecture);
        let Some(factors) = a.side_by_side() else {
            let h = a.normed_for(all_round(maps), x, norm)?;
            let recurrent = self.norms.recurrent.is_some();
            return Ok(a.ungrouped(products(maps, &h, &a.product_widths(self.number))?, recurrent)?);
        };
        let h = a.normed(x, norm)?;
        let (of_attention, [of_states]) = maps.split_at(maps.len().saturating_sub(1)) else {
            return Err(other_kind().into());
        };
        let mut all = P::products(of_attention, &multiplied(h.clone(), factors.attention_in)?)?;
        let joined = of_states.product(&multiplied(h, factors.states_in)?)?;
        columns::scale(&joined, &a.column_factors(factors))?;
        all.extend(columns::split(&joined, &a.input_widths(true))?);
        Ok(all)
    }

    /// Returns the result of the projection after attention or a recurrence, or the sum of both projections' results side by side.
    pub(super) fn mixer_output(&self, out: &Tensor) -> ops::Result<Tensor> {
        let a = self.architecture;
        let (Some(factors), [o, beside]) = (a.side_by_side(), &self.maps.o[..]) else {
            return self.maps.o.first().ok_or_else(other_kind)?.product(out);
        };
        let [attended, run] = two(columns::split(out, &a.side_widths())?)?;
        let sum = multiplied(o.product(&attended)?, factors.attention_out)?;
        ops::add_into(&sum, &multiplied(beside.product(&run)?, factors.states_out)?)?;
        Ok(sum)
    }
}

impl Decoder {
    /// Returns the gradient of a layer's normalised input, given those of [`DecoderLayer::mixer_inputs`].
    pub(super) fn mixer_inputs_backward(
        &self,
        here: &BackwardContext<'_>,
        input: &Tensor,
        d_inputs: Vec<Tensor>,
        g: &LayerWeights<GradientSlot>,
    ) -> Result<Tensor> {
        let (a, i, maps) = (&self.architecture, here.i, &here.maps.qkv);
        let (norm, widths) = (self.weights.layers[i].input_norm.as_ref(), a.product_widths(i));
        let Some(factors) = a.side_by_side() else {
            let h = a.normed_for(all_round(&here.maps.each().qkv), input, norm)?;
            let d_inputs = a.grouped(d_inputs, self.weights.layers[i].recurrent.is_some())?;
            return Ok(products_backward(maps, &h, &d_inputs.iter().collect::<Vec<_>>(), &widths, &g.qkv)?);
        };
        let (h, count) = (a.normed(input, norm)?, maps.len().saturating_sub(1));
        let (of_attention, of_states) = d_inputs.split_at(count);
        let d_joined = columns::join(&of_states.iter().collect::<Vec<_>>(), &a.input_widths(true))?;
        columns::scale(&d_joined, &a.column_factors(factors))?;
        let read = multiplied(h.clone(), factors.attention_in)?;
        let d_attention: Vec<&Tensor> = of_attention.iter().collect();
        let dh = products_backward(&maps[..count], &read, &d_attention, &widths[..count], &g.qkv[..count])?;
        let dh = multiplied(dh, factors.attention_in)?;
        let d_states = apply_backward(&maps[count], &multiplied(h, factors.states_in)?, &d_joined, &g.qkv[count])?;
        ops::add_into(&dh, &multiplied(d_states, factors.states_in)?)?;
        Ok(dh)
    }

    /// Returns the gradient of the result `out` of attention or a recurrence for the rows that the rest of the layer read, given that of
    /// [`DecoderLayer::mixer_output`].
    pub(super) fn mixer_output_backward(
        &self,
        maps: &LayerProjections<MaskedLinear<'_>>,
        out: &Tensor,
        rows: Option<&[usize]>,
        d_projected: &Tensor,
        g: &[Linear<GradientSlot>],
    ) -> Result<Tensor> {
        let (o, a) = (maps.o.first().ok_or_else(other_kind)?, &self.architecture);
        let g_o = g.first().ok_or_else(other_kind)?;
        let of_rows = |read: Tensor| rows.map_or_else(|| Ok(read.clone()), |rows| ops::gather_rows(&read, rows));
        let (Some(factors), [_, beside], [_, g_beside]) = (a.side_by_side(), &maps.o[..], g) else {
            let read = if o.rounds() { out.clone() } else { self.in_f32(out)? };
            return Ok(apply_backward(o, &of_rows(read)?, d_projected, g_o)?);
        };
        let [attended, run] = two(columns::split(&of_rows(self.in_f32(out)?)?, &a.side_widths())?)?;
        let d_attended = apply_backward(o, &attended, &multiplied(d_projected.clone(), factors.attention_out)?, g_o)?;
        let d_run = apply_backward(beside, &run, &multiplied(d_projected.clone(), factors.states_out)?, g_beside)?;
        Ok(columns::join(&[&d_attended, &d_run], &a.side_widths())?)
    }
}

/// Returns the two parts of rows.
pub(super) fn two(parts: Vec<Tensor>) -> ops::Result<[Tensor; 2]> {
    parts.try_into().map_err(|_| other_kind())
}
