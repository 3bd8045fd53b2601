//! Turns of episodes, for algorithms that give each turn its own advantage: their tokens, and their rewards.

use crate::Error;
use crate::batch::{Batch, Unit};
use crate::rollouts::{RewardColumn, Rollouts};
use crate::rows::counted;
use std::ops::Range;

/// The turns of a generation's episodes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Turns {
    /// The turns of row i are at `offsets[i]..offsets[i+1]`.
    pub offsets: Vec<u32>,
    /// End of each turn, as an index into the tokens of all rows. Between two turns is a reply, whose mask is 0.
    pub ends: Vec<u32>,
    /// The environment's reward of each turn, unweighted; `None` for all turns of a row that can't be scored.
    pub rewards: Vec<Option<f32>>,
    /// Per row: index of its environment in the generation's rewards, whose scores are the sums of the turns' rewards; `None` if the
    /// environment gave none of the row's turns a reward.
    pub columns: Vec<Option<u32>>,
}

/// A turn of an episode.
#[derive(Clone, Debug, PartialEq)]
pub struct ScoredTurn {
    /// The turn's tokens, preceded by the tokens of the reply that it answers, whose mask is 0.
    pub tokens: Range<usize>,
    /// The turn's weighted reward. That of the last turn includes the other rewards' scores of the whole episode.
    pub score: f64,
}

impl Turns {
    /// Returns the turns of a generation with these rewards; `None` if the generation has no rewards of turns.
    ///
    /// # Errors
    /// If two environments reward the same row, or one is not among the rewards.
    pub(crate) fn from_batch(generation: &Batch, rewards: &[RewardColumn]) -> Result<Option<Self>, Error> {
        let rows = generation.entries(Unit::Sequence);
        let mut turns = Self { rewards: vec![None; generation.turns.len()], columns: vec![None; rows], ..Self::default() };
        let mut environments = 0;
        for (name, column) in generation.turn_rewards() {
            environments += 1;
            let place = rewards.iter().position(|reward| reward.name == name).map(|place| place as u32);
            let missing = || Error::Input(format!("the environment {name:?} has rewards of turns and is not among the rewards"));
            let place = Some(place.ok_or_else(missing)?);
            for (number, reward) in column.entries().enumerate().filter(|(_, reward)| reward.is_some()) {
                let row = generation.turns[number].sequence as usize;
                if turns.columns[row].is_some_and(|other| Some(other) != place) {
                    return Err(Error::Input(format!("two environments reward turns of row {row}")));
                }
                (turns.columns[row], turns.rewards[number]) = (place, reward);
            }
        }
        let before = |row: usize| generation.turns.partition_point(|turn| (turn.sequence as usize) < row) as u32;
        turns.offsets = (0..=rows).map(before).collect();
        turns.ends = generation.turns.iter().map(|turn| turn.end).collect();
        Ok((environments > 0).then_some(turns))
    }

    /// Returns the turns of a row.
    #[must_use]
    pub fn row_range(&self, row: usize) -> Range<usize> {
        self.offsets[row] as usize..self.offsets[row + 1] as usize
    }

    /// Returns the turns of each row with their scores, which add up to the row's [score](crate::scores::scores); `None` for a row that
    /// can't be scored.
    #[must_use]
    pub fn scored(&self, rollouts: &Rollouts) -> Vec<Option<Vec<ScoredTurn>>> {
        (0..rollouts.prompt_of.len()).map(|row| self.scored_row(rollouts, row)).collect()
    }

    /// Returns a column with the score of each turn at its last token that counts, and zeros at all other tokens, for algorithms with
    /// per-token rewards.
    #[must_use]
    pub fn at_last_tokens(&self, rollouts: &Rollouts) -> Vec<f64> {
        let mut rewards = vec![0.0; rollouts.mask.len()];
        for turn in self.scored(rollouts).into_iter().flatten().flatten() {
            if let Some(last) = counted(&rollouts.mask, turn.tokens).next_back() {
                rewards[last] += turn.score;
            }
        }
        rewards
    }

    fn scored_row(&self, rollouts: &Rollouts, row: usize) -> Option<Vec<ScoredTurn>> {
        let own = self.columns[row].map(|place| place as usize);
        rollouts.rewards.iter().any(|column| column.values[row].is_some()).then_some(())?;
        let others = rollouts.rewards.iter().enumerate().filter(|(place, _)| Some(*place) != own);
        let of_others: f64 = others.filter_map(|(_, c)| Some(f64::from(c.weight) * f64::from(c.values[row]?))).sum();
        let weight = own.map_or(0.0, |place| f64::from(rollouts.rewards[place].weight));
        let mut begin = rollouts.offsets[row] as usize;
        let mut scored: Vec<ScoredTurn> = self
            .row_range(row)
            .map(|turn| {
                let tokens = begin..self.ends[turn] as usize;
                begin = tokens.end;
                ScoredTurn { tokens, score: weight * f64::from(self.rewards[turn].unwrap_or(0.0)) }
            })
            .collect();
        if let Some(last) = scored.last_mut() {
            last.score += of_others;
        }
        Some(scored)
    }
}

/// Returns the return of each turn: its score plus the scores of later turns, discounted by `gamma` per turn.
#[must_use]
pub fn returns(turns: &[ScoredTurn], gamma: f64) -> Vec<f64> {
    let mut to_come = 0.0;
    let mut returns: Vec<f64> = turns
        .iter()
        .rev()
        .map(|turn| {
            to_come = turn.score + gamma * to_come;
            to_come
        })
        .collect();
    returns.reverse();
    returns
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::{Column, Turn, WeightedReward, testing};
    use crate::scores::scores;

    /// Returns three rows of one prompt: two turns, one turn, and one that can't be scored.
    fn played() -> (Batch, Vec<WeightedReward>) {
        let mut batch = testing::batch(&[&[6, 2, 1]]);
        batch.mask = vec![1, 1, 0, 0, 1, 1, 1, 1, 1];
        let turn = |(sequence, start, end)| Turn { sequence, start, end };
        batch.turns = [(0, 0, 2), (0, 2, 6), (1, 6, 8), (2, 8, 9)].map(turn).to_vec();
        let sparse = |name: &str, unit, values: &[Option<f32>]| Column::sparse(name, unit, values.iter().copied());
        batch.columns = vec![
            Column::new("old_logp", Unit::Token, vec![-1.0; 9]),
            Column::new("finished", Unit::Sequence, vec![1.0; 3]),
            sparse("reward/judge", Unit::Sequence, &[Some(3.0), None, None]),
            sparse("reward/game", Unit::Sequence, &[Some(1.5), Some(-1.0), None]),
            sparse("turn_reward/game", Unit::Turn, &[Some(1.0), Some(0.5), Some(-1.0), None]),
        ];
        let reward = |name: &str, weight| WeightedReward { name: name.into(), weight };
        (batch, vec![reward("judge", 0.5), reward("game", 2.0)])
    }

    fn rollouts((batch, rewards): &(Batch, Vec<WeightedReward>)) -> Result<Rollouts, Error> {
        batch.check().unwrap();
        Rollouts::from_batch(batch, rewards)
    }

    #[test]
    fn turns_are_those_of_the_batch() {
        let turns = rollouts(&played()).unwrap().turns.unwrap();
        assert_eq!((turns.offsets.clone(), turns.ends.clone()), (vec![0, 2, 3, 4], vec![2, 6, 8, 9]));
        assert_eq!(turns.rewards, [Some(1.0), Some(0.5), Some(-1.0), None]);
        assert_eq!(turns.columns, [Some(1), Some(1), None]);
        assert_eq!(turns.row_range(0), 0..2);

        let (mut batch, rewards) = played();
        batch.columns.pop();
        assert_eq!(rollouts(&(batch, rewards)).unwrap().turns, None);
    }

    #[test]
    fn scores_of_turns_add_up_to_the_episodes() {
        let rollouts = rollouts(&played()).unwrap();
        let turns = rollouts.turns.as_ref().unwrap();
        let scored = turns.scored(&rollouts);
        let first = vec![ScoredTurn { tokens: 0..2, score: 2.0 }, ScoredTurn { tokens: 2..6, score: 1.0 + 1.5 }];
        assert_eq!(scored, [Some(first), Some(vec![ScoredTurn { tokens: 6..8, score: -2.0 }]), None]);
        let sum = |turns: &Vec<ScoredTurn>| turns.iter().map(|turn| turn.score).sum::<f64>();
        assert_eq!(scored.iter().map(|turns| turns.as_ref().map(sum)).collect::<Vec<_>>(), scores(&rollouts));
        assert_eq!(turns.at_last_tokens(&rollouts), [0.0, 2.0, 0.0, 0.0, 0.0, 2.5, 0.0, -2.0, 0.0]);
    }

    #[test]
    fn a_row_without_rewards_of_turns_has_what_others_say_of_it() {
        let (mut batch, rewards) = played();
        batch.columns[2] = Column::sparse("reward/judge", Unit::Sequence, [None, None, Some(4.0)]);
        let rollouts = rollouts(&(batch, rewards)).unwrap();
        let scored = rollouts.turns.as_ref().unwrap().scored(&rollouts);
        assert_eq!(scored[2], Some(vec![ScoredTurn { tokens: 8..9, score: 2.0 }]));
    }

    #[test]
    fn a_row_has_one_environment_which_is_one_of_the_rewards() {
        let (mut batch, rewards) = played();
        batch.columns.push(Column::sparse("turn_reward/judge", Unit::Turn, [None, Some(1.0), None, None]));
        let twice = rollouts(&(batch.clone(), rewards.clone())).unwrap_err();
        assert!(twice.to_string().contains("two environments reward turns of row 0"), "{twice}");
        batch.columns[5].name = "turn_reward/other".into();
        assert!(rollouts(&(batch, rewards)).unwrap_err().to_string().contains("other"));
    }

    #[test]
    fn returns_are_what_is_still_to_come() {
        let turns = [1.0, 0.0, 4.0].map(|score| ScoredTurn { tokens: 0..1, score });
        assert_eq!(returns(&turns, 1.0), [5.0, 4.0, 4.0]);
        assert_eq!(returns(&turns, 0.5), [2.0, 2.0, 4.0]);
        assert_eq!(returns(&turns, 0.0), [1.0, 0.0, 4.0]);
        assert!(returns(&[], 1.0).is_empty());
    }
}
