//! Token-by-token generation with a copy of the weights laid out for few rows.

use super::decoder::Decoder;
use super::weights::Linear;
use super::{Architecture, Cache, Prefix, Result};
use crate::ops::cached_attention::{self, Group, PromptCache, SequenceCache};
use crate::ops::{self, Forest, embedding, linear, norm, rope, swiglu};
use candle_core::Tensor;

/// A frozen decoder for one generation. Its weights are a copy made when it was: a generation
/// never mixes two versions.
pub struct Decoding {
    decoder: Decoder,
    layers: Vec<Turned>,
    output: Tensor,
}

/// A layer's weights as `[in, out]`, with their biases.
struct Turned {
    q: (Tensor, Option<Tensor>),
    k: (Tensor, Option<Tensor>),
    v: (Tensor, Option<Tensor>),
    o: (Tensor, Option<Tensor>),
    gate: (Tensor, Option<Tensor>),
    up: (Tensor, Option<Tensor>),
    down: (Tensor, Option<Tensor>),
}

/// One new token of each of `B` sequences.
pub struct Decode<'a> {
    /// The tokens, `[B]`.
    pub tokens: &'a [u32],
    /// Their positions, `[B]`.
    pub positions: &'a [u32],
    /// Each sequence's prompt, as an index into `prompts`.
    pub prompt_of: &'a [usize],
    /// Caches of the prompts.
    pub prompts: &'a [&'a Prefix],
    /// Each sequence's own cache, to which the token is added.
    pub own: &'a mut [&'a mut Cache],
}

/// An adapter is folded in, so that a token costs no more with one.
fn turned(l: &Linear) -> ops::Result<(Tensor, Option<Tensor>)> {
    Ok((linear::transposed(&l.merged()?)?, l.bias.clone()))
}

fn apply((weight, bias): &(Tensor, Option<Tensor>), x: &Tensor) -> ops::Result<Tensor> {
    linear::forward_transposed(x, weight, bias.as_ref())
}

impl Decoding {
    pub(super) fn new(decoder: Decoder) -> Result<Self> {
        let layer = |w: &super::weights::Layer| -> ops::Result<Turned> {
            Ok(Turned {
                q: turned(&w.q)?,
                k: turned(&w.k)?,
                v: turned(&w.v)?,
                o: turned(&w.o)?,
                gate: turned(&w.gate)?,
                up: turned(&w.up)?,
                down: turned(&w.down)?,
            })
        };
        let layers = decoder.weights.layers.iter().map(layer).collect::<ops::Result<_>>()?;
        let output = linear::transposed(decoder.weights.output())?;
        Ok(Self { decoder, layers, output })
    }

    /// The decoder's sizes.
    pub fn architecture(&self) -> &Architecture {
        &self.decoder.architecture
    }

    /// A cache for a new sequence, with room for so many positions.
    pub fn empty_cache(&self, positions: usize) -> Cache {
        let width = self.architecture().kv_width();
        Cache { layers: (0..self.layers.len()).map(|_| SequenceCache::with_room(positions, width)).collect() }
    }

    /// Runs prompts, one segment each, and gives the caches of all and the logits `[P, V]` after
    /// the last token of each.
    pub fn prefill(&self, prompts: &Forest) -> Result<(Vec<Prefix>, Tensor)> {
        let ranges: Vec<_> = prompts.segments().iter().map(ops::Segment::range).collect();
        let rows: Vec<usize> = ranges.iter().map(|r| r.end - 1).collect();
        let mut caches = vec![Prefix::default(); ranges.len()];
        let (hidden, _) = self.decoder.run(prompts, &rows, |_, kept| {
            for (cache, range) in caches.iter_mut().zip(&ranges) {
                cache.layers.push(PromptCache::new(&kept.k, &kept.v, range.clone())?);
            }
            Ok(())
        })?;
        Ok((caches, linear::forward_transposed(&hidden, &self.output, None)?))
    }

    /// One token further for each sequence: logits `[B, V]`.
    pub fn decode(&self, step: Decode<'_>) -> Result<Tensor> {
        let d = &self.decoder;
        let (eps, heads) = (d.architecture.rms_norm_eps, d.architecture.heads);
        let mut x = embedding::forward(&d.weights.embedding, step.tokens)?;
        for (l, (w, t)) in d.weights.layers.iter().zip(&self.layers).enumerate() {
            let h = norm::forward(&x, &w.input_norm, eps)?;
            let (mut q, mut k, v) = (apply(&t.q, &h)?, apply(&t.k, &h)?, apply(&t.v, &h)?);
            if let Some((q_norm, k_norm)) = &w.qk_norm {
                (q, k) = (d.head_norm(&q, q_norm)?, d.head_norm(&k, k_norm)?);
            }
            rope::forward(&q, &d.rotation, step.positions)?;
            rope::forward(&k, &d.rotation, step.positions)?;
            for (row, own) in step.own.iter_mut().enumerate() {
                own.layers[l].push(&k, &v, row)?;
            }
            let mut groups: Vec<Group<'_>> =
                step.prompts.iter().map(|p| Group { prompt: &p.layers[l], sequences: Vec::new() }).collect();
            for (row, (own, &prompt)) in step.own.iter().zip(step.prompt_of).enumerate() {
                groups[prompt].sequences.push((row, &own.layers[l]));
            }
            let middle = apply(&t.o, &cached_attention::forward(&q, &groups, heads)?)?;
            ops::add_into(&middle, &x)?;
            let h = norm::forward(&middle, &w.post_norm, eps)?;
            x = apply(&t.down, &swiglu::forward(&apply(&t.gate, &h)?, &apply(&t.up, &h)?)?)?;
            ops::add_into(&x, &middle)?;
        }
        let hidden = norm::forward(&x, &d.weights.norm, eps)?;
        Ok(linear::forward_transposed(&hidden, &self.output, None)?)
    }
}
