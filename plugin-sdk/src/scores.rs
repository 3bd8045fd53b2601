//! Rewards of a generation, for algorithms: one score per row, statistics that skip unscorable rows, and the metrics that every algorithm
//! logs about scores.

use crate::Metric;
use crate::rollouts::Rollouts;

/// Returns the weighted sum of each row's rewards. A row without rewards is unscorable: it has no advantage and is part of no baseline.
#[must_use]
pub fn scores(rollouts: &Rollouts) -> Vec<Option<f64>> {
    (0..rollouts.prompt_of.len())
        .map(|row| {
            let given = rollouts.rewards.iter().filter_map(|c| Some(f64::from(c.weight) * f64::from(c.values[row]?)));
            given.fold(None, |sum, r| Some(sum.unwrap_or(0.0) + r))
        })
        .collect()
}

/// Returns the rows of each prompt, in order.
#[must_use]
pub fn rows_by_prompt(prompt_of: &[u32]) -> Vec<Vec<usize>> {
    let prompts = prompt_of.iter().max().map_or(0, |&p| p as usize + 1);
    let mut groups = vec![Vec::new(); prompts];
    for (row, &prompt) in prompt_of.iter().enumerate() {
        groups[prompt as usize].push(row);
    }
    groups
}

/// Returns the scores of each prompt's rows, without missing ones.
#[must_use]
pub fn by_prompt(prompt_of: &[u32], values: &[Option<f64>]) -> Vec<Vec<f64>> {
    let of = |rows: Vec<usize>| rows.into_iter().filter_map(|row| values.get(row).copied().flatten()).collect();
    rows_by_prompt(prompt_of).into_iter().map(of).collect()
}

/// Returns mean and standard deviation (n - 1). The deviation of a single value is 0; `None` if there are no values.
#[must_use]
pub fn mean_and_std(values: impl IntoIterator<Item = f64>) -> Option<(f64, f64)> {
    let values: Vec<f64> = values.into_iter().collect();
    let n = values.len() as f64;
    if values.is_empty() {
        return None;
    }
    let mean = values.iter().sum::<f64>() / n;
    let squares: f64 = values.iter().map(|v| (v - mean) * (v - mean)).sum();
    Some((mean, if n > 1.0 { (squares / (n - 1.0)).sqrt() } else { 0.0 }))
}

/// Returns whether values are equal by TRL's test: `torch.isclose` of their deviation to zero, which for fewer than two values is NaN.
#[must_use]
pub fn all_alike(values: &[f64]) -> bool {
    values.len() > 1 && mean_and_std(values.iter().copied()).is_some_and(|(_, std)| std <= 1e-8)
}

/// Returns `reward` and `reward_std` over all rows with a score.
#[must_use]
pub fn metrics(scores: &[Option<f64>]) -> Vec<Metric> {
    let n = scores.iter().flatten().count() as f64;
    let Some((mean, std)) = mean_and_std(scores.iter().flatten().copied()) else { return Vec::new() };
    let mut metrics = vec![Metric::mean("reward", mean, n)];
    if n > 1.0 {
        metrics.push(Metric::mean("reward_std", std, n));
    }
    metrics
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rollouts::RewardColumn;

    /// Creates three rows of these prompts, with two rewards.
    fn rollouts(prompt_of: [u32; 3], rewards: [(f32, [Option<f32>; 3]); 2]) -> Rollouts {
        let column =
            |(weight, values): (f32, [Option<f32>; 3])| RewardColumn { name: "r".into(), weight, values: values.to_vec() };
        Rollouts {
            rewards: rewards.map(column).to_vec(),
            prompt_of: prompt_of.to_vec(),
            finished: vec![true; 3],
            offsets: vec![0; 4],
            ..Rollouts::default()
        }
    }

    #[test]
    fn scores_are_weighted_sums_of_what_there_is() {
        let rollouts = rollouts([0, 0, 1], [(2.0, [Some(1.0), None, None]), (-1.0, [Some(0.5), Some(3.0), None])]);
        let scores = scores(&rollouts);
        assert_eq!(scores, [Some(1.5), Some(-3.0), None]);
        assert_eq!(by_prompt(&rollouts.prompt_of, &scores), [vec![1.5, -3.0], vec![]]);
        let figures: Vec<(String, f64, f64)> = metrics(&scores).into_iter().map(|m| (m.name, m.value, m.weight)).collect();
        assert_eq!(figures, [("reward".into(), -0.75, 2.0), ("reward_std".into(), (2.0f64 * 2.25 * 2.25).sqrt(), 2.0)]);
        assert!(metrics(&[None, None]).is_empty());
    }

    #[test]
    fn deviations_are_those_of_trl() {
        // `TestNanStd` in TRL: 1, 2, 3 and NaN.
        let std = |values: &[Option<f64>]| mean_and_std(values.iter().flatten().copied());
        assert_eq!(std(&[Some(1.0), Some(2.0), Some(3.0), None]), Some((2.0, 1.0)));
        assert_eq!(std(&[Some(5.0), None]), Some((5.0, 0.0)));
        assert_eq!(std(&[None]), None);
        assert!(all_alike(&[0.1, 0.1]) && !all_alike(&[0.1]) && !all_alike(&[0.1, 0.2]));
    }

    #[test]
    fn rewards_add_up_by_weight_and_rows_group_by_prompt() {
        let rollouts = rollouts([1, 0, 1], [(2.0, [Some(1.0), None, None]), (0.5, [Some(4.0), Some(-1.0), None])]);
        assert_eq!(scores(&rollouts), [Some(4.0), Some(-0.5), None]);
        assert_eq!(rows_by_prompt(&rollouts.prompt_of), [vec![1], vec![0, 2]]);
        assert_eq!(by_prompt(&rollouts.prompt_of, &scores(&rollouts)), [vec![-0.5], vec![4.0]]);
    }
}
