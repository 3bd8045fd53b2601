//! Generates token by token, with weights in a layout for few rows.

use super::cache::{CacheLayer, PrefixLayer};
use super::decoder::{Decoder, PassResult};
#[cfg(feature = "cuda")]
use super::device_steps::FusedWeights;
use super::layer::{LayerActivations, LinearMap};
use super::layer_projections::LayerProjections;
use super::mixer::{AttentionOutput, MixerActivations, TokenMixer, other_kind};
use super::pass_options::PassOptions;
use super::pass_sources::PassSources;
use super::weights::Linear;
use super::{Architecture, KvCache, Prefix, PromptPass, Result};
use crate::config::RolloutDtype;
use crate::ops::attention::AttentionConfig;
use crate::ops::cached_attention::{self, SharedPromptGroup};
use crate::ops::caches::{PromptCache, SequenceCache};
use crate::ops::convolution::{self, Convolution, ConvolutionState};
use crate::ops::experts::Routes;
use crate::ops::magnitude::{self, Magnitude};
use crate::ops::panels::{self, Panels};
use crate::ops::recurrent_network::{self, NetworkState, RecurrentNetwork};
use crate::ops::{self, Forest, Precision, WeightMatrix};
use candle_core::Tensor;

/// A frozen decoder for one generation. On the CPU, it copies f32 weights when it is created. It shares other weights with the decoder, and
/// some also on a device; these must not change before the generation ends.
pub struct IncrementalDecoder {
    decoder: Decoder,
    /// Options of the prompts' passes.
    how: PassOptions,
    /// Precision of cached keys and values on the CPU.
    cached: Precision,
    laid_out: DecodeWeights,
}

/// Weights in the layout of decoding.
enum DecodeWeights {
    Host(HostWeights),
    #[cfg(feature = "cuda")]
    Device(FusedWeights),
}

/// Weights on the CPU in the layout of decoding.
struct HostWeights {
    layers: Vec<LayerProjections<DecodeProjection>>,
    /// The projection of the first layer's input, if layers have inputs of their own.
    inputs: Option<DecodeProjection>,
    output: Panels,
}

/// New tokens of `B` sequences, sequence by sequence: one for each that generates, the entire reply for each that reads one.
pub struct DecodeBatch<'a> {
    /// Token ids, `[N]`.
    pub tokens: &'a [u32],
    /// Positions of the tokens, `[N]`.
    pub positions: &'a [u32],
    /// Number of tokens of each sequence, at least one, `[B]`.
    pub counts: &'a [usize],
    /// Prompt of each sequence, as an index into `prompts`.
    pub prompt_of: &'a [usize],
    /// Caches of the prompts.
    pub prompts: &'a [&'a Prefix],
    /// Cache of each sequence, to which its tokens are appended.
    pub own: &'a mut [&'a mut KvCache],
}

/// Mixes new tokens with the earlier ones in the caches of their sequences.
struct CacheMixer<'a, 'c> {
    layer: usize,
    counts: &'a [usize],
    prompt_of: &'a [usize],
    prompts: &'a [&'a Prefix],
    own: &'a mut [&'c mut KvCache],
    /// The layer whose keys and values this one reads, if they are not its own.
    source: Option<usize>,
    attention: AttentionConfig,
    /// The layer's attention sinks, if it has any.
    sinks: Option<&'a Tensor>,
}

impl CacheMixer<'_, '_> {
    /// Computes attention over the keys and values in a layer's caches, which have those of the new tokens.
    fn attend_to(&mut self, layer: usize, q: &Tensor) -> Result<AttentionOutput> {
        let mut groups = Vec::with_capacity(self.prompts.len());
        for prompt in self.prompts {
            groups.push(SharedPromptGroup { prompt: prompt.layers[layer].attention()?, sequences: Vec::new() });
        }
        let mut row = 0;
        for ((own, &prompt), &count) in self.own.iter_mut().zip(self.prompt_of).zip(self.counts) {
            let cache: &SequenceCache = own.layers[layer].attention()?;
            for left in (0..count).rev() {
                groups[prompt].sequences.push((row, cache, cache.len() - left));
                row += 1;
            }
        }
        let out = cached_attention::forward_with_sinks(q, &groups, self.attention, self.sinks)?;
        Ok(AttentionOutput { out, log_sum: None })
    }
}

impl TokenMixer for CacheMixer<'_, '_> {
    fn attend(&mut self, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<AttentionOutput> {
        let mut row = 0;
        for (own, &count) in self.own.iter_mut().zip(self.counts) {
            let cache = own.layers[self.layer].attention()?;
            for _ in 0..count {
                cache.push(k, v, row)?;
                row += 1;
            }
        }
        self.attend_to(self.layer, q)
    }

    fn attend_to_shared(&mut self, q: &Tensor) -> Result<AttentionOutput> {
        self.attend_to(self.source.ok_or_else(other_kind)?, q)
    }

    fn convolve(&mut self, joined: &Tensor, convolution: Convolution<'_>) -> Result<Tensor> {
        let mut states = Vec::with_capacity(self.own.len());
        for ((own, &prompt), &count) in self.own.iter_mut().zip(self.prompt_of).zip(self.counts) {
            states.push((own.layers[self.layer].convolution(&self.prompts[prompt].layers[self.layer])?, count));
        }
        Ok(convolution::step(joined, convolution, &mut states)?)
    }

    fn run_network(&mut self, inputs: &[Tensor], network: RecurrentNetwork<'_>) -> Result<Tensor> {
        let mut states = Vec::with_capacity(self.own.len());
        for ((own, &prompt), &count) in self.own.iter_mut().zip(self.prompt_of).zip(self.counts) {
            states.push((own.layers[self.layer].network(&self.prompts[prompt].layers[self.layer])?, count));
        }
        Ok(recurrent_network::step(inputs, network, &mut states)?)
    }
}

/// Returns the precision of a generation's products, given the requested precision of `weights` and the decoder's `own`.
fn precision(weights: RolloutDtype, own: Precision) -> Precision {
    if weights == RolloutDtype::Auto { own } else { Precision::Bf16 }
}

/// Returns a weight `[out, in]` in the layout of decoding.
fn laid_out<'a>(
    weights: RolloutDtype,
    w: impl Into<WeightMatrix<'a>>,
    bias: Option<&Tensor>,
    own: Precision,
) -> ops::Result<Panels> {
    match weights {
        RolloutDtype::Int8 => Panels::with_int8_weight(w, bias, precision(weights, own)),
        RolloutDtype::Auto | RolloutDtype::Bfloat16 => Panels::new(w, bias, precision(weights, own)),
    }
}

/// A linear layer for few rows.
struct DecodeLinear {
    panels: Panels,
    adapter: Option<UnmergedAdapter>,
}

/// An adapter that is not merged.
struct UnmergedAdapter {
    a: Panels,
    /// The matrix `B`, multiplied by the adapter's scale.
    b: Panels,
    directed: Option<AdapterMagnitudes>,
}

/// The magnitudes of an adapter.
struct AdapterMagnitudes {
    values: Tensor,
    lengths: Tensor,
    /// The layer's bias, which magnitudes don't scale.
    bias: Option<Tensor>,
}

impl DecodeLinear {
    /// Prepares a linear layer. An f32 weight is copied with its adapter merged in, so that the adapter adds no cost per token. Other
    /// weights stay unchanged, with a separate adapter.
    ///
    /// In bf16, copies are rounded.
    fn new(l: &Linear, weights: RolloutDtype, precision: Precision) -> ops::Result<Self> {
        let added = l.added()?;
        let bias = added.as_ref();
        let adapter = match &l.adapter {
            Some(_) if l.matrix().is_f32() => {
                return Ok(Self { panels: laid_out(weights, &l.merged()?, bias, precision)?, adapter: None });
            }
            Some(adapter) => Some(UnmergedAdapter {
                // The matrix is so small that rounding rows for it would take longer than it saves.
                a: Panels::new(&adapter.a, None, Precision::F32)?,
                b: Panels::new(&ops::scaled(&adapter.b, adapter.scale)?, None, Precision::F32)?,
                directed: match &adapter.magnitude {
                    None => None,
                    Some(values) => Some(AdapterMagnitudes {
                        values: values.clone(),
                        lengths: magnitude::lengths(l.matrix(), &adapter.low_rank())?,
                        bias: l.bias.clone(),
                    }),
                },
            }),
            None => None,
        };
        let bias = bias.filter(|_| adapter.as_ref().is_none_or(|adapter| adapter.directed.is_none()));
        Ok(Self { panels: laid_out(weights, l.matrix(), bias, precision)?, adapter })
    }

    /// Returns the number of bytes copied for this layer.
    fn copied_bytes(&self) -> usize {
        let adapter = self.adapter.iter().map(|UnmergedAdapter { a, b, .. }| a.copied_bytes() + b.copied_bytes());
        self.panels.copied_bytes() + adapter.sum::<usize>()
    }

    fn as_map(&self) -> panels::AdaptedPanels<'_> {
        panels::AdaptedPanels { weight: &self.panels, low_rank: self.adapter.as_ref().map(|UnmergedAdapter { a, b, .. }| [a, b]) }
    }

    /// Scales the results of the map by the adapter's magnitudes, if it has any.
    fn direct(&self, y: &Tensor) -> ops::Result<()> {
        match self.adapter.as_ref().and_then(|adapter| adapter.directed.as_ref()) {
            Some(AdapterMagnitudes { values, lengths, bias }) => Magnitude { values, lengths }.apply(y, bias.as_ref()),
            None => Ok(()),
        }
    }
}

/// A linear map for few rows, or one per expert.
enum DecodeProjection {
    One(Box<DecodeLinear>),
    Each(Vec<Panels>),
}

impl DecodeProjection {
    fn new(l: &Linear, weights: RolloutDtype, precision: Precision) -> ops::Result<Self> {
        if let [experts, _, _] = *l.weight.dims() {
            let merged = if l.adapter.is_some() { l.merged()? } else { l.weight.clone() };
            let all = (0..experts).map(|expert| {
                let bias = l.bias.as_ref().map(|biases| biases.get(expert)).transpose()?;
                laid_out(weights, &merged.get(expert)?, bias.as_ref(), precision)
            });
            return Ok(Self::Each(all.collect::<ops::Result<_>>()?));
        }
        Ok(Self::One(Box::new(DecodeLinear::new(l, weights, precision)?)))
    }

    /// Returns the number of bytes copied for this map.
    fn copied_bytes(&self) -> usize {
        match self {
            Self::One(few) => few.copied_bytes(),
            Self::Each(all) => all.iter().map(Panels::copied_bytes).sum(),
        }
    }
}

impl LinearMap for DecodeProjection {
    fn product(&self, x: &Tensor) -> ops::Result<Tensor> {
        Self::products(&[self], x)?.into_iter().next().ok_or_else(misplaced)
    }

    fn products(maps: &[&Self], x: &Tensor) -> ops::Result<Vec<Tensor>> {
        let few = maps.iter().map(|map| match map {
            Self::One(few) => Ok(few.as_ref()),
            Self::Each(_) => Err(misplaced()),
        });
        let all: Vec<&DecodeLinear> = few.collect::<ops::Result<_>>()?;
        let results = panels::forward_all(x, &all.iter().map(|few| few.as_map()).collect::<Vec<_>>())?;
        all.iter().zip(&results).try_for_each(|(few, y)| few.direct(y))?;
        Ok(results)
    }

    fn grouped(&self, x: &Tensor, routes: &Routes) -> ops::Result<Tensor> {
        let Self::Each(all) = self else { return Err(misplaced()) };
        let products = routes.groups().map(|(expert, rows)| {
            let panels = all.get(expert).ok_or_else(misplaced)?;
            panels.forward(&x.narrow(0, rows.start, rows.len())?)
        });
        Ok(Tensor::cat(&products.collect::<ops::Result<Vec<_>>>()?, 0)?)
    }

    fn prefetch(maps: &[&Self], n: usize) -> ops::Result<()> {
        let panels = maps.iter().filter_map(|map| match map {
            Self::One(few) => Some(&few.panels),
            Self::Each(_) => None,
        });
        panels::prefetch(&panels.collect::<Vec<_>>(), n)
    }
}

fn misplaced() -> ops::Error {
    ops::Error::Shape { op: "decode", detail: "a map of one kind in the place of another".into() }
}

impl IncrementalDecoder {
    /// Prepares a generation with weights in this precision; on a device, in the model's.
    pub(super) fn new(decoder: Decoder, weights: RolloutDtype) -> Result<Self> {
        let (how, cached) = (decoder.inference_options()?, precision(weights, decoder.precision));
        #[cfg(feature = "cuda")]
        if decoder.weights.embedding.device().is_cuda() {
            let steps = FusedWeights::new(&decoder)?;
            return Ok(Self { decoder, how, cached, laid_out: DecodeWeights::Device(steps) });
        }
        let layers = decoder
            .weights
            .layers
            .iter()
            .map(|w| w.maps().map(|l| DecodeProjection::new(l, weights, decoder.precision)))
            .collect::<ops::Result<_>>()?;
        let output = laid_out(weights, decoder.weights.output(), None, decoder.precision)?;
        let inputs = decoder.weights.layer_inputs.as_ref();
        let inputs = inputs.map(|own| DecodeProjection::new(&own.projection, weights, decoder.precision)).transpose()?;
        Ok(Self { decoder, how, cached, laid_out: DecodeWeights::Host(HostWeights { layers, inputs, output }) })
    }

    /// Returns the decoder, the options of its passes and the weights of its steps, if it is on a device.
    #[cfg(feature = "cuda")]
    pub(super) fn device_parts(&self) -> Option<(&Decoder, &PassOptions, &FusedWeights)> {
        match &self.laid_out {
            DecodeWeights::Device(steps) => Some((&self.decoder, &self.how, steps)),
            DecodeWeights::Host(_) => None,
        }
    }

    fn host_layout(&self) -> ops::Result<&HostWeights> {
        match &self.laid_out {
            DecodeWeights::Host(weights) => Ok(weights),
            #[cfg(feature = "cuda")]
            DecodeWeights::Device(_) => {
                Err(ops::Error::Shape { op: "decode", detail: "a model on a device, which `on_device` decodes with".into() })
            }
        }
    }

    /// Returns the number of bytes of host memory copied for the generation.
    pub fn copied_bytes(&self) -> usize {
        let Ok(HostWeights { layers, inputs, output }) = self.host_layout() else { return 0 };
        let of_layer =
            |maps: &LayerProjections<DecodeProjection>| maps.each().all().map(DecodeProjection::copied_bytes).sum::<usize>();
        let of_inputs = inputs.as_ref().map_or(0, DecodeProjection::copied_bytes);
        layers.iter().map(of_layer).sum::<usize>() + of_inputs + output.copied_bytes()
    }

    /// Returns the decoder's sizes.
    pub fn architecture(&self) -> &Architecture {
        &self.decoder.architecture
    }

    /// Creates a cache for a new sequence, with room for this many positions.
    pub fn empty_cache(&self, positions: usize) -> KvCache {
        let a = self.architecture();
        let attention = |layer| CacheLayer::Attention(SequenceCache::with_capacity(positions, a.kv_width_of(layer), self.cached));
        let layer = |layer: usize| match a.is_recurrent(layer) {
            false if !a.mixes(layer) => CacheLayer::Absent,
            false if a.has_recurrence(layer) => CacheLayer::SideBySide(Box::new([attention(layer), CacheLayer::Network(None)])),
            true if a.network().is_some() => CacheLayer::Network(None),
            true => CacheLayer::Convolution(None),
            false if a.key_source(layer).is_some() => CacheLayer::Borrowing,
            false => attention(layer),
        };
        KvCache { layers: (0..a.layers).map(layer).collect(), positions: 0 }
    }

    /// Runs prompts, one segment each. Returns their caches and the logits `[P, V]` after the last token of each.
    pub fn prefill(&self, prompts: &Forest) -> Result<(Vec<Prefix>, Tensor)> {
        self.prefill_with(prompts, |_, _| Ok(()))
    }

    /// Runs prompts like [`IncrementalDecoder::prefill`]. Also returns the pass that training can continue.
    pub fn prefill_keeping(&self, prompts: &Forest) -> Result<(Vec<Prefix>, Tensor, PromptPass)> {
        let mut layers = Vec::new();
        let (caches, logits) = self.prefill_with(prompts, |i, kept| {
            layers.push(self.decoder.known_of(i, kept)?);
            Ok(())
        })?;
        Ok((caches, logits, PromptPass::new(prompts.clone(), layers)))
    }

    fn prefill_with(
        &self,
        prompts: &Forest,
        mut keep: impl FnMut(usize, LayerActivations) -> Result<()>,
    ) -> Result<(Vec<Prefix>, Tensor)> {
        let HostWeights { output, .. } = self.host_layout()?;
        let rows: Vec<usize> = prompts.segments().iter().map(|text| text.range().end - 1).collect();
        let mut caches = vec![Prefix::default(); rows.len()];
        let PassResult { hidden, .. } = self.decoder.run(prompts, &rows, &self.how, |i, kept| {
            for (cache, layer) in caches.iter_mut().zip(self.prefix_layers(i, &kept.mixed, prompts)?) {
                cache.layers.push(layer);
            }
            keep(i, kept)
        })?;
        Ok((caches, self.logits(output.forward(&hidden)?)?))
    }

    /// Returns the caches of prompts in layer `i`, given the activations of its attention or recurrence.
    fn prefix_layers(&self, i: usize, mixed: &MixerActivations, prompts: &Forest) -> Result<Vec<PrefixLayer>> {
        let (recurrent, texts) = (self.decoder.weights.layers[i].recurrent.as_ref(), prompts.segments());
        match mixed {
            MixerActivations::Network(inputs) => {
                let network = recurrent.and_then(|own| own.operation(self.architecture())).ok_or_else(other_kind)?;
                Ok(recurrent_network::states(inputs, network, prompts)?.into_iter().map(PrefixLayer::Network).collect())
            }
            MixerActivations::Convolution(joined) => {
                let convolution = recurrent.ok_or_else(other_kind)?.convolution.operation();
                let state = |text: &ops::Segment| ConvolutionState::from_text(joined, text.range(), convolution);
                texts.iter().map(|text| Ok(PrefixLayer::Convolution(state(text)?))).collect()
            }
            MixerActivations::Borrowing(_) => Ok(vec![PrefixLayer::Borrowing; texts.len()]),
            MixerActivations::Absent => Ok(vec![PrefixLayer::Absent; texts.len()]),
            MixerActivations::SideBySide(both) => {
                let [attention, recurrence] =
                    [self.prefix_layers(i, &both[0], prompts)?, self.prefix_layers(i, &both[1], prompts)?];
                Ok(attention.into_iter().zip(recurrence).map(|(a, b)| PrefixLayer::SideBySide(Box::new([a, b]))).collect())
            }
            MixerActivations::Attention(heads) => {
                let c = self.architecture().heads_of(i).head_dim;
                let k = self.decoder.in_f32(&self.decoder.keys(i, heads, prompts)?)?;
                let v = self.decoder.in_f32(heads.values()?)?;
                let cache = |text: &ops::Segment| PromptCache::new(&k, &v, text.range(), c, self.cached);
                texts.iter().map(|text| Ok(PrefixLayer::Attention(cache(text)?))).collect()
            }
        }
    }

    /// Creates the cache of an empty prompt, for sequences whose own caches have all of their tokens.
    pub fn no_prompt(&self) -> Prefix {
        let a = self.architecture();
        let attention = || PrefixLayer::Attention(PromptCache::default());
        let layer = |layer: usize| match a.recurrence.as_ref().filter(|_| a.has_recurrence(layer)) {
            None if a.key_source(layer).is_some() => PrefixLayer::Borrowing,
            None if !a.mixes(layer) => PrefixLayer::Absent,
            None => attention(),
            Some(recurrence) => match recurrence.kind.heads() {
                None => PrefixLayer::Convolution(ConvolutionState::empty(recurrence.width, a.hidden_size)),
                Some(heads) => {
                    let network = PrefixLayer::Network(NetworkState::empty(heads, recurrence.width));
                    if a.is_recurrent(layer) { network } else { PrefixLayer::SideBySide(Box::new([attention(), network])) }
                }
            },
        };
        Prefix { layers: (0..a.layers).map(layer).collect() }
    }

    /// Returns the bytes of a sequence's states in recurrent layers, whatever its length.
    pub fn bytes_of_states(&self) -> usize {
        self.architecture().state_bytes() as usize
    }

    /// Returns the bytes of keys and values per position.
    pub fn bytes_per_position(&self) -> usize {
        let value = if self.cached == Precision::Bf16 { 2 } else { 4 };
        2 * self.architecture().cached_width() * value
    }

    /// Advances each sequence by its new tokens and returns the logits after the last one, `[B, V]`.
    pub fn decode(&self, step: DecodeBatch<'_>) -> Result<Tensor> {
        let mut end = 0;
        let ends = step.counts.iter().map(|count| {
            end += count;
            end.saturating_sub(1)
        });
        let rows: Vec<usize> = ends.collect();
        self.decode_at(step, &rows)
    }

    /// Advances each sequence by its new tokens and returns the logits after the tokens at the packed positions `rows`, `[M, V]`. A token's
    /// keys, values and logits are bit-identical whatever else a step computes: they depend only on the tokens before it.
    pub fn decode_at(&self, step: DecodeBatch<'_>, rows: &[usize]) -> Result<Tensor> {
        let HostWeights { layers, inputs, output } = self.host_layout()?;
        let d = &self.decoder;
        let DecodeBatch { tokens, positions, counts, prompt_of, prompts, own } = step;
        if counts.iter().sum::<usize>() != tokens.len() || counts.len() != own.len() || counts.contains(&0) {
            let detail = format!("{} tokens and caches of {} sequences for counts {counts:?}", tokens.len(), own.len());
            return Err(ops::Error::Shape { op: "decode", detail }.into());
        }
        let mut x = d.embedded(tokens, positions)?;
        let inputs = d.layer_inputs(inputs.as_ref(), tokens, &x)?;
        let sources = PassSources { inputs, ..PassSources::default() };
        for (l, maps) in layers.iter().enumerate() {
            let layer = d.layer_with(l, maps.each(), &sources, None)?;
            let (attention, sinks) = (d.architecture.attention(l), d.weights.layers[l].attention.sinks.as_ref());
            let source = d.architecture.key_source(l);
            let cached = CacheMixer { layer: l, counts, prompt_of, prompts, own: &mut *own, source, attention, sinks };
            let mut kept = layer.forward(x, positions, None, cached)?;
            x = layer.output(&mut kept)?;
            match layers.get(l + 1) {
                Some(next) => DecodeProjection::prefetch(&next.first(), tokens.len())?,
                None => panels::prefetch(&[output], rows.len())?,
            }
        }
        own.iter_mut().zip(counts).for_each(|(own, count)| own.positions += count);
        if rows.len() < tokens.len() {
            x = ops::gather_rows(&x, rows)?;
        }
        let hidden = d.architecture.normed(&x, Some(&d.weights.norm))?;
        self.logits(output.forward(&hidden)?)
    }

    fn logits(&self, products: Tensor) -> Result<Tensor> {
        Ok(self.architecture().logits_of(products)?)
    }
}
