//! Runs [`Decoding`] on a device: prompts run as usual, then all sequences advance together by one token per step.

use super::decoding::Decoding;
use super::weights::{Layer, Linear, Norm};
use super::{Decoder, Result};
use crate::ops::decode::{Drawing, Recorded, Session, Sizes, joined};
use crate::ops::{self, Forest, Segment, linear};
use candle_core::Tensor;
use std::ops::Range;
use std::sync::Arc;

/// Number of steps of one shape before it is recorded; recording costs as much as a few steps.
const STEPS_BEFORE_RECORDING: usize = 4;

/// A layer's products, joined if they have the same input. Adapters are merged in.
pub(super) struct Joined {
    qkv: Tensor,
    qkv_bias: Option<Tensor>,
    o: Tensor,
    gate_up: Tensor,
    gate_up_bias: [Option<Tensor>; 2],
    down: Tensor,
}

fn biases(parts: &[&Linear]) -> ops::Result<Option<Tensor>> {
    let biases: Vec<&Tensor> = parts.iter().filter_map(|l| l.bias.as_ref()).collect();
    if biases.len() < parts.len() { Ok(None) } else { joined(&biases).map(Some) }
}

impl Joined {
    /// Joins the products of a layer whose projections are stored apart: [`super::Backend::check`] refuses other models.
    pub(super) fn new(w: &Layer) -> ops::Result<Self> {
        let Some(unit) = &w.unit else { return Err(other()) };
        let ([q, k, v], [gate, up]) = (&w.qkv[..], &unit.wide[..]) else { return Err(other()) };
        Ok(Self {
            qkv: joined(&[&q.merged()?, &k.merged()?, &v.merged()?])?,
            qkv_bias: biases(&[q, k, v])?,
            o: w.o.merged()?,
            gate_up: joined(&[&gate.merged()?, &up.merged()?])?,
            gate_up_bias: [gate.bias.clone(), up.bias.clone()],
            down: unit.down.merged()?,
        })
    }
}

fn other() -> ops::Error {
    ops::Error::Shape { op: "decode", detail: "a layer that only the CPU computes".into() }
}

fn weight(norm: Option<&Norm>) -> ops::Result<&Tensor> {
    norm.map(|norm| &norm.weight).ok_or_else(other)
}

/// A prompt's keys and values in device memory: rows of the tensors of all prompts that were run together.
#[derive(Clone)]
pub struct DevicePrefix {
    layers: Arc<Vec<(Tensor, Tensor)>>,
    rows: Range<usize>,
}

/// Number and length of a generation's sequences.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    /// Number of sequences decoded at once.
    pub sequences: usize,
    /// Longest completion, in tokens.
    pub completion: usize,
    /// Longest prompt, in tokens.
    pub prompt: usize,
}

/// A generation on a device.
pub struct DeviceDecoding<'a> {
    decoder: &'a Decoder,
    layers: &'a [Joined],
    /// Sequences, prompts and rows.
    pub session: Session,
    drawing: Drawing,
    recorded: Option<Recorded>,
    /// Steps since the last one that a recording fitted.
    plain: usize,
    may_record: bool,
}

impl Decoding {
    /// Creates a generation on the device of the weights; none on the CPU.
    ///
    /// # Errors
    /// If the device has too little memory.
    pub fn on_device(&self, room: Room, drawing: Drawing) -> Result<Option<DeviceDecoding<'_>>> {
        let Some((decoder, layers)) = self.of_device() else { return Ok(None) };
        let a = self.architecture();
        let sizes = Sizes {
            slots: room.sequences,
            room: room.completion,
            longest_prompt: room.prompt,
            layers: layers.len(),
            heads: a.heads,
            hidden: a.hidden_size,
            intermediate: a.intermediate_size,
            vocabulary: a.vocab_size,
            remembers: drawing.sampling.repetition_penalty != 1.0,
            keeps_support: drawing.keep_support,
        };
        let session = Session::new(decoder.weights.output(), sizes)?;
        Ok(Some(DeviceDecoding { decoder, layers, session, drawing, recorded: None, plain: 0, may_record: true }))
    }
}

impl DeviceDecoding<'_> {
    /// Runs prompts, one segment each. Returns each prompt's keys and values, and the logits `[P, V]` after its last token.
    pub fn prefill(&self, prompts: &Forest) -> Result<(Vec<DevicePrefix>, Tensor)> {
        let ranges: Vec<_> = prompts.segments().iter().map(Segment::range).collect();
        let rows: Vec<usize> = ranges.iter().map(|r| r.end - 1).collect();
        let mut layers = Vec::with_capacity(self.layers.len());
        let (hidden, _) = self.decoder.run(prompts, &rows, &self.decoder.plainly()?, |_, kept| {
            layers.push((kept.k, kept.v));
            Ok(())
        })?;
        let layers = Arc::new(layers);
        let prefixes = ranges.into_iter().map(|rows| DevicePrefix { layers: Arc::clone(&layers), rows }).collect();
        Ok((prefixes, linear::forward_f32(&hidden, self.decoder.weights.output(), None)?))
    }

    /// Returns the size of the vocabulary.
    pub fn vocabulary(&self) -> usize {
        self.decoder.architecture.vocab_size
    }

    /// Registers a prompt with the session under an index.
    pub fn put_prompt(&mut self, place: usize, prefix: &DevicePrefix) -> Result<()> {
        Ok(self.session.put_prompt(place, &prefix.layers, prefix.rows.clone())?)
    }

    /// Samples the first token of the sequences in `slots` from rows `rows` of [`DeviceDecoding::prefill`]'s logits.
    pub fn draw_first(&self, logits: &Tensor, slots: &[u32], rows: &[u32]) -> Result<()> {
        Ok(self.session.draw_first(&self.drawing, logits, slots, rows)?)
    }

    /// Advances each of the session's rows by one token: runs the newest and samples the next.
    pub fn step(&mut self) -> Result<()> {
        if let Some(recorded) = self.recorded.as_ref().filter(|r| self.session.fits(r)) {
            self.plain = 0;
            return Ok(self.session.replay(recorded)?);
        }
        let (decoder, layers, drawing) = (self.decoder, self.layers, self.drawing);
        self.session.in_shape(|session| step(decoder, layers, &drawing, session))?;
        self.plain += 1;
        if self.plain >= STEPS_BEFORE_RECORDING && self.may_record {
            self.plain = 0;
            let recorded = self.session.record(|session| step(decoder, layers, &drawing, session));
            // Without recordings a generation is the same, and slower.
            self.may_record = recorded.is_ok();
            self.recorded = recorded.inspect_err(|e| tracing::warn!("can't record generation steps as a CUDA graph: {e}")).ok();
        }
        Ok(())
    }
}

/// Performs all launches of a step.
fn step(decoder: &Decoder, layers: &[Joined], drawing: &Drawing, session: &Session) -> ops::Result<()> {
    let (weights, eps) = (&decoder.weights, decoder.architecture.norm_eps);
    let rotation = decoder.rotations.first().ok_or_else(other)?;
    session.embed(&weights.embedding)?;
    let mut missing = None;
    for (i, (w, joined)) in weights.layers.iter().zip(layers).enumerate() {
        session.norm(missing, weight(w.input_norm.as_ref())?, eps)?;
        session.project(&joined.qkv)?;
        session.rotate_and_keep(i, joined.qkv_bias.as_ref(), w.qk_norm.as_ref(), rotation, eps)?;
        session.attend(i)?;
        session.add_attended(&joined.o)?;
        session.norm(w.o.bias.as_ref(), weight(w.mlp_norm.as_ref())?, eps)?;
        let [gate, up] = &joined.gate_up_bias;
        session.gate(&joined.gate_up, gate.as_ref(), up.as_ref())?;
        session.add_gated(&joined.down)?;
        missing = w.unit.as_ref().and_then(|unit| unit.down.bias.as_ref());
    }
    session.norm(missing, &weights.norm.weight, eps)?;
    session.logits(weights.output())?;
    session.draw(drawing)
}
