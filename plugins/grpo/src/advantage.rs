//! Computes advantages from rewards: centred on the mean of the prompt's completions, then scaled.

use crate::settings::{GrpoSettings, MultiObjectiveAggregation, ScaleRewards};
use rlhost_plugin_sdk::Metric;
use rlhost_plugin_sdk::policy::{Advantages, Rollouts};
use rlhost_plugin_sdk::rows::rows;
use rlhost_plugin_sdk::scores::{self, all_alike, by_prompt, mean_and_std, rows_by_prompt, scores};

/// Number added to a standard deviation before dividing by it.
pub(crate) const STD_EPSILON: f64 = 1e-4;

/// Advantages of rows, and whether each row's deviation for scaling is, or would be, zero.
struct RowAdvantages {
    advantages: Vec<f64>,
    zero_std: Vec<bool>,
}

pub(crate) fn estimate(settings: &GrpoSettings, rollouts: &Rollouts) -> Advantages {
    let scores = scores(rollouts);
    let estimated = match settings.multi_objective_aggregation {
        MultiObjectiveAggregation::SumThenNormalize => sum_then_normalize(settings.scale_rewards, rollouts, &scores),
        MultiObjectiveAggregation::NormalizeThenSum => normalize_then_sum(rollouts, &scores),
    };
    let mut advantages = vec![0.0; rollouts.mask.len()];
    let mut mask = rollouts.mask.clone();
    for (row, tokens) in rows(&rollouts.offsets).enumerate() {
        advantages[tokens.clone()].fill(estimated.advantages[row] as f32);
        // The row still counts in its group's baseline, as in TRL.
        if settings.mask_truncated_completions && !rollouts.finished[row] {
            mask[tokens].fill(0);
        }
    }
    let mut metrics = scores::metrics(&scores);
    metrics.extend(Metric::mean_of("frac_reward_zero_std", estimated.zero_std.iter().map(|&zero| f64::from(u8::from(zero)))));
    Advantages { advantages, returns: None, mask: Some(mask), metrics }
}

/// Computes `A = (r - mean of its group) / (deviation + 1e-4)`, where r is the weighted sum of the rewards. The deviation is the group's
/// (Shao et al. 2024), the batch's (arXiv 2508.08221), or none (Dr. GRPO, arXiv 2503.20783).
fn sum_then_normalize(scaling: ScaleRewards, rollouts: &Rollouts, scores: &[Option<f64>]) -> RowAdvantages {
    let groups = by_prompt(&rollouts.prompt_of, scores);
    let of_group: Vec<Option<(f64, f64)>> = groups.iter().map(|g| mean_and_std(g.iter().copied())).collect();
    let scorable: Vec<f64> = scores.iter().flatten().copied().collect();
    let batch_std = mean_and_std(scorable.iter().copied()).map_or(0.0, |(_, std)| std);

    let advantage_of = |(row, score): (usize, &Option<f64>)| -> f64 {
        let (Some(score), Some((mean, group_std))) = (score, of_group[rollouts.prompt_of[row] as usize]) else {
            return 0.0;
        };
        match scaling {
            ScaleRewards::None => score - mean,
            ScaleRewards::Group => (score - mean) / (group_std + STD_EPSILON),
            ScaleRewards::Batch => (score - mean) / (batch_std + STD_EPSILON),
        }
    };
    // As in TRL, a completion that is its prompt's only one has a deviation of zero.
    let alone: Vec<bool> = rows_by_prompt(&rollouts.prompt_of).iter().map(|rows| rows.len() == 1).collect();
    let zero_std = rollouts.prompt_of.iter().map(|&prompt| match scaling {
        ScaleRewards::Batch => all_alike(&scorable),
        ScaleRewards::Group | ScaleRewards::None => alone[prompt as usize] || all_alike(&groups[prompt as usize]),
    });
    RowAdvantages { advantages: scores.iter().enumerate().map(advantage_of).collect(), zero_std: zero_std.collect() }
}

/// Computes `R = sum_k w_k (r_k - mean_k) / (deviation_k + 1e-4)` within the group, and `A = (R - mean) / (deviation + 1e-4)`
/// over the batch (GDPO, arXiv 2601.05242), whatever `scale_rewards` is. A missing reward adds nothing to a row.
fn normalize_then_sum(rollouts: &Rollouts, scores: &[Option<f64>]) -> RowAdvantages {
    let mut sums: Vec<Option<f64>> = scores.iter().map(|score| score.map(|_| 0.0)).collect();
    for column in &rollouts.rewards {
        let values: Vec<Option<f64>> = column.values.iter().map(|v| v.map(f64::from)).collect();
        let of_group: Vec<_> = by_prompt(&rollouts.prompt_of, &values).into_iter().map(mean_and_std).collect();
        for ((sum, value), &prompt) in sums.iter_mut().zip(values).zip(&rollouts.prompt_of) {
            if let (Some(sum), Some(value), Some((mean, std))) = (sum, value, of_group[prompt as usize]) {
                *sum += f64::from(column.weight) * (value - mean) / (std + STD_EPSILON);
            }
        }
    }
    let scorable: Vec<f64> = sums.iter().flatten().copied().collect();
    let (mean, std) = mean_and_std(scorable.iter().copied()).unwrap_or_default();
    let advantages = sums.iter().map(|sum| sum.map_or(0.0, |sum| (sum - mean) / (std + STD_EPSILON)));
    RowAdvantages { advantages: advantages.collect(), zero_std: vec![all_alike(&scorable); sums.len()] }
}
