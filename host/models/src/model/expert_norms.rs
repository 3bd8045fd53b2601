//! What a layer's router and experts read, and the gradients of norms of their own, which experts beside an MLP have (Gemma 4).

use super::backward::GradientSlot;
use super::decoder::{BackwardContext, Decoder};
use super::expert_weights::{ExpertInputs, ExpertNorms};
use super::experts::{ExpertGradients, experts_backward};
use super::layer::{LayerActivations, multiplied};
use super::mixer::other_kind;
use super::weights::{LayerWeights, NormWeights};
use super::{Architecture, Result};
use crate::ops;
use candle_core::Tensor;

impl Architecture {
    /// Normalises `x` by a weight `[D]` without a bias.
    pub(super) fn normed_by(&self, x: &Tensor, weight: &Tensor) -> ops::Result<Tensor> {
        self.normed(x, Some(&NormWeights { weight: weight.clone(), bias: None }))
    }

    /// Returns what experts and their router read: `h`, or rows of `source` by their own norms. The router's also have a factor.
    pub(super) fn expert_inputs(
        &self,
        norms: Option<&ExpertNorms<Tensor>>,
        h: &Tensor,
        source: &Tensor,
    ) -> ops::Result<ExpertInputs> {
        let Some(norms) = norms else { return Ok(ExpertInputs { experts: h.clone(), router: None }) };
        let router = multiplied(self.normed_by(source, &norms.router)?, self.router_factor())?;
        Ok(ExpertInputs { experts: self.normed_by(source, &norms.input)?, router: Some(router) })
    }

    /// Returns the factor of normalised rows that a router reads.
    fn router_factor(&self) -> f32 {
        (self.hidden_size as f32).sqrt().recip()
    }

    /// Adds the gradient of the input `x` of a norm without a bias to `dx`, given that of its result.
    fn normed_by_backward(
        &self,
        (x, weight): (&Tensor, &Tensor),
        dy: &Tensor,
        dx: &Tensor,
        d_weight: &GradientSlot,
    ) -> ops::Result<()> {
        let norm = NormWeights { weight: weight.clone(), bias: None };
        self.norm_backward(x, &norm, dy, dx, &Some(&NormWeights { weight: d_weight.clone(), bias: None }))
    }
}

impl Decoder {
    /// Adds to `d_source` the gradient of `source`, which the experts' norms read. Returns the gradient of the experts' input `h`, which
    /// other experts read, and that of the MLP's output, given that of their sum.
    pub(super) fn experts_of_layer_backward(
        &self,
        here: &BackwardContext<'_>,
        kept: &LayerActivations,
        (h, source): (&Tensor, &Tensor),
        d_sum: &Tensor,
        d_source: &Tensor,
        g: &LayerWeights<GradientSlot>,
    ) -> Result<(Option<Tensor>, Tensor)> {
        let (a, norms) = (&self.architecture, self.weights.layers[here.i].routing.norms.as_ref());
        let Some(((maps, routed), grads)) = here.maps.experts.as_ref().zip(kept.experts.as_ref()).zip(g.experts.as_ref()) else {
            return Ok((None, d_sum.clone()));
        };
        let inputs = a.expert_inputs(norms, h, source)?;
        let (Some(norms), Some(g)) = (norms, &g.routing.norms) else {
            let slots = ExpertGradients { maps: grads, factors: None };
            let d = experts_backward(a, maps, routed, &inputs, d_sum, (slots, here.balance))?;
            return Ok((Some(d.experts), d_sum.clone()));
        };
        let [of_unit, of_experts] = kept.apart.as_ref().ok_or_else(other_kind)?;
        let [d_unit, d_experts] = [ops::zeros_like(of_unit)?, ops::zeros_like(of_experts)?];
        a.normed_by_backward((of_unit, &norms.unit), d_sum, &d_unit, &g.unit)?;
        a.normed_by_backward((of_experts, &norms.output), d_sum, &d_experts, &g.output)?;
        let slots = ExpertGradients { maps: grads, factors: g.factors.as_ref() };
        let d = experts_backward(a, maps, routed, &inputs, &d_experts, (slots, here.balance))?;
        a.normed_by_backward((source, &norms.input), &d.experts, d_source, &g.input)?;
        let d_router = multiplied(d.router.ok_or_else(other_kind)?, a.router_factor())?;
        a.normed_by_backward((source, &norms.router), &d_router, d_source, &g.router)?;
        Ok((None, d_unit))
    }
}
