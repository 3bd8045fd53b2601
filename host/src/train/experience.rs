//! One generation: rollouts, their rewards, and what the algorithm makes of them.

use super::Result;
use super::batch::MicroBatch;
use super::pairs::Pair;
use super::trainer::{Prompt, Trainer};
use crate::metrics::{Metric, Reduction};
use crate::plugin::{self, Advantages, RewardColumn, Role, Rollouts};
use crate::rollout::{Generator, Request, Rollout, Sampling};
use std::ops::Range;
use std::sync::Arc;

/// Completions with everything that training needs of them. Per-token columns are flat; the
/// tokens of row `i` stand at `offsets[i]..offsets[i + 1]`.
pub(super) struct Experience {
    /// `global_step` whose weights generated it.
    pub generated_at: u64,
    pub prompts: Vec<Arc<Prompt>>,
    pub rollouts: Vec<Rollout>,
    pub texts: Vec<String>,
    pub rewards: Vec<RewardColumn>,
    pub offsets: Vec<u32>,
    /// Log-probabilities when sampled.
    pub logp: Vec<f32>,
    pub ref_logp: Option<Vec<f32>>,
    /// The critic's values when sampled.
    pub values: Option<Vec<f32>>,
    pub advantages: Advantages,
    /// For algorithms that learn from pairs.
    pub pairs: Vec<Pair>,
}

impl Experience {
    /// Rows of the completions of some prompts.
    fn rows(&self, prompts: Range<usize>) -> Range<usize> {
        let first = |prompt: usize| self.rollouts.partition_point(|rollout| rollout.prompt < prompt);
        first(prompts.start)..first(prompts.end)
    }

    /// The flat tokens of rows.
    pub(super) fn tokens(&self, rows: &Range<usize>) -> Range<usize> {
        self.offsets[rows.start] as usize..self.offsets[rows.end] as usize
    }
}

/// A contract's metric as the window takes it.
pub(super) fn from_plugin(metrics: Vec<plugin::Metric>) -> impl Iterator<Item = Metric> {
    metrics.into_iter().map(|m| Metric {
        name: m.name,
        value: m.value,
        weight: m.weight,
        reduction: match m.reduction {
            plugin::Reduction::Mean => Reduction::Mean,
            plugin::Reduction::Sum => Reduction::Sum,
            plugin::Reduction::Min => Reduction::Min,
            plugin::Reduction::Max => Reduction::Max,
        },
    })
}

impl Trainer {
    /// What is learned from these prompts: completions of the policy's own, whose random numbers
    /// follow from the number of the `generation`, or the dataset's.
    pub(super) fn experience(&mut self, prompts: Vec<Arc<Prompt>>, generation: u64) -> Result<Experience> {
        if self.generates() { self.generate(prompts, generation) } else { self.given(prompts) }
    }

    /// Generates, scores and judges.
    fn generate(&mut self, prompts: Vec<Arc<Prompt>>, generation: u64) -> Result<Experience> {
        let own = self.world.share(prompts.len());
        let mut rollouts = self.roll_out(&prompts[own.clone()], self.config.group(), generation)?;
        rollouts.iter_mut().for_each(|rollout| rollout.prompt += own.start);
        let texts = rollouts.iter().map(|r| Ok(self.tokenizer.decode(&r.tokens)?)).collect::<Result<Vec<String>>>()?;
        let completions = rollouts.into_iter().zip(texts).collect();
        let (rollouts, texts): (Vec<Rollout>, Vec<String>) = self.world.concat("completions", completions)?.into_iter().unzip();
        self.phases.lap("rollout");
        self.count_generated(&prompts, own, &rollouts);
        let rewards = self.score(&prompts, &rollouts, &texts)?;
        self.phases.lap("reward");
        let logp = rollouts.iter().flat_map(|r| r.logp.iter().copied()).collect();
        let mut experience = Experience {
            generated_at: self.state.global_step,
            prompts,
            offsets: offsets(&rollouts),
            rollouts,
            texts,
            rewards,
            logp,
            ref_logp: None,
            values: None,
            advantages: Advantages::default(),
            pairs: Vec::new(),
        };
        experience.ref_logp = self.reference_logp(&experience)?;
        if experience.ref_logp.is_some() {
            self.phases.lap("reference");
        }
        experience.values = self.values(&experience)?;
        if experience.values.is_some() {
            self.phases.lap("values");
        }
        if self.role == Role::OnlinePreference {
            experience.pairs = self.choose(&experience)?;
        } else {
            experience.advantages = self.estimate(&experience)?;
        }
        self.phases.lap("advantage");
        self.note(length_metrics(&experience.rollouts));
        Ok(experience)
    }

    /// Completions of the policy's own, so many `samples` of each prompt.
    pub(super) fn roll_out(&self, prompts: &[Arc<Prompt>], samples: usize, generation: u64) -> Result<Vec<Rollout>> {
        let c = &self.config;
        let model = self.policy.frozen().decoding()?;
        let (strings, tokenizer) = (&self.stops, &self.tokenizer);
        let stops = |tokens: &[u32]| strings.end(tokens, tokenizer);
        let generator = Generator {
            model: &model,
            sampling: Sampling {
                temperature: c.temperature as f32,
                top_p: c.top_p as f32,
                top_k: c.top_k,
                min_p: c.min_p.unwrap_or(0.0) as f32,
                repetition_penalty: c.repetition_penalty as f32,
            },
            logp_temperature: self.temperature(),
            max_new_tokens: c.max_completion_length,
            max_num_seqs: c.max_num_seqs,
            seed: c.seed,
            generation,
            ends: &self.ends,
            stops: &stops,
        };
        let requests: Vec<Request> =
            prompts.iter().map(|p| Request { tokens: p.tokens.clone(), row: p.row as u64, samples }).collect();
        Ok(generator.run(&requests)?)
    }

    /// The critic's values of the states in which the tokens were chosen, where there is a critic.
    fn values(&self, experience: &Experience) -> Result<Option<Vec<f32>>> {
        if self.policy.weights().value_head.is_none() {
            return Ok(None);
        }
        let frozen = self.policy.frozen();
        let value = |batch: &MicroBatch| Ok(frozen.values(&batch.forest, &batch.selected)?.unwrap_or_default());
        self.by_micro_batches(experience, value).map(Some)
    }

    /// A column of all tokens, made micro-batch by micro-batch, by each rank for its prompts.
    pub(super) fn by_micro_batches(&self, e: &Experience, column: impl Fn(&MicroBatch) -> Result<Vec<f32>>) -> Result<Vec<f32>> {
        let rows = e.rows(self.world.share(e.prompts.len()));
        let mut own = Vec::with_capacity(e.tokens(&rows).len());
        for rows in self.scored_together(e, rows) {
            own.extend(column(&MicroBatch::pack(e, rows))?);
        }
        Ok(self.world.concat("a column", own)?)
    }

    fn estimate(&mut self, e: &Experience) -> Result<Advantages> {
        let rollouts = Arc::new(rollouts_seen(self.state.global_step, e, self.is_reference()));
        let mut advantages = self.algorithm.as_policy()?.estimate(&rollouts)?;
        self.swaps.saw_rollouts(rollouts);
        self.note(from_plugin(std::mem::take(&mut advantages.metrics)));
        Ok(advantages)
    }
}

/// A generation as algorithms see it. While the policy still is the reference, their
/// log-probabilities are the same to the bit: those of generation and of the reference's forward
/// pass differ by rounding, which a divergence in the reward would be taken for.
pub(super) fn rollouts_seen(step: u64, e: &Experience, is_reference: bool) -> Rollouts {
    Rollouts {
        step,
        rewards: e.rewards.clone(),
        prompt_of: e.rollouts.iter().map(|r| r.prompt as u32).collect(),
        finished: e.rollouts.iter().map(|r| r.finished).collect(),
        offsets: e.offsets.clone(),
        mask: vec![1; e.logp.len()],
        logp: e.logp.clone(),
        ref_logp: e.ref_logp.as_ref().map(|r| if is_reference { e.logp.clone() } else { r.clone() }),
        values: e.values.clone(),
        entropy: None,
    }
}

pub(super) fn offsets(rollouts: &[Rollout]) -> Vec<u32> {
    let mut at = 0;
    std::iter::once(0)
        .chain(rollouts.iter().map(|r| {
            at += r.tokens.len() as u32;
            at
        }))
        .collect()
}

/// Lengths of completions, and of those among them that ended by themselves.
fn length_metrics(rollouts: &[Rollout]) -> Vec<Metric> {
    let n = rollouts.len() as f64;
    let ended = rollouts.iter().filter(|r| r.finished).count() as f64;
    let mut metrics = vec![Metric::mean("completions/clipped_ratio", 1.0 - ended / n, n)];
    for (suffix, all) in [("length", true), ("terminated_length", false)] {
        let lengths: Vec<f64> = rollouts.iter().filter(|r| all || r.finished).map(|r| r.tokens.len() as f64).collect();
        if lengths.is_empty() {
            continue;
        }
        let (count, sum) = (lengths.len() as f64, lengths.iter().sum::<f64>());
        metrics.extend([
            Metric::mean(format!("completions/mean_{suffix}"), sum / count, count),
            Metric::new(
                format!("completions/min_{suffix}"),
                lengths.iter().copied().fold(f64::INFINITY, f64::min),
                Reduction::Min,
            ),
            Metric::new(format!("completions/max_{suffix}"), lengths.iter().copied().fold(0.0, f64::max), Reduction::Max),
        ]);
    }
    metrics
}
