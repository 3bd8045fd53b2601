//! The end of a layer behind its MLP: a stage that reads the layer's own input, and a factor. Also where those inputs come from.

use super::backward::{GradientSlot, apply_backward, apply_backward_into};
use super::decoder::Decoder;
use super::end_activations::EndActivations;
use super::layer::{DecoderLayer, LayerActivations, LinearMap, multiplied};
use super::layer_input_weights::{LayerEnd, LayerInputMaps, LayerInputStage};
use super::layer_projections::LayerProjections;
use super::masked_linear::MaskedLinear;
use super::mixer::other_kind;
use super::pass_options::PassOptions;
use super::pass_sources::LayerInputs;
use super::weights::{LayerWeights, Linear, Weights};
use super::{Architecture, Result};
use crate::ops::{self, Forest, activation, columns, embedding, norm};
use candle_core::Tensor;

impl LayerEnd<Linear, Tensor> {
    /// Returns the factor of the layer's output.
    fn factor(&self) -> ops::Result<f32> {
        ops::to_vec(&self.scalar)?.first().copied().ok_or_else(other_kind)
    }
}

impl<P: LinearMap> DecoderLayer<'_, P> {
    /// Returns a layer's output, given the result behind its MLP.
    pub(super) fn ended(&self, x: Tensor, kept: &mut LayerActivations) -> Result<Tensor> {
        let Some(end) = &self.norms.end else { return Ok(x) };
        let factor = end.factor()?;
        let (Some(stage), Some(LayerInputMaps { gate, projection })) = (&end.stage, &self.maps.end) else {
            return Ok(multiplied(x, factor)?);
        };
        let given = self.own_input.clone().ok_or_else(other_kind)?;
        let gates = gate.product(&x)?;
        let active = activation::forward(&gates, Some(&given), self.architecture.activation, projection.rounds())?;
        let projected = projection.product(&active)?;
        let out = norm::forward(&projected, &stage.norm, self.architecture.norm_eps, false)?;
        ops::add_into(&out, &x)?;
        kept.end = Some(EndActivations { input: x, gate: gates, given, projected });
        Ok(multiplied(out, factor)?)
    }
}

impl Architecture {
    /// Returns the factors of the projection of the first layer's input, of a token's embedding, and of the sum of both.
    fn input_factors(&self, width: usize) -> [f32; 3] {
        [(self.hidden_size as f32).sqrt().recip(), (width as f32).sqrt(), 0.5f32.sqrt()]
    }
}

impl Decoder {
    /// Computes layers' own inputs with this map, given the tokens and the first layer's input; `None` if layers have none.
    pub(super) fn layer_inputs<P: LinearMap>(
        &self,
        map: Option<&P>,
        tokens: &[u32],
        first: &Tensor,
    ) -> Result<Option<LayerInputs>> {
        let (Some(own), Some(map), Some(width)) = (&self.weights.layer_inputs, map, self.architecture.layer_input_width()) else {
            return Ok(None);
        };
        let [of_product, of_table, of_sum] = self.architecture.input_factors(width);
        let product = multiplied(map.product(first)?, of_product)?;
        let parts = product.reshape(((), width))?;
        let sum = norm::forward(&parts, &own.norm, self.architecture.norm_eps, false)?.reshape(product.shape())?;
        ops::add_into(&sum, &multiplied(embedding::forward(&own.table, tokens)?, of_table)?)?;
        let each = columns::split(&multiplied(sum, of_sum)?, &vec![width; self.architecture.layers])?;
        Ok(Some(LayerInputs::new(first.clone(), each)))
    }

    /// Returns the projection of the first layer's input in a training or scoring pass, if layers have inputs of their own.
    pub(super) fn input_projection<'a>(&'a self, how: &'a PassOptions) -> Option<MaskedLinear<'a>> {
        let own = self.weights.layer_inputs.as_ref()?;
        Some(MaskedLinear::before_layers(&own.projection, self.precision, how, self.architecture.layers))
    }

    /// Adds the gradients of the parameters that layers' own inputs come from, and that of the first layer's input to `dx`.
    pub(super) fn layer_inputs_backward(
        &self,
        kept: &LayerInputs,
        how: &PassOptions,
        forest: &Forest,
        dx: &Tensor,
        grads: &Weights<GradientSlot>,
    ) -> Result<()> {
        let (Some(own), Some(g), Some(map)) = (&self.weights.layer_inputs, &grads.layer_inputs, self.input_projection(how))
        else {
            return Ok(());
        };
        let width = self.architecture.layer_input_width().ok_or_else(other_kind)?;
        let [of_product, of_table, of_sum] = self.architecture.input_factors(width);
        let each = kept.take_gradients();
        let d_sum = ops::scaled(&columns::join(&each.iter().collect::<Vec<_>>(), &vec![width; each.len()])?, of_sum)?;
        if let Some(d_table) = &g.table {
            embedding::backward(forest.tokens(), &ops::scaled(&d_sum, of_table)?, d_table)?;
        }
        let parts = |t: &Tensor| t.reshape(((), width));
        let product = ops::scaled(&map.product(&kept.first)?, of_product)?;
        let d_product = ops::zeros_like(&product)?;
        let (product, d_parts) = (parts(&product)?, parts(&d_product)?);
        norm::backward(&product, &own.norm, self.architecture.norm_eps, &parts(&d_sum)?, &d_parts, g.norm.as_ref())?;
        apply_backward_into(&map, &kept.first, &ops::scaled(&d_product, of_product)?, &g.projection, dx)?;
        Ok(())
    }

    /// Returns the gradient of a layer's result behind its MLP, given that of its output, and that of the layer's own input if it has one.
    pub(super) fn ended_backward(
        &self,
        i: usize,
        maps: &LayerProjections<MaskedLinear<'_>>,
        kept: &LayerActivations,
        d_out: Tensor,
        g: &LayerWeights<GradientSlot>,
    ) -> Result<(Tensor, Option<Tensor>)> {
        let Some(end) = &self.weights.layers[i].end else { return Ok((d_out, None)) };
        let d_out = multiplied(d_out, end.factor()?)?;
        let (Some(LayerInputStage { norm: weight, .. }), Some(kept), Some(maps)) = (&end.stage, &kept.end, &maps.end) else {
            return Ok((d_out, None));
        };
        let g = g.end.as_ref().and_then(|end| end.stage.as_ref()).ok_or_else(other_kind)?;
        let a = &self.architecture;
        let d_projected = ops::zeros_like(&kept.projected)?;
        norm::backward(&kept.projected, weight, a.norm_eps, &d_out, &d_projected, g.norm.as_ref())?;
        let active = activation::forward(&kept.gate, Some(&kept.given), a.activation, maps.projection.rounds())?;
        let d_active = apply_backward(&maps.projection, &active, &d_projected, &g.maps.projection)?;
        let (d_gate, d_given) = activation::backward(&kept.gate, Some(&kept.given), &d_active, a.activation, false)?;
        apply_backward_into(&maps.gate, &kept.input, &d_gate, &g.maps.gate, &d_out)?;
        Ok((d_out, d_given))
    }
}
