//! A generation's completions with their rewards, the input of advantage estimators and pairings.

use crate::batch::{Batch, Unit, WeightedReward};
use crate::turns::Turns;
use crate::{Error, columns};

/// The scores of one reward.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RewardColumn {
    /// Name of the reward.
    pub name: String,
    /// Weight of the reward in a row's score.
    pub weight: f32,
    /// One score per row; `None` if this reward could not score it.
    pub values: Vec<Option<f32>>,
}

/// The complete generation of all ranks. Rows are completions.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rollouts {
    /// The optimizer step that the rollouts were generated for.
    pub step: u64,
    /// The generation's rewards, in the run's order.
    pub rewards: Vec<RewardColumn>,
    /// Per row: index of its prompt.
    pub prompt_of: Vec<u32>,
    /// Per row: whether the completion ended by itself rather than at a limit, of tokens or of turns.
    pub finished: Vec<bool>,
    /// The tokens of row i are at `offsets[i]..offsets[i+1]`.
    pub offsets: Vec<u32>,
    /// Per token: 1 if the policy chose it and it counts, else 0.
    pub mask: Vec<u8>,
    /// Per token: log-probabilities under the policy that generated them.
    pub logp: Vec<f32>,
    /// Per token: log-probabilities under the reference model, with `Needs::REF_LOGP`.
    pub ref_logp: Option<Vec<f32>>,
    /// Per token: log-probabilities under the teacher, with `Needs::TEACHER_LOGP`.
    pub teacher_logp: Option<Vec<f32>>,
    /// Per token: log-probabilities that the sampler computed, with `Needs::SAMPLING_LOGP`.
    pub sampling_logp: Option<Vec<f32>>,
    /// Per token: the critic's values, with `Needs::OLD_VALUE`.
    pub values: Option<Vec<f32>>,
    /// Turns of episodes with their rewards, with `Needs::TURN_REWARD`.
    pub turns: Option<Turns>,
}

impl Rollouts {
    /// Reads a generation.
    ///
    /// # Errors
    /// If a column is missing that `needs` lists.
    pub fn from_batch(generation: &Batch, rewards: &[WeightedReward]) -> Result<Self, Error> {
        let rewards = rewards.iter().map(|reward| reward_column(generation, reward)).collect::<Result<Vec<_>, _>>()?;
        let of_tokens = |name: &str| Ok::<_, Error>(generation.optional(name, Unit::Token)?.map(<[f32]>::to_vec));
        let prompts = generation.grouped().enumerate();
        Ok(Self {
            step: generation.step,
            prompt_of: prompts.flat_map(|(prompt, rows)| rows.map(move |_| prompt as u32)).collect(),
            finished: generation.values(columns::FINISHED, Unit::Sequence)?.iter().map(|&finished| finished != 0.0).collect(),
            offsets: generation.tokens.clone(),
            mask: generation.mask.clone(),
            logp: generation.values(columns::OLD_LOGP, Unit::Token)?.to_vec(),
            ref_logp: of_tokens(columns::REF_LOGP)?,
            teacher_logp: of_tokens(columns::TEACHER_LOGP)?,
            sampling_logp: of_tokens(columns::SAMPLING_LOGP)?,
            values: of_tokens(columns::OLD_VALUE)?,
            turns: Turns::from_batch(generation, &rewards)?,
            rewards,
        })
    }
}

fn reward_column(generation: &Batch, reward: &WeightedReward) -> Result<RewardColumn, Error> {
    let column = generation.column(&columns::reward(&reward.name)).filter(|column| column.unit == Unit::Sequence);
    let missing = || Error::Input(format!("the generation has no scores of the reward {:?}", reward.name));
    let values = column.ok_or_else(missing)?.entries().collect();
    Ok(RewardColumn { name: reward.name.clone(), weight: reward.weight, values })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::{Column, testing};

    #[test]
    fn a_generation_has_rows_with_prompts_and_rewards() {
        let generation = testing::batch(&[&[2, 1], &[], &[1]])
            .with_column(Column::new("finished", Unit::Sequence, vec![1.0, 0.0, 1.0]))
            .with_column(Column::new("old_logp", Unit::Token, vec![-1.0, -2.0, -3.0, -4.0]))
            .with_column(Column::new("old_value", Unit::Token, vec![0.5; 4]))
            .with_column(Column::sparse("reward/judge", Unit::Sequence, [Some(1.0), None, Some(-1.0)]));
        let rewards = [WeightedReward { name: "judge".into(), weight: 2.0 }];
        let got = Rollouts::from_batch(&generation, &rewards).unwrap();
        let judge = RewardColumn { name: "judge".into(), weight: 2.0, values: vec![Some(1.0), None, Some(-1.0)] };
        let want = Rollouts {
            step: 0,
            rewards: vec![judge],
            prompt_of: vec![0, 0, 2],
            finished: vec![true, false, true],
            offsets: vec![0, 2, 3, 4],
            mask: vec![1; 4],
            logp: vec![-1.0, -2.0, -3.0, -4.0],
            values: Some(vec![0.5; 4]),
            ..Rollouts::default()
        };
        assert_eq!(got, want);
        let told = |batch: &Batch, name: &str| {
            let reward = WeightedReward { name: name.into(), weight: 1.0 };
            Rollouts::from_batch(batch, &[reward]).unwrap_err().to_string()
        };
        assert!(told(&generation, "other").contains("other"));
        let mut without = generation;
        without.columns.remove(0);
        assert!(told(&without, "judge").contains("finished"));
    }
}
