//! The view of a decoder for generation and for reference log-probabilities.

use super::decoder::Decoder;
use super::{Architecture, Cache, Result, Selected};
use crate::ops::cached_attention::{self, Group};
use crate::ops::logprob::{self, TokenStats};
use crate::ops::{self, Forest, embedding, linear, norm, rope, swiglu};
use candle_core::Tensor;

/// A decoder that can be run and not changed.
#[derive(Clone, Debug)]
pub struct Frozen {
    decoder: Decoder,
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
    pub prompts: &'a [&'a Cache],
    /// Each sequence's own cache, to which the token is added.
    pub own: &'a mut [&'a mut Cache],
}

impl Frozen {
    /// A view of the decoder.
    pub fn new(decoder: Decoder) -> Self {
        Self { decoder }
    }

    /// The decoder's sizes.
    pub fn architecture(&self) -> &Architecture {
        &self.decoder.architecture
    }

    /// Log-probabilities and entropies of the selected predictions.
    pub fn score(&self, forest: &Forest, selected: &Selected, temperature: f32) -> Result<TokenStats> {
        let (hidden, _) = self.decoder.run(forest, &selected.rows, |_, _| Ok(()))?;
        Ok(logprob::forward(&hidden, self.decoder.weights.output(), &selected.targets, temperature)?)
    }

    /// Logits `[M, V]` of the hidden states at `rows`.
    pub fn logits(&self, forest: &Forest, rows: &[usize]) -> Result<Tensor> {
        let (hidden, _) = self.decoder.run(forest, rows, |_, _| Ok(()))?;
        Ok(linear::forward(&hidden, self.decoder.weights.output(), None)?)
    }

    /// Runs prompts, one segment each, and gives the caches of all and the logits `[P, V]` after
    /// the last token of each.
    pub fn prefill(&self, prompts: &Forest) -> Result<(Vec<Cache>, Tensor)> {
        let ranges: Vec<_> = prompts.segments().iter().map(ops::Segment::range).collect();
        let rows: Vec<usize> = ranges.iter().map(|r| r.end - 1).collect();
        let mut caches = vec![self.empty_cache(); ranges.len()];
        let (hidden, _) = self.decoder.run(prompts, &rows, |layer, kept| {
            for (cache, range) in caches.iter_mut().zip(&ranges) {
                cache.layers[layer].append(&kept.k, &kept.v, range.clone())?;
            }
            Ok(())
        })?;
        let logits = linear::forward(&hidden, self.decoder.weights.output(), None)?;
        Ok((caches, logits))
    }

    /// A cache for a new sequence.
    pub fn empty_cache(&self) -> Cache {
        Cache::new(self.decoder.weights.layers.len())
    }

    /// One token further for each sequence: logits `[B, V]`.
    pub fn decode(&self, step: Decode<'_>) -> Result<Tensor> {
        let d = &self.decoder;
        let (eps, heads) = (d.architecture.rms_norm_eps, d.architecture.heads);
        let mut x = embedding::forward(&d.weights.embedding, step.tokens)?;
        for (l, w) in d.weights.layers.iter().enumerate() {
            let h = norm::forward(&x, &w.input_norm, eps)?;
            let apply = |linear: &super::weights::Linear, x: &Tensor| linear::forward(x, &linear.weight, linear.bias.as_ref());
            let (mut q, mut k, v) = (apply(&w.q, &h)?, apply(&w.k, &h)?, apply(&w.v, &h)?);
            if let Some((q_norm, k_norm)) = &w.qk_norm {
                (q, k) = (d.head_norm(&q, q_norm)?, d.head_norm(&k, k_norm)?);
            }
            rope::forward(&q, &d.rotation, step.positions)?;
            rope::forward(&k, &d.rotation, step.positions)?;
            for (row, own) in step.own.iter_mut().enumerate() {
                own.layers[l].append(&k, &v, row..row + 1)?;
            }
            let mut groups: Vec<Group<'_>> =
                step.prompts.iter().map(|p| Group { prompt: &p.layers[l], sequences: Vec::new() }).collect();
            for (row, (own, &prompt)) in step.own.iter().zip(step.prompt_of).enumerate() {
                groups[prompt].sequences.push((row, &own.layers[l]));
            }
            groups.retain(|g| !g.sequences.is_empty());
            let middle = apply(&w.o, &cached_attention::forward(&q, &groups, heads)?)?;
            ops::add_into(&middle, &x)?;
            let h = norm::forward(&middle, &w.post_norm, eps)?;
            x = apply(&w.down, &swiglu::forward(&apply(&w.gate, &h)?, &apply(&w.up, &h)?)?)?;
            ops::add_into(&x, &middle)?;
        }
        let hidden = norm::forward(&x, &d.weights.norm, eps)?;
        Ok(linear::forward(&hidden, d.weights.output(), None)?)
    }
}
