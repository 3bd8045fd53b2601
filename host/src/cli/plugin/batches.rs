//! Random batches for testing algorithms: sequences of random lengths, with columns of random numbers.

use crate::plugin::NeededInputs;
use crate::plugin::algorithm::{
    AlgorithmPlugin, Batch, Column, Data, DataSource, Estimates, Scale, ScoredGeneration, Shape, TurnSpan,
};
use crate::plugin::algorithm::{Unit, WeightedReward};
use crate::plugin::columns::{self, HOST_COLUMNS};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Name of the reward of a generation. A row's score is the sum over its episode's turns.
const REWARD: &str = "sample";

/// Number and maximum length of a test's sequences.
#[derive(Clone, Copy)]
pub(super) struct TestBatchSize {
    pub sequences: usize,
    pub longest: u32,
}

/// Batches for an algorithm's data source.
pub(super) struct TestBatches {
    /// Log-probabilities of the policy at generation, per token.
    logp: Vec<f32>,
    /// Values of the critic, per token.
    values: Vec<f32>,
    /// Name of the teacher-divergence column that the algorithm reads, if any.
    divergence: Option<String>,
    /// The parts that all batches have in common.
    batch: Batch,
    random: ChaCha8Rng,
}

impl TestBatches {
    /// Creates the sequences for an algorithm, in groups: of 4 if it compares generated completions, of 2 for pairs, otherwise of 1.
    pub(super) fn new(data: &Data, needs: &NeededInputs, size: TestBatchSize) -> Self {
        let mut random = ChaCha8Rng::seed_from_u64(5);
        let group = match (data.shape, data.source) {
            (Shape::Pairs, _) => 2,
            (Shape::Completions, DataSource::Dataset) => 1,
            (Shape::Completions, _) => 4,
        };
        let groups = (size.sequences / group).max(1);
        let sequences = groups * group;
        let tokens = offsets(&mut random, sequences, size.longest);
        let prompt_tokens = offsets(&mut random, groups, size.longest);
        let (n, prompts) = (last(&tokens), last(&prompt_tokens));
        // All tokens of a dataset's pairs and labelled completions count.
        let all = data.source == DataSource::Dataset;
        let mask: Vec<u8> = (0..n).map(|_| u8::from(all || random.random_range(0..8) != 0)).collect();
        let items = if data.shape == Shape::Pairs { groups } else { sequences };
        let scale = Scale {
            items: 2 * items as u32,
            tokens: 2 * mask.iter().map(|&counts| u64::from(counts)).sum::<u64>(),
            prompt_tokens: 2 * prompts as u64,
            max_completion_length: size.longest,
        };
        let batch = Batch {
            step: 3,
            seed: 0,
            groups: (0..=groups as u32).map(|i| i * group as u32).collect(),
            tokens,
            prompt_tokens,
            turns: Vec::new(),
            mask,
            columns: Vec::new(),
            scale,
        };
        let [logp, values] = [(-4.0, -0.1), (-1.0, 1.0)].map(|(low, high)| uniform(&mut random, n, low, high));
        let divergence = needs.divergence().map(|(name, _)| name.to_owned());
        Self { logp, values, divergence, batch, random }
    }

    /// Returns the number of tokens.
    pub(super) fn tokens(&self) -> usize {
        self.logp.len()
    }

    /// Returns a generation of episodes with scores for most of them, and all columns that a generation can have.
    pub(super) fn generation(&mut self) -> ScoredGeneration {
        let mut batch = self.batch.clone();
        let scores: Vec<Option<f32>> = (0..batch.entries(Unit::Sequence))
            .map(|sequence| (sequence % 7 != 6).then(|| self.random.random_range(-1.0..1.0)))
            .collect();
        batch.columns = self.known(|known| known.in_generation && known.unit != Unit::Turn);
        batch.columns.push(Column::sparse(columns::reward(REWARD), Unit::Sequence, scores.iter().copied()));
        let (turns, rewards) = self.turns(&scores);
        batch.turns = turns;
        batch.columns.push(Column::sparse(columns::turn_reward(REWARD), Unit::Turn, rewards));
        ScoredGeneration { batch, rewards: vec![WeightedReward { name: REWARD.to_owned(), weight: 1.0 }] }
    }

    /// Returns a micro-batch with all columns that a loss can read, including the algorithm's own estimates.
    pub(super) fn micro_batch(&mut self, estimates: &Estimates) -> Batch {
        let mut batch = self.batch.clone();
        batch.columns = self.known(|known| known.in_loss);
        let divergence = uniform(&mut self.random, self.logp.len(), 0.0, 3.0);
        batch.columns.extend(self.divergence.iter().map(|name| Column::new(name, Unit::Token, divergence.clone())));
        for estimate in &estimates.columns {
            let own = match estimate.name.as_str() {
                columns::ADVANTAGE if estimate.unit == Unit::Token => Some(uniform(&mut self.random, self.logp.len(), -1.5, 1.5)),
                columns::RETURN if estimate.unit == Unit::Token => Some(near(&mut self.random, &self.values, 1.0)),
                _ => None,
            };
            batch.columns.push(own.map_or_else(|| estimate.clone(), |own| Column::new(&estimate.name, Unit::Token, own)));
        }
        batch
    }

    /// Returns the host's columns selected by `wanted`.
    fn known(&mut self, wanted: impl Fn(&columns::HostColumn) -> bool) -> Vec<Column> {
        let has_name = |known: &columns::HostColumn| known.name != columns::TEACHER_DIVERGENCE;
        let wanted: Vec<&columns::HostColumn> = HOST_COLUMNS.iter().filter(|known| wanted(known) && has_name(known)).collect();
        wanted.into_iter().map(|known| Column::new(known.name, known.unit, self.values_of(known))).collect()
    }

    /// Returns random values for one of the host's columns.
    fn values_of(&mut self, known: &columns::HostColumn) -> Vec<f32> {
        let sequences = self.batch.entries(Unit::Sequence);
        let count = if known.unit == Unit::MicroBatch { sequences } else { self.batch.entries(known.unit) };
        let random = &mut self.random;
        let every = |period: usize| (0..count).map(|i| f32::from(u8::from(i % period != 1))).collect();
        match known.name {
            columns::OLD_LOGP => self.logp.clone(),
            columns::LOGP => near(random, &self.logp, 0.3),
            columns::REF_LOGP => near(random, &self.logp, 0.4),
            columns::TEACHER_LOGP => near(random, &self.logp, 1.0),
            columns::SAMPLING_LOGP => near(random, &self.logp, 0.01),
            columns::LOG_SUM_SQUARES => near(random, &self.logp, 0.5),
            columns::OLD_VALUE => self.values.clone(),
            columns::VALUE => near(random, &self.values, 0.1),
            columns::ENTROPY => uniform(random, count, 0.1, 3.0),
            columns::MARGIN => uniform(random, count, 0.0, 1.0),
            columns::SEQUENCE_VALUE => uniform(random, count, -2.0, 2.0),
            columns::PROMPT_LOGP => uniform(random, count, -4.0, -0.1),
            columns::MISMATCHED_LOGP | columns::MISMATCHED_REF_LOGP => uniform(random, count, -60.0, -20.0),
            columns::LABEL | columns::MICRO_BATCH_LABEL | columns::FINISHED => every(3),
            _ => uniform(random, count, -1.0, 1.0),
        }
    }

    /// Splits each sequence into turns after its tokens that don't count, as if those were replies. The rewards of the turns add up to the
    /// sequence's score.
    fn turns(&mut self, scores: &[Option<f32>]) -> (Vec<TurnSpan>, Vec<Option<f32>>) {
        let Self { batch: Batch { tokens, mask, .. }, random, .. } = self;
        let (mut turns, mut rewards) = (Vec::new(), Vec::new());
        for (sequence, score) in scores.iter().enumerate() {
            let own = tokens[sequence]..tokens[sequence + 1];
            let is_end = |at: &u32| *at > own.start && mask[*at as usize] == 0 && mask[*at as usize - 1] == 1;
            let ends: Vec<u32> = own.clone().filter(is_end).chain([own.end]).collect();
            let (mut start, mut left) = (own.start, *score);
            for (i, &end) in ends.iter().enumerate() {
                turns.push(TurnSpan { sequence: sequence as u32, start, end });
                start = end;
                let is_last = i + 1 == ends.len();
                let given = left.map(|left| if is_last { left } else { random.random_range(-1.0..1.0) });
                left = left.zip(given).map(|(left, given)| left - given);
                rewards.push(given);
            }
        }
        (turns, rewards)
    }
}

/// Returns an algorithm's estimates for a generation; `None` if it has no estimator.
pub(super) fn estimated(
    algorithm: &mut AlgorithmPlugin,
    generation: &ScoredGeneration,
) -> crate::plugin::Result<Option<Estimates>> {
    let Data { source, shape, .. } = algorithm.data();
    match (source, shape) {
        (DataSource::Policy | DataSource::Either, Shape::Completions) if algorithm.reads_scores() => {
            algorithm.estimate(generation).map(Some)
        }
        _ => Ok(None),
    }
}

fn last(offsets: &[u32]) -> usize {
    offsets.last().map_or(0, |end| *end as usize)
}

fn offsets(random: &mut ChaCha8Rng, rows: usize, longest: u32) -> Vec<u32> {
    let mut offsets = vec![0];
    for _ in 0..rows {
        offsets.push(last(&offsets) as u32 + random.random_range(1..=longest));
    }
    offsets
}

fn uniform(random: &mut ChaCha8Rng, count: usize, low: f32, high: f32) -> Vec<f32> {
    (0..count).map(|_| random.random_range(low..high)).collect()
}

/// Returns random values close to a column's.
fn near(random: &mut ChaCha8Rng, column: &[f32], distance: f32) -> Vec<f32> {
    column.iter().map(|value| value + random.random_range(-distance..distance)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_have_groups_columns_and_turns_that_fit_together() {
        for (source, shape, group) in [
            (DataSource::Either, Shape::Completions, 4),
            (DataSource::Dataset, Shape::Completions, 1),
            (DataSource::Policy, Shape::Pairs, 2),
        ] {
            let data = Data { source, shape, estimates: Vec::new() };
            let mut batches = TestBatches::new(&data, &NeededInputs::default(), TestBatchSize { sequences: 12, longest: 20 });
            let given = batches.micro_batch(&Estimates::default());
            assert_eq!((given.entries(Unit::Sequence), given.entries(Unit::Group)), (12, 12 / group));
            for column in &given.columns {
                assert_eq!(column.values.len(), given.entries(column.unit), "{}", column.name);
            }
            let ScoredGeneration { batch, rewards } = batches.generation();
            let scores: Vec<Option<f32>> = batch.column(&columns::reward(&rewards[0].name)).unwrap().entries().collect();
            let turns: Vec<Option<f32>> = batch.column(&columns::turn_reward(&rewards[0].name)).unwrap().entries().collect();
            for (sequence, score) in scores.iter().enumerate() {
                let own = batch.turns.iter().zip(&turns).filter(|(turn, _)| turn.sequence as usize == sequence);
                let sum: Option<f32> = own.map(|(_, reward)| *reward).sum();
                assert_eq!(sum.is_some(), score.is_some());
                assert!(sum.zip(*score).is_none_or(|(sum, score)| (sum - score).abs() < 1e-5), "{sum:?} {score:?}");
            }
            assert_eq!(batch.turns.last().unwrap().end as usize, batch.mask.len());
        }
    }
}
