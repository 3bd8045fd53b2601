//! Turns of episodes, for algorithms that give each turn its own advantage: which tokens they have, and what each earned.

use crate::Error;
pub use crate::bindings::contract::turn_policy::Turns;
use crate::bindings::types::Rollouts;
use crate::rows::counted;
use std::ops::Range;

/// A turn of an episode.
#[derive(Clone, Debug, PartialEq)]
pub struct Scored {
    /// Its tokens, and before them those of the reply that it answers, whose mask is 0.
    pub tokens: Range<usize>,
    /// Its reward, weighted. The last turn's includes what others said of the whole episode.
    pub score: f64,
}

impl Turns {
    /// Checks that the columns fit a generation; the exported plugin calls this before `estimate_turns`.
    ///
    /// # Errors
    /// If they don't.
    pub fn check(&self, rollouts: &Rollouts) -> Result<(), Error> {
        let (rows, turns) = (rollouts.prompt_of.len(), self.ends.len());
        let offsets_fit = self.offsets.len() == rows + 1
            && self.offsets.first() == Some(&0)
            && self.offsets.is_sorted()
            && self.offsets.last().is_some_and(|&end| end as usize == turns);
        let columns_fit = self.columns.len() == rows && self.columns.iter().all(|&c| (c as usize) < rollouts.rewards.len());
        if !offsets_fit || !columns_fit || self.rewards.len() != turns || rollouts.offsets.len() != rows + 1 {
            return Err(Error::Input(format!("the columns of {turns} turns don't fit {rows} rows")));
        }
        let in_place = |row: usize| {
            let ends = &self.ends[self.of(row)];
            ends.is_sorted() && ends.iter().all(|end| (rollouts.offsets[row]..=rollouts.offsets[row + 1]).contains(end))
        };
        match (0..rows).find(|&row| !in_place(row)) {
            Some(row) => Err(Error::Input(format!("the turns of row {row} don't end within it, one after the other"))),
            None => Ok(()),
        }
    }

    /// Returns the turns of a row.
    #[must_use]
    pub fn of(&self, row: usize) -> Range<usize> {
        self.offsets[row] as usize..self.offsets[row + 1] as usize
    }

    /// Returns the turns of each row with their scores, which add up to the row's [score](crate::scores::scores); none for a row
    /// that can't be scored.
    #[must_use]
    pub fn scored(&self, rollouts: &Rollouts) -> Vec<Option<Vec<Scored>>> {
        (0..rollouts.prompt_of.len()).map(|row| self.scored_row(rollouts, row)).collect()
    }

    /// Returns a column with the score of each turn at its last token that counts, and zeros elsewhere, for algorithms with rewards
    /// of tokens.
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

    fn scored_row(&self, rollouts: &Rollouts, row: usize) -> Option<Vec<Scored>> {
        let own = self.columns[row] as usize;
        rollouts.rewards.iter().any(|column| column.values[row].is_some()).then_some(())?;
        let others = rollouts.rewards.iter().enumerate().filter(|(place, _)| *place != own);
        let of_others: f64 = others.filter_map(|(_, c)| Some(f64::from(c.weight) * f64::from(c.values[row]?))).sum();
        let weight = f64::from(rollouts.rewards[own].weight);
        let mut begin = rollouts.offsets[row] as usize;
        let mut scored: Vec<Scored> = self
            .of(row)
            .map(|turn| {
                let tokens = begin..self.ends[turn] as usize;
                begin = tokens.end;
                Scored { tokens, score: weight * f64::from(self.rewards[turn].unwrap_or(0.0)) }
            })
            .collect();
        if let Some(last) = scored.last_mut() {
            last.score += of_others;
        }
        Some(scored)
    }
}

/// Returns the return of each turn: its score plus, discounted by `gamma` a turn, those of the turns after it.
#[must_use]
pub fn returns(turns: &[Scored], gamma: f64) -> Vec<f64> {
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
    use crate::bindings::types::RewardColumn;
    use crate::scores::scores;

    /// Returns three rows of one prompt: two turns, one turn, and one that can't be scored.
    fn played() -> (Rollouts, Turns) {
        let column = |weight: f32, values: [Option<f32>; 3]| RewardColumn { name: "r".into(), weight, values: values.to_vec() };
        let rollouts = Rollouts {
            step: 0,
            rewards: vec![column(0.5, [Some(3.0), None, None]), column(2.0, [Some(1.5), Some(-1.0), None])],
            prompt_of: vec![0; 3],
            finished: vec![true; 3],
            offsets: vec![0, 6, 8, 9],
            mask: vec![1, 1, 0, 0, 1, 1, 1, 1, 1],
            logp: vec![-1.0; 9],
            ref_logp: None,
            values: None,
            entropy: None,
        };
        let rewards = vec![Some(1.0), Some(0.5), Some(-1.0), None];
        (rollouts, Turns { offsets: vec![0, 2, 3, 4], ends: vec![2, 6, 8, 9], rewards, columns: vec![1; 3] })
    }

    #[test]
    fn scores_of_turns_add_up_to_the_episodes() {
        let (rollouts, turns) = played();
        turns.check(&rollouts).unwrap();
        let scored = turns.scored(&rollouts);
        let first = vec![Scored { tokens: 0..2, score: 2.0 }, Scored { tokens: 2..6, score: 1.0 + 1.5 }];
        assert_eq!(scored, [Some(first), Some(vec![Scored { tokens: 6..8, score: -2.0 }]), None]);
        let sum = |turns: &Vec<Scored>| turns.iter().map(|turn| turn.score).sum::<f64>();
        assert_eq!(scored.iter().map(|turns| turns.as_ref().map(sum)).collect::<Vec<_>>(), scores(&rollouts));
        assert_eq!(turns.at_last_tokens(&rollouts), [0.0, 2.0, 0.0, 0.0, 0.0, 2.5, 0.0, -2.0, 0.0]);
    }

    #[test]
    fn returns_are_what_is_still_to_come() {
        let turns = [1.0, 0.0, 4.0].map(|score| Scored { tokens: 0..1, score });
        assert_eq!(returns(&turns, 1.0), [5.0, 4.0, 4.0]);
        assert_eq!(returns(&turns, 0.5), [2.0, 2.0, 4.0]);
        assert_eq!(returns(&turns, 0.0), [1.0, 0.0, 4.0]);
        assert!(returns(&[], 1.0).is_empty());
    }

    #[test]
    fn columns_that_do_not_fit_are_refused() {
        let broken: [fn(&mut Turns); 8] = [
            |t| t.offsets = vec![0, 2, 4],
            |t| t.offsets = vec![0, 3, 2, 4],
            |t| t.offsets = vec![0, 2, 3, 5],
            |t| t.ends = vec![6, 2, 8, 9],
            |t| t.ends = vec![2, 7, 8, 9],
            |t| t.rewards.truncate(3),
            |t| t.columns = vec![2; 3],
            |t| t.columns.truncate(2),
        ];
        for breaks in broken {
            let (rollouts, mut turns) = played();
            breaks(&mut turns);
            assert!(matches!(turns.check(&rollouts), Err(Error::Input(_))), "{turns:?}");
        }
    }
}
