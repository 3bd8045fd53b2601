//! Takes micro-batches to gradients, and gradients to an update.

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

/// What becomes of a micro-batch's gradients.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Learn {
    /// There are none.
    Nothing,
    /// They are added to those before.
    Add,
    /// And then the ranks' are summed.
    AddAndSum,
}

/// An update that was made.
pub(super) struct Updated {
    /// The gradient's norm before clipping.
    pub grad_norm: f64,
    pub learning_rate: f64,
}

/// See the module.
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
    /// Of a policy, which it changes by this optimizer at the rates of the schedule.
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

    /// The loss of a step's micro-batches, whose gradient lies in `gradients` afterwards. The ranks' parts of it are
    /// summed as this one's last micro-batch goes backward.
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

    /// This rank's part of the loss of micro-batches from which nothing is learned.
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

    /// One micro-batch forward and through the algorithm's loss, of which it gives its part; and, to
    /// `learn` from it, backward, which adds to the gradients.
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

    /// Runs a backward `pass`, and with the step's last one sums the ranks' gradients. One that has
    /// failed before says so where the others wait for it to come that far.
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

    /// Changes the weights by the gradients that lie there, in the update that makes so many steps.
    ///
    /// # Errors
    /// If gradient or weights would not be finite. The weights are then as they were.
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

    /// What a pass takes, forward and backward.
    fn work(&self, packed: &Packed) -> Work {
        let passes = self.policy.computing().passed(self.policy.architecture(), &packed.forest, packed.selected.len());
        Work { packed: packed.forest.len() as u64, passes, ..Work::default() }
    }

    /// The policy.
    pub(super) fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Makes sure that what is trained is finite: a checkpoint of anything else would be of no use, and would make older ones go.
    pub(super) fn check_weights(&self) -> Result<()> {
        let squares = ops::sum_of_squares(self.policy.weights().trained().iter().map(|(_, t)| *t))?;
        if squares.is_finite() { Ok(()) } else { Err(Error::WeightsNotFinite) }
    }

    /// Number of updates, and a copy of the optimizer's moments by name.
    pub(super) fn moments(&self) -> Result<(u64, HashMap<String, Tensor>)> {
        Ok(self.optimizer.state()?)
    }

    /// Takes over the optimizer's state; the error names what does not fit.
    pub(super) fn restore(&mut self, updates: u64, moments: HashMap<String, Tensor>) -> std::result::Result<(), String> {
        self.optimizer.restore(updates, moments)
    }
}
