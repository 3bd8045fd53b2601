//! Builds the columns of a micro-batch that a loss asks for.

use crate::metrics::{Metric, Reduction};
use crate::model::{self, Pass};
use crate::ops::logprob::TokenStats;
use crate::plugin::{Examples, Gradient, Mismatched, Needs, Pairs, Prompts, Scale, Side, Tokens, ValuedPairs};
use crate::rollout::Rollout;
use crate::train::experience::{Experience, MicroBatch};
use crate::train::flow::Flow;
use crate::train::moment::Moment;
use crate::train::plugins::LossBatch;
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// What a forward pass shows a loss, per token in row order; for a reward model, `values` alone, per completion.
#[derive(Default, Deserialize, Serialize)]
pub(super) struct Observed {
    logp: Vec<f32>,
    entropy: Vec<f32>,
    values: Option<Vec<f32>>,
    mean_logits: Option<Vec<f32>>,
    log_sum_squares: Option<Vec<f32>>,
    /// Of the tokens of pairs' prompts.
    prompt_logp: Option<Vec<f32>>,
}

impl Observed {
    /// Takes from a pass what is asked for, and the critic's values. The pass's first predictions are the completions' tokens, this
    /// many, the others prompts'.
    pub(super) fn new(pass: &Pass<'_>, tokens: usize, values: Option<&[f32]>, asked: &Asked) -> model::Result<Self> {
        let of_completions = |mut column: Vec<f32>| {
            column.truncate(tokens);
            column
        };
        let pairs = matches!(asked.flow, Flow::GivenPairs | Flow::GeneratedPairs);
        let wanted = asked.needs.mean_logits && asked.flow != Flow::Generated && asked.flow != Flow::Given;
        Ok(Self {
            logp: pass.stats().logp[..tokens].to_vec(),
            entropy: if asked.needs.entropy { pass.stats().entropy.clone() } else { Vec::new() },
            values: values.map(<[f32]>::to_vec),
            mean_logits: wanted.then(|| pass.mean_logits()).transpose()?.map(of_completions),
            log_sum_squares: (pairs && asked.squares).then(|| pass.log_sum_squares()).transpose()?,
            prompt_logp: asked.of_prompts.map(|_| pass.stats().logp[tokens..].to_vec()),
        })
    }

    /// Takes the values of completions.
    pub(super) fn of_values(values: &[f32]) -> Self {
        Self { values: Some(values.to_vec()), ..Self::default() }
    }

    /// Joins what several ranks' passes show; those without rows show nothing.
    pub(super) fn joined(parts: Vec<Self>) -> Self {
        let mut all = Self::default();
        for part in parts {
            all.logp.extend(part.logp);
            all.entropy.extend(part.entropy);
            let columns = [
                (&mut all.values, part.values),
                (&mut all.mean_logits, part.mean_logits),
                (&mut all.log_sum_squares, part.log_sum_squares),
                (&mut all.prompt_logp, part.prompt_logp),
            ];
            for (column, more) in columns {
                if let Some(more) = more {
                    column.get_or_insert_default().extend(more);
                }
            }
        }
        all
    }
}

/// The inputs of a micro-batch's columns, besides its own.
pub(super) struct Asked {
    pub flow: Flow,
    pub needs: Needs,
    pub at: Moment,
    pub scale: Scale,
    /// The micro-batch, for a loss that compares rows: the parts of all ranks then go into it together.
    pub shared: Option<MicroBatch>,
    /// Of the whole micro-batch.
    pub mismatched: Option<Mismatched>,
    /// Its desirable and its undesirable rows.
    pub labelled: (u32, u32),
    /// Whether a loss of pairs weights them by sums of squared probabilities.
    pub squares: bool,
    /// Number of the prompts' tokens in the complete step, if a loss of pairs sees them.
    pub of_prompts: Option<u64>,
    /// Whether log-probabilities are compared with those of sampling.
    pub compares_sampling: bool,
}

/// Returns the columns of a micro-batch after its forward pass.
pub(super) fn columns(micro_batch: &MicroBatch, observed: Observed, asked: &Asked) -> LossBatch {
    match asked.flow {
        Flow::Generated | Flow::Given => LossBatch::Tokens(tokens(micro_batch, observed, asked)),
        Flow::GeneratedPairs | Flow::GivenPairs => LossBatch::Pairs(pairs(micro_batch, &observed, asked)),
        Flow::ValuedPairs => LossBatch::Values(valued_pairs(micro_batch, &observed.values.unwrap_or_default(), asked)),
        Flow::Labelled => LossBatch::Labelled(examples(micro_batch, observed, asked)),
    }
}

/// Returns the part of a micro-batch's derivatives that belongs to some of its items.
pub(super) fn cut(gradient: Gradient, whole: &MicroBatch, items: &Range<usize>, flow: Flow) -> Gradient {
    let size = |items: Range<usize>| match flow {
        Flow::ValuedPairs => 2 * items.len(),
        _ => whole.experience.lengths(items).iter().map(|(_, tokens)| tokens).sum(),
    };
    let first = size(whole.items.start..items.start);
    let own = first..first + size(items.clone());
    let cut = |column: Vec<f32>| column.get(own.clone()).map(<[f32]>::to_vec).unwrap_or_default();
    let Gradient { loss, d_logp, d_entropy, d_values, metrics } = gradient;
    // Prompts' derivatives come after all completions'.
    let prompts = |items: Range<usize>| whole.part(items).prompt_tokens();
    let before = size(whole.items.clone()) + prompts(whole.items.start..items.start).iter().sum::<usize>();
    let of_prompts = before..before + prompts(items.clone()).iter().sum::<usize>();
    let of_prompts = d_logp.get(of_prompts).map(<[f32]>::to_vec).unwrap_or_default();
    let d_logp = [cut(d_logp), of_prompts].concat();
    Gradient { loss, d_logp, d_entropy: d_entropy.map(cut), d_values: d_values.map(cut), metrics }
}

/// Returns the columns of completions. For completions of the policy's current version, the current log-probabilities also serve as the
/// old ones, so the first update's ratios are exactly one.
fn tokens(micro_batch: &MicroBatch, observed: Observed, asked: &Asked) -> Tokens {
    let MicroBatch { experience: e, items: rows } = micro_batch;
    let Asked { needs, at, scale, .. } = asked;
    let Observed { logp, entropy, values, .. } = observed;
    let range = e.tokens(rows);
    let first = e.offsets[rows.start];
    let old_values = match (&values, &e.values) {
        (Some(current), Some(old)) => Some(of_versions(micro_batch, at.step, current, old)),
        (current, _) => current.clone().filter(|_| is_on_policy(micro_batch, at.step)),
    };
    Tokens {
        step: at.step,
        offsets: e.offsets[rows.start..=rows.end].iter().map(|o| o - first).collect(),
        mask: e.advantages.mask[range.clone()].to_vec(),
        advantages: e.advantages.advantages[range.clone()].to_vec(),
        old_logp: of_versions(micro_batch, at.step, &logp, e.old_logp()),
        logp,
        ref_logp: e.ref_logp.as_ref().map(|r| r[range.clone()].to_vec()),
        sampling_logp: needs.sampling_logp.then(|| e.logp[range.clone()].to_vec()),
        entropy: needs.entropy.then_some(entropy),
        values,
        old_values,
        returns: e.advantages.returns.as_ref().map(|r| r[range].to_vec()),
        scale: *scale,
    }
}

/// Returns whether the policy still is of the version that wrote all completions of a micro-batch.
fn is_on_policy(MicroBatch { experience, items }: &MicroBatch, version: u64) -> bool {
    items.clone().all(|row| experience.is_on_policy(row, version))
}

/// Returns a column of a micro-batch's tokens: the `current` values of completions that this version of the policy wrote, and the `old`
/// ones, which cover the whole experience, of others.
fn of_versions(MicroBatch { experience: e, items }: &MicroBatch, version: u64, current: &[f32], old: &[f32]) -> Vec<f32> {
    let first = e.offsets[items.start] as usize;
    let of_row = |row: usize| {
        let range = e.tokens(&(row..row + 1));
        if e.is_on_policy(row, version) { &current[range.start - first..range.end - first] } else { &old[range] }
    };
    items.clone().flat_map(of_row).copied().collect()
}

/// Returns whether each completion is desirable.
pub(super) fn labels(micro_batch: &MicroBatch) -> impl Iterator<Item = bool> {
    let e = &micro_batch.experience;
    let label = |row: usize| e.prompts[e.rollouts[row].prompt].answers.as_ref()?.label.as_ref();
    micro_batch.items.clone().map(move |row| label(row).is_some_and(|label| label.desirable))
}

/// Returns the columns of labelled completions.
fn examples(micro_batch: &MicroBatch, observed: Observed, asked: &Asked) -> Examples {
    let MicroBatch { experience: e, items: rows } = micro_batch;
    let Observed { logp, mean_logits, .. } = observed;
    let (range, first) = (e.tokens(rows), e.offsets[rows.start]);
    // As long as both are one model, they differ by rounding alone.
    let reference = |r: &Vec<f32>| if asked.at.is_reference { logp.clone() } else { r[range].to_vec() };
    Examples {
        step: asked.at.step,
        labels: labels(micro_batch).collect(),
        desirable: asked.labelled.0,
        undesirable: asked.labelled.1,
        offsets: e.offsets[rows.start..=rows.end].iter().map(|o| o - first).collect(),
        ref_logp: e.ref_logp.as_ref().map(reference),
        logp,
        mean_logits,
        mismatched: asked.mismatched.clone(),
        scale: asked.scale,
    }
}

/// Returns the columns of pairs.
fn pairs(micro_batch: &MicroBatch, observed: &Observed, asked: &Asked) -> Pairs {
    let e = &micro_batch.experience;
    let (logp, mean_logits, squares) = (&observed.logp, observed.mean_logits.as_ref(), observed.log_sum_squares.as_ref());
    let empty = || Side {
        offsets: vec![0],
        logp: Vec::new(),
        ref_logp: e.ref_logp.as_ref().map(|_| Vec::new()),
        mean_logits: mean_logits.map(|_| Vec::new()),
        log_sum_squares: squares.map(|_| Vec::new()),
    };
    let (mut chosen, mut rejected) = (empty(), empty());
    let mut at = 0;
    for (i, row) in micro_batch.rows().into_iter().enumerate() {
        let side = if i % 2 == 0 { &mut chosen } else { &mut rejected };
        let length = e.rollouts[row].tokens.len();
        side.logp.extend(&logp[at..at + length]);
        for (into, from) in [(&mut side.mean_logits, mean_logits), (&mut side.log_sum_squares, squares)] {
            if let (Some(into), Some(from)) = (into, from) {
                into.extend(&from[at..at + length]);
            }
        }
        if let (Some(into), Some(from)) = (&mut side.ref_logp, &e.ref_logp) {
            // As long as both are one model, they differ by rounding alone, and a pair would have
            // an accuracy by chance.
            let same = asked.at.is_reference;
            into.extend(if same { &logp[at..at + length] } else { &from[e.tokens(&(row..row + 1))] });
        }
        side.offsets.push(side.logp.len() as u32);
        at += length;
    }
    let prompts = asked.of_prompts.map(|tokens| prompts(micro_batch, observed, tokens));
    Pairs { step: asked.at.step, chosen, rejected, prompts, scale: asked.scale }
}

/// Returns the columns of pairs' prompts, of which the complete step has this many tokens.
fn prompts(micro_batch: &MicroBatch, observed: &Observed, tokens: u64) -> Prompts {
    let mut offsets = vec![0];
    for length in micro_batch.prompt_tokens() {
        offsets.push(offsets.last().copied().unwrap_or(0) + length as u32);
    }
    Prompts { offsets, logp: observed.prompt_logp.clone().unwrap_or_default(), tokens }
}

/// Returns the columns of pairs for a reward model's loss, given the value of each completion; chosen and rejected alternate.
fn valued_pairs(micro_batch: &MicroBatch, values: &[f32], asked: &Asked) -> ValuedPairs {
    let e = &micro_batch.experience;
    let side = |side: usize| values.iter().skip(side).step_by(2).copied().collect();
    let answers = |row: usize| e.prompts[e.rollouts[row].prompt].answers.as_ref();
    let margins = micro_batch.rows().into_iter().step_by(2).map(|row| answers(row)?.margin);
    let (step, scale) = (asked.at.step, asked.scale);
    ValuedPairs { step, chosen: side(0), rejected: side(1), margin: margins.collect(), scale }
}

/// Returns the host's own metrics of a pass, whose first predictions are the completions' tokens, this many: token accuracy for given
/// and chosen completions, and the entropy for pairs and labelled completions.
pub(super) fn figures(micro_batch: &MicroBatch, stats: &TokenStats, tokens: usize, asked: &Asked) -> Vec<Metric> {
    let e = &micro_batch.experience;
    let entropy = || {
        let entropies = stats.entropy[..tokens].iter().map(|h| f64::from(*h));
        Metric::mean("entropy", entropies.sum::<f64>() / tokens as f64, tokens as f64)
    };
    match asked.flow {
        Flow::Generated => {
            let range = e.tokens(&micro_batch.items);
            // As long as the weights are those of the generation, they are known without another pass.
            let current = is_on_policy(micro_batch, asked.at.step).then_some(&stats.logp[..]);
            let logp = e.old_logp.as_ref().map(|old| &old[range.clone()]).or(current).filter(|_| asked.compares_sampling);
            let compare = |logp| sampling_figures(&e.rollouts[micro_batch.items.clone()], logp, &e.logp[range.clone()]);
            return logp.map(compare).unwrap_or_default();
        }
        Flow::ValuedPairs => return Vec::new(),
        Flow::Labelled => return vec![entropy()],
        Flow::GeneratedPairs | Flow::GivenPairs => {
            return vec![entropy(), token_accuracy(&chosen(micro_batch, &stats.top))];
        }
        Flow::Given => {}
    }
    let mask = &e.advantages.mask[e.tokens(&micro_batch.items)];
    let counted: Vec<bool> = stats.top.iter().zip(mask).filter(|(_, m)| **m == 1).map(|(top, _)| *top).collect();
    vec![token_accuracy(&counted)]
}

/// Returns how far the log-probabilities of training are from those of sampling, over the sampled tokens: TRL's figures.
fn sampling_figures(rollouts: &[Rollout], logp: &[f32], sampled: &[f32]) -> Vec<Metric> {
    let mask = rollouts.iter().flat_map(Rollout::mask);
    let differences = logp.iter().zip(sampled).zip(mask).filter(|(_, counts)| *counts == 1);
    let differences: Vec<f64> = differences.map(|((new, old), _)| f64::from(*new) - f64::from(*old)).collect();
    if differences.is_empty() {
        return Vec::new();
    }
    let n = differences.len() as f64;
    let mean = |value: fn(f64) -> f64| differences.iter().map(|d| value(*d)).sum::<f64>() / n;
    let most = |value: fn(f64) -> f64| differences.iter().map(|d| value(*d)).fold(f64::NEG_INFINITY, f64::max);
    let least = differences.iter().map(|d| d.exp()).fold(f64::INFINITY, f64::min);
    vec![
        Metric::mean("sampling/sampling_logp_difference/mean", mean(f64::abs), n),
        Metric::new("sampling/sampling_logp_difference/max", most(f64::abs), Reduction::Max),
        Metric::new("sampling/importance_sampling_ratio/min", least, Reduction::Min),
        Metric::mean("sampling/importance_sampling_ratio/mean", mean(f64::exp), n),
        Metric::new("sampling/importance_sampling_ratio/max", most(f64::exp), Reduction::Max),
    ]
}

/// Returns the chosen completions' part of a column of pairs.
fn chosen(micro_batch: &MicroBatch, column: &[bool]) -> Vec<bool> {
    let e: &Experience = &micro_batch.experience;
    let (mut at, mut chosen) = (0, Vec::new());
    for (i, row) in micro_batch.rows().into_iter().enumerate() {
        let length = e.rollouts[row].tokens.len();
        if i % 2 == 0 {
            chosen.extend(&column[at..at + length]);
        }
        at += length;
    }
    chosen
}

/// Computes how often the given token was the most likely one.
fn token_accuracy(top: &[bool]) -> Metric {
    let right = top.iter().filter(|top| **top).count() as f64;
    Metric::mean("mean_token_accuracy", right / (top.len() as f64).max(1.0), top.len() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::train::dataset::Prompt;
    use std::sync::Arc;

    /// Three prompts of 3, 1 and 4 tokens, with two answers each, of 1 to 6 tokens. Row `i` was written by version `i / 2`, and all its
    /// log-probabilities are `-i`.
    fn experience() -> Experience {
        let prompt = |index: usize| {
            let (text, columns, ref_logp, mismatched_ref_logp) = Default::default();
            let (chat, messages, answers, tokens) = (false, None, None, vec![1; [3, 1, 4][index]]);
            Arc::new(Prompt { row: index, index, text, chat, messages, tokens, columns, answers, ref_logp, mismatched_ref_logp })
        };
        let rollout = |row: usize| Rollout {
            prompt: row / 2,
            sample: row % 2,
            tokens: vec![2; row + 1],
            logp: vec![-(row as f32); row + 1],
            finished: true,
            policy_version: row as u64 / 2,
            ..Rollout::default()
        };
        Experience::new((0..3).map(prompt).collect(), (0..6).map(rollout).collect())
    }

    #[test]
    fn only_completions_of_the_current_version_have_its_log_probabilities_as_old_ones() {
        let e = experience();
        let micro_batch = MicroBatch { items: 1..4, experience: Arc::new(e) };
        // Rows 1 to 3 have 2, 3 and 4 tokens.
        let current: Vec<f32> = (0..9u8).map(|token| 10.0 + f32::from(token)).collect();
        let old = |version: u64| of_versions(&micro_batch, version, &current, micro_batch.experience.old_logp());
        let of_rows = |two_and_three: [f32; 7]| [&[-1.0, -1.0][..], &two_and_three].concat();
        assert_eq!(old(1), of_rows([12.0, 13.0, 14.0, 15.0, 16.0, 17.0, 18.0]));
        assert_eq!(old(0), [10.0, 11.0, -2.0, -2.0, -2.0, -3.0, -3.0, -3.0, -3.0]);
        assert_eq!(old(7), of_rows([-2.0, -2.0, -2.0, -3.0, -3.0, -3.0, -3.0]));
        let is_on_policy = |items: Range<usize>, version: u64| {
            is_on_policy(&MicroBatch { experience: micro_batch.experience.clone(), items }, version)
        };
        assert!(is_on_policy(2..4, 1) && !is_on_policy(1..4, 1) && !is_on_policy(2..4, 2));
    }

    #[test]
    fn a_ranks_part_of_the_derivatives_has_its_pairs_and_their_prompts() {
        let mut e = experience();
        e.pairs = Some(vec![(0, 1), (2, 3), (4, 5)]);
        let whole = MicroBatch { experience: Arc::new(e), items: 0..3 };
        assert_eq!(whole.prompt_tokens(), [2, 0, 3]);

        // 21 of the answers, 5 of the prompts.
        let d_logp: Vec<f32> = (0..26u8).map(f32::from).collect();
        let cut = |items: Range<usize>, d_logp: &[f32]| {
            let gradient = Gradient { d_logp: d_logp.to_vec(), ..Gradient::default() };
            super::cut(gradient, &whole, &items, Flow::GivenPairs).d_logp
        };
        assert_eq!(cut(0..1, &d_logp), [0.0, 1.0, 2.0, 21.0, 22.0]);
        assert_eq!(cut(1..2, &d_logp), (3..10u8).map(f32::from).collect::<Vec<_>>());
        assert_eq!(cut(2..3, &d_logp), (10..21u8).chain(23..26).map(f32::from).collect::<Vec<_>>());
        assert_eq!(cut(0..3, &d_logp), d_logp);
        // Of a loss that sees no prompts.
        assert_eq!(cut(0..1, &d_logp[..21]), [0.0, 1.0, 2.0]);
    }
}
