//! Measures what each reward contributes to the groups that an algorithm compares: the completions of a prompt.
//!
//! A mean over all completions hides this. Where an algorithm normalises its groups, a reward with a small weight decides a whole group if
//! no other reward differs in it, and a reward that varies widely between prompts may never differ within one. This module knows no
//! algorithm: it uses the advantages that the algorithm returned.

use super::ROUNDING;
use std::collections::BTreeMap;

/// Share of the advantages' variation in a group that the weighted sum of the rewards must explain for shares to be computed.
const FOLLOWS: f64 = 0.8;

/// The scores of a reward for the completions of a generation.
#[derive(Clone, Copy, Debug)]
pub struct WeightedScores<'a> {
    /// Weight of the reward, not 0.
    pub weight: f64,
    /// Score of each completion; `None` if the reward gave none.
    pub values: &'a [Option<f32>],
}

/// A reward's contribution to the groups of a generation.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RewardContribution {
    /// Number of groups in which the reward scored at least two completions, and the number of those in which its scores differ.
    pub scored: f64,
    pub varying: f64,
    /// Number of informative groups in which only this reward's scores differ.
    pub alone: f64,
    /// Contribution to the absolute advantages.
    pub size: f64,
}

/// The contributions of all rewards to the groups of a generation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RewardContributions {
    /// Number of informative groups: those whose completions have different advantages.
    pub informative_groups: f64,
    /// Sum of the absolute advantages in those groups, where the weighted sum of the rewards explains them.
    pub size: f64,
    /// Contribution of each reward.
    pub rewards: Vec<RewardContribution>,
}

impl RewardContributions {
    /// Adds the contributions of the same rewards in another generation.
    #[must_use]
    pub fn merge(mut self, more: Self) -> Self {
        self.informative_groups += more.informative_groups;
        self.size += more.size;
        for (part, more) in self.rewards.iter_mut().zip(more.rewards) {
            part.scored += more.scored;
            part.varying += more.varying;
            part.alone += more.alone;
            part.size += more.size;
        }
        self
    }
}

/// Computes the rewards' contributions. `group_of` has the group of each completion, and `advantages` the algorithm's advantages. Without
/// advantages, or if no group has two completions, the weighted sum of the scores replaces them; in the latter case, all completions form
/// one group.
pub fn reward_contributions(
    rewards: &[WeightedScores<'_>],
    group_of: &[usize],
    advantages: Option<&[f32]>,
) -> RewardContributions {
    let mut groups: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (row, group) in group_of.iter().enumerate() {
        groups.entry(*group).or_default().push(row);
    }
    let alone = groups.values().all(|rows| rows.len() < 2);
    let advantages = advantages.filter(|advantages| !alone && advantages.len() == group_of.len());
    let groups: Vec<Vec<usize>> = if alone { vec![(0..group_of.len()).collect()] } else { groups.into_values().collect() };
    let mut parts =
        RewardContributions { rewards: vec![RewardContribution::default(); rewards.len()], ..RewardContributions::default() };
    for rows in &groups {
        add(&mut parts, rewards, rows, advantages);
    }
    parts
}

/// Adds a group.
fn add(parts: &mut RewardContributions, rewards: &[WeightedScores<'_>], rows: &[usize], advantages: Option<&[f32]>) {
    // For a completion without a score, the reward's mean is used, which adds nothing.
    let terms: Vec<Vec<f64>> = rewards.iter().map(|reward| deviations(reward, rows)).collect();
    let varies: Vec<bool> = terms.iter().map(|term| differ(term)).collect();
    for (i, reward) in rewards.iter().enumerate() {
        let scored = rows.iter().filter(|&&row| reward.values.get(row).is_some_and(Option::is_some)).count() > 1;
        parts.rewards[i].scored += f64::from(u8::from(scored));
        parts.rewards[i].varying += f64::from(u8::from(varies[i]));
    }
    let sum: Vec<f64> = (0..rows.len()).map(|row| terms.iter().map(|term| term[row]).sum()).collect();
    let made: Vec<f64> = advantages.map_or_else(|| sum.clone(), |all| rows.iter().map(|&row| f64::from(all[row])).collect());
    if !differ(&made) {
        return;
    }
    parts.informative_groups += 1.0;
    if let [only] = *(0..rewards.len()).filter(|&i| varies[i]).collect::<Vec<_>>() {
        parts.rewards[only].alone += 1.0;
    }
    let mean = made.iter().sum::<f64>() / made.len() as f64;
    let made: Vec<f64> = made.iter().map(|v| v - mean).collect();
    let product = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let both = product(&made, &sum);
    if both > 0.0 && both * both >= FOLLOWS * product(&made, &made) * product(&sum, &sum) {
        let size: f64 = made.iter().map(|v| v.abs()).sum();
        parts.size += size;
        for (part, term) in parts.rewards.iter_mut().zip(&terms) {
            part.size += size * product(&made, term) / both;
        }
    }
}

/// Returns the weighted scores of these completions minus their mean.
fn deviations(reward: &WeightedScores<'_>, rows: &[usize]) -> Vec<f64> {
    let score = |&row: &usize| reward.values.get(row).copied().flatten().map(|v| reward.weight * f64::from(v));
    let scores: Vec<Option<f64>> = rows.iter().map(score).map(|v| v.filter(|v| v.is_finite())).collect();
    let count = scores.iter().flatten().count().max(1);
    let mean = scores.iter().flatten().sum::<f64>() / count as f64;
    scores.iter().map(|v| v.map_or(0.0, |v| v - mean)).map(|v| if v.abs() <= ROUNDING * mean.abs() { 0.0 } else { v }).collect()
}

/// Returns whether values differ by more than rounding.
fn differ(values: &[f64]) -> bool {
    let (least, greatest) = values.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), v| (a.min(*v), b.max(*v)));
    greatest - least > ROUNDING * least.abs().max(greatest.abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Scores of groups of four; those of `answer` differ only in the last group.
    const ANSWER: [f32; 12] = [0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 0.0, 1.0, 0.0, 0.0];
    const STYLE: [f32; 12] = [-0.1, -0.2, -0.1, -0.1, -0.3, -0.2, -0.3, -0.3, -0.1, -0.1, -0.1, -0.1];

    fn some(values: &[f32]) -> Vec<Option<f32>> {
        values.iter().copied().map(Some).collect()
    }

    /// Normalises groups of four to a standard deviation of 1, or leaves their spread.
    fn advantages(sum: &[f32], normalised: bool) -> Vec<f32> {
        let group = |group: &[f32]| {
            let mean = group.iter().sum::<f32>() / 4.0;
            let std = (group.iter().map(|v| (v - mean).powi(2)).sum::<f32>() / 3.0).sqrt();
            group.iter().map(|v| (v - mean) / if normalised { std } else { 1.0 }).collect::<Vec<_>>()
        };
        sum.chunks(4).flat_map(group).collect()
    }

    #[test]
    fn a_reward_that_alone_differs_decides_a_normalised_group_whatever_its_weight() {
        let (answer, style) = (some(&ANSWER), some(&STYLE));
        let rewards = [WeightedScores { weight: 1.0, values: &answer }, WeightedScores { weight: 0.1, values: &style }];
        let sum: Vec<f32> = ANSWER.iter().zip(&STYLE).map(|(a, s)| a + 0.1 * s).collect();
        let groups: Vec<usize> = (0..12).map(|row| row / 4).collect();
        let of = |normalised| reward_contributions(&rewards, &groups, Some(&advantages(&sum, normalised)));
        let normalised = of(true);
        assert_eq!((normalised.informative_groups, normalised.rewards[0].alone, normalised.rewards[1].alone), (3.0, 1.0, 2.0));
        assert_eq!((normalised.rewards[0].scored, normalised.rewards[0].varying, normalised.rewards[1].varying), (3.0, 1.0, 2.0));
        let share = |parts: &RewardContributions, i: usize| parts.rewards[i].size / parts.size;
        assert!((share(&normalised, 1) - 2.0 / 3.0).abs() < 1e-3, "{normalised:?}");
        // Where groups keep their spread, the answer contributes nearly all of it, in line with its weight.
        let plain = of(false);
        assert!(share(&plain, 0) > 0.95 && (share(&plain, 0) + share(&plain, 1) - 1.0).abs() < 1e-9, "{plain:?}");
    }

    #[test]
    fn a_reward_that_varies_along_is_given_its_part_alone() {
        // Both rewards differ in the group; the second has little effect because of its weight.
        let (one, other) = (some(&[0.0, 1.0, 0.0, 1.0]), some(&[5.0, -5.0, -5.0, 5.0]));
        let rewards = [WeightedScores { weight: 1.0, values: &one }, WeightedScores { weight: 1e-4, values: &other }];
        let sum = [0.0005, 0.9995, -0.0005, 1.0005];
        let parts = reward_contributions(&rewards, &[7; 4], Some(&advantages(&sum, true)));
        assert!(parts.rewards[1].size / parts.size < 1e-3 && parts.rewards[1].varying == 1.0, "{parts:?}");
        assert_eq!((parts.rewards[0].alone, parts.rewards[1].alone), (0.0, 0.0));
    }

    #[test]
    fn completions_without_a_group_are_one_and_others_may_lack_scores() {
        let (one, other) = (some(&[0.0, 1.0, 2.0]), [None, Some(4.0), None]);
        let rewards = [WeightedScores { weight: 1.0, values: &one }, WeightedScores { weight: 1.0, values: &other }];
        let alone = reward_contributions(&rewards, &[0, 1, 2], Some(&[3.0, -1.0, 0.5]));
        assert_eq!((alone.informative_groups, alone.rewards[0].alone, alone.rewards[1].scored), (1.0, 1.0, 0.0));
        // Advantages that don't follow the rewards have no shares.
        let against = reward_contributions(&rewards[..1], &[0, 0, 0], Some(&[1.0, 0.0, -1.0]));
        assert_eq!((against.informative_groups, against.size), (1.0, 0.0));
        let equal = [Some(0.1), Some(0.1)];
        assert_eq!(
            reward_contributions(&[WeightedScores { weight: 3.0, values: &equal }], &[0, 0], None).informative_groups,
            0.0
        );
        assert_eq!(reward_contributions(&[], &[], None), RewardContributions::default());
    }
}
