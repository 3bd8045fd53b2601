//! Self-Distillation Policy Optimization (Hübotter et al. 2026, arXiv 2601.20802): the model learns from its own successes. The teacher is
//! the same model, but reads a question together with a successful completion of the same prompt, or with feedback. Names, defaults and
//! metrics are those of TRL's `SDPOTrainer`.
//!
//! - `settings`: the settings
//! - `reprompting`: what the teacher reads
//! - `policy`: the loss of a policy gradient, which may be mixed in

mod policy;
mod reprompting;
mod settings;
#[cfg(test)]
mod tests;

use rlhost_plugin_sdk::algorithm::{
    Algorithm, Batch, Column, Data, DefaultTeacher, Defaults, Estimates, Gradient, Needs, Source, TaughtGeneration,
    TeacherPrompts, Unit, WeightedReward,
};
use rlhost_plugin_sdk::columns::{ADVANTAGE, HAS_TEACHER_PROMPT, LOGP, MASK};
use rlhost_plugin_sdk::policy::{Rollouts, Tokens};
use rlhost_plugin_sdk::prelude::*;
use rlhost_plugin_sdk::rows::rows;
use rlhost_plugin_sdk::scores::{self, scores};
pub use settings::{AdvantageScaling, RatioLevel, SdpoLossType, SdpoSettings};

/// The algorithm with its settings.
pub struct Sdpo {
    settings: SdpoSettings,
}

impl Algorithm for Sdpo {
    type Config = SdpoSettings;
    const DESCRIPTION: &'static str =
        "Self-Distillation Policy Optimization (SDPO): what the model would write, had it seen a success or feedback";
    const DEFAULTS: Defaults =
        Defaults { max_completion_length: Some(256), teacher_model_kind: Some(DefaultTeacher::Ema), ..Defaults::NO_AUX_LOSS };

    fn compares(settings: &SdpoSettings) -> bool {
        settings.use_successful_as_teacher || settings.distillation_weight < 1.0
    }

    fn needs(settings: &SdpoSettings) -> Needs {
        let mut needs = Needs::LOGP | Needs::OLD_LOGP | Needs::ENTROPY | Needs::FINISHED;
        if settings.distillation_weight > 0.0 {
            needs |= settings.compared().needs() | Needs::HAS_TEACHER_PROMPT;
        }
        if settings.distillation_weight < 1.0 {
            needs |= Needs::ADVANTAGE;
        }
        needs
    }

    fn data(_: &SdpoSettings) -> Data {
        Data::completions(Source::Policy).estimating([ADVANTAGE, MASK])
    }

    fn new(settings: SdpoSettings) -> Result<Self, Error> {
        settings.check()?;
        Ok(Self { settings })
    }

    fn teacher_prompts(&mut self, generation: &TaughtGeneration) -> Result<TeacherPrompts, Error> {
        reprompting::prompts(&self.settings, generation)
    }

    fn estimate(&mut self, generation: &Batch, rewards: &[WeightedReward]) -> Result<Estimates, Error> {
        let rollouts = Rollouts::from_batch(generation, rewards)?;
        let scores = scores(&rollouts);
        let mut advantages = vec![0.0; rollouts.mask.len()];
        let mut mask: Vec<f32> = rollouts.mask.iter().map(|counts| f32::from(*counts)).collect();
        let of_rows = policy::advantages(self.settings.scale_rewards, &rollouts.prompt_of, &scores);
        for ((row, tokens), advantage) in rows(&rollouts.offsets).enumerate().zip(of_rows) {
            advantages[tokens.clone()].fill(advantage as f32);
            if self.settings.mask_truncated_completions && !rollouts.finished[row] {
                mask[tokens].fill(0.0);
            }
        }
        let columns = [(ADVANTAGE, advantages), (MASK, mask)];
        let columns = columns.map(|(name, values)| Column::new(name, Unit::Token, values)).to_vec();
        Ok(Estimates { columns, metrics: scores::metrics(&scores) })
    }

    fn loss(&mut self, batch: &Batch) -> Result<Gradient, Error> {
        let entropy = batch.values("entropy", Unit::Token)?;
        let entropy = Metric::mean_of("entropy", batch.counted().map(|i| f64::from(entropy[i])));
        let weight = self.settings.distillation_weight;
        let mut gradient = Gradient::new(0.0).with_metrics(entropy);
        if weight > 0.0 {
            gradient = self.distillation(batch, weight, gradient)?;
        }
        if weight < 1.0 {
            gradient = self.policy_gradient(batch, 1.0 - weight, gradient)?;
        }
        Ok(gradient)
    }
}

impl Sdpo {
    /// Adds the mean divergence of each sequence that the teacher reads a prompt of its own before, averaged over all sequences.
    fn distillation(&self, batch: &Batch, weight: f64, mut gradient: Gradient) -> Result<Gradient, Error> {
        let compared = self.settings.compared();
        let (tokens, is_taught) = (compared.tokens(batch)?, batch.values(HAS_TEACHER_PROMPT, Unit::Sequence)?);
        let (mut slopes, mut distances, mut count) = (batch.zeros(Unit::Token), 0.0, 0.0);
        for (of_sequence, _) in batch.sequences().zip(is_taught).filter(|(_, is_taught)| **is_taught != 0.0) {
            let learned: Vec<usize> = of_sequence.filter(|&i| batch.mask[i] == 1).collect();
            let each = weight / (learned.len().max(1) as f64 * f64::from(batch.scale.items.max(1)));
            for i in learned {
                gradient.loss += each * tokens[i].loss;
                slopes[i] = (each * tokens[i].slope) as f32;
                distances += tokens[i].distance;
                count += 1.0;
            }
        }
        let divergence = Metric::ratio("divergence", distances, count);
        Ok(gradient.with_derivatives(&compared.column(), Unit::Token, slopes).with_metrics([divergence]))
    }

    /// Adds the loss of a policy gradient.
    fn policy_gradient(&self, batch: &Batch, weight: f64, mut gradient: Gradient) -> Result<Gradient, Error> {
        let own = policy::loss(&self.settings, &Tokens::from_batch(batch)?);
        gradient.loss += weight * own.loss;
        let slopes = own.d_logp.iter().map(|slope| (weight * f64::from(*slope)) as f32);
        match gradient.derivatives.iter_mut().find(|column| column.name == LOGP) {
            Some(column) => column.values.iter_mut().zip(slopes).for_each(|(sum, slope)| *sum += slope),
            None => gradient = gradient.with_derivatives(LOGP, Unit::Token, slopes.collect()),
        }
        // The mean over the step's sequences of its parts.
        let (all, own_sequences) = (f64::from(batch.scale.items.max(1)), batch.entries(Unit::Sequence) as f64);
        let loss = Metric::ratio("self_distillation/policy_loss", own.loss * all, own_sequences);
        Ok(gradient.with_metrics([loss]))
    }
}

rlhost_plugin_sdk::algorithm_plugin!(Sdpo, estimating, teaching);
