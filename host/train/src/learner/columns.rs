//! Builds the loss's batch from a micro-batch, and extracts this rank's part of the result.

use super::forward::ForwardPass;
use crate::columns::{NamedColumns, selected};
use crate::experience::{Experience, MicroBatch};
use crate::metrics::{Metric, MetricReduction};
use crate::pass_metrics::PassMetrics;
use crate::plugin::columns::{
    FINISHED, LABEL, LOGP, MARGIN, MICRO_BATCH_LABEL, OLD_LOGP, OLD_VALUE, PROMPT_LOGP, REF_LOGP, SAMPLING_LOGP, VALUE,
};
use crate::plugin::{Batch, Column, MicroBatchLoss, NeededInputs, Scale, Unit};
use crate::policy_progress::PolicyProgress;
use crate::rollout::Rollout;
use std::ops::Range;
use std::rc::Rc;

/// Inputs of a loss besides its rows and their forward pass.
pub(super) struct LossInputs {
    pub needs: Rc<NeededInputs>,
    /// The host's own metrics of the pass.
    pub metrics: PassMetrics,
    pub at: PolicyProgress,
    /// Random seed of the loss; it has no other randomness.
    pub seed: u64,
    pub scale: Scale,
    /// The whole micro-batch, for a loss that compares rows and so gets the parts of all ranks.
    pub shared: Option<MicroBatch>,
    /// Columns of the whole micro-batch.
    pub of_micro_batch: Vec<Column>,
    /// Whether log-probabilities are compared with those at sampling.
    pub compares_sampling: bool,
}

/// Joins the outputs of several ranks' passes; ranks without rows have none.
pub(super) fn joined(parts: Vec<NamedColumns>) -> NamedColumns {
    parts
        .into_iter()
        .filter(|part| part.iter().next().is_some())
        .reduce(|mut all, part| {
            all.append(part);
            all
        })
        .unwrap_or_default()
}

/// The completions of a batch, as rows of an experience in the batch's order.
struct BatchRows<'a> {
    micro_batch: &'a MicroBatch,
    rows: Vec<usize>,
    /// Indices of the rows' tokens in the experience's columns.
    tokens: Vec<usize>,
}

impl<'a> BatchRows<'a> {
    fn new(micro_batch: &'a MicroBatch) -> Self {
        let (e, rows) = (&micro_batch.experience, micro_batch.rows());
        let tokens = rows.iter().flat_map(|row| e.tokens(&(*row..row + 1))).collect();
        Self { micro_batch, rows, tokens }
    }

    fn experience(&self) -> &'a Experience {
        &self.micro_batch.experience
    }

    /// Selects these rows from a column of the whole experience.
    fn select_column(&self, column: &Column) -> Column {
        selected(column, if column.unit == Unit::Token { &self.tokens } else { &self.rows })
    }

    /// Returns a column of the rows' tokens: `current` values for completions that this version of the policy wrote; for others, `old`
    /// values, which cover the whole experience.
    fn of_versions(&self, version: u64, current: &[f32], old: &[f32]) -> Vec<f32> {
        let e = self.experience();
        let mut at = 0;
        let mut values = Vec::with_capacity(current.len());
        for row in &self.rows {
            let tokens = e.tokens(&(*row..row + 1));
            let now = &current[at..at + tokens.len()];
            at += tokens.len();
            values.extend(if e.is_on_policy(*row, version) { now } else { old.get(tokens).unwrap_or(now) });
        }
        values
    }

    /// Returns the dataset's label of each row, 1 if it is desirable.
    fn labels(&self) -> Vec<f32> {
        let e = self.experience();
        let label = |row: &usize| e.prompts[e.rollouts[*row].prompt].answers.as_ref()?.label.as_ref();
        self.rows.iter().map(|row| f32::from(u8::from(label(row).is_some_and(|label| label.desirable)))).collect()
    }

    /// Returns the dataset's margin of each pair.
    fn margins(&self) -> impl Iterator<Item = Option<f32>> + '_ {
        let e = self.experience();
        self.rows.iter().step_by(2).map(|row| e.prompts[e.rollouts[*row].prompt].answers.as_ref()?.margin)
    }

    /// Returns the offsets of the groups: pairs, or adjacent completions of a prompt.
    fn groups(&self) -> Vec<u32> {
        let e = self.experience();
        let rows = self.rows.len() as u32;
        if e.pairs.is_some() {
            return (0..=rows).step_by(2).collect();
        }
        let begins = |place: &u32| {
            let prompt = |place: u32| e.rollouts[self.rows[place as usize]].prompt;
            *place == 0 || *place == rows || prompt(*place) != prompt(*place - 1)
        };
        (0..=rows).filter(begins).collect()
    }
}

/// Returns the label of each completion of a micro-batch as a column of the whole micro-batch.
pub(super) fn labels(micro_batch: &MicroBatch) -> Column {
    Column::new(MICRO_BATCH_LABEL, Unit::MicroBatch, BatchRows::new(micro_batch).labels())
}

/// Returns the batch of a micro-batch; its forward pass computed the columns `observed`.
pub(super) fn batch(micro_batch: &MicroBatch, observed: &NamedColumns, inputs: &LossInputs) -> Batch {
    let rows = BatchRows::new(micro_batch);
    let e = rows.experience();
    let mask = if e.mask.is_empty() { vec![1; rows.tokens.len()] } else { rows.tokens.iter().map(|t| e.mask[*t]).collect() };
    let prompt_tokens = observed.get(PROMPT_LOGP).map(|_| ends(micro_batch.prompt_tokens()));
    Batch {
        step: inputs.at.step,
        seed: inputs.seed,
        groups: rows.groups(),
        tokens: ends(rows.rows.iter().map(|row| e.rollouts[*row].tokens.len())),
        prompt_tokens: prompt_tokens.unwrap_or_default(),
        turns: Vec::new(),
        mask,
        columns: inputs.needs.names().filter_map(|name| column(name, &rows, observed, inputs)).collect(),
        scale: inputs.scale,
    }
}

/// Returns the offset of each part, and the end of the last one.
fn ends(lengths: impl IntoIterator<Item = usize>) -> Vec<u32> {
    let mut end = 0;
    std::iter::once(0)
        .chain(lengths.into_iter().map(|length| {
            end += length as u32;
            end
        }))
        .collect()
}

/// Returns the column of this name, if there is one. For completions of the current policy version, the current values also serve as the
/// old ones, so that the first update's ratios are exactly one.
fn column(name: &str, rows: &BatchRows<'_>, observed: &NamedColumns, inputs: &LossInputs) -> Option<Column> {
    let (e, at) = (rows.experience(), inputs.at);
    let current = |name: &str| observed.values(name).unwrap_or_default();
    match name {
        OLD_LOGP => Some(Column::new(name, Unit::Token, rows.of_versions(at.step, current(LOGP), e.old_logp()))),
        OLD_VALUE => {
            let (current, old) = (observed.values(VALUE)?, e.columns.values(OLD_VALUE));
            let is_known = old.is_some() || rows.rows.iter().all(|row| e.is_on_policy(*row, at.step));
            is_known.then(|| Column::new(name, Unit::Token, rows.of_versions(at.step, current, old.unwrap_or_default())))
        }
        // While both are one model, they differ only by rounding, which would give a pair a random accuracy.
        REF_LOGP if at.is_reference && (e.pairs.is_some() || inputs.needs.has(LABEL)) => {
            e.columns.get(name).map(|_| Column::new(name, Unit::Token, current(LOGP).to_vec()))
        }
        FINISHED => {
            let finished = rows.rows.iter().map(|row| f32::from(u8::from(e.rollouts[*row].finished)));
            Some(Column::new(name, Unit::Sequence, finished.collect()))
        }
        LABEL => Some(Column::new(name, Unit::Sequence, rows.labels())),
        MARGIN => Some(Column::sparse(name, Unit::Group, rows.margins())),
        _ => {
            let of_micro_batch = inputs.of_micro_batch.iter().find(|column| column.name == name);
            let own = of_micro_batch.or(observed.get(name)).cloned();
            own.or_else(|| e.columns.get(name).map(|column| rows.select_column(column)))
        }
    }
}

/// Returns the part of a micro-batch's derivatives that belongs to some of its items.
pub(super) fn cut(gradient: MicroBatchLoss, whole: &MicroBatch, items: &Range<usize>) -> MicroBatchLoss {
    let rows = |items: Range<usize>| whole.part(items).rows();
    let e = &whole.experience;
    let size = |unit: Unit, items: Range<usize>| match unit {
        Unit::Token => rows(items).iter().map(|row| e.rollouts[*row].tokens.len()).sum(),
        Unit::PromptToken => whole.part(items).prompt_tokens().iter().sum(),
        Unit::Sequence => rows(items).len(),
        Unit::Group | Unit::Turn | Unit::MicroBatch => items.len(),
    };
    let cut = |column: Column| {
        let first = size(column.unit, whole.items.start..items.start);
        let own = first..first + size(column.unit, items.clone());
        Column { values: column.values.get(own).map(<[f32]>::to_vec).unwrap_or_default(), ..column }
    };
    MicroBatchLoss { derivatives: gradient.derivatives.into_iter().map(cut).collect(), ..gradient }
}

/// Returns the host's own metrics of a pass.
pub(super) fn metrics(micro_batch: &MicroBatch, forward: &ForwardPass<'_>, inputs: &LossInputs) -> Vec<Metric> {
    let e = &micro_batch.experience;
    let Some((stats, tokens)) = forward.stats() else { return Vec::new() };
    let entropy = || {
        let entropies = stats.entropy[..tokens].iter().map(|h| f64::from(*h));
        Metric::mean("entropy", entropies.sum::<f64>() / tokens as f64, tokens as f64)
    };
    match inputs.metrics {
        PassMetrics::None => Vec::new(),
        PassMetrics::Sampling => compared_with_sampling(micro_batch, &stats.logp, inputs),
        PassMetrics::Entropy => vec![entropy()],
        PassMetrics::EntropyAndChosenAccuracy => vec![entropy(), token_accuracy(&chosen(micro_batch, &stats.top))],
        PassMetrics::Accuracy => {
            let mask = &e.mask[e.tokens(&micro_batch.items)];
            let counted: Vec<bool> = stats.top.iter().zip(mask).filter(|(_, m)| **m == 1).map(|(top, _)| *top).collect();
            vec![token_accuracy(&counted)]
        }
    }
}

/// Returns the difference between the log-probabilities of training and those of sampling, if both are known.
fn compared_with_sampling(micro_batch: &MicroBatch, current: &[f32], inputs: &LossInputs) -> Vec<Metric> {
    let e = &micro_batch.experience;
    let range = e.tokens(&micro_batch.items);
    // While the weights are those of the generation, the current values need no other pass.
    let is_current = micro_batch.items.clone().all(|row| e.is_on_policy(row, inputs.at.step));
    let recomputed = e.columns.values(OLD_LOGP).map(|old| &old[range.clone()]);
    let logp = recomputed.or(is_current.then_some(current)).filter(|_| inputs.compares_sampling);
    let sampled = e.columns.values(SAMPLING_LOGP).map(|sampled| &sampled[range]);
    let compare = |(logp, sampled)| sampling_metrics(&e.rollouts[micro_batch.items.clone()], logp, sampled);
    logp.zip(sampled).map(compare).unwrap_or_default()
}

/// Mean difference between the log-probabilities of training and those of sampling.
pub(crate) const SAMPLING_DIFFERENCE: &str = "sampling/sampling_logp_difference/mean";

/// Returns the metrics of the difference between the log-probabilities of training and those of sampling, over the sampled tokens, as in
/// TRL.
fn sampling_metrics(rollouts: &[Rollout], logp: &[f32], sampled: &[f32]) -> Vec<Metric> {
    let mask = rollouts.iter().flat_map(Rollout::mask);
    // Completions of the dataset were not sampled.
    let differences = logp.iter().zip(sampled).zip(mask).filter(|((_, old), counts)| *counts == 1 && !old.is_nan());
    let differences: Vec<f64> = differences.map(|((new, old), _)| f64::from(*new) - f64::from(*old)).collect();
    if differences.is_empty() {
        return Vec::new();
    }
    let n = differences.len() as f64;
    let mean = |value: fn(f64) -> f64| differences.iter().map(|d| value(*d)).sum::<f64>() / n;
    let most = |value: fn(f64) -> f64| differences.iter().map(|d| value(*d)).fold(f64::NEG_INFINITY, f64::max);
    let least = differences.iter().map(|d| d.exp()).fold(f64::INFINITY, f64::min);
    vec![
        Metric::mean(SAMPLING_DIFFERENCE, mean(f64::abs), n),
        Metric::new("sampling/sampling_logp_difference/max", most(f64::abs), MetricReduction::Max),
        Metric::new("sampling/importance_sampling_ratio/min", least, MetricReduction::Min),
        Metric::mean("sampling/importance_sampling_ratio/mean", mean(f64::exp), n),
        Metric::new("sampling/importance_sampling_ratio/max", most(f64::exp), MetricReduction::Max),
    ]
}

/// Returns the entries of the chosen completions in a column of pairs.
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

/// Computes the fraction of tokens that were the most likely one.
fn token_accuracy(top: &[bool]) -> Metric {
    let right = top.iter().filter(|top| **top).count() as f64;
    Metric::mean("mean_token_accuracy", right / (top.len() as f64).max(1.0), top.len() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataset::Prompt;
    use crate::plugin::columns::SEQUENCE_VALUE;
    use std::sync::Arc;

    /// Returns three prompts of 3, 1 and 4 tokens, with two answers each, of 1 to 6 tokens. Row `i` was written by version `i / 2`, and all
    /// its log-probabilities are `-i`.
    fn experience() -> Experience {
        let prompt =
            |index: usize| Arc::new(Prompt { row: index, index, tokens: vec![1; [3, 1, 4][index]], ..Prompt::default() });
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
        let old = |version: u64| BatchRows::new(&micro_batch).of_versions(version, &current, micro_batch.experience.old_logp());
        let of_rows = |two_and_three: [f32; 7]| [&[-1.0, -1.0][..], &two_and_three].concat();
        assert_eq!(old(1), of_rows([12.0, 13.0, 14.0, 15.0, 16.0, 17.0, 18.0]));
        assert_eq!(old(0), [10.0, 11.0, -2.0, -2.0, -2.0, -3.0, -3.0, -3.0, -3.0]);
        assert_eq!(old(7), of_rows([-2.0, -2.0, -2.0, -3.0, -3.0, -3.0, -3.0]));
        // Completions of a dataset have no old values.
        assert_eq!(BatchRows::new(&micro_batch).of_versions(7, &current, &[]), current);
    }

    #[test]
    fn adjacent_completions_of_a_prompt_are_a_group_and_so_are_pairs() {
        let mut e = experience();
        e.pairs = Some(vec![(1, 0), (4, 5)]);
        let groups = |items: Range<usize>, e: Experience| BatchRows::new(&MicroBatch { items, experience: Arc::new(e) }).groups();
        assert_eq!(groups(0..2, e), [0, 2, 4]);
        assert_eq!(groups(1..6, experience()), [0, 1, 3, 5]);
        assert_eq!(groups(2..2, experience()), [0]);
    }

    #[test]
    fn a_ranks_part_of_the_derivatives_has_its_pairs_and_their_prompts() {
        let mut e = experience();
        e.pairs = Some(vec![(0, 1), (2, 3), (4, 5)]);
        let whole = MicroBatch { experience: Arc::new(e), items: 0..3 };
        assert_eq!(whole.prompt_tokens(), [2, 0, 3]);

        let numbers = |range: Range<u8>| range.map(f32::from).collect::<Vec<f32>>();
        let cut = |items: Range<usize>| {
            let derivatives = vec![
                Column::new(LOGP, Unit::Token, numbers(0..21)),
                Column::new(PROMPT_LOGP, Unit::PromptToken, numbers(21..26)),
                Column::new(SEQUENCE_VALUE, Unit::Sequence, numbers(0..6)),
            ];
            let cut = super::cut(MicroBatchLoss { derivatives, ..MicroBatchLoss::default() }, &whole, &items);
            [LOGP, PROMPT_LOGP, SEQUENCE_VALUE].map(|name| cut.by(name).unwrap().to_vec())
        };
        assert_eq!(cut(0..1), [numbers(0..3), numbers(21..23), numbers(0..2)]);
        assert_eq!(cut(1..2), [numbers(3..10), numbers(0..0), numbers(2..4)]);
        assert_eq!(cut(2..3), [numbers(10..21), numbers(23..26), numbers(4..6)]);
        assert_eq!(cut(0..3), [numbers(0..21), numbers(21..26), numbers(0..6)]);
    }
}
