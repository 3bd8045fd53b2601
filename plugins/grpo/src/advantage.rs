//! Rewards to advantages: centred on the mean of the prompt's completions, then scaled.

use crate::settings::{ScaleRewards, Settings};
use rlhost_plugin_sdk::Metric;
use rlhost_plugin_sdk::policy::{Advantages, Rollouts, rows};

/// Added to a standard deviation before dividing by it.
const STD_EPSILON: f64 = 1e-4;

/// Weighted sum of the rewards that a row has; none where it has none.
fn total_rewards(rollouts: &Rollouts) -> Vec<Option<f64>> {
    (0..rollouts.prompt_of.len())
        .map(|row| {
            let given = rollouts.rewards.iter().filter_map(|c| Some(f64::from(c.weight) * f64::from(c.values[row]?)));
            given.fold(None, |sum, r| Some(sum.unwrap_or(0.0) + r))
        })
        .collect()
}

/// Mean and standard deviation (n - 1) of what is there; a deviation of zero for fewer than two.
fn mean_and_std(values: impl Iterator<Item = f64> + Clone) -> Option<(f64, f64)> {
    let n = values.clone().count() as f64;
    if n == 0.0 {
        return None;
    }
    let mean = values.clone().sum::<f64>() / n;
    let squares: f64 = values.map(|v| (v - mean) * (v - mean)).sum();
    Some((mean, if n > 1.0 { (squares / (n - 1.0)).sqrt() } else { 0.0 }))
}

pub(crate) fn estimate(settings: &Settings, rollouts: &Rollouts) -> Advantages {
    let rewards = total_rewards(rollouts);
    let prompts = rollouts.prompt_of.iter().max().map_or(0, |&p| p as usize + 1);
    let mut of_prompt: Vec<Vec<f64>> = vec![Vec::new(); prompts];
    for (&prompt, reward) in rollouts.prompt_of.iter().zip(&rewards) {
        of_prompt[prompt as usize].extend(reward);
    }
    let groups: Vec<Option<(f64, f64)>> = of_prompt.iter().map(|g| mean_and_std(g.iter().copied())).collect();
    let whole = mean_and_std(rewards.iter().flatten().copied());

    let advantage_of = |row: usize| -> f32 {
        let (Some(reward), Some((mean, group_std))) = (rewards[row], groups[rollouts.prompt_of[row] as usize]) else {
            return 0.0;
        };
        let centred = reward - mean;
        let scaled = match settings.scale_rewards {
            ScaleRewards::None => centred,
            ScaleRewards::Group => centred / (group_std + STD_EPSILON),
            ScaleRewards::Batch => centred / (whole.map_or(0.0, |(_, std)| std) + STD_EPSILON),
        };
        scaled as f32
    };
    let mut advantages = vec![0.0; rollouts.mask.len()];
    let mut mask = rollouts.mask.clone();
    for (row, tokens) in rows(&rollouts.offsets).enumerate() {
        advantages[tokens.clone()].fill(advantage_of(row));
        if settings.mask_truncated_completions && !rollouts.finished[row] {
            mask[tokens].fill(0);
        }
    }
    Advantages { advantages, returns: None, mask: Some(mask), metrics: metrics(settings, rollouts, &rewards, &of_prompt, whole) }
}

/// The figures of a generation, as TRL forms them: `reward_std` is that of all scorable rows
/// whatever the scaling, and a group with fewer than two scores has no deviation that could be
/// zero.
fn metrics(
    settings: &Settings,
    rollouts: &Rollouts,
    rewards: &[Option<f64>],
    groups: &[Vec<f64>],
    whole: Option<(f64, f64)>,
) -> Vec<Metric> {
    let scorable: Vec<f64> = rewards.iter().flatten().copied().collect();
    let has_zero_std =
        |scores: &[f64]| scores.len() > 1 && mean_and_std(scores.iter().copied()).is_some_and(|(_, std)| std.abs() <= 1e-8);
    let zero_std = rollouts.prompt_of.iter().map(|&p| match settings.scale_rewards {
        ScaleRewards::Batch => has_zero_std(&scorable),
        ScaleRewards::Group | ScaleRewards::None => has_zero_std(&groups[p as usize]),
    });
    let mut metrics: Vec<Metric> = [
        Metric::mean_of("reward", scorable.iter().copied()),
        Metric::mean_of("frac_reward_zero_std", zero_std.map(|zero| f64::from(u8::from(zero)))),
    ]
    .into_iter()
    .flatten()
    .collect();
    if let (Some((_, std)), true) = (whole, scorable.len() > 1) {
        metrics.push(Metric::mean("reward_std", std, scorable.len() as f64));
    }
    metrics
}
