//! The trainable view of a decoder.

use super::decoder::{Decoder, Kept};
use super::{Architecture, Error, Frozen, Gradients, Place, Result, Weights, critic};
use crate::ops::adamw::Parameter;
use crate::ops::logprob::{self, TokenStats};
use crate::ops::{self, Forest};
use candle_core::{DType, Device, Tensor};

/// The predictions of a forest that a loss is made of: for each, the packed place whose hidden
/// state predicts, and the token that came.
#[derive(Clone, Debug, Default)]
pub struct Selected {
    /// Packed places, `[M]`.
    pub rows: Vec<usize>,
    /// Token ids, `[M]`.
    pub targets: Vec<u32>,
}

impl Selected {
    /// Adds all predictions of a segment's tokens.
    pub fn push_segment(&mut self, forest: &Forest, segment: usize) {
        let rows = forest.predictors(segment);
        let range = forest.segments()[segment].range();
        // Without a prefix nothing predicts the first token.
        let first = range.len() - rows.len();
        self.targets.extend_from_slice(&forest.tokens()[range][first..]);
        self.rows.extend(rows);
    }

    /// Number of predictions, `M`.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }
}

/// A decoder whose parameters an optimizer may change.
#[derive(Debug)]
pub struct Policy {
    decoder: Decoder,
    /// The parameters in f32, where the decoder computes with rounded copies of them.
    masters: Option<Weights>,
    gradient_checkpointing: bool,
}

/// A forward pass that waits for the loss's derivatives.
pub struct Pass<'a> {
    policy: &'a Policy,
    forest: &'a Forest,
    selected: &'a Selected,
    temperature: f32,
    kept: Kept,
    hidden: Tensor,
    stats: TokenStats,
    values: Option<Vec<f32>>,
}

impl Policy {
    /// Makes a decoder trainable.
    pub fn new(decoder: Decoder) -> Self {
        Self { decoder, masters: None, gradient_checkpointing: false }
    }

    /// The same in another place. Where that computes in bf16, what is trained is kept in f32 beside the copy
    /// that it computes with, and what never changes is not.
    pub fn at(self, place: &Place) -> Result<Self> {
        place.check(self.architecture())?;
        let all = self.weights();
        let masters = all.map(|name, t| if all.trains(&name) { place.put(t) } else { place.computed(t) })?;
        let computed = masters.map(|_, t| place.computed(t))?;
        let decoder = Decoder { weights: computed, ..self.decoder };
        Ok(Self { decoder, masters: place.rounds().then_some(masters), ..self })
    }

    /// Whether passes keep the layers' inputs alone, and run each layer again on the way back. What
    /// comes out is the same to the bit, later and in less memory.
    pub fn with_gradient_checkpointing(self, on: bool) -> Self {
        Self { gradient_checkpointing: on, ..self }
    }

    /// The view for generation: the same storage, so that it always has the newest weights.
    pub fn frozen(&self) -> Frozen {
        Frozen::new(self.decoder.clone())
    }

    /// The model as it is now, for a reference model: a copy of what is trained, and the storage of
    /// what never changes.
    pub fn frozen_copy(&self) -> Result<Frozen> {
        Ok(Frozen::new(Decoder { weights: self.decoder.weights.copied()?, ..self.decoder.clone() }))
    }

    /// The weights as they are now, which later updates don't change; of what is trained a copy in host
    /// memory.
    pub fn copied_weights(&self) -> Result<Weights> {
        let all = self.weights();
        all.map(|name, t| Ok(if all.trains(&name) { ops::on_host(t)? } else { t.clone() }))
    }

    /// The parameters, for the optimizer and for saving. What is trained is f32.
    pub fn weights(&self) -> &Weights {
        self.masters.as_ref().unwrap_or(&self.decoder.weights)
    }

    /// Its sizes.
    pub fn architecture(&self) -> &Architecture {
        &self.decoder.architecture
    }

    /// Where it computes.
    pub fn device(&self) -> &Device {
        self.decoder.weights.embedding.device()
    }

    /// The weights as the model computes with them, which are rounded where the place computes in bf16.
    pub fn computing(&self) -> &Weights {
        &self.decoder.weights
    }

    /// Each parameter that is trained with all that belongs to it, in the order of [`Weights::trained`]; the gradients are those
    /// that [`Policy::zero_gradients`] gave.
    pub fn parameters<'a>(&'a self, gradients: &'a Gradients) -> Vec<Parameter<'a>> {
        let (masters, computing) = (self.weights().trained(), self.decoder.weights.trained());
        let all = masters.into_iter().zip(computing).zip(gradients.named());
        all.map(|(((name, master), (_, copy)), (_, gradient))| {
            let rounded = Some(copy).filter(|t| t.dtype() != DType::F32);
            Parameter { name, master, rounded, gradient }
        })
        .collect()
    }

    /// Zeroed gradients of what is trained.
    pub fn zero_gradients(&self) -> Result<Gradients> {
        self.decoder.weights.zero_gradients()
    }

    /// Log-probabilities (of logits divided by `temperature`) and entropies of the selected
    /// predictions, with what the backward pass needs.
    ///
    /// # Errors
    /// If an operation fails, or a log-probability is not finite.
    pub fn forward<'a>(&'a self, forest: &'a Forest, selected: &'a Selected, temperature: f32) -> Result<Pass<'a>> {
        let (hidden, kept) = self.decoder.forward(forest, &selected.rows, self.gradient_checkpointing)?;
        let stats = logprob::forward(&hidden, self.decoder.weights.output(), &selected.targets, temperature)?;
        finite(&stats)?;
        let values = self.decoder.weights.value_head.as_ref().map(|head| critic::values(&hidden, head)).transpose()?;
        Ok(Pass { policy: self, forest, selected, temperature, kept, hidden, stats, values })
    }
}

/// Fails where the model computes what no loss could use.
pub(super) fn finite(stats: &TokenStats) -> Result<()> {
    if stats.logp.iter().all(|logp| logp.is_finite()) { Ok(()) } else { Err(Error::NotFinite) }
}

impl Pass<'_> {
    /// What the forward pass found, one entry a selected prediction.
    pub fn stats(&self) -> &TokenStats {
        &self.stats
    }

    /// The critic's values of the states in which the selected tokens were chosen, where there is a
    /// critic.
    pub fn values(&self) -> Option<&[f32]> {
        self.values.as_deref()
    }

    /// Mean over the vocabulary of each selected prediction's raw logits.
    pub fn mean_logits(&self) -> Result<Vec<f32>> {
        Ok(logprob::mean_logits(&self.hidden, self.policy.decoder.weights.output())?)
    }

    /// Adds the gradients of what is trained into `grads`, from the loss's derivatives with
    /// respect to each log-probability, entropy and value. `done` is called when all is added to the
    /// next of [`Gradients::in_backward_order`].
    pub fn backward(
        self,
        d_logp: &[f32],
        d_entropy: Option<&[f32]>,
        d_values: Option<&[f32]>,
        grads: &Gradients,
        done: &dyn Fn(),
    ) -> Result<()> {
        let decoder = &self.policy.decoder;
        let Gradients(grads) = grads;
        let output = decoder.weights.output();
        let d_output = grads.head.as_ref().unwrap_or(&grads.embedding).as_ref();
        let targets = &self.selected.targets;
        let d_hidden =
            logprob::backward(&self.hidden, output, targets, self.temperature, &self.stats, d_logp, d_entropy, d_output)?;
        if let (Some(d_values), Some(head), Some(d_head)) = (d_values, &decoder.weights.value_head, &grads.value_head) {
            critic::backward(&self.hidden, head, d_values, &d_hidden, d_head)?;
        }
        decoder.backward(self.kept, self.forest, &self.selected.rows, &d_hidden, grads, done)?;
        // So that what went wrong there, and the time that it took, is not the next phase's.
        Ok(ops::device::wait_for(&d_hidden)?)
    }
}
