//! Computes gradients from micro-batches, and updates from gradients.

mod columns;
mod packing;
mod separable;

pub(super) use packing::together;
pub(super) use separable::is_separable;

use super::collector::Moment;
use super::experience::{MicroBatch, scale};
use super::figures::{Figures, Work};
use super::flow::Flow;
use super::packed::Packed;
use super::plugins::Plugins;
use super::{Error, Result};
use crate::config::Config;
use crate::dist::World;
use crate::model::{self, Gradients, Policy};
use crate::ops;
use crate::optim::{AdamW, Schedule, Update};
use crate::plugin::Scale;
use candle_core::Tensor;
use columns::{Asked, columns};
use std::collections::HashMap;
use std::rc::Rc;

/// What to do with a micro-batch's gradients.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Learn {
    /// Compute none.
    Nothing,
    /// Add them to the previous ones.
    Add,
    /// Add them, then sum over the ranks.
    AddAndSum,
}

/// A finished update.
pub(super) struct Updated {
    /// The gradient's norm before clipping.
    pub grad_norm: f64,
    pub learning_rate: f64,
}

/// See the module documentation.
pub(super) struct Learner {
    world: Rc<World>,
    settings: Rc<Config>,
    flow: Flow,
    policy: Policy,
    gradients: Gradients,
    optimizer: AdamW,
    schedule: Schedule,
}

impl Learner {
    /// Creates a learner that trains a policy with this optimizer and schedule.
    pub(super) fn new(
        world: Rc<World>,
        settings: Rc<Config>,
        flow: Flow,
        policy: Policy,
        optimizer: AdamW,
        schedule: Schedule,
    ) -> Result<Self> {
        let gradients = policy.zero_gradients()?;
        Ok(Self { world, settings, flow, policy, gradients, optimizer, schedule })
    }

    /// Computes the loss of a step's micro-batches and leaves its gradient in `gradients`. The ranks' gradients are summed during
    /// the backward pass of this rank's last micro-batch.
    pub(super) fn learn(&mut self, micro_batches: &[MicroBatch], plugins: &mut Plugins, at: Moment) -> Result<(f64, Figures)> {
        let mut figures = Figures::begin();
        let scale = scale(micro_batches, self.settings.max_completion_length);
        for (_, gradient) in self.gradients.named() {
            ops::fill_zero(gradient)?;
        }
        figures.lap("optimizer");
        let own = packing::packed(micro_batches, &self.world, self.settings.max_tokens_per_microbatch);
        let mut loss = 0.0;
        match own.split_last() {
            None => self.backward(Learn::AddAndSum, &mut figures, |_| Ok(()))?,
            Some((last, others)) => {
                let all = others.iter().map(|m| (m, Learn::Add)).chain([(last, Learn::AddAndSum)]);
                for (micro_batch, learn) in all {
                    let (part, of_pass) = self.pass(micro_batch, scale, learn, plugins, at)?;
                    loss += part;
                    figures.merge(of_pass);
                }
            }
        }
        if self.world.size() > 1 {
            // Once each rank has come through its last backward pass.
            loss = self.world.sum("losses", loss)?;
            figures.lap("reduce");
        }
        Ok((loss, figures))
    }

    /// Computes this rank's part of the loss of micro-batches without learning from them.
    pub(super) fn evaluate(&self, micro_batches: &[MicroBatch], plugins: &mut Plugins, at: Moment) -> Result<(f64, Figures)> {
        let (mut figures, mut loss) = (Figures::begin(), 0.0);
        let scale = scale(micro_batches, self.settings.max_completion_length);
        for micro_batch in packing::packed(micro_batches, &self.world, self.settings.max_tokens_per_microbatch) {
            let (part, of_pass) = self.pass(&micro_batch, scale, Learn::Nothing, plugins, at)?;
            loss += part;
            figures.merge(of_pass);
        }
        Ok((loss, figures))
    }

    /// Runs one micro-batch forward and through the algorithm's loss. Returns its part of the loss; runs the backward pass, which
    /// adds to the gradients, unless `learn` is `Nothing`.
    fn pass(
        &self,
        micro_batch: &MicroBatch,
        scale: Scale,
        learn: Learn,
        plugins: &mut Plugins,
        at: Moment,
    ) -> Result<(f64, Figures)> {
        let mut figures = Figures::begin();
        let packed = Packed::new(&micro_batch.experience, micro_batch.rows());
        figures.did(self.work(&packed));
        let pass = self.policy.forward(&packed.forest, &packed.selected, self.flow.temperature(&self.settings))?;
        let batch = columns(micro_batch, &pass, &Asked { needs: plugins.needs(), at, scale })?;
        figures.lap("forward");

        let (gradient, of_algorithm) = plugins.loss(batch)?;
        figures.add(of_algorithm);
        figures.add(columns::figures(micro_batch, pass.stats(), self.flow.generates()));
        figures.lap("loss");

        let (d_logp, d_entropy, d_values) = (&gradient.d_logp, gradient.d_entropy.as_deref(), gradient.d_values.as_deref());
        let backward = |done: &dyn Fn()| pass.backward(d_logp, d_entropy, d_values, &self.gradients, done);
        self.backward(learn, &mut figures, backward)?;
        Ok((gradient.loss, figures))
    }

    /// Runs a backward `pass`; with the step's last one, sums the ranks' gradients. A rank that failed earlier reports it where
    /// the others wait for it.
    fn backward(&self, learn: Learn, figures: &mut Figures, pass: impl FnOnce(&dyn Fn()) -> model::Result<()>) -> Result<()> {
        if learn == Learn::Nothing {
            return Ok(());
        }
        if learn == Learn::Add || self.world.size() == 1 {
            pass(&|| ())?;
            figures.lap("backward");
            return Ok(());
        }
        self.world.barrier("the last backward pass")?;
        figures.lap("reduce");
        let how = (self.settings.reduce_dtype, self.settings.overlap_comm);
        let timed = |done: &dyn Fn()| {
            let passed = pass(done);
            figures.lap("backward");
            passed
        };
        let passed = self.world.sum_beside("gradients", how, &self.gradients.in_backward_order(), timed)?;
        figures.lap("reduce");
        Ok(passed?)
    }

    /// Updates the weights with the accumulated gradients; `step` is the number of steps after this update.
    ///
    /// # Errors
    /// If the gradient or the weights would not be finite. The weights are then unchanged.
    pub(super) fn update(&mut self, step: u64) -> Result<(Updated, Figures)> {
        let mut figures = Figures::begin();
        let lr = self.schedule.at(step - 1);
        let update = self.optimizer.step(&self.policy.parameters(&self.gradients), lr)?;
        figures.lap("optimizer");
        match update {
            Update::Made(grad_norm) => Ok((Updated { grad_norm, learning_rate: lr }, figures)),
            Update::NotFinite(norm) => Err(Error::NotFinite { step, norm }),
            Update::Overflow(parameter) => Err(Error::Overflow { step, parameter, lr }),
        }
    }

    /// Returns the cost of a forward and backward pass.
    fn work(&self, packed: &Packed) -> Work {
        let passes = self.policy.computing().passed(self.policy.architecture(), &packed.forest, packed.selected.len());
        Work { packed: packed.forest.len() as u64, passes, ..Work::default() }
    }

    /// Returns the policy.
    pub(super) fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Checks that the trained parameters are finite. A checkpoint of anything else would be useless and would cause older ones
    /// to be removed.
    pub(super) fn check_weights(&self) -> Result<()> {
        let squares = ops::sum_of_squares(self.policy.weights().trained().iter().map(|(_, t)| *t))?;
        if squares.is_finite() { Ok(()) } else { Err(Error::WeightsNotFinite) }
    }

    /// Returns the number of updates and a copy of the optimizer's moments by name.
    pub(super) fn moments(&self) -> Result<(u64, HashMap<String, Tensor>)> {
        Ok(self.optimizer.state()?)
    }

    /// Restores the optimizer's state; the error names what does not fit.
    pub(super) fn restore(&mut self, updates: u64, moments: HashMap<String, Tensor>) -> std::result::Result<(), String> {
        self.optimizer.restore(updates, moments)
    }
}
