//! Synthetic batches for trying algorithms: before a run begins, before a swap, and to test whether a loss can be split.

use crate::plugin::columns::{
    self, ADVANTAGE, DivergenceColumn, ENTROPY, FINISHED, HAS_TEACHER_PROMPT, HostColumn, LABEL, LOG_SUM_SQUARES, MARGIN,
    MEAN_LOGITS, MICRO_BATCH_LABEL, MISMATCHED_LOGP, MISMATCHED_REF_LOGP, OLD_LOGP, OLD_VALUE, PROMPT_LOGP, REF_LOGP, RETURN,
    SEQUENCE_VALUE, TEACHER_LOGP, TURN_REWARD, VALUE, divergence_of,
};
use crate::plugin::{AlgorithmPlugin, Batch, Column, Scale, ScoredGeneration, Shape, Unit, WeightedReward};

/// Optional features of a run, which not every algorithm needs.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RunFeatures {
    pub reference: bool,
    pub critic: bool,
    /// Whether there are log-probabilities of a teacher.
    pub teacher_logp: bool,
    pub divergence: TeacherExtent,
    /// Whether the dataset has margins of pairs.
    pub margins: bool,
}

/// What a run has of its teacher's distributions.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) enum TeacherExtent {
    #[default]
    Nothing,
    /// At most this number of its likeliest tokens.
    Likeliest(usize),
    Everything,
}

impl TeacherExtent {
    /// Returns whether a run with this has what an algorithm compares.
    pub(crate) fn has(self, column: DivergenceColumn) -> bool {
        match self {
            Self::Nothing => false,
            Self::Likeliest(most) => column.top.is_some_and(|top| top.of_teacher && top.count <= most),
            Self::Everything => true,
        }
    }
}

/// Returns the number of sequences per item of a batch.
pub(super) fn sequences_of_item(shape: Shape) -> usize {
    match shape {
        Shape::Completions => 1,
        Shape::Pairs => 2,
    }
}

/// Returns a batch of sequences with these numbers of tokens, without columns.
pub(super) fn batch(lengths: &[usize], groups: Vec<u32>, shape: Shape) -> Batch {
    let mut tokens = vec![0];
    for length in lengths {
        tokens.push(tokens[tokens.len() - 1] + *length as u32);
    }
    let each = sequences_of_item(shape);
    // Only the chosen completion of a pair counts.
    let counted: usize = lengths.iter().step_by(each).sum();
    let scale = Scale {
        items: (lengths.len() / each) as u32,
        tokens: counted as u64,
        prompt_tokens: (groups.len() - 1) as u64,
        max_completion_length: 4,
    };
    let mask = vec![1; lengths.iter().sum()];
    Batch { step: 0, seed: 0, groups, tokens, prompt_tokens: Vec::new(), turns: Vec::new(), mask, columns: Vec::new(), scale }
}

/// The name of synthetic scores.
pub(super) const SCORES: &str = "made_up";

/// Returns a generation of pairs of completions with these numbers of tokens, for an algorithm that has not estimated anything yet.
pub(super) fn generation(lengths: &[usize], algorithm: &AlgorithmPlugin) -> ScoredGeneration {
    let mut batch = batch(lengths, (0..=lengths.len() as u32).step_by(2).collect(), algorithm.data().shape);
    batch.columns.push(scores(lengths.len()));
    fill_generation(
        &mut batch,
        algorithm,
        RunFeatures { reference: true, critic: true, teacher_logp: true, divergence: TeacherExtent::Everything, margins: false },
    );
    ScoredGeneration { batch, rewards: vec![WeightedReward { name: SCORES.to_owned(), weight: 1.0 }] }
}

/// Returns scores of this many sequences.
pub(super) fn scores(sequences: usize) -> Column {
    Column::sparse(columns::reward(SCORES), Unit::Sequence, (0..sequences).map(|row| Some(row as f32)))
}

/// Returns the unit of a column that a loss sees: a column of the host, or one of the algorithm's estimates.
pub(super) fn unit_in_loss(algorithm: &AlgorithmPlugin, name: &str) -> Option<Unit> {
    match HostColumn::find(name) {
        Some(known) => known.in_loss.then_some(known.unit),
        None => Some(algorithm.unit_of_estimate(name).unwrap_or(Unit::Token)),
    }
}

/// Adds the columns that an algorithm's loss needs and a batch lacks.
pub(super) fn fill_loss(batch: &mut Batch, algorithm: &AlgorithmPlugin, extras: RunFeatures) {
    fill(batch, algorithm, extras, |name| unit_in_loss(algorithm, name));
}

/// Adds the columns that an algorithm needs of a generation and a batch lacks.
pub(super) fn fill_generation(batch: &mut Batch, algorithm: &AlgorithmPlugin, extras: RunFeatures) {
    fill(batch, algorithm, extras, |name| {
        HostColumn::find(name).filter(|known| known.in_generation && known.unit != Unit::Turn).map(|known| known.unit)
    });
}

fn fill(batch: &mut Batch, algorithm: &AlgorithmPlugin, extras: RunFeatures, unit_of: impl Fn(&str) -> Option<Unit>) {
    for name in algorithm.info().needs.names().filter(|name| has(name, extras)) {
        let (Some(unit), None) = (unit_of(name), batch.column(name)) else { continue };
        if unit == Unit::PromptToken {
            batch.prompt_tokens = (0..batch.groups.len() as u32).collect();
        }
        let entries = if unit == Unit::MicroBatch { batch.entries(Unit::Sequence) } else { batch.entries(unit) };
        let value = |entry: usize| value(name, entry, extras);
        batch.columns.push(Column::sparse(name, unit, (0..entries).map(value)));
    }
}

/// Returns whether a run can have a column.
fn has(name: &str, extras: RunFeatures) -> bool {
    match name {
        REF_LOGP => extras.reference,
        VALUE | OLD_VALUE | RETURN => extras.critic,
        TEACHER_LOGP => extras.teacher_logp,
        name => divergence_of(name).is_none_or(|column| extras.divergence.has(column)),
    }
}

/// Returns a plausible entry of a column.
fn value(name: &str, entry: usize, extras: RunFeatures) -> Option<f32> {
    let is_even = entry.is_multiple_of(2);
    Some(match name {
        OLD_LOGP => -1.05,
        REF_LOGP => -1.1,
        TEACHER_LOGP => -0.9,
        LOG_SUM_SQUARES => -1.0,
        PROMPT_LOGP => -2.0,
        MISMATCHED_LOGP => -3.0,
        MISMATCHED_REF_LOGP => -3.5,
        ENTROPY => 1.0,
        VALUE | OLD_VALUE | MEAN_LOGITS | TURN_REWARD => 0.0,
        RETURN => 0.1,
        ADVANTAGE => [-1.0, 1.0][usize::from(is_even)],
        LABEL | MICRO_BATCH_LABEL | FINISHED | HAS_TEACHER_PROMPT => f32::from(u8::from(is_even)),
        SEQUENCE_VALUE => [-0.25, 0.5][usize::from(is_even)],
        name if divergence_of(name).is_some() => 0.5,
        MARGIN => return extras.margins.then_some(0.5),
        // Log-probabilities, and an estimator's columns under its own names.
        _ => -1.0,
    })
}
