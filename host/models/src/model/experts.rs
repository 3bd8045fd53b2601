//! Experts of a pass: their gradients and how evenly they are used.

use super::backward::{GradientSlot, apply_backward, apply_backward_into};
use super::expert_weights::{ExpertInputs, Experts};
use super::layer::{ExpertActivations, GateUpActivations, LinearMap};
use super::masked_linear::MaskedLinear;
use super::mixture::Mixture;
use super::weights::Linear;
use super::{Architecture, Result};
use crate::ops::experts::{self, RouterGradient, Routes};
use crate::ops::{self, Forest, activation, columns};
use candle_core::Tensor;

/// Tensors to which the gradients of experts are added.
pub(super) struct ExpertGradients<'a> {
    /// Gradients of the linear maps.
    pub maps: &'a Experts<Linear<GradientSlot>>,
    /// Gradient of the factors of experts' weights, if there are some and they are trained.
    pub factors: Option<&'a Tensor>,
}

/// Adds the gradients of the experts' parameters to `grads` and returns those of what the router and they read, given that of their output.
pub(super) fn experts_backward(
    a: &Architecture,
    maps: &Experts<MaskedLinear<'_>>,
    kept: &ExpertActivations,
    inputs: &ExpertInputs,
    d_out: &Tensor,
    (slots, balance): (ExpertGradients<'_>, Option<&ExpertBalance>),
) -> Result<ExpertInputs> {
    let ExpertActivations { routes, wide: GateUpActivations { gate, up, .. } } = kept;
    let (h, ExpertGradients { maps: grads, factors }) = (&inputs.experts, slots);
    if let Some(mixture) = a.mixture.as_ref().filter(|mixture| mixture.weighs_inputs) {
        return Ok(ExpertInputs { experts: weighed_backward(a, mixture, (maps, grads), kept, (h, d_out))?, router: None });
    }
    let active = activation::forward(gate, up.as_ref(), a.activation, false)?;
    let latent = maps.latent.as_ref().zip(grads.latent.as_ref());
    let (read, d_out) = match latent {
        None => (h.clone(), d_out.clone()),
        Some(([first, last], [_, g_last])) => {
            let sums = routes.sums(&maps.down.grouped(&active, routes)?, h.dim(0)?)?;
            (first.product(h)?, apply_backward(last, &sums, d_out, g_last)?)
        }
    };
    let d_rows = ops::gather_rows(&d_out, routes.tokens())?;
    // The product of an unweighted row's gradient with the row is the gradient of its weight.
    let d_unweighed = maps.down.grouped_input_backward(&d_rows, routes)?;
    let mut d_weights = experts::dots(&d_unweighed, &active)?;
    if let Some(biases) = &maps.down.linear.bias {
        let of_biases = routes.dots_with_biases(&d_rows, biases)?;
        d_weights.iter_mut().zip(of_biases).for_each(|(d, more)| *d += more);
    }
    if let Some(d_biases) = wanted(&grads.down) {
        routes.add_bias_gradients(&routes.weighted(&d_rows)?, d_biases)?;
    }
    maps.down.grouped_weight_backward(|| routes.weighted(&active), &d_rows, &grads.down, routes)?;
    let (d_gate, d_up) = activation::backward(gate, up.as_ref(), &routes.weighted(&d_unweighed)?, a.activation, false)?;
    let width = gate.dim(1)?;
    let d_wide = d_up.map_or_else(|| Ok(d_gate.clone()), |d_up| columns::join(&[&d_gate, &d_up], &[width, width]))?;
    if let Some(d_biases) = wanted(&grads.wide) {
        routes.add_bias_gradients(&d_wide, d_biases)?;
    }
    maps.wide.grouped_weight_backward(|| ops::gather_rows(&read, routes.tokens()), &d_wide, &grads.wide, routes)?;
    if let Some(d_factors) = factors {
        routes.backward_factors(&d_weights, d_factors)?;
    }
    let d_logits = routes.backward(&d_weights, balance.and_then(ExpertBalance::slope), h)?;
    let d_router = apply_backward(&maps.router, inputs.router.as_ref().unwrap_or(h), &d_logits, &grads.router)?;
    let (dh, d_router) = match inputs.router {
        None => (d_router, None),
        Some(_) => (ops::zeros_like(h)?, Some(d_router)),
    };
    let d_rows = maps.wide.grouped_input_backward(&d_wide, routes)?;
    match latent {
        None => routes.gather_into(&dh, &d_rows, false)?,
        Some(([first, _], [g_first, _])) => {
            let d_read = ops::zeros_like(&read)?;
            routes.gather_into(&d_read, &d_rows, false)?;
            apply_backward_into(first, h, &d_read, g_first, &dh)?;
        }
    }
    Ok(ExpertInputs { experts: dh, router: d_router })
}

/// Computes the gradients of experts whose weights apply to their inputs. Such experts have no biases and no auxiliary loss.
fn weighed_backward(
    a: &Architecture,
    mixture: &Mixture,
    (maps, grads): (&Experts<MaskedLinear<'_>>, &Experts<Linear<Option<Tensor>>>),
    kept: &ExpertActivations,
    (h, d_out): (&Tensor, &Tensor),
) -> Result<Tensor> {
    let ExpertActivations { routes, wide: GateUpActivations { gate, up, .. } } = kept;
    let active = activation::forward(gate, up.as_ref(), a.activation, false)?;
    let d_rows = ops::gather_rows(d_out, routes.tokens())?;
    let d_active = maps.down.grouped_input_backward(&d_rows, routes)?;
    maps.down.grouped_weight_backward(|| Ok(active.clone()), &d_rows, &grads.down, routes)?;
    let (d_gate, d_up) = activation::backward(gate, up.as_ref(), &d_active, a.activation, false)?;
    let d_up = d_up.ok_or_else(|| ops::Error::Shape { op: "experts", detail: "an expert without a gate".into() })?;
    let d_wide = columns::join(&[&d_gate, &d_up], &[gate.dim(1)?; 2])?;
    maps.wide.grouped_weight_backward(|| mixture.rows(routes, h), &d_wide, &grads.wide, routes)?;
    let d_weighed = maps.wide.grouped_input_backward(&d_wide, routes)?;
    let d_weights = experts::dots(&d_weighed, &ops::gather_rows(h, routes.tokens())?)?;
    let dh = apply_backward(&maps.router, h, &routes.backward(&d_weights, None, h)?, &grads.router)?;
    routes.gather_into(&dh, &d_weighed, true)?;
    Ok(dh)
}

/// Returns the tensor to which the gradient of biases is added.
fn wanted(grads: &Linear<Option<Tensor>>) -> Option<&Tensor> {
    grads.bias.as_ref().and_then(Option::as_ref)
}

/// How evenly the tokens of a pass were routed to experts, over all layers (Fedus et al. 2021, arXiv 2101.03961, equations 4 to 6, as in
/// transformers). The loss is `E` times the sum over experts of the fraction of tokens routed to the expert, times the mean probability of
/// routing there. A prompt's tokens count once for each of its completions, as if it were repeated.
#[derive(Debug)]
pub(super) struct ExpertBalance {
    /// Number of texts that contain each token, `[N]`.
    of_tokens: Vec<f32>,
    /// Number of tokens routed to each expert, `[E]`.
    counts: Vec<f64>,
    /// Sums of probabilities, `[E]`.
    sums: Vec<f64>,
    /// Number of tokens over all layers.
    total: f64,
    /// Derivative of the loss with respect to each expert's probability, for a token of one text, `[E]`.
    slope: Option<Vec<f32>>,
}

impl ExpertBalance {
    /// Starts the measurement; `None` for a model without experts.
    pub(super) fn new(a: &Architecture, forest: &Forest) -> Option<Self> {
        let experts = a.mixture.as_ref()?.experts;
        let (counts, sums) = (vec![0.0; experts], vec![0.0; experts]);
        Some(Self { of_tokens: forest.texts_of_tokens(), counts, sums, total: 0.0, slope: None })
    }

    /// Adds a layer.
    pub(super) fn add(&mut self, routes: &Routes) {
        routes.add_load(&self.of_tokens, &mut self.counts, &mut self.sums);
        self.total += self.of_tokens.iter().map(|texts| f64::from(*texts)).sum::<f64>();
    }

    /// Returns the loss.
    pub(super) fn loss(&self) -> f64 {
        let pairs = self.counts.iter().zip(&self.sums);
        pairs.map(|(count, sum)| count * sum).sum::<f64>() * self.counts.len() as f64 / (self.total * self.total)
    }

    /// Sets the weight of the auxiliary loss in the training loss.
    pub(super) fn weigh(&mut self, weight: f64) {
        let factor = weight * self.counts.len() as f64 / (self.total * self.total);
        self.slope = Some(self.counts.iter().map(|count| (factor * count) as f32).collect());
    }

    fn slope(&self) -> Option<RouterGradient<'_>> {
        self.slope.as_ref().map(|experts| RouterGradient { tokens: &self.of_tokens, experts })
    }
}
