//! Forward and backward passes of the decoder over a forest of segments. `layer.rs` defines a layer.
//!
//! There is no tape. A decoder is a fixed composition, so each layer stores exactly what its gradient needs and frees it as soon as the
//! gradient has passed.

use super::backward::{GradientSlot, apply_backward, apply_backward_into, products_backward};
use super::experts::ExpertBalance;
use super::forest_mixer::ForestMixer;
use super::layer::{self, GateUpActivations, LayerActivations, LinearMap, RowSelector, all_round, multiplied};
use super::layer_projections::LayerProjections;
use super::masked_linear::MaskedLinear;
use super::mixer::MixerResult;
use super::pass_observer::{ModelPart, NoObserver, PassDirection, PassObserver};
use super::pass_options::PassOptions;
use super::pass_options::RowLengths;
use super::pass_sources::PassSources;
use super::row_splices::RowSplices;
use super::weights::bytes;
use super::weights::{LayerWeights, Linear, MlpProjections, NormWeights, Weights};
use super::{Architecture, ComputeBackend, LoraSettings, Result};
use crate::ops::attention::AttentionConfig;
use crate::ops::experts;
use crate::ops::logprob::LogitScale;
use crate::ops::rope::Rotation;
use crate::ops::{self, Forest, Precision, activation, embedding};
use candle_core::{DType, Tensor};
use std::sync::Arc;

/// A decoder: sizes, parameters and position tables.
#[derive(Clone, Debug)]
pub struct Decoder {
    pub(super) architecture: Architecture,
    pub(super) weights: Weights,
    /// Precision of the products on the CPU.
    pub(super) precision: Precision,
    /// Rotation tables of [`Architecture::ropes`]. All views share them, since they are large for long contexts.
    pub(super) rotations: Arc<Vec<Rotation>>,
}

/// A layer's activations, or the input to recompute them from (gradient checkpointing, Chen et al. 2016, arXiv 1604.06174).
pub(super) enum StoredActivations {
    Whole(Box<LayerActivations>),
    /// Activations of the prompts' pass and of its continuation.
    Joined(Arc<RowSplices>, Box<[LayerActivations; 2]>),
    Input(Tensor),
}

/// Activations of all layers that the backward pass needs.
pub(super) struct PassActivations {
    pub layers: Vec<StoredActivations>,
    pub last: Tensor,
    pub how: PassOptions,
    /// Balance of the experts, if the pass computes it.
    pub balance: Option<ExpertBalance>,
    /// What layers read besides the previous layer's output.
    pub sources: PassSources,
}

impl PassActivations {
    /// Returns the bytes of the activations.
    pub(super) fn bytes(&self) -> usize {
        let of_layer = |stored: &StoredActivations| match stored {
            StoredActivations::Whole(kept) => kept.bytes(),
            StoredActivations::Joined(_, both) => both.iter().map(LayerActivations::bytes).sum(),
            StoredActivations::Input(x) => bytes(x),
        };
        self.layers.iter().map(of_layer).sum::<usize>() + bytes(&self.last) + self.sources.bytes()
    }
}

/// Returns the gradient of `x`, given that of its `rows`.
fn spread(x: &Tensor, d_rows: &Tensor, rows: &[usize]) -> Result<Tensor> {
    let dx = ops::zeros_like(x)?;
    ops::scatter_add_rows(&dx, d_rows, rows)?;
    Ok(dx)
}

/// The layer of a backward pass, with its maps.
pub(super) struct BackwardContext<'a> {
    /// The layer's number.
    pub i: usize,
    pub maps: &'a LayerProjections<MaskedLinear<'a>>,
    pub balance: Option<&'a ExpertBalance>,
    pub sources: &'a PassSources,
}

/// Results of a forward pass.
pub(super) struct PassResult {
    /// Hidden states after the last norm, `[M, D]`.
    pub hidden: Tensor,
    /// Hidden states before the last norm.
    pub last: Tensor,
    /// What layers read besides the previous layer's output.
    sources: PassSources,
}

impl Decoder {
    /// Creates a decoder with these weights.
    pub fn new(architecture: Architecture, weights: Weights) -> Self {
        let a = &architecture;
        let rotations = a
            .ropes
            .iter()
            .enumerate()
            .map(|(i, rope)| rope.rotation(a.rotated_head_dim(i), a.max_positions).with_pairing(a.rope_pairs()));
        let rotations = rotations.collect();
        Self { architecture, weights, precision: Precision::F32, rotations: Arc::new(rotations) }
    }

    /// Converts the decoder to another backend, where trained weights are rounded; see [`super::PolicyModel::on_backend`].
    ///
    /// # Errors
    /// If the backend has too little memory or can't compute the model.
    pub fn on_backend(self, backend: &ComputeBackend) -> Result<Self> {
        backend.check(&self.architecture, self.weights.lora)?;
        Ok(Self { weights: self.weights.map(|_, t| backend.computed(t))?, precision: backend.precision(), ..self })
    }

    /// Adds a new adapter ([`Weights::with_new_adapter`]); everything else is shared.
    pub fn with_new_adapter(self, lora: LoraSettings, targets: &[String], seed: u64) -> Result<Self> {
        Ok(Self { weights: self.weights.with_new_adapter(lora, targets, seed)?, ..self })
    }

    /// Returns the model in storage that no update changes, copying weights that training in f32 would share.
    pub fn unshared(&self) -> Result<Self> {
        let own = |t: &Tensor| if t.dtype() == DType::F32 { ops::copied(t) } else { Ok(t.clone()) };
        Ok(Self { weights: self.weights.map(|_, t| own(t))?, ..self.clone() })
    }

    /// Returns the parameters.
    pub fn weights(&self) -> &Weights {
        &self.weights
    }

    /// Runs all layers and passes each layer's activations to `keep`. Returns the hidden states after the last norm, `[M, D]`, for the
    /// packed positions `rows` only, since the last layer's MLP needs no others.
    pub(super) fn run(
        &self,
        forest: &Forest,
        rows: &[usize],
        how: &PassOptions,
        keep: impl FnMut(usize, LayerActivations) -> Result<()>,
    ) -> Result<PassResult> {
        self.run_watched(forest, rows, how, &NoObserver, keep)
    }

    /// Runs all layers like [`Decoder::run`] and reports progress to an observer.
    pub(super) fn run_watched(
        &self,
        forest: &Forest,
        rows: &[usize],
        how: &PassOptions,
        watch: &dyn PassObserver,
        mut keep: impl FnMut(usize, LayerActivations) -> Result<()>,
    ) -> Result<PassResult> {
        watch.enter(PassDirection::Forward, ModelPart::Bottom)?;
        watch.enter(PassDirection::Forward, ModelPart::Top)?;
        let mut x = self.embedded(forest.tokens(), forest.positions())?;
        if let Some(noise) = &how.noise {
            noise.add_to(&x)?;
        }
        let inputs = self.layer_inputs(self.input_projection(how).as_ref(), forest.tokens(), &x)?;
        let mut sources = PassSources { inputs, ..PassSources::default() };
        for (i, w) in self.weights.layers.iter().enumerate() {
            watch.enter(PassDirection::Forward, ModelPart::Layer(i))?;
            let rows = self.rows_of(i, rows, how);
            let maps = MaskedLinear::for_layer(w.maps(), self.precision, how, i, rows.is_some());
            let (kept, output) = ops::on_pool(&self.weights.embedding, || {
                let mut kept = self.layer(i, x, forest, rows, (&maps, &sources))?;
                let output = self.layer_with(i, maps.each(), &sources, rows)?.output(&mut kept)?;
                Ok::<_, super::Error>((kept, output))
            })?;
            x = output;
            if self.architecture.is_key_source(i) {
                sources.heads.keep(i, kept.mixed.attention()?.keys_and_values()?);
            }
            keep(i, kept)?;
            watch.leave(PassDirection::Forward, ModelPart::Layer(i))?;
        }
        if how.balances {
            x = ops::gather_rows(&x, rows)?;
        }
        Ok(PassResult { hidden: self.architecture.normed(&x, Some(&self.weights.norm))?, last: x, sources })
    }

    /// Returns the options of a pass that computes hidden states and nothing else.
    ///
    /// # Errors
    /// If an operation fails.
    pub(super) fn inference_options(&self) -> Result<PassOptions> {
        let lengths = RowLengths::from_weights(&self.weights)?;
        Ok(PassOptions { recompute: false, balances: false, dropout: None, noise: None, lengths })
    }

    /// Returns the rows that layer `i` computes after its attention; `None` for all.
    fn rows_of<'a>(&self, i: usize, rows: &'a [usize], how: &PassOptions) -> Option<&'a [usize]> {
        (i + 1 == self.weights.layers.len() && !how.balances).then_some(rows)
    }

    /// Returns the tokens' embeddings as the first layer reads them.
    pub(super) fn embedded(&self, tokens: &[u32], positions: &[u32]) -> ops::Result<Tensor> {
        let x = multiplied(embedding::forward(&self.weights.embedding, tokens)?, self.architecture.factors.embedding)?;
        if let Some(table) = &self.weights.positions {
            ops::add_into(&x, &embedding::forward(table, positions)?)?;
        }
        Ok(x)
    }

    /// Returns the hidden states of `rows`, `[M, D]`, and the activations that [`Decoder::backward`] needs.
    pub(super) fn forward(
        &self,
        forest: &Forest,
        rows: &[usize],
        how: PassOptions,
        watch: &dyn PassObserver,
    ) -> Result<(Tensor, PassActivations)> {
        let count = self.weights.layers.len();
        let mut layers = Vec::with_capacity(count);
        let mut balance = how.balances.then(|| ExpertBalance::new(&self.architecture, forest)).flatten();
        let PassResult { hidden, last, sources } = self.run_watched(forest, rows, &how, watch, |i, kept| {
            if let (Some(balance), Some(routed)) = (&mut balance, &kept.experts) {
                balance.add(&routed.routes);
            }
            // The last layer is needed first, before the others take up memory, so it is not recomputed.
            let again = how.recompute && i + 1 < count;
            layers.push(if again {
                StoredActivations::Input(kept.input)
            } else {
                StoredActivations::Whole(Box::new(self.stored(kept)?))
            });
            Ok(())
        })?;
        Ok((hidden, PassActivations { layers, last, how, balance, sources }))
    }

    /// Returns a layer's activations for storage: in the precision of products, which read most of them, and without those that can be
    /// recomputed.
    pub(super) fn stored(&self, kept: LayerActivations) -> ops::Result<LayerActivations> {
        let kept = kept.reduced();
        if self.precision == Precision::Bf16 { kept.cast(DType::BF16) } else { Ok(kept) }
    }

    /// Converts the result of [`Decoder::stored`] back to f32, except what products and the activation function read.
    fn restored(&self, kept: LayerActivations) -> ops::Result<LayerActivations> {
        if self.precision == Precision::Bf16 { kept.in_f32() } else { Ok(kept) }
    }

    /// Returns stored values in f32, as operations other than products read them.
    pub(super) fn in_f32(&self, t: &Tensor) -> ops::Result<Tensor> {
        if self.precision == Precision::Bf16 { ops::cast(t, DType::F32) } else { Ok(t.clone()) }
    }

    /// Returns heads in the precision that a forest's attention reads.
    pub(super) fn attended(&self, heads: Tensor) -> ops::Result<Tensor> {
        if self.halves() { ops::cast(&heads, DType::BF16) } else { Ok(heads) }
    }

    /// Returns whether a forest's attention reads heads and values in bf16.
    pub(super) fn halves(&self) -> bool {
        self.precision == Precision::Bf16
    }

    /// Runs layer `i` except its last product.
    fn layer(
        &self,
        i: usize,
        x: Tensor,
        forest: &Forest,
        rows: Option<&[usize]>,
        (maps, sources): (&LayerProjections<MaskedLinear<'_>>, &PassSources),
    ) -> Result<LayerActivations> {
        let attention = self.attention(i);
        let layer = layer::DecoderLayer { halves: self.halves(), ..self.layer_of(i, maps.each()) };
        let further =
            rows.map(|rows| move |out: &Tensor, x: &Tensor| Ok((ops::gather_rows(out, rows)?, ops::gather_rows(x, rows)?)));
        let shared = sources.heads.read_by(&self.architecture, i);
        let over = ForestMixer { forest, rows, attention, shared, sinks: self.weights.layers[i].attention.sinks.as_ref() };
        layer.forward(x, forest, further.as_ref().map(|rows| rows as &RowSelector<'_>), over)
    }

    /// Returns the attention settings of layer `i`.
    pub(super) fn attention(&self, i: usize) -> AttentionConfig {
        AttentionConfig { precision: self.precision, ..self.architecture.attention(i) }
    }

    /// Returns the scale and soft cap of logits at this temperature.
    pub(super) fn logits(&self, temperature: f32) -> LogitScale {
        LogitScale { precision: self.precision, ..self.architecture.logits(temperature) }
    }

    /// Returns the rotary embedding of layer `i`, if it has one.
    pub(super) fn rotation(&self, i: usize) -> Option<&Rotation> {
        self.architecture.rotary[i].and_then(|rope| self.rotations.get(rope))
    }

    /// Returns layer `i` with the given linear maps.
    pub(super) fn layer_of<'a, P>(&'a self, i: usize, maps: LayerProjections<&'a P>) -> layer::DecoderLayer<'a, P> {
        layer::DecoderLayer {
            architecture: &self.architecture,
            number: i,
            own_input: None,
            rotation: self.rotation(i),
            norms: &self.weights.layers[i],
            rounds: self.precision == Precision::Bf16,
            halves: false,
            maps,
        }
    }

    /// Returns layer `i` with the given linear maps and its own input for `rows`, or for all.
    pub(super) fn layer_with<'a, P>(
        &'a self,
        i: usize,
        maps: LayerProjections<&'a P>,
        sources: &PassSources,
        rows: Option<&[usize]>,
    ) -> ops::Result<layer::DecoderLayer<'a, P>> {
        let own_input = sources.inputs.as_ref().map(|inputs| inputs.rows(i, rows)).transpose()?;
        Ok(layer::DecoderLayer { own_input, ..self.layer_of(i, maps) })
    }

    /// Adds the gradients of the trained parameters to `grads`, given that of the hidden states. The gradient of the output matrix as such
    /// is not included, since that of the log-probabilities covers it. The caller must have entered [`ModelPart::Top`].
    pub(super) fn backward(
        &self,
        kept: PassActivations,
        forest: &Forest,
        rows: &[usize],
        d_hidden: &Tensor,
        grads: &Weights<GradientSlot>,
        watch: &dyn PassObserver,
    ) -> Result<()> {
        let mut dx = ops::zeros_like(&kept.last)?;
        self.architecture.norm_backward(&kept.last, &self.weights.norm, d_hidden, &dx, &Some(&grads.norm))?;
        watch.leave(PassDirection::Backward, ModelPart::Top)?;
        let PassActivations { layers, last, how, balance, sources } = kept;
        if how.balances {
            let all = Tensor::zeros((forest.len(), last.dim(1)?), last.dtype(), last.device())?;
            ops::scatter_add_rows(&all, &dx, rows)?;
            dx = all;
        }
        for (i, stored) in layers.into_iter().enumerate().rev() {
            watch.enter(PassDirection::Backward, ModelPart::Layer(i))?;
            let rows = self.rows_of(i, rows, &how);
            let maps = MaskedLinear::for_layer(self.weights.layers[i].maps(), self.precision, &how, i, rows.is_some());
            let here = BackwardContext { i, maps: &maps, balance: balance.as_ref(), sources: &sources };
            dx = ops::on_pool(&self.weights.embedding, || {
                let kept = self.restore_layer(i, stored, forest, rows, (&maps, &sources))?;
                self.layer_backward(&here, kept, forest, rows, dx, &grads.layers[i])
            })?;
            watch.leave(PassDirection::Backward, ModelPart::Layer(i))?;
        }
        if let Some(inputs) = &sources.inputs {
            self.layer_inputs_backward(inputs, &how, forest, &dx, grads)?;
        }
        if let Some(d_positions) = grads.positions.iter().flatten().next() {
            embedding::backward(forest.positions(), &dx, d_positions)?;
        }
        if let Some(d_embedding) = &grads.embedding {
            embedding::backward(forest.tokens(), &multiplied(dx, self.architecture.factors.embedding)?, d_embedding)?;
        }
        watch.leave(PassDirection::Backward, ModelPart::Bottom)
    }

    /// Returns the activations of layer `i`, recomputing them if they were not stored.
    fn restore_layer(
        &self,
        i: usize,
        stored: StoredActivations,
        forest: &Forest,
        rows: Option<&[usize]>,
        (maps, sources): (&LayerProjections<MaskedLinear<'_>>, &PassSources),
    ) -> Result<LayerActivations> {
        let kept = match stored {
            StoredActivations::Whole(kept) => *kept,
            StoredActivations::Joined(joins, both) => joins.joined(*both, rows.is_some())?,
            StoredActivations::Input(x) => {
                let mut kept = self.layer(i, x, forest, rows, (maps, sources))?;
                // Treats the values as if they had been stored: a norm's input is computed from values that are not rounded yet.
                if self.weights.layers[i].end.is_some() {
                    self.layer_with(i, maps.each(), sources, rows)?.output(&mut kept)?;
                } else if self.weights.layers[i].added_norm.is_some() {
                    kept.lowered = Some(self.layer_of(i, maps.each()).fed(&mut kept)?);
                }
                self.stored(kept)?
            }
        };
        Ok(self.restored(kept)?)
    }

    /// Returns the gradient of a layer's input, given that of its output.
    fn layer_backward(
        &self,
        here: &BackwardContext<'_>,
        kept: LayerActivations,
        forest: &Forest,
        rows: Option<&[usize]>,
        d_out: Tensor,
        g: &LayerWeights<GradientSlot>,
    ) -> Result<Tensor> {
        let &BackwardContext { i, maps, .. } = here;
        let (a, w) = (&self.architecture, &self.weights.layers[i]);
        // The residual passes on the gradient of the output; from here `d_middle` is that of `middle`.
        let (d_middle, d_own) = self.ended_backward(i, maps, &kept, d_out, g)?;
        if let (Some(inputs), Some(d_own)) = (&here.sources.inputs, d_own) {
            inputs.keep_gradient(i, rows, d_own)?;
        }
        let beside = if a.parallel {
            let source = rows.map_or_else(|| Ok(kept.input.clone()), |rows| ops::gather_rows(&kept.input, rows))?;
            let d_source = ops::zeros_like(&source)?;
            self.fed_backward(here, &kept, &source, &d_middle, &d_source, g)?;
            Some(d_source)
        } else {
            if maps.feed() {
                self.fed_backward(here, &kept, &kept.middle, &d_middle, &d_middle, g)?;
            }
            None
        };
        if maps.o.is_empty() {
            return rows.map_or_else(|| Ok(d_middle.clone()), |rows| spread(&kept.input, &d_middle, rows));
        }
        let d_projected = self.added_backward(&d_middle, w.attended_norm.as_ref(), kept.projected.as_ref(), &g.attended_norm)?;
        let d_attended = self.mixer_output_backward(maps, &kept.out, rows, &d_projected, &g.o)?;
        let (d_attended, dx) = match rows {
            None => {
                beside.map_or(Ok(()), |d_source| ops::add_into(&d_middle, &d_source))?;
                (d_attended, d_middle)
            }
            Some(rows) => {
                let all = Tensor::zeros(kept.out.shape(), d_attended.dtype(), d_attended.device())?;
                let dx = ops::zeros_like(&kept.input)?;
                ops::scatter_add_rows(&all, &d_attended, rows)?;
                for d_rows in std::iter::once(&d_middle).chain(&beside) {
                    ops::scatter_add_rows(&dx, d_rows, rows)?;
                }
                (all, dx)
            }
        };
        let result = MixerResult { mixed: &kept.mixed, out: &kept.out };
        let d_inputs = self.mixed_backward(here, result, &d_attended, forest, g)?;
        let dh = self.mixer_inputs_backward(here, &kept.input, d_inputs, g)?;
        self.norm_input_backward(&kept.input, w.input_norm.as_ref(), &dh, &dx, &g.input_norm)?;
        Ok(dx)
    }

    /// Adds to `d_source` the gradient of `source`, which the norm before the MLP or the experts reads, given the gradient of the layer's
    /// output. Both gradients may be the same tensor.
    fn fed_backward(
        &self,
        here: &BackwardContext<'_>,
        kept: &LayerActivations,
        source: &Tensor,
        d_out: &Tensor,
        d_source: &Tensor,
        g: &LayerWeights<GradientSlot>,
    ) -> Result<()> {
        let &BackwardContext { i, maps, .. } = here;
        let (a, w) = (&self.architecture, &self.weights.layers[i]);
        let d_lowered = self.added_backward(d_out, w.added_norm.as_ref(), kept.lowered.as_ref(), &g.added_norm)?;
        let norm = w.before_mlp(a);
        let g_norm = if w.mlp_norm.is_some() { &g.mlp_norm } else { &g.input_norm };
        let h = a.normed_for(maps.each().mlp_rounds(), source, norm)?;
        let (of_experts, d_unit) = self.experts_of_layer_backward(here, kept, (&h, source), &d_lowered, d_source, g)?;
        let unit = maps.unit.as_ref().zip(kept.unit.as_ref()).zip(g.unit.as_ref());
        let mut dh = unit.map(|((maps, kept), g)| self.unit_backward(maps, kept, &h, &d_unit, g)).transpose()?;
        if let Some(more) = of_experts {
            dh.as_ref().map_or(Ok(()), |dh| ops::add_into(&more, dh))?;
            dh = Some(more);
        }
        let missing = || ops::Error::Shape { op: "layer", detail: "a layer with neither a unit nor experts".into() };
        self.norm_input_backward(source, norm, &dh.ok_or_else(missing)?, d_source, g_norm)
    }

    /// Returns the gradient of the MLP's input `h`, given that of its output.
    fn unit_backward(
        &self,
        maps: &MlpProjections<MaskedLinear<'_>>,
        kept: &GateUpActivations,
        h: &Tensor,
        d_lowered: &Tensor,
        g: &MlpProjections<Linear<GradientSlot>>,
    ) -> Result<Tensor> {
        let (a, up) = (&self.architecture, kept.up.as_ref());
        let d_lowered = &multiplied(d_lowered.clone(), a.factors.lowered)?;
        let shares = kept.share.as_ref().map(ops::sigmoids).transpose()?;
        let active = activation::forward(&kept.gate, up, a.activation, shares.is_none() && maps.down.rounds())?;
        let (d_active, d_shares) = match &shares {
            None => (apply_backward(&maps.down, &active, d_lowered, &g.down)?, None),
            Some(shares) => {
                // The gate can scale the down projection's input instead of its output, since that projection has no bias here.
                let weighed = ops::copied(&active)?;
                ops::scale_rows(&weighed, shares)?;
                let d_weighed = apply_backward(&maps.down, &weighed, d_lowered, &g.down)?;
                let slopes = experts::dots(&d_weighed, &active)?.into_iter().zip(shares).map(|(d, s)| d * s * (1.0 - s));
                let d_shares = ops::from_vec(slopes.collect(), (shares.len(), 1), h.device())?;
                ops::scale_rows(&d_weighed, shares)?;
                (d_weighed, Some(d_shares))
            }
        };
        // Gradients of joined maps are joined first, and those of biases are sums.
        let has_bias = |g: &Linear<GradientSlot>| {
            let of_adapter = g.adapter.as_ref().and_then(|adapter| adapter.bias.as_ref());
            [g.bias.as_ref(), of_adapter].into_iter().flatten().any(Option::is_some)
        };
        let widths = vec![kept.gate.dim(1)?; a.mlp_widths().len()];
        let are_joined = maps.wide.len() != widths.len();
        let rounds = !are_joined && !g.wide.iter().any(has_bias) && all_round(&maps.each().wide);
        let (d_gate, d_up) = activation::backward(&kept.gate, up, &d_active, a.activation, rounds && a.factors.gates == 1.0)?;
        let d_gate = multiplied(d_gate, a.factors.gates)?;
        let wide: Vec<&Tensor> = std::iter::once(&d_gate).chain(&d_up).collect();
        let dh = products_backward(&maps.wide, h, &wide, &widths, &g.wide)?;
        if let (Some(d_shares), Some(map), Some(g)) = (d_shares, &maps.gate, &g.gate) {
            apply_backward_into(map, h, &d_shares, g, &dh)?;
        }
        Ok(dh)
    }

    /// Returns the gradient of the product whose result is added to the residual, possibly after a norm, given the gradient of the sum.
    fn added_backward(
        &self,
        d_sum: &Tensor,
        norm: Option<&NormWeights>,
        before: Option<&Tensor>,
        grad: &Option<NormWeights<GradientSlot>>,
    ) -> Result<Tensor> {
        let d_added = multiplied(d_sum.clone(), self.architecture.factors.residual)?;
        let (Some(norm), Some(before)) = (norm, before) else { return Ok(d_added) };
        let d_before = ops::zeros_like(before)?;
        self.architecture.norm_backward(before, norm, &d_added, &d_before, &grad.as_ref())?;
        Ok(d_before)
    }

    /// Adds the gradient of a norm's input `x` to `dx`, given that of its result `dh`. Without a norm they are equal.
    fn norm_input_backward(
        &self,
        x: &Tensor,
        norm: Option<&NormWeights>,
        dh: &Tensor,
        dx: &Tensor,
        grad: &Option<NormWeights<GradientSlot>>,
    ) -> Result<()> {
        match norm {
            Some(norm) => self.architecture.norm_backward(x, norm, dh, dx, &grad.as_ref())?,
            None => ops::add_into(dx, dh)?,
        }
        Ok(())
    }
}
