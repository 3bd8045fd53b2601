//! One optimizer step, top to bottom.

use super::batch::MicroBatch;
use super::experience::{Experience, from_plugin};
use super::trainer::Trainer;
use super::{Error, Result};
use crate::metrics::{Metric, Reduction};
use crate::ops;
use crate::optim::Update;
use crate::plugin::{Role, Scale, Tokens};
use std::ops::Range;
use std::sync::Arc;

/// Completions `rows` of an experience, or for algorithms that learn from pairs its pairs of that
/// range, waiting to be trained on, by all ranks together.
#[derive(Clone)]
pub(super) struct Share {
    pub experience: Arc<Experience>,
    pub rows: Range<usize>,
}

/// What becomes of a micro-batch's gradients.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Learn {
    /// There are none.
    Nothing,
    /// They are added to those before.
    Add,
    /// And then the ranks' are summed.
    AddAndSum,
}

impl Trainer {
    /// Generates where needed, sums the gradient over the step's micro-batches, and updates the
    /// weights once. The only place where `global_step` rises.
    pub(super) fn step(&mut self) -> Result<()> {
        self.phases.begin();

        let shares = self.next_shares()?;
        let scale = self.scale(&shares);
        self.count_trained(&shares);

        for (_, gradient) in self.gradients.named() {
            ops::fill_zero(gradient)?;
        }
        self.phases.lap("optimizer");
        let loss = self.learn(&shares, scale)?;

        let lr = self.schedule.at(self.state.global_step);
        let (weights, rounded) = (self.policy.weights().trained(), self.policy.rounded());
        let update = self.optimizer.step(&weights, &rounded, &self.gradients.named(), lr)?;
        self.phases.lap("optimizer");
        let step = self.state.global_step + 1;
        let grad_norm = match update {
            Update::Made(norm) => norm,
            Update::NotFinite(norm) => return Err(Error::NotFinite { step, norm }),
            Update::Overflow(parameter) => return Err(Error::Overflow { step, parameter, lr }),
        };
        self.state.global_step += 1;
        self.state.moved |= grad_norm > 0.0 && lr > 0.0;
        self.sync_reference()?;

        self.note([
            Metric::mean("loss", loss, 1.0),
            // Of the window's last step, as transformers logs them.
            Metric::new("grad_norm", grad_norm, Reduction::Last),
            Metric::new("learning_rate", lr, Reduction::Last),
        ]);
        let times = self.phases.figures(self.world.size());
        self.note(times);
        let of_device = ops::device::peak_memory(self.policy.device()).map(|bytes| ("perf/peak_device_memory_mb", bytes));
        let peaks = [("perf/peak_memory_mb", ops::peak_memory())].into_iter().chain(of_device);
        self.figures.extend(peaks.map(|(name, bytes)| Metric::new(name, bytes as f64 / 1e6, Reduction::Max)));
        Ok(())
    }

    /// The step's micro-batches. All are taken before any is trained on, since a loss divides by
    /// what the whole step holds.
    fn next_shares(&mut self) -> Result<Vec<Share>> {
        let mut shares = Vec::with_capacity(self.config.gradient_accumulation_steps);
        while shares.len() < self.config.gradient_accumulation_steps {
            match self.pending.pop_front() {
                Some(share) => shares.push(share),
                None => self.refill()?,
            }
        }
        Ok(shares)
    }

    /// One more generation, dealt as `num_iterations` rounds of `steps_per_generation`
    /// micro-batches; or the dataset's next pairs or completions, which are one.
    fn refill(&mut self) -> Result<()> {
        let rows = self.loader.next_batch().into_iter();
        let prompts = match &self.packs {
            None => rows.map(|row| self.prompts[row].clone()).collect(),
            Some(packs) => rows.flat_map(|pack| &packs[pack]).map(|&row| self.prompts[row].clone()).collect(),
        };
        let experience = Arc::new(self.experience(prompts, self.state.generation)?);
        self.count_tokens(&experience);
        let (mut rounds, mut parts) = (1, 1);
        if self.generates() {
            self.folder.log_completions(self.config.log_completions, &experience)?;
            self.phases.lap("log");
            self.state.generation += 1;
            (rounds, parts) = (self.config.num_iterations, self.config.steps_per_generation());
        }
        for _ in 0..rounds {
            self.pending.extend(self.deal(&experience, parts));
        }
        Ok(())
    }

    /// An experience in so many parts, as equal as can be.
    pub(super) fn deal(&self, experience: &Arc<Experience>, parts: usize) -> Vec<Share> {
        let size = self.items(experience);
        let rows = |i: usize| size * i / parts..size * (i + 1) / parts;
        (0..parts).map(|i| Share { experience: experience.clone(), rows: rows(i) }).collect()
    }

    /// What the whole step holds: completions with their counted tokens, or pairs with the tokens of
    /// the chosen ones.
    pub(super) fn scale(&self, shares: &[Share]) -> Scale {
        let tokens = |Share { experience: e, rows }: &Share| match self.role {
            Role::Policy | Role::Reward => e.advantages.mask[e.tokens(rows)].iter().filter(|&&m| m == 1).count(),
            Role::Preference | Role::OnlinePreference => {
                e.pairs[rows.clone()].iter().map(|&(chosen, _)| e.rollouts[chosen].tokens.len()).sum()
            }
        };
        Scale {
            rows: shares.iter().map(|s| s.rows.len() as u32).sum(),
            tokens: shares.iter().map(|s| tokens(s) as u64).sum(),
            max_completion_length: self.config.max_completion_length as u32,
        }
    }

    /// The step's loss, whose gradient lies in `gradients` afterwards. The ranks' parts of it are
    /// summed as this one's last micro-batch goes backward.
    fn learn(&mut self, shares: &[Share], scale: Scale) -> Result<f64> {
        let own: Vec<Share> = self.packed(shares).into_iter().filter(|share| !share.rows.is_empty()).collect();
        let mut loss = 0.0;
        let Some((last, others)) = own.split_last() else {
            self.backward(Learn::AddAndSum, |_| Ok(()))?;
            return self.sum_losses(0.0);
        };
        for share in others {
            loss += self.pass(share, scale, Learn::Add)?;
        }
        loss += self.pass(last, scale, Learn::AddAndSum)?;
        self.sum_losses(loss)
    }

    /// One micro-batch forward and through the algorithm's loss, of which it gives its part; and, to
    /// `learn` from it, backward, which adds to the gradients.
    pub(super) fn pass(&mut self, share: &Share, scale: Scale, learn: Learn) -> Result<f64> {
        if share.rows.is_empty() {
            return Ok(0.0);
        }
        if !self.learns_from_rows() {
            return self.pass_of_pairs(share, scale, learn);
        }
        let batch = MicroBatch::pack(&share.experience, share.rows.clone());
        self.count_pass(&batch);
        let pass = self.policy.forward(&batch.forest, &batch.selected, self.temperature())?;
        let stats = pass.stats();
        self.phases.lap("forward");

        if !self.generates() {
            let mask = &share.experience.advantages.mask[share.experience.tokens(&share.rows)];
            let counted: Vec<bool> = stats.top.iter().zip(mask).filter(|(_, m)| **m == 1).map(|(top, _)| *top).collect();
            self.figures.extend([token_accuracy(&counted)]);
        }
        let tokens = Arc::new(self.tokens(share, scale, &stats.logp, &stats.entropy, pass.values()));
        let gradient = self.algorithm.as_policy()?.loss(&tokens)?;
        self.swaps.saw_tokens(tokens);
        self.figures.extend(from_plugin(gradient.metrics));
        self.phases.lap("loss");
        let (d_logp, d_entropy, d_values) = (&gradient.d_logp, gradient.d_entropy.as_deref(), gradient.d_values.as_deref());
        self.backward(learn, |done| pass.backward(d_logp, d_entropy, d_values, &self.gradients, done))?;
        Ok(gradient.loss)
    }

    /// The columns that the loss sees. Weights that have not changed since the generation give
    /// the old log-probabilities too, so that the first update's ratios are exactly one.
    fn tokens(&self, share: &Share, scale: Scale, logp: &[f32], entropy: &[f32], values: Option<&[f32]>) -> Tokens {
        let (e, needs) = (&share.experience, self.algorithm.plugin().info().needs);
        let range = e.tokens(&share.rows);
        let first = e.offsets[share.rows.start];
        let on_policy = e.generated_at == self.state.global_step;
        Tokens {
            step: self.state.global_step,
            offsets: e.offsets[share.rows.start..=share.rows.end].iter().map(|o| o - first).collect(),
            mask: e.advantages.mask[range.clone()].to_vec(),
            advantages: e.advantages.advantages[range.clone()].to_vec(),
            logp: logp.to_vec(),
            old_logp: if on_policy { logp.to_vec() } else { e.logp[range.clone()].to_vec() },
            ref_logp: e.ref_logp.as_ref().map(|r| r[range.clone()].to_vec()),
            sampling_logp: needs.sampling_logp.then(|| e.logp[range.clone()].to_vec()),
            entropy: needs.entropy.then(|| entropy.to_vec()),
            values: values.map(<[f32]>::to_vec),
            old_values: if on_policy {
                values.map(<[f32]>::to_vec)
            } else {
                e.values.as_ref().map(|v| v[range.clone()].to_vec())
            },
            returns: e.advantages.returns.as_ref().map(|r| r[range].to_vec()),
            scale,
        }
    }
}

/// How often the given token was the likeliest.
pub(super) fn token_accuracy(top: &[bool]) -> Metric {
    let right = top.iter().filter(|top| **top).count() as f64;
    Metric::mean("mean_token_accuracy", right / (top.len() as f64).max(1.0), top.len() as f64)
}
