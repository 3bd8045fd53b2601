//! Runs [`IncrementalDecoder`] on a device: prompts run as usual, then all sequences advance together, one token per step.

use super::decoder::PassResult;
use super::device_steps::{FusedLayer, FusedWeights};
use super::incremental_decoder::IncrementalDecoder;
use super::layer::FeedForwardActivations;
use super::masked_linear::MaskedLinear;
use super::pass_options::PassOptions;
use super::switches::HeadNorms;
use super::weights::NormWeights;
use super::{Architecture, Decoder, Result};
use crate::ops::decode::{self, DecodeSession, DecodeSizes, DrawOptions, RecordedStep};
use crate::ops::{self, Forest, Segment, linear};
use candle_core::Tensor;
use std::ops::Range;
use std::sync::Arc;

/// Number of steps of one shape before it is recorded as a graph; recording costs as much as a few steps.
const STEPS_BEFORE_RECORDING: usize = 4;

/// Keys and values of a prompt in device memory, as rows of the tensors of all prompts that were run together.
#[derive(Clone)]
pub struct DevicePrefix {
    layers: Arc<Vec<(Tensor, Tensor)>>,
    rows: Range<usize>,
}

/// Maximum number and length of a generation's sequences.
#[derive(Clone, Copy, Debug)]
pub struct GenerationCapacity {
    /// Number of sequences decoded at once.
    pub sequences: usize,
    /// Longest completion, in tokens.
    pub completion: usize,
    /// Longest prompt, in tokens.
    pub prompt: usize,
}

/// The weights and options with which each step computes.
#[derive(Clone, Copy)]
struct DeviceModel<'a> {
    decoder: &'a Decoder,
    how: &'a PassOptions,
    steps: &'a FusedWeights,
}

/// A generation in progress on a device.
pub struct DeviceDecoder<'a> {
    model: DeviceModel<'a>,
    /// Device memory of sequences, prompts and rows.
    pub session: DecodeSession,
    drawing: DrawOptions,
    recorded: Option<RecordedStep>,
    /// Number of steps since the last one that a recording was made of or replaced.
    plain: usize,
    may_record: bool,
}

impl IncrementalDecoder {
    /// Creates a generation on the device of the weights; `None` on the CPU.
    ///
    /// # Errors
    /// If the device has too little memory.
    pub fn on_device(&self, room: GenerationCapacity, drawing: DrawOptions) -> Result<Option<DeviceDecoder<'_>>> {
        let Some((decoder, how, steps)) = self.device_parts() else { return Ok(None) };
        let a = self.architecture();
        let sizes = DecodeSizes {
            slots: room.sequences,
            max_own_positions: room.completion,
            longest_prompt: room.prompt,
            layers: a.layers,
            heads: a.heads,
            hidden: a.hidden_size,
            intermediate: a.intermediate_size,
            wide: a.mlp_widths().iter().sum(),
            vocabulary: a.vocab_size,
            remembers: drawing.sampling.repetition_penalty != 1.0,
            keeps_support: drawing.keep_support,
        };
        let session = DecodeSession::new(decoder.weights.output(), sizes)?;
        // The experts that a step needs are known only during the step.
        let may_record = a.mixture.is_none();
        let model = DeviceModel { decoder, how, steps };
        Ok(Some(DeviceDecoder { model, session, drawing, recorded: None, plain: 0, may_record }))
    }
}

impl DeviceDecoder<'_> {
    /// Runs prompts, one segment each. Returns each prompt's keys and values, and the logits `[P, V]` after its last token.
    pub fn prefill(&self, prompts: &Forest) -> Result<(Vec<DevicePrefix>, Tensor)> {
        let ranges: Vec<_> = prompts.segments().iter().map(Segment::range).collect();
        let rows: Vec<usize> = ranges.iter().map(|r| r.end - 1).collect();
        let DeviceModel { decoder, how, .. } = self.model;
        let mut layers = Vec::with_capacity(decoder.architecture.layers);
        let PassResult { hidden, .. } = decoder.run(prompts, &rows, how, |i, kept| {
            let heads = kept.mixed.attention()?;
            layers.push((decoder.keys(i, heads, prompts)?, heads.values()?.clone()));
            Ok(())
        })?;
        let layers = Arc::new(layers);
        let prefixes = ranges.into_iter().map(|rows| DevicePrefix { layers: Arc::clone(&layers), rows }).collect();
        let products = linear::forward_f32(&hidden, decoder.weights.output(), None)?;
        Ok((prefixes, decoder.architecture.logits_of(products)?))
    }

    /// Returns the size of the vocabulary.
    pub fn vocabulary(&self) -> usize {
        self.model.decoder.architecture.vocab_size
    }

    /// Registers a prompt with the session under an index.
    pub fn put_prompt(&mut self, place: usize, prefix: &DevicePrefix) -> Result<()> {
        Ok(self.session.put_prompt(place, &prefix.layers, prefix.rows.clone())?)
    }

    /// Samples the first token of the sequences in `slots` from rows `rows` of [`DeviceDecoder::prefill`]'s logits.
    pub fn draw_first(&self, logits: &Tensor, slots: &[u32], rows: &[u32]) -> Result<()> {
        Ok(self.session.draw_first(&self.drawing, logits, slots, rows)?)
    }

    /// Advances each of the session's rows by one token: reads the newest one and samples the next.
    pub fn step(&mut self) -> Result<()> {
        if let Some(recorded) = self.recorded.as_ref().filter(|r| self.session.fits(r)) {
            self.plain = 0;
            return Ok(self.session.replay(recorded)?);
        }
        let (model, drawing) = (self.model, self.drawing);
        if model.decoder.architecture.mixture.is_some() {
            // Rows without a sequence would be routed to experts too and change the order of sums for the others.
            return Ok(model.step(&drawing, &self.session)?);
        }
        self.session.in_shape(|session| model.step(&drawing, session))?;
        self.plain += 1;
        if self.plain >= STEPS_BEFORE_RECORDING && self.may_record {
            self.plain = 0;
            let recorded = self.session.record(|session| model.step(&drawing, session));
            // A generation without recordings gives the same results, only slower.
            self.may_record = recorded.is_ok();
            self.recorded = recorded.inspect_err(|e| tracing::warn!("can't record generation steps as a CUDA graph: {e}")).ok();
        }
        Ok(())
    }
}

impl DeviceModel<'_> {
    /// Launches all kernels of a step.
    fn step(&self, drawing: &DrawOptions, session: &DecodeSession) -> ops::Result<()> {
        let Decoder { weights, architecture, .. } = self.decoder;
        session.embed(&weights.embedding, architecture.factors.embedding, weights.positions.as_ref())?;
        let mut missing = None;
        for layer in 0..architecture.layers {
            missing = self.layer(layer, missing, session)?;
        }
        session.norm(missing, self.as_stepped(Some(&self.steps.norm)))?;
        session.logits(weights.output(), self.decoder.logits(1.0))?;
        session.draw(drawing)
    }

    /// Launches the kernels of layer `i`. `missing` is a bias of the previous layer that has not been added yet; returns the one that this
    /// layer leaves.
    fn layer(&self, i: usize, missing: Option<&Tensor>, session: &DecodeSession) -> ops::Result<Option<&Tensor>> {
        let (a, joined, w) = (&self.decoder.architecture, &self.steps.layers[i], &self.decoder.weights.layers[i]);
        session.norm(missing, self.as_stepped(joined.input_norm.as_ref()))?;
        session.project(&joined.qkv)?;
        let (mut bias, mut head_norms) = (joined.qkv_bias.as_ref(), joined.qk_norm.as_ref());
        if let Some((q, k)) = head_norms.filter(|_| a.head_norms == HeadNorms::All) {
            session.norm_heads((q, k), bias, a.norm_eps)?;
            (bias, head_norms) = (None, None);
        }
        session.rotate_and_keep(i, bias, head_norms, self.decoder.rotation(i), a.norm_eps)?;
        session.attend(i, a.attention(i))?;
        let mlp_norm = self.as_stepped(joined.mlp_norm.as_ref());
        let of_mlp = w.unit.as_ref().and_then(|unit| unit.down.bias.as_ref());
        if let Some(mlp) = joined.mlp.as_ref().filter(|_| adds_products(a, joined)) {
            session.add_attended(&joined.o)?;
            session.norm(w.o.first().and_then(|o| o.bias.as_ref()), mlp_norm)?;
            session.activate(&mlp.wide, a.activation, mlp.biases.each_ref().map(Option::as_ref))?;
            session.add_active(&mlp.down)?;
            return Ok(of_mlp);
        }
        session.multiply_attended(&joined.o)?;
        if a.parallel {
            session.norm(None, mlp_norm)?;
        }
        session.add(
            w.o.first().and_then(|o| o.bias.as_ref()),
            self.as_stepped(joined.attended_norm.as_ref()),
            a.factors.residual,
        )?;
        if !a.parallel {
            session.norm(None, mlp_norm)?;
        }
        let bias = match &joined.mlp {
            Some(mlp) => {
                session.activate(&mlp.wide, a.activation, mlp.biases.each_ref().map(Option::as_ref))?;
                session.multiply_active(&mlp.down)?;
                of_mlp
            }
            None => {
                session.put_out(&self.fed(i, &session.normalised()?)?)?;
                None
            }
        };
        session.add(bias, self.as_stepped(joined.added_norm.as_ref()), a.factors.residual)?;
        Ok(None)
    }

    /// Returns the output of a layer's experts for normalised rows.
    fn fed(&self, i: usize, h: &Tensor) -> ops::Result<Tensor> {
        let maps = MaskedLinear::for_layer(self.decoder.weights.layers[i].maps(), self.decoder.precision, self.how, i, false);
        let layer = self.decoder.layer_of(i, maps.each());
        let FeedForwardActivations { unit, experts } = layer.widened(h, h)?;
        layer.narrowed(h, unit.as_ref(), experts.as_ref())
    }

    /// Returns a norm in the form that the session reads.
    fn as_stepped<'n>(&self, norm: Option<&'n NormWeights>) -> decode::DecodeNorm<'n> {
        let eps = self.decoder.architecture.norm_eps;
        norm.map_or(decode::DecodeNorm::default(), |NormWeights { weight, bias }| decode::DecodeNorm {
            weight: Some(weight),
            bias: bias.as_ref(),
            eps,
        })
    }
}

/// Returns whether a layer's products are added to the residual unchanged and one after the other.
fn adds_products(a: &Architecture, layer: &FusedLayer) -> bool {
    !a.parallel && a.factors.residual == 1.0 && layer.attended_norm.is_none() && layer.added_norm.is_none()
}
