//! Lets training continue the forward pass of prompts that a generation made with the same weights.
//!
//! On the CPU in bf16, a row's values do not depend on what else is computed. So a pass is bit-identical whether its prompts are computed
//! with it or earlier.

use super::Result;
use super::decoder::{Decoder, PassActivations, StoredActivations};
use super::layer::{DecoderLayer, LayerActivations};
use super::masked_linear::MaskedLinear;
use super::mixer::{self, AttentionOutput, MixerActivations, TokenMixer};
use super::pass_options::PassOptions;
use super::pass_sources::PassSources;
use super::row_splices::RowSplices;
use crate::ops::attention::AttentionConfig;
use crate::ops::convolution::{self, Convolution};
use crate::ops::recurrent_network::{self, RecurrentNetwork};
use crate::ops::splice::{Splice, SpliceSource};
use crate::ops::{self, Forest, attention};
use candle_core::Tensor;
use std::ops::Range;
use std::sync::Arc;

/// The prompts' pass, as a training pass over their completions continues it.
pub struct PromptPass {
    /// One segment for each prompt.
    prompts: Forest,
    /// Activations of each layer, rounded for the backward pass. Those of the last layer are not, since some rows after its attention are
    /// still to be computed.
    layers: Vec<LayerActivations>,
}

/// The rest of a forest's pass whose prompts have been computed.
pub(super) struct Continuation {
    prompts: Forest,
    layers: Vec<LayerActivations>,
    joins: RowSplices,
    /// The packed positions for which the last layer is computed.
    rows: Vec<usize>,
    /// The segments that continue the prompts.
    segments: Vec<usize>,
    /// Token ids of the segments, `[N']`.
    tokens: Vec<u32>,
    /// Positions of the tokens, `[N']`.
    positions: Vec<u32>,
}

impl PromptPass {
    /// Creates the pass from the activations of each layer ([`Decoder::known_of`]).
    pub(super) fn new(prompts: Forest, layers: Vec<LayerActivations>) -> Self {
        Self { prompts, layers }
    }

    /// Returns the rows of a prompt with these tokens.
    fn rows_of(&self, tokens: &[u32]) -> Option<Range<usize>> {
        self.prompts.segments().iter().map(ops::Segment::range).find(|rows| self.prompts.tokens()[rows.clone()] == *tokens)
    }
}

impl Continuation {
    /// Prepares a pass over `forest` that computes the last layer for `rows`. Returns `None` if one of the forest's prompts has not been
    /// computed, or if a row is needed whose attention in the last layer has not: a prompt's row that is not its last.
    pub(super) fn new(known: PromptPass, forest: &Forest, rows: &[usize]) -> Option<Self> {
        let (mut all, mut selected, mut segments) = (Splice::default(), Splice::default(), Vec::new());
        let (mut tokens, mut positions, mut places) = (Vec::new(), Vec::new(), Vec::with_capacity(forest.len()));
        let attended = |place: usize| known.prompts.segments().iter().any(|prompt| prompt.range().end == place + 1);
        for (index, segment) in forest.segments().iter().enumerate() {
            let own = &forest.tokens()[segment.range()];
            let (from, rows) = if segment.prefix.is_some() {
                segments.push(index);
                tokens.extend_from_slice(own);
                positions.extend_from_slice(&forest.positions()[segment.range()]);
                (SpliceSource::Second, tokens.len() - own.len()..tokens.len())
            } else {
                (SpliceSource::First, known.rows_of(own)?)
            };
            places.extend(rows.clone().map(|row| (from, row)));
            all.push(from, rows);
        }
        for row in rows {
            let (from, place) = places[*row];
            if from == SpliceSource::First && !attended(place) {
                return None;
            }
            selected.push(from, place..place + 1);
        }
        let joins = RowSplices { all, selected };
        let PromptPass { prompts, layers } = known;
        (!tokens.is_empty()).then_some(Self { prompts, layers, joins, rows: rows.to_vec(), segments, tokens, positions })
    }

    /// Returns the number of rows that are still to be computed.
    pub(super) fn len(&self) -> usize {
        self.tokens.len()
    }
}

/// Mixes the tokens after known prompts with the earlier ones.
struct ContinuationMixer<'a> {
    joins: &'a RowSplices,
    /// The layer's activations from the prompts' pass.
    mixed: &'a MixerActivations,
    /// The prompts' keys and values, if the layer attends.
    known: Option<(Tensor, Tensor)>,
    /// Keys and values of an earlier layer for all rows, if this one reads them.
    shared: Option<[Tensor; 2]>,
    forest: &'a Forest,
    segments: &'a [usize],
    attention: AttentionConfig,
    /// The layer's attention sinks, if it has any.
    sinks: Option<&'a Tensor>,
}

impl ContinuationMixer<'_> {
    /// Computes attention of the new rows' queries over the keys and values of all rows.
    fn attend_to(&self, q: &Tensor, [k, v]: [&Tensor; 2]) -> Result<AttentionOutput> {
        let (out, log_sum) = attention::forward_segments(q, k, v, self.forest, self.segments, self.attention)?;
        Ok(AttentionOutput::with_sinks(out, log_sum, self.sinks)?)
    }
}

impl TokenMixer for ContinuationMixer<'_> {
    fn attend(&mut self, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<AttentionOutput> {
        let joins = self.joins;
        let (known_k, known_v) = self.known.as_ref().ok_or_else(mixer::other_kind)?;
        let (k, v) = (joins.all.forward(known_k, k)?, joins.all.forward(known_v, v)?);
        self.attend_to(q, [&k, &v])
    }

    fn attend_to_shared(&mut self, q: &Tensor) -> Result<AttentionOutput> {
        let [k, v] = self.shared.as_ref().ok_or_else(mixer::other_kind)?;
        self.attend_to(q, [k, v])
    }

    fn convolve(&mut self, joined: &Tensor, convolution: Convolution<'_>) -> Result<Tensor> {
        let all = self.joins.all.forward(self.mixed.convolution()?, joined)?;
        Ok(convolution::forward(&all, convolution, self.forest, Some(self.segments))?)
    }

    fn run_network(&mut self, inputs: &[Tensor], network: RecurrentNetwork<'_>) -> Result<Tensor> {
        let known = self.mixed.network()?.iter().zip(inputs);
        let all: Vec<Tensor> = known.map(|(known, new)| self.joins.all.forward(known, new)).collect::<ops::Result<_>>()?;
        Ok(recurrent_network::forward(&all, network, self.forest, Some(self.segments))?)
    }
}

impl Decoder {
    /// Returns the part of layer `i`'s activations that [`PromptPass`] stores.
    pub(super) fn known_of(&self, i: usize, kept: LayerActivations) -> ops::Result<LayerActivations> {
        if i + 1 < self.weights.layers.len() { self.stored(kept) } else { Ok(kept.reduced()) }
    }

    /// Returns the layers' own inputs of all rows of a forest; those of prompts have not been kept.
    fn continued_sources(&self, forest: &Forest, how: &PassOptions) -> Result<PassSources> {
        let Some(map) = self.input_projection(how) else { return Ok(PassSources::default()) };
        let first = self.embedded(forest.tokens(), forest.positions())?;
        let inputs = self.layer_inputs(Some(&map), forest.tokens(), &first)?;
        Ok(PassSources { inputs, ..PassSources::default() })
    }

    /// Runs the decoder on a forest like [`Decoder::forward`], starting where the prompts' pass ended.
    pub(super) fn continued(&self, forest: &Forest, how: PassOptions, from: Continuation) -> Result<(Tensor, PassActivations)> {
        let Continuation { prompts, layers: known, joins, rows, segments, tokens, positions } = from;
        let joins = Arc::new(joins);
        let mut x = self.embedded(&tokens, &positions)?;
        let mut sources = self.continued_sources(forest, &how)?;
        let new_rows: Vec<usize> = segments.iter().flat_map(|segment| forest.segments()[*segment].range()).collect();
        let mut layers = Vec::with_capacity(known.len());
        for (i, known) in known.into_iter().enumerate() {
            let last = i + 1 == self.weights.layers.len();
            let maps = MaskedLinear::for_layer(self.weights.layers[i].maps(), self.precision, &how, i, last);
            let (kept, output, shared) = ops::on_pool(&self.weights.embedding, || {
                let heads = known.mixed.attention().ok();
                let of_prompts = heads.map(|heads| self.known_heads(i, &maps, heads, &prompts)).transpose()?;
                let of_source = of_prompts.clone().filter(|_| self.architecture.is_key_source(i));
                let selected = |out: &Tensor, x: &Tensor| {
                    let of = |known: &Tensor, new: &Tensor| joins.selected.forward(known, new);
                    Ok((of(&known.out, out)?, of(&known.input, x)?))
                };
                let computed = if last { &rows } else { &new_rows };
                let layer = self.layer_with(i, maps.each(), &sources, Some(computed))?;
                let layer = DecoderLayer { halves: self.halves(), ..layer };
                let after = ContinuationMixer {
                    joins: &joins,
                    mixed: &known.mixed,
                    known: of_prompts,
                    shared: sources.heads.read_by(&self.architecture, i),
                    forest,
                    segments: &segments,
                    attention: self.attention(i),
                    sinks: self.weights.layers[i].attention.sinks.as_ref(),
                };
                let mut kept = layer.forward(x, &positions, last.then_some(&selected), after)?;
                let output = layer.output(&mut kept)?;
                let shared = of_source.map(|known| joined_heads(&joins, known, &kept.mixed)).transpose()?;
                Ok::<_, super::Error>((kept, output, shared))
            })?;
            if let Some(heads) = shared {
                sources.heads.keep(i, heads);
            }
            layers.push(StoredActivations::Joined(Arc::clone(&joins), Box::new([self.stored(known)?, self.stored(kept)?])));
            x = output;
        }
        let hidden = self.architecture.normed(&x, Some(&self.weights.norm))?;
        Ok((hidden, PassActivations { layers, last: x, how, balance: None, sources }))
    }
}

/// Returns a layer's keys and values for all rows, given those of the prompts and the activations of the new rows.
fn joined_heads(joins: &RowSplices, known: (Tensor, Tensor), new: &MixerActivations) -> ops::Result<[Tensor; 2]> {
    let [k, v] = new.attention()?.keys_and_values()?;
    Ok([joins.all.forward(&known.0, &k)?, joins.all.forward(&known.1, &v)?])
}
