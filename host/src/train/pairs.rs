//! What is learned from beside generations: a dataset's completions, and pairs of completions, a
//! dataset's or those that the algorithm makes of a generation; and a micro-batch of pairs through
//! forward, loss and backward.

use super::batch::MicroBatch;
use super::experience::{Experience, from_plugin, offsets, rollouts_seen};
use super::step::{Learn, Share, token_accuracy};
use super::trainer::{Prompt, Trainer};
use super::{Error, Result};
use crate::metrics::{Metric, Reduction};
use crate::plugin::{Advantages, Pairs, Scale, Side};
use crate::rollout::Rollout;
use std::sync::Arc;

/// Rows of the chosen and of the rejected completion.
pub(super) type Pair = (usize, usize);

impl Trainer {
    /// The dataset's answers to these prompts: pairs, or completions, each as good as any other.
    pub(super) fn given(&mut self, prompts: Vec<Arc<Prompt>>) -> Result<Experience> {
        if self.learns_from_rows() {
            let mut experience = self.answers(prompts, 1)?;
            let tokens = experience.offsets.last().map_or(0, |end| *end as usize);
            let learned =
                experience.prompts.iter().flat_map(|prompt| &prompt.answers).flat_map(|answers| match &answers.learned {
                    Some(mask) => mask.clone(),
                    None => vec![1; answers.chosen.len()],
                });
            let mask = learned.collect();
            experience.advantages = Advantages { advantages: vec![1.0; tokens], mask, ..Advantages::default() };
            return Ok(experience);
        }
        let mut experience = self.answers(prompts, 2)?;
        experience.pairs = (0..experience.prompts.len()).map(|i| (2 * i, 2 * i + 1)).collect();
        Ok(experience)
    }

    /// The first `count` answers of each prompt as its completions.
    fn answers(&mut self, prompts: Vec<Arc<Prompt>>, count: usize) -> Result<Experience> {
        let mut rollouts = Vec::with_capacity(count * prompts.len());
        for (prompt, row) in prompts.iter().enumerate() {
            let answers = row.answers.as_ref().ok_or_else(|| Error::Unfit("a prompt without its answers".into()))?;
            for (sample, tokens) in [&answers.chosen, &answers.rejected].into_iter().take(count).enumerate() {
                rollouts.push(Rollout { prompt, sample, tokens: tokens.clone(), logp: Vec::new(), finished: true });
            }
        }
        let mut experience = Experience {
            generated_at: self.state.global_step,
            pairs: Vec::new(),
            prompts,
            offsets: offsets(&rollouts),
            rollouts,
            texts: Vec::new(),
            rewards: Vec::new(),
            logp: Vec::new(),
            ref_logp: None,
            values: None,
            advantages: Advantages::default(),
        };
        self.phases.lap("data");
        experience.ref_logp = self.reference_logp(&experience)?;
        if experience.ref_logp.is_some() {
            self.phases.lap("reference");
        }
        Ok(experience)
    }

    /// Tokens that pass through training, prompts once a completion.
    pub(super) fn count_tokens(&mut self, e: &Experience) {
        let tokens: usize = e.rollouts.iter().map(|r| e.prompts[r.prompt].tokens.len() + r.tokens.len()).sum();
        self.state.num_tokens += tokens as u64;
        self.note([Metric::new("num_tokens", self.state.num_tokens as f64, Reduction::Max)]);
    }

    /// The pairs that the algorithm makes of a generation.
    pub(super) fn choose(&mut self, e: &Experience) -> Result<Vec<Pair>> {
        let rollouts = Arc::new(rollouts_seen(self.state.global_step, e, self.is_reference()));
        let choice = self.algorithm.as_preference()?.choose(&rollouts)?;
        self.swaps.saw_rollouts(rollouts);
        self.note(from_plugin(choice.metrics));
        Ok(choice.pairs.iter().map(|pair| (pair.chosen as usize, pair.rejected as usize)).collect())
    }

    /// The same as [`Trainer::pass`], for the pairs of a share.
    pub(super) fn pass_of_pairs(&mut self, share: &Share, scale: Scale, learn: Learn) -> Result<f64> {
        let e = &share.experience;
        let rows: Vec<usize> = e.pairs[share.rows.clone()].iter().flat_map(|&(chosen, rejected)| [chosen, rejected]).collect();
        let needs = self.algorithm.plugin().info().needs;
        let batch = MicroBatch::pack(e, rows.iter().copied());
        self.count_pass(&batch);
        let pass = self.policy.forward(&batch.forest, &batch.selected, self.temperature())?;
        let mean_logits = if needs.mean_logits { Some(pass.mean_logits()?) } else { None };
        let stats = pass.stats();
        let tokens = stats.entropy.len() as f64;
        let entropy = stats.entropy.iter().map(|h| f64::from(*h)).sum::<f64>() / tokens;
        self.phases.lap("forward");

        let (mut chosen, mut rejected) = (empty_side(e, &mean_logits), empty_side(e, &mean_logits));
        let (mut at, mut top) = (0, Vec::new());
        for (i, &row) in rows.iter().enumerate() {
            let side = if i % 2 == 0 { &mut chosen } else { &mut rejected };
            let length = e.rollouts[row].tokens.len();
            side.logp.extend(&stats.logp[at..at + length]);
            if i % 2 == 0 {
                top.extend(&stats.top[at..at + length]);
            }
            if let (Some(into), Some(from)) = (&mut side.mean_logits, &mean_logits) {
                into.extend(&from[at..at + length]);
            }
            if let (Some(into), Some(from)) = (&mut side.ref_logp, &e.ref_logp) {
                // As long as both are one model, they differ by rounding alone, and a pair would have
                // an accuracy by chance.
                let same = self.is_reference();
                into.extend(if same { &stats.logp[at..at + length] } else { &from[e.tokens(&(row..row + 1))] });
            }
            side.offsets.push(side.logp.len() as u32);
            at += length;
        }
        let pairs = Arc::new(Pairs { step: self.state.global_step, chosen, rejected, scale });
        let gradient = self.algorithm.as_preference()?.loss(&pairs)?;
        self.figures.extend(from_plugin(gradient.metrics));
        self.figures.extend([Metric::mean("entropy", entropy, tokens), token_accuracy(&top)]);
        self.phases.lap("loss");
        if learn == Learn::Nothing {
            return Ok(gradient.loss);
        }

        // Back into the order of the rows.
        let sides = [(&pairs.chosen.offsets, &gradient.d_chosen), (&pairs.rejected.offsets, &gradient.d_rejected)];
        let d_logp: Vec<f32> = (0..rows.len())
            .flat_map(|i| {
                let (offsets, d) = sides[i % 2];
                d[offsets[i / 2] as usize..offsets[i / 2 + 1] as usize].iter().copied()
            })
            .collect();
        self.swaps.saw_pairs(pairs);
        self.backward(learn, |done| pass.backward(&d_logp, None, None, &self.gradients, done))?;
        Ok(gradient.loss)
    }
}

/// A side without tokens, with the columns that it is to have.
fn empty_side(e: &Experience, mean_logits: &Option<Vec<f32>>) -> Side {
    Side {
        offsets: vec![0],
        logp: Vec::new(),
        ref_logp: e.ref_logp.as_ref().map(|_| Vec::new()),
        mean_logits: mean_logits.as_ref().map(|_| Vec::new()),
    }
}
