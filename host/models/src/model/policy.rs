//! The trainable view of a decoder.

use super::adapter_dropout::Dropout;
use super::decoder::{Decoder, PassActivations};
use super::embedding_noise::EmbeddingNoise;
use super::experts::ExpertBalance;
use super::pass_observer::{ModelPart, NoObserver, PassDirection, PassObserver};
use super::pass_options::PassOptions;
use super::prompt_pass::{Continuation, PromptPass};
use super::selected_predictions::{SelectedPredictions, finite};
use super::teacher::{TeacherDivergence, TeacherPredictions};
use super::{Architecture, ComputeBackend, FrozenModel, Gradients, PassCost, Result, Weights, critic};
use crate::ops::adamw::Parameter;
use crate::ops::divergence::Predictions;
use crate::ops::logprob::{self, LogitScale, TokenStats};
use crate::ops::{self, Forest, Precision, squares};
use candle_core::{DType, Device, Tensor};
use std::borrow::Cow;

/// A decoder whose parameters an optimizer may change.
#[derive(Debug)]
pub struct PolicyModel {
    pub(super) decoder: Decoder,
    /// Parameters in f32, if the decoder computes with rounded copies.
    masters: Option<Weights>,
    pub(super) gradient_checkpointing: bool,
    /// Whether passes measure how evenly experts are used.
    balances: bool,
    /// `alpha` of the noise on embeddings.
    noise: f64,
}

/// A forward pass that waits for the loss's derivatives.
pub struct PolicyPass<'a> {
    policy: &'a PolicyModel,
    forest: &'a Forest,
    selected: &'a SelectedPredictions,
    scale: LogitScale,
    kept: PassActivations,
    hidden: Tensor,
    stats: TokenStats,
    values: Option<Vec<f32>>,
    taught: Option<TeacherDivergence>,
    watch: &'a dyn PassObserver,
    /// Operations of the pass that this one continued.
    known_work: f64,
}

/// Options of a pass that a step learns from.
#[derive(Clone, Copy)]
pub struct LearningOptions<'a> {
    /// Key of the random numbers of dropout and noise; `None` for a pass without either.
    pub key: Option<u64>,
    /// Whether the loss may depend on log-probabilities. If not, the pass prepares no gradient for them.
    pub by_logp: bool,
    /// Observer of the pass, if any.
    pub watch: Option<&'a dyn PassObserver>,
}

impl From<u64> for LearningOptions<'_> {
    /// Creates the options of a loss that may depend on log-probabilities.
    fn from(key: u64) -> Self {
        Self { key: Some(key), by_logp: true, watch: None }
    }
}

/// A loss's derivatives with respect to a pass's outputs for each selected prediction. `None` where the loss does not depend on the output.
#[derive(Clone, Copy, Debug, Default)]
pub struct Derivatives<'a> {
    /// With respect to log-probabilities.
    pub logp: Option<&'a [f32]>,
    /// With respect to entropies.
    pub entropy: Option<&'a [f32]>,
    /// With respect to the critic's values.
    pub values: Option<&'a [f32]>,
    /// With respect to divergences from a teacher.
    pub divergence: Option<&'a [f32]>,
}

impl<'a> Derivatives<'a> {
    /// Creates the derivatives of a loss that depends only on log-probabilities.
    pub fn from_logp(logp: &'a [f32]) -> Self {
        Self { logp: Some(logp), ..Self::default() }
    }
}

impl PolicyModel {
    /// Makes a decoder trainable.
    pub fn new(decoder: Decoder) -> Self {
        Self { decoder, masters: None, gradient_checkpointing: false, balances: false, noise: 0.0 }
    }

    /// Moves the policy to another backend. If that computes in bf16, trained parameters are also stored in f32; frozen ones are not.
    pub fn on_backend(self, backend: &ComputeBackend) -> Result<Self> {
        backend.check(self.architecture(), self.weights().lora)?;
        let all = self.weights();
        let masters = all.map(|name, t| if all.trains(&name) { backend.put(t) } else { backend.computed(t) })?;
        let computed = masters.map(|_, t| backend.computed(t))?;
        let decoder = Decoder { weights: computed, precision: backend.precision(), ..self.decoder };
        Ok(Self { decoder, masters: backend.rounds().then_some(masters), ..self })
    }

    /// Sets the dropout probability of the adapter's input in training.
    pub fn with_dropout(mut self, p: f64) -> Self {
        let all = [Some(&mut self.decoder.weights), self.masters.as_mut()];
        all.into_iter().flatten().filter_map(|weights| weights.lora.as_mut()).for_each(|lora| lora.dropout = p);
        self
    }

    /// Sets `alpha` of the noise that training adds to embeddings (NEFTune); 0 for none.
    pub fn with_noise(self, alpha: f64) -> Self {
        Self { noise: alpha, ..self }
    }

    /// Sets whether passes store only the layers' inputs and recompute each layer in the backward pass. This is slower and uses less
    /// memory; results are bit-identical.
    pub fn with_gradient_checkpointing(self, on: bool) -> Self {
        Self { gradient_checkpointing: on, ..self }
    }

    /// Sets whether passes measure how evenly experts are used ([`PolicyPass::aux_loss`]). The last layer is then computed for all
    /// positions. No effect on a model without experts.
    pub fn with_aux_loss(self, on: bool) -> Self {
        let balances = on && self.architecture().mixture.is_some();
        Self { balances, ..self }
    }

    /// Returns whether training passes can continue the pass that a generation made over the prompts. They can't if they compute prompts
    /// differently (with dropout, noise or balanced experts) or don't store them (gradient checkpointing).
    pub fn continues_prompts(&self) -> bool {
        let plain =
            !self.gradient_checkpointing && self.noise == 0.0 && self.weights().lora.is_none_or(|lora| lora.dropout == 0.0);
        // Otherwise, a row's bits may depend on the number of rows.
        let by_rows = self.device().is_cpu() && self.decoder.precision == Precision::Bf16 && ops::multiplies_bf16();
        plain && by_rows && self.architecture().mixture.is_none()
    }

    /// Returns the view for generation. It shares the policy's storage, so it always has the newest weights.
    pub fn frozen(&self) -> FrozenModel {
        FrozenModel::new(self.decoder.clone())
    }

    /// Copies the current model for use as a reference. Trained parameters are copied; the others share storage.
    pub fn frozen_copy(&self) -> Result<FrozenModel> {
        Ok(FrozenModel::new(Decoder { weights: self.decoder.weights.copied()?, ..self.decoder.clone() }))
    }

    /// Returns a copy of the current weights that later updates don't change. Trained parameters are copied to host memory.
    pub fn copied_weights(&self) -> Result<Weights> {
        self.weights_copied_where(|_| true)
    }

    /// Returns the current weights. Those that `which` selects by name are not changed by later updates.
    pub fn weights_copied_where(&self, which: impl Fn(&str) -> bool) -> Result<Weights> {
        let all = self.weights();
        all.map(|name, t| Ok(if all.trains(&name) && which(&name) { ops::on_host(t)? } else { t.clone() }))
    }

    /// Returns the parameters, for the optimizer and for saving. Trained ones are f32.
    pub fn weights(&self) -> &Weights {
        self.masters.as_ref().unwrap_or(&self.decoder.weights)
    }

    /// Returns the model's sizes.
    pub fn architecture(&self) -> &Architecture {
        &self.decoder.architecture
    }

    /// Returns the device that the model computes on.
    pub fn device(&self) -> &Device {
        self.decoder.weights.embedding.device()
    }

    /// Returns the precision of products: the device's, or on the CPU f32 or bf16, whatever precision weights are stored in.
    pub fn computes_in(&self) -> DType {
        match (self.device().is_cpu(), self.decoder.precision) {
            (false, _) => self.decoder.weights.embedding.dtype(),
            (true, Precision::F32) => DType::F32,
            (true, Precision::Bf16) => DType::BF16,
        }
    }

    /// Returns the weights that the model computes with, rounded if the backend computes in bf16.
    pub fn compute_weights(&self) -> &Weights {
        &self.decoder.weights
    }

    /// Returns each trained parameter with its rounded copy and its gradient, in the order of [`Weights::trained`]. `gradients`
    /// come from [`PolicyModel::zero_gradients`].
    pub fn parameters<'a>(&'a self, gradients: &'a Gradients) -> Vec<Parameter<'a>> {
        let (masters, computing) = (self.weights().trained(), self.decoder.weights.trained());
        let all = masters.into_iter().zip(computing).zip(gradients.named());
        all.map(|(((name, master), (_, copy)), (_, gradient))| {
            let rounded = Some(copy).filter(|t| t.dtype() != DType::F32);
            Parameter { name, master, rounded, gradient }
        })
        .collect()
    }

    /// Counts a pass over a forest with this many predicting positions; see [`Weights::pass_cost`].
    pub fn pass_cost(&self, forest: &Forest, selected: usize) -> PassCost {
        let last = if self.balances { forest.len() } else { selected };
        self.compute_weights().pass_cost_with(self.architecture(), forest, selected, last)
    }

    /// Returns zeroed gradients of the trained parameters.
    pub fn zero_gradients(&self) -> Result<Gradients> {
        self.decoder.weights.zero_gradients()
    }

    /// Computes log-probabilities (of logits divided by `temperature`) and entropies of the selected predictions, and stores the
    /// activations for the backward pass.
    ///
    /// # Errors
    /// If an operation fails, or a log-probability is not finite.
    pub fn forward<'a>(
        &'a self,
        forest: &'a Forest,
        selected: &'a SelectedPredictions,
        temperature: f32,
    ) -> Result<PolicyPass<'a>> {
        self.forward_with(forest, selected, temperature, None, None)
    }

    /// Computes log-probabilities and entropies for a step that learns from them. Applies the adapter's dropout and the noise on
    /// embeddings, whose random numbers depend on a key, and prepares gradients that shorten the backward pass. If the output matrix is
    /// frozen and the loss turns out to depend on entropies or smoothed targets, the step takes longer. If `known`, a pass over all prompts
    /// with the same weights, is given, it is continued, with the same results.
    ///
    /// # Errors
    /// As [`PolicyModel::forward`].
    pub fn forward_learning<'a>(
        &'a self,
        forest: &'a Forest,
        selected: &'a SelectedPredictions,
        temperature: f32,
        learning: impl Into<LearningOptions<'a>>,
        known: Option<PromptPass>,
    ) -> Result<PolicyPass<'a>> {
        let known = known.filter(|_| self.continues_prompts());
        self.forward_with(forest, selected, temperature, Some(learning.into()), known)
    }

    /// Returns the options of a pass. Without a key, there is no dropout and no noise.
    pub(super) fn pass_options(&self, key: Option<u64>, forest: &Forest, rows: &[usize]) -> Result<PassOptions> {
        let p = self.weights().lora.map_or(0.0, |lora| lora.dropout);
        let dropout = key.and_then(|key| Dropout::new(p, key, forest, rows));
        let noise = key.and_then(|key| EmbeddingNoise::new(self.noise, key, forest, self.architecture()));
        let plain = self.decoder.inference_options()?;
        Ok(PassOptions { recompute: self.gradient_checkpointing, balances: self.balances, dropout, noise, ..plain })
    }

    fn forward_with<'a>(
        &'a self,
        forest: &'a Forest,
        selected: &'a SelectedPredictions,
        temperature: f32,
        learning: Option<LearningOptions<'a>>,
        known: Option<PromptPass>,
    ) -> Result<PolicyPass<'a>> {
        let how = self.pass_options(learning.and_then(|learning| learning.key), forest, &selected.rows)?;
        let watch = learning.and_then(|learning| learning.watch).unwrap_or(&NoObserver);
        let (known_work, (hidden, kept)) = match known.and_then(|known| Continuation::new(known, forest, &selected.rows)) {
            Some(rest) => {
                tracing::debug!("continues the pass over {} of {} rows", forest.len() - rest.len(), forest.len());
                // Work that does not depend on rows is repeated.
                let work = |forest: &Forest| self.pass_cost(forest, 0).forward;
                (work(&forest.roots()) - work(&Forest::new()), self.decoder.continued(forest, how, rest)?)
            }
            None => (0.0, self.decoder.forward(forest, &selected.rows, how, watch)?),
        };
        let scale = self.decoder.logits(temperature);
        let weights = &self.decoder.weights;
        let for_hidden = learning.is_some_and(|learning| learning.by_logp) && !weights.trains_output();
        let statistics = if for_hidden { logprob::forward_for_hidden } else { logprob::forward };
        let stats = statistics(&hidden, weights.output(), &selected.targets, scale, selected.restriction())?;
        finite(&stats)?;
        let values = self.decoder.weights.value_head.as_ref().map(|head| critic::values(&hidden, head)).transpose()?;
        Ok(PolicyPass { policy: self, forest, selected, scale, kept, hidden, stats, values, taught: None, watch, known_work })
    }
}

impl PolicyPass<'_> {
    /// Returns the results of the forward pass, one entry per selected prediction.
    pub fn stats(&self) -> &TokenStats {
        &self.stats
    }

    /// Returns the operations of the forward pass that this one continued.
    pub fn known_work(&self) -> f64 {
        self.known_work
    }

    /// Returns the bytes stored for the backward pass.
    pub fn kept_bytes(&self) -> usize {
        self.kept.bytes()
    }

    /// Returns the critic's values of the states in which the selected tokens were chosen, if there is a critic.
    pub fn values(&self) -> Option<&[f32]> {
        self.values.as_deref()
    }

    /// Replaces each log-probability with that of a smoothed target, in which `share` is spread evenly over the vocabulary; see
    /// [`logprob::smooth`].
    ///
    /// # Errors
    /// On a device.
    pub fn with_smoothed_targets(mut self, share: f64) -> Result<Self> {
        if share > 0.0 {
            logprob::smooth(&mut self.stats, share, &self.hidden, self.policy.decoder.weights.output(), self.scale)?;
        }
        Ok(self)
    }

    /// Computes the divergence of each selected prediction's distribution from a teacher's for the same tokens.
    ///
    /// # Errors
    /// If the teacher has another vocabulary, predictions are scored among some tokens only, a divergence is not finite, or the model is on
    /// a device.
    pub fn with_teacher(mut self, teaching: TeacherPredictions) -> Result<Self> {
        if self.selected.restriction().is_some() {
            let detail = "predictions are scored among some tokens alone, and divergences among all".into();
            return Err(ops::Error::Shape { op: "divergence", detail }.into());
        }
        self.taught = Some(TeacherDivergence::new(teaching, self.predictions(), &self.stats)?);
        Ok(self)
    }

    /// Returns each selected prediction's divergence from the teacher, if there is one.
    pub fn divergences(&self) -> Option<&[f32]> {
        self.taught.as_ref().map(TeacherDivergence::values)
    }

    fn predictions(&self) -> Predictions<'_> {
        Predictions { hidden: &self.hidden, output: self.policy.decoder.weights.output(), scale: self.scale }
    }

    /// Computes the mean over the vocabulary of each selected prediction's logits at temperature one.
    pub fn mean_logits(&self) -> Result<Vec<f32>> {
        Ok(logprob::mean_logits(&self.hidden, self.policy.decoder.weights.output(), self.scale)?)
    }

    /// Computes the logarithm of the sum over the vocabulary of the squared probabilities, for each selected prediction.
    ///
    /// # Errors
    /// On a device.
    pub fn log_sum_squares(&self) -> Result<Vec<f32>> {
        Ok(squares::log_sum_squares(&self.hidden, self.policy.decoder.weights.output(), self.scale)?)
    }

    /// Returns how unevenly experts were used: the auxiliary loss of their router, which is one per chosen expert if all are used equally.
    /// `None` unless [`PolicyModel::with_aux_loss`] is on.
    pub fn aux_loss(&self) -> Option<f64> {
        self.kept.balance.as_ref().map(ExpertBalance::loss)
    }

    /// Sets the loss's derivative with respect to [`PolicyPass::aux_loss`] for the backward pass.
    pub fn with_aux_loss_weight(mut self, weight: f64) -> Self {
        if let Some(balance) = &mut self.kept.balance {
            balance.weigh(weight);
        }
        self
    }

    /// Adds the gradients of the trained parameters to `grads`, given the loss's derivatives.
    ///
    /// # Errors
    /// If an operation or the observer fails.
    pub fn backward(self, by: Derivatives<'_>, grads: &Gradients) -> Result<()> {
        self.watch.enter(PassDirection::Backward, ModelPart::Top)?;
        let decoder = &self.policy.decoder;
        let Gradients(grads) = grads;
        let d_output = grads.head.as_ref().unwrap_or(&grads.embedding).as_ref();
        let d_hidden = self.d_hidden(by, d_output)?;
        if let (Some(d_values), Some(head), Some(d_head)) = (by.values, &decoder.weights.value_head, &grads.value_head) {
            critic::backward(&self.hidden, head, d_values, &d_hidden, d_head)?;
        }
        // Frees memory that the layers need.
        drop((self.hidden, self.stats, self.taught));
        decoder.backward(self.kept, self.forest, &self.selected.rows, &d_hidden, grads, self.watch)?;
        // Waits, so that errors and time of the device are not attributed to the next phase.
        Ok(ops::device::wait_for(&d_hidden)?)
    }

    /// Returns the gradient of the hidden states through the output matrix, and adds that of the output matrix to `d_output`.
    fn d_hidden(&self, by: Derivatives<'_>, d_output: Option<&Tensor>) -> Result<Tensor> {
        let of_divergence = match (&self.taught, by.divergence) {
            (Some(taught), Some(d)) => Some(taught.backward(self.predictions(), d, d_output)?),
            _ => None,
        };
        if by.logp.is_none() && by.entropy.is_none() {
            return Ok(of_divergence.map_or_else(|| ops::zeros_like(&self.hidden), Ok)?);
        }
        let (output, stats) = (self.policy.decoder.weights.output(), &self.stats);
        let (targets, restriction) = (&self.selected.targets, self.selected.restriction());
        let none = || Cow::Owned(vec![0.0; self.selected.len()]);
        let d_logp = by.logp.map_or_else(none, Cow::Borrowed);
        let d_hidden =
            logprob::backward(&self.hidden, output, targets, self.scale, restriction, stats, &d_logp, by.entropy, d_output)?;
        Ok(match of_divergence {
            Some(other) => (d_hidden + other)?,
            None => d_hidden,
        })
    }
}
