//! Computes a decoder layer: attention or a recurrence, and an MLP or experts or both; or only one of these parts. The layer is generic over
//! how products are applied and over where tokens find earlier ones: in a forest in training, or in caches. `decoder.rs` and
//! `forest_mixer.rs` compute its gradient, `costs.rs` its cost, and `device_decoder.rs` runs it on a device as fused kernels.

use super::end_activations::EndActivations;
use super::expert_weights::{ExpertInputs, ExpertParameters, Experts};
use super::layer_projections::LayerProjections;
use super::mixer::{self, AttentionOutput, MixerActivations, TokenMixer};
use super::recurrent_weights::RecurrentWeights;
use super::switches::{HeadNorms, NormKind};
use super::weights::{LayerWeights as Norms, MlpProjections, NormWeights};
use super::{Architecture, Result};
use crate::ops::experts::Routes;
use crate::ops::rope::{Positions, Rotation};
use crate::ops::{self, activation, columns, layer_norm, norm, output_gate, rope};
use candle_core::{DType, Tensor};

/// A linear map, as training or decoding applies it.
pub(super) trait LinearMap {
    /// Maps `x: [N, in]` to `[N, out]`.
    fn product(&self, x: &Tensor) -> ops::Result<Tensor>;

    /// Returns whether the map rounds its input to bf16. If so, it can be given bf16, with bit-identical results.
    fn rounds(&self) -> bool {
        false
    }

    /// Maps `x: [N, in]` by each of several maps.
    fn products(maps: &[&Self], x: &Tensor) -> ops::Result<Vec<Tensor>> {
        maps.iter().map(|map| map.product(x)).collect()
    }

    /// Maps sorted rows `x: [R, in]` to `[R, out]`, each by the matrix of its expert.
    fn grouped(&self, x: &Tensor, routes: &Routes) -> ops::Result<Tensor>;

    /// Announces that the next products use these maps with `n` rows, so that their weights can be fetched in advance.
    fn prefetch(_maps: &[&Self], _n: usize) -> ops::Result<()> {
        Ok(())
    }
}

/// Multiplies values, unless the factor is one.
pub(super) fn multiplied(x: Tensor, factor: f32) -> ops::Result<Tensor> {
    if factor == 1.0 { Ok(x) } else { ops::scaled(&x, factor) }
}

/// Returns whether all of these maps round their inputs.
pub(super) fn all_round<P: LinearMap>(maps: &[&P]) -> bool {
    maps.iter().all(|map| map.rounds())
}

impl<P: LinearMap> LayerProjections<&P> {
    /// Returns whether everything that reads the norm before the MLP rounds it. Experts' rows are gathered first.
    pub(super) fn mlp_rounds(&self) -> bool {
        self.experts.is_none() && self.unit.as_ref().is_some_and(|unit| all_round(&unit.wide))
    }
}

/// Rounds heads and values to bf16.
fn halved<const N: usize>(all: [&Tensor; N]) -> ops::Result<[Tensor; N]> {
    let all: Vec<Tensor> = all.into_iter().map(|t| ops::cast(t, DType::BF16)).collect::<ops::Result<_>>()?;
    all.try_into().map_err(|_| none())
}

/// Applies maps with the same input, and splits joined results.
pub(super) fn products<P: LinearMap>(maps: &[&P], x: &Tensor, widths: &[usize]) -> ops::Result<Vec<Tensor>> {
    match maps {
        [joined] if widths.len() > 1 => columns::split(&joined.product(x)?, widths),
        _ => P::products(maps, x),
    }
}

/// Results of an MLP's gate and up projections.
pub(super) struct GateUpActivations {
    pub gate: Tensor,
    /// The factor that the gate multiplies, if the MLP is gated.
    pub up: Option<Tensor>,
    /// Gates of the MLP's outputs before the logistic function, `[N, 1]`, if it has any.
    pub share: Option<Tensor>,
}

/// Results of the experts' gate and up projections, in sorted rows.
pub(super) struct ExpertActivations {
    pub routes: Routes,
    pub wide: GateUpActivations,
}

/// Results of all gate and up projections of a layer.
pub(super) struct FeedForwardActivations {
    pub unit: Option<GateUpActivations>,
    pub experts: Option<ExpertActivations>,
}

/// Activations that a layer's backward pass needs. Elementwise results are recomputed instead.
pub(super) struct LayerActivations {
    pub input: Tensor,
    pub mixed: MixerActivations,
    /// Result of attention or the recurrence, `[N, H * C]`; without what fills the heads up, if keys and values are compressed. The input in a
    /// layer without either.
    pub out: Tensor,
    /// Output of attention before its norm, if it has one.
    pub projected: Option<Tensor>,
    pub middle: Tensor,
    pub unit: Option<GateUpActivations>,
    pub experts: Option<ExpertActivations>,
    /// Outputs of the MLP and of the experts, if both have norms and [`DecoderLayer::output`] was called.
    pub apart: Option<[Tensor; 2]>,
    /// Sum of the MLP's and the experts' outputs before its norm, if it has one and [`DecoderLayer::output`] was called.
    pub lowered: Option<Tensor>,
    /// Activations of the stage that reads the layer's own input, if it has one and [`DecoderLayer::output`] was called.
    pub end: Option<EndActivations>,
}

impl GateUpActivations {
    fn cast(self, dtype: DType) -> ops::Result<Self> {
        let up = self.up.map(|up| ops::cast(&up, dtype)).transpose()?;
        Ok(Self { gate: ops::cast(&self.gate, dtype)?, up, share: self.share })
    }
}

/// Converts both outputs of an MLP and of experts.
fn both(outputs: Option<[Tensor; 2]>, to: impl Fn(Tensor) -> ops::Result<Tensor>) -> ops::Result<Option<[Tensor; 2]>> {
    outputs.map(|[of_unit, of_experts]| Ok([to(of_unit)?, to(of_experts)?])).transpose()
}

impl LayerActivations {
    /// Removes what can be recomputed from the rest, or what no gradient needs.
    pub(super) fn reduced(self) -> Self {
        // Only an MLP or experts read what comes after attention.
        let feeds = self.unit.is_some() || self.experts.is_some();
        let middle = if feeds { self.middle } else { self.input.clone() };
        Self { mixed: self.mixed.reduced(), middle, ..self }
    }

    /// Converts the layer's input, the result of attention and what comes after it. Those that are the input stay equal to it.
    fn cast_rows(
        [input, out, middle]: [Tensor; 3],
        of_out: impl Fn(&Tensor) -> ops::Result<Tensor>,
        dtype: DType,
    ) -> ops::Result<[Tensor; 3]> {
        let to = ops::cast(&input, dtype)?;
        let out = if out.id() == input.id() { to.clone() } else { of_out(&out)? };
        let middle = if middle.id() == input.id() { to.clone() } else { ops::cast(&middle, dtype)? };
        Ok([to, out, middle])
    }

    /// Converts all parts to f32 except the normalisers and what products, recurrences and the activation function read.
    pub(super) fn in_f32(self) -> ops::Result<Self> {
        let to = |t: Tensor| ops::cast(&t, DType::F32);
        let Self { input, mixed, out, projected, middle, unit, experts, apart, lowered, end } = self;
        let routed =
            |ExpertActivations { routes, wide }| Ok::<_, ops::Error>(ExpertActivations { routes, wide: wide.cast(DType::F32)? });
        let [input, out, middle] = Self::cast_rows([input, out, middle], |out| Ok(out.clone()), DType::F32)?;
        Ok(Self {
            input,
            mixed: mixed.in_f32()?,
            out,
            projected: projected.map(to).transpose()?,
            middle,
            unit,
            experts: experts.map(routed).transpose()?,
            apart: both(apart, to)?,
            lowered: lowered.map(to).transpose()?,
            end: end.map(EndActivations::in_f32).transpose()?,
        })
    }

    /// Converts all parts except the normalisers.
    pub(super) fn cast(self, dtype: DType) -> ops::Result<Self> {
        let to = |t: Tensor| ops::cast(&t, dtype);
        let Self { input, mixed, out, projected, middle, unit, experts, apart, lowered, end } = self;
        let [input, out, middle] = Self::cast_rows([input, out, middle], |out| ops::cast(out, dtype), dtype)?;
        Ok(Self {
            input,
            mixed: mixed.cast(dtype)?,
            out,
            projected: projected.map(to).transpose()?,
            middle,
            unit: unit.map(|wide| wide.cast(dtype)).transpose()?,
            experts: experts
                .map(|ExpertActivations { routes, wide }| {
                    Ok::<_, ops::Error>(ExpertActivations { routes, wide: wide.cast(dtype)? })
                })
                .transpose()?,
            apart: both(apart, to)?,
            lowered: lowered.map(to).transpose()?,
            end: end.map(|end| end.cast(dtype)).transpose()?,
        })
    }

    /// Returns the bytes of all parts.
    pub(super) fn bytes(&self) -> usize {
        let Self { input, mixed, out, projected, middle, unit, experts, apart, lowered, end } = self;
        let wide = unit.iter().chain(experts.iter().map(|routed| &routed.wide));
        let wide = wide.flat_map(|GateUpActivations { gate, up, share }| std::iter::once(gate).chain(up).chain(share));
        let more = [projected, lowered]
            .into_iter()
            .flatten()
            .chain(apart.iter().flatten())
            .chain(end.iter().flat_map(EndActivations::parts));
        let own = [out, middle].into_iter().filter(|t| t.id() != input.id());
        [input].into_iter().chain(own).chain(mixed.parts()).chain(wide).chain(more).map(super::weights::bytes).sum()
    }
}

/// Given the result of attention or the recurrence and the layer's input, returns both for the rows that the rest of the layer computes.
pub(super) type RowSelector<'a> = dyn Fn(&Tensor, &Tensor) -> ops::Result<(Tensor, Tensor)> + 'a;

/// A decoder layer with its linear maps.
pub(super) struct DecoderLayer<'a, P> {
    pub architecture: &'a Architecture,
    /// The layer's number.
    pub number: usize,
    /// The layer's own input for the rows that its MLP computes, if it has one.
    pub own_input: Option<Tensor>,
    /// Rotary embedding of the layer, if it has one.
    pub rotation: Option<&'a Rotation>,
    /// Norms of the layer.
    pub norms: &'a Norms,
    /// Whether query and key heads are rounded to bf16 before their norms, as they are stored, and likewise the inputs of a recurrence.
    pub rounds: bool,
    /// Whether attention reads heads and values in bf16, since it only multiplies them.
    pub halves: bool,
    pub maps: LayerProjections<&'a P>,
}

impl<P> DecoderLayer<'_, P> {
    /// Returns query and key heads as attention reads them: normalised if the family has norms for them, rotated unless they already were,
    /// and queries scaled by position if the family does that. Without norms, this happens in place.
    pub(super) fn placed<'p>(&self, heads: (Tensor, Tensor), positions: impl Into<Positions<'p>>) -> Result<(Tensor, Tensor)> {
        let ((q, k), positions) = (heads, positions.into());
        let (q_norm, k_norm) = self.head_norms(&q)?.unzip();
        let (q_norm, k_norm) = (q_norm.as_ref(), k_norm.as_ref());
        let q = self.placed_one(q, q_norm, positions)?;
        let rotated = self.rotation.is_some();
        if let Some(scale) = self.architecture.query_scale.filter(|scale| scale.rotated == rotated) {
            ops::scale_rows(&q, &scale.factors(positions.each()))?;
        }
        Ok((q, self.placed_one(k, k_norm, positions)?))
    }

    /// Returns the weights of the norms of query and key heads, on the device of `like`; `None` if the layer has no such norms.
    pub(super) fn head_norms(&self, like: &Tensor) -> Result<Option<(Tensor, Tensor)>> {
        if self.architecture.head_norms == HeadNorms::Unweighted && self.rotation.is_some() {
            let ones = Tensor::ones(self.architecture.heads.head_dim, DType::F32, like.device())?;
            return Ok(Some((ones.clone(), ones)));
        }
        Ok(self.norms.attention.qk_norm.clone())
    }

    /// Returns query or key heads as attention reads them: normalised if there is a norm, and rotated.
    pub(super) fn placed_one<'p>(
        &self,
        heads: Tensor,
        norm: Option<&Tensor>,
        positions: impl Into<Positions<'p>>,
    ) -> Result<Tensor> {
        let heads = norm.map_or(Ok(heads.clone()), |norm| self.architecture.normed_heads(&heads, norm))?;
        if !self.architecture.rotates_first() {
            self.rotate(&heads, positions.into())?;
        }
        Ok(heads)
    }

    /// Rotates heads in place, if the layer has a rotary embedding.
    fn rotate(&self, heads: &Tensor, positions: Positions<'_>) -> ops::Result<()> {
        self.rotation.map_or(Ok(()), |rotation| rope::forward(heads, rotation, positions))
    }
}

impl<P: LinearMap> DecoderLayer<'_, P> {
    /// Runs the layer except its last product, which [`DecoderLayer::output`] adds and no gradient needs. If `further` is given, everything
    /// after attention or the recurrence is computed only for the rows that it returns.
    pub(super) fn forward<'p>(
        &self,
        x: Tensor,
        positions: impl Into<Positions<'p>>,
        further: Option<&RowSelector<'_>>,
        mut mixing: impl TokenMixer,
    ) -> Result<LayerActivations> {
        let (maps, norms, a) = (&self.maps, self.norms, self.architecture);
        if maps.o.is_empty() {
            return self.unmixed(x, further);
        }
        let inputs = self.mixer_inputs(&x)?;
        let next = maps.latent.as_ref().map_or_else(|| maps.o.clone(), |second| second.each().all().copied().collect());
        P::prefetch(&next, x.dim(0)?)?;
        let (mixed, result) = self.mixed(inputs, positions.into(), &mut mixing)?;
        let (out, residual) = further.map_or_else(|| Ok((result.clone(), x.clone())), |rows| rows(&result, &x))?;
        let (middle, projected) = self.added(self.mixer_output(&out)?, norms.attended_norm.as_ref())?;
        if let Some(unit) = &maps.unit {
            P::prefetch(&unit.wide, middle.dim(0)?)?;
        }
        ops::add_into(&middle, &residual)?;
        let source = if a.parallel { &residual } else { &middle };
        let h = a.normed_for(maps.mlp_rounds(), source, norms.before_mlp(a))?;
        let FeedForwardActivations { unit, experts } = self.widened(&h, source)?;
        let (apart, lowered, end) = (None, None, None);
        Ok(LayerActivations { input: x, mixed, out: result, projected, middle, unit, experts, apart, lowered, end })
    }

    /// Runs a layer without attention and without a recurrence, except its last product.
    fn unmixed(&self, x: Tensor, further: Option<&RowSelector<'_>>) -> Result<LayerActivations> {
        let middle = further.map_or_else(|| Ok(x.clone()), |rows| rows(&x, &x).map(|(_, x)| x))?;
        let h = self.architecture.normed_for(self.maps.mlp_rounds(), &middle, self.norms.before_mlp(self.architecture))?;
        let FeedForwardActivations { unit, experts } = self.widened(&h, &middle)?;
        let (mixed, out, projected) = (MixerActivations::Absent, x.clone(), None);
        let (apart, lowered, end) = (None, None, None);
        Ok(LayerActivations { input: x, mixed, out, projected, middle, unit, experts, apart, lowered, end })
    }

    /// Runs attention or the recurrence on the results of its projections, or both side by side. Returns the activations that the gradient
    /// needs, and the result.
    fn mixed(
        &self,
        mut inputs: Vec<Tensor>,
        positions: Positions<'_>,
        mixing: &mut impl TokenMixer,
    ) -> Result<(MixerActivations, Tensor)> {
        let a = self.architecture;
        if let Some(network) = self.norms.recurrent.as_ref().and_then(|own| own.operation(a)) {
            let is_alone = a.side_by_side().is_none();
            let of_network = inputs.split_off(if is_alone { 0 } else { inputs.len().min(3) });
            if self.rounds {
                of_network.iter().take(mixer::ROUNDED_INPUTS).try_for_each(ops::round_in_place)?;
            }
            let run = mixing.run_network(&of_network, network)?;
            let of_network = MixerActivations::Network(of_network);
            if is_alone {
                return Ok((of_network, run));
            }
            let (of_attention, attended) = self.attended(inputs, positions, mixing)?;
            let out = columns::join(&[&ops::cast(&attended, DType::F32)?, &run], &a.side_widths())?;
            return Ok((MixerActivations::SideBySide(Box::new([of_attention, of_network])), out));
        }
        if let Some(RecurrentWeights { convolution, .. }) = &self.norms.recurrent {
            let [joined] = <[Tensor; 1]>::try_from(inputs).map_err(|_| none())?;
            if self.rounds {
                ops::round_in_place(&joined)?;
            }
            let out = mixing.convolve(&joined, convolution.operation())?;
            return Ok((MixerActivations::Convolution(joined), out));
        }
        self.attended(inputs, positions, mixing)
    }

    /// Runs attention on the results of its projections.
    fn attended(
        &self,
        inputs: Vec<Tensor>,
        positions: Positions<'_>,
        mixing: &mut impl TokenMixer,
    ) -> Result<(MixerActivations, Tensor)> {
        let a = self.architecture;
        if let Some(weight) = &self.norms.attention.query_norm {
            return self.mixed_with_shared(inputs, weight, positions, mixing);
        }
        let (compressed, [q, k, v]) = match self.norms.attention.latent {
            Some(_) => self.expanded(inputs).map(|(rows, heads)| (Some(rows), heads))?,
            None => (None, three(inputs)?),
        };
        let (q, gate) = if a.output_gate { query_and_gate(&q, a.heads.head_dim)? } else { (q, None) };
        if a.rotates_first() {
            self.rotate(&q, positions)?;
            self.rotate(&k, positions)?;
        }
        let unnormed = self.head_norms(&q)?.map(|_| (q.clone(), k.clone()));
        if let Some((q, k)) = unnormed.as_ref().filter(|_| self.rounds) {
            ops::round_in_place(q)?;
            ops::round_in_place(k)?;
        }
        let (unnormed_v, v) = self.normed_values(v)?;
        let (q, k) = self.placed((q, k), positions)?;
        let [q, k, v] = if self.halves { halved([&q, &k, &v])? } else { [q, k, v] };
        let AttentionOutput { out, log_sum } = mixing.attend(&q, &k, &v)?;
        let out = a.narrowed_heads(out)?;
        let gated = gate.as_ref().map_or_else(|| Ok(out.clone()), |gate| output_gate::forward(&out, gate))?;
        let gated_out = gate.map(|gate| (gate, out));
        let (heads, v) = (Some((q, k)), Some(v));
        let kept = mixer::AttentionActivations { unnormed, heads, unnormed_v, v, log_sum, gated: gated_out, compressed };
        Ok((MixerActivations::Attention(kept), gated))
    }

    /// Computes the gate and up projections of the MLP and the experts on normalised rows `h` of `source`.
    pub(super) fn widened(&self, h: &Tensor, source: &Tensor) -> ops::Result<FeedForwardActivations> {
        let (maps, widths) = (&self.maps, self.architecture.mlp_widths());
        let of_unit = |unit: &MlpProjections<&P>| {
            let share = unit.gate.map(|gate| gate.product(h)).transpose()?;
            let GateUpActivations { gate, up, .. } = wide(products(&unit.wide, h, &widths)?)?;
            Ok::<_, ops::Error>(GateUpActivations { gate: multiplied(gate, self.architecture.factors.gates)?, up, share })
        };
        let unit = maps.unit.as_ref().map(of_unit).transpose()?;
        let experts = maps.experts.as_ref().map(|experts| self.routed(experts, h, source)).transpose()?;
        Ok(FeedForwardActivations { unit, experts })
    }

    /// Routes rows to experts and computes their gate and up projections, given normalised rows `h` of `source`.
    fn routed(&self, maps: &Experts<&P>, h: &Tensor, source: &Tensor) -> ops::Result<ExpertActivations> {
        let mixture = self.architecture.mixture.as_ref().ok_or_else(none)?;
        let ExpertParameters { correction, norms } = &self.norms.routing;
        let ExpertInputs { experts, router } = self.architecture.expert_inputs(norms.as_ref(), h, source)?;
        let logits = maps.router.product(router.as_ref().unwrap_or(&experts))?;
        let routes = Routes::new(&logits, mixture.routing, correction.as_ref())?;
        let routes = match norms {
            Some(norms) => routes.with_factors(&norms.factors)?,
            None => routes,
        };
        let read = maps.latent.map_or_else(|| Ok(experts.clone()), |[first, _]| first.product(&experts))?;
        let all = maps.wide.grouped(&mixture.rows(&routes, &read)?, &routes)?;
        let parts = if self.architecture.gated { columns::split(&all, &[mixture.width; 2])? } else { vec![all] };
        Ok(ExpertActivations { routes, wide: wide(parts)? })
    }

    /// Returns the sum of the MLP's and the experts' outputs, each after its norm if both have one; then the outputs are stored.
    pub(super) fn fed(&self, kept: &mut LayerActivations) -> Result<Tensor> {
        let Some(norms) = self.norms.routing.norms.as_ref().filter(|_| kept.experts.is_some()) else {
            return Ok(self.narrowed(&kept.middle, kept.unit.as_ref(), kept.experts.as_ref())?);
        };
        let of_unit = self.narrowed(&kept.middle, kept.unit.as_ref(), None)?;
        let of_experts = self.narrowed(&kept.middle, None, kept.experts.as_ref())?;
        let sum = self.architecture.normed_by(&of_unit, &norms.unit)?;
        ops::add_into(&sum, &self.architecture.normed_by(&of_experts, &norms.output)?)?;
        kept.apart = Some([of_unit, of_experts]);
        Ok(sum)
    }

    /// Returns the sum of the MLP's and the experts' outputs, given their gate and up projections, in rows like those of `like: [M, D]`.
    pub(super) fn narrowed(
        &self,
        like: &Tensor,
        unit: Option<&GateUpActivations>,
        experts: Option<&ExpertActivations>,
    ) -> ops::Result<Tensor> {
        let active = |wide: &GateUpActivations, rounds| {
            activation::forward(&wide.gate, wide.up.as_ref(), self.architecture.activation, rounds)
        };
        let of_unit = self.maps.unit.as_ref().zip(unit);
        if let Some((maps, _)) = &of_unit {
            P::prefetch(&[maps.down], like.dim(0)?)?;
        }
        let weighed = |(maps, wide): (&MlpProjections<&P>, &GateUpActivations)| {
            let y = multiplied(maps.down.product(&active(wide, maps.down.rounds())?)?, self.architecture.factors.lowered)?;
            wide.share.as_ref().map_or(Ok(()), |share| ops::scale_rows(&y, &ops::sigmoids(share)?))?;
            Ok::<_, ops::Error>(y)
        };
        let sum = of_unit.map(weighed).transpose()?;
        let Some((maps, routed)) = self.maps.experts.as_ref().zip(experts) else {
            return sum.ok_or_else(none);
        };
        let rows = maps.down.grouped(&active(&routed.wide, false)?, &routed.routes)?;
        if let Some([_, last]) = maps.latent {
            let all = last.product(&routed.routes.sums(&rows, like.dim(0)?)?)?;
            sum.map_or(Ok(()), |sum| ops::add_into(&all, &sum))?;
            return Ok(all);
        }
        let sum = sum.map_or_else(|| ops::zeros_like(like), Ok)?;
        let weighed = self.architecture.mixture.as_ref().is_none_or(|mixture| !mixture.weighs_inputs);
        routed.routes.gather_into(&sum, &rows, weighed)?;
        Ok(sum)
    }

    /// Returns the layer's output, which the next layer reads.
    pub(super) fn output(&self, kept: &mut LayerActivations) -> Result<Tensor> {
        if !self.maps.feed() {
            return Ok(kept.middle.clone());
        }
        let (out, lowered) = self.added(self.fed(kept)?, self.norms.added_norm.as_ref())?;
        kept.lowered = lowered;
        ops::add_into(&out, &kept.middle)?;
        self.ended(out, kept)
    }

    /// Returns what is added to the residual for a product's result, as new storage. Also returns that result if a norm's gradient needs
    /// it.
    fn added(&self, product: Tensor, norm: Option<&NormWeights>) -> Result<(Tensor, Option<Tensor>)> {
        let a = self.architecture;
        let before = norm.is_some().then(|| product.clone());
        Ok((multiplied(a.normed(&product, norm)?, a.factors.residual)?, before))
    }
}

fn none() -> ops::Error {
    ops::Error::Shape { op: "layer", detail: "a layer without projections".into() }
}

/// Splits a query projection's results into queries and the gates of the heads' outputs.
fn query_and_gate(joined: &Tensor, head_dim: usize) -> ops::Result<(Tensor, Option<Tensor>)> {
    let mut parts = columns::split(joined, &[head_dim; 2])?.into_iter();
    Ok((parts.next().ok_or_else(none)?, parts.next()))
}

/// Returns the results of the gate and up projections by role.
pub(super) fn wide(results: Vec<Tensor>) -> ops::Result<GateUpActivations> {
    let mut results = results.into_iter();
    let gate = results.next().ok_or_else(none)?;
    Ok(GateUpActivations { gate, up: results.next(), share: None })
}

/// Returns queries, keys and values. Without the last, keys also serve as values.
fn three(mut all: Vec<Tensor>) -> ops::Result<[Tensor; 3]> {
    if let [_, k] = &all[..] {
        all.push(k.clone());
    }
    all.try_into().map_err(|_| none())
}

impl<T> Norms<T> {
    /// Returns the norm that the MLP reads. A layer whose attention and MLP read the same norm has only the one before both.
    pub(super) fn before_mlp(&self, a: &Architecture) -> Option<&NormWeights<T>> {
        self.mlp_norm.as_ref().or(self.input_norm.as_ref().filter(|_| a.parallel))
    }
}

impl Architecture {
    /// Normalises `x`; without a norm, returns it unchanged.
    pub(super) fn normed(&self, x: &Tensor, norm: Option<&NormWeights>) -> ops::Result<Tensor> {
        self.normed_for(false, x, norm)
    }

    /// Normalises `x`, in bf16 if the reader `rounds` its input anyway. Without a norm, returns it unchanged.
    pub(super) fn normed_for(&self, rounds: bool, x: &Tensor, norm: Option<&NormWeights>) -> ops::Result<Tensor> {
        let Some(NormWeights { weight, bias }) = norm else { return Ok(x.clone()) };
        match (self.norm, bias) {
            (NormKind::RmsFromOne, _) => norm::forward(x, &ops::plus_one(weight)?, self.norm_eps, rounds),
            (NormKind::Layer, Some(bias)) => layer_norm::forward(x, weight, bias, self.norm_eps, rounds),
            (NormKind::Centred, _) => layer_norm::forward(x, weight, &ops::zeros_like(weight)?, self.norm_eps, rounds),
            _ => norm::forward(x, weight, self.norm_eps, rounds),
        }
    }

    /// Adds the gradient of [`Architecture::normed`] to `dx`, and those of the parameters to `grad`.
    pub(super) fn norm_backward(
        &self,
        x: &Tensor,
        norm: &NormWeights,
        dy: &Tensor,
        dx: &Tensor,
        grad: &NormGradientSlot<'_>,
    ) -> ops::Result<()> {
        let (eps, d_weight) = (self.norm_eps, grad.and_then(|grad| grad.weight.as_ref()));
        match self.norm {
            NormKind::Rms => norm::backward(x, &norm.weight, eps, dy, dx, d_weight),
            NormKind::RmsFromOne => norm::backward(x, &ops::plus_one(&norm.weight)?, eps, dy, dx, d_weight),
            NormKind::Centred => {
                let unused = d_weight.map(ops::zeros_like).transpose()?;
                layer_norm::backward(x, &norm.weight, eps, dy, dx, d_weight.zip(unused.as_ref()))
            }
            NormKind::Layer => {
                let d_bias = grad.and_then(|grad| grad.bias.as_ref().and_then(Option::as_ref));
                // With an adapter, the bias may be trained without the weight.
                let unused = d_bias.filter(|_| d_weight.is_none()).map(ops::zeros_like).transpose()?;
                layer_norm::backward(x, &norm.weight, eps, dy, dx, d_weight.or(unused.as_ref()).zip(d_bias))
            }
        }
    }

    /// Returns the logits at temperature one, given products with the output matrix.
    pub(super) fn logits_of(&self, products: Tensor) -> ops::Result<Tensor> {
        let logits = multiplied(products, self.factors.logits.recip())?;
        self.factors.logits_cap.map_or(Ok(logits.clone()), |cap| ops::bounded_by(&logits, cap))
    }

    /// Normalises packed heads `[N, heads * C]`: each one, or all of a row together, depending on the size of the weight.
    pub(super) fn normed_heads(&self, x: &Tensor, weight: &Tensor) -> Result<Tensor> {
        let norm = NormWeights { weight: weight.clone(), bias: None };
        Ok(self.normed(&x.reshape(((), weight.elem_count()))?, Some(&norm))?.reshape(x.shape())?)
    }

    /// Computes the gradient of [`Architecture::normed_heads`].
    pub(super) fn normed_heads_backward(
        &self,
        x: &Tensor,
        weight: &Tensor,
        dy: &Tensor,
        d_weight: &Option<Tensor>,
    ) -> Result<Tensor> {
        let (norm, grad) =
            (NormWeights { weight: weight.clone(), bias: None }, NormWeights { weight: d_weight.clone(), bias: None });
        let (dx, parts) = (ops::zeros_like(x)?, |t: &Tensor| t.reshape(((), weight.elem_count())));
        self.norm_backward(&parts(x)?, &norm, &parts(dy)?, &parts(&dx)?, &Some(&grad))?;
        Ok(dx)
    }
}

/// The tensors to which the gradients of a norm's parameters are added.
type NormGradientSlot<'a> = Option<&'a NormWeights<Option<Tensor>>>;
