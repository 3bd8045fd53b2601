//! REINFORCE Leave-One-Out (Ahmadian et al. 2024, arXiv 2402.14740): a completion is one action, and the other completions of its
//! prompt are the baseline. Names, defaults and metrics are TRL's.

#[cfg(test)]
mod tests;

use rlhost_plugin_sdk::dual::Dual;
use rlhost_plugin_sdk::policy::{Advantages, Defaults, Needs, Policy, PolicyGradient, Rollouts, Tokens};
use rlhost_plugin_sdk::prelude::*;
use rlhost_plugin_sdk::rows::{masked_sum, rows, spread};
use rlhost_plugin_sdk::scores::{self, all_alike, by_prompt, mean_and_std, rows_by_prompt, scores};

/// Settings of RLOO.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RlooSettings {
    /// Weight of the KL divergence from the reference model, subtracted from the reward.
    #[schemars(range(min = 0.0))]
    pub beta: f64,
    /// Lower clipping range of a completion's probability ratio: it is clipped at 1 - epsilon.
    #[schemars(range(min = 0.0))]
    pub epsilon: f64,
    /// Upper clipping range of the ratio [epsilon].
    #[schemars(range(min = 0.0))]
    pub epsilon_high: Option<f64>,
    /// Divide centred advantages by their standard deviation over the batch.
    pub normalize_advantages: bool,
    /// Minimum and maximum reward, before the KL divergence is subtracted.
    pub reward_clip_range: Option<(f64, f64)>,
    /// Exclude completions that reached the length limit from the loss.
    pub mask_truncated_completions: bool,
}

impl Default for RlooSettings {
    fn default() -> Self {
        Self {
            beta: 0.05,
            epsilon: 0.2,
            epsilon_high: None,
            normalize_advantages: false,
            reward_clip_range: None,
            mask_truncated_completions: false,
        }
    }
}

/// The algorithm with its settings.
pub struct Rloo {
    settings: RlooSettings,
}

impl Policy for Rloo {
    type Config = RlooSettings;
    const DESCRIPTION: &'static str = "REINFORCE Leave-One-Out";
    const DEFAULTS: Defaults = Defaults { num_generations: Some(2), ..Defaults::NONE };

    fn needs(config: &RlooSettings) -> Needs {
        if config.beta > 0.0 { Needs::ENTROPY | Needs::REF_LOGP } else { Needs::ENTROPY }
    }

    fn compares(_: &RlooSettings) -> bool {
        true
    }

    fn new(settings: RlooSettings) -> Result<Self, Error> {
        match settings.reward_clip_range {
            Some((low, high)) if low.is_nan() || high.is_nan() || low > high => {
                Err(Error::Config(format!("reward_clip_range must be the least and the greatest reward, not {low} and {high}")))
            }
            _ => Ok(Self { settings }),
        }
    }

    fn estimate(&mut self, rollouts: &Rollouts) -> Result<Advantages, Error> {
        estimate(&self.settings, rollouts)
    }

    fn loss(&mut self, tokens: &Tokens) -> Result<PolicyGradient, Error> {
        Ok(loss(&self.settings, tokens))
    }
}

rlhost_plugin_sdk::policy_plugin!(Rloo);

/// Computes `R = clip(r) - beta sum_t (logp - ref_logp)`, and `A = R - (sum of the group's R - R) / (n - 1)` with n scorable
/// completions in the group. A completion without other scorable completions has no advantage.
fn estimate(s: &RlooSettings, rollouts: &Rollouts) -> Result<Advantages, Error> {
    let mut mask = rollouts.mask.clone();
    for (row, tokens) in rows(&rollouts.offsets).enumerate() {
        if s.mask_truncated_completions && !rollouts.finished[row] {
            mask[tokens].fill(0);
        }
    }
    let scores = scores(rollouts);
    let mut metrics = scores::metrics(&scores);
    let mut rewards: Vec<Option<f64>> = match s.reward_clip_range {
        Some((low, high)) => scores.iter().map(|score| score.map(|r| r.clamp(low, high))).collect(),
        None => scores,
    };
    if s.beta > 0.0 {
        let ref_logp =
            rollouts.ref_logp.as_ref().ok_or_else(|| Error::Input("beta needs the reference log-probabilities".into()))?;
        // The plain log-ratio, which may be negative, rather than GRPO's estimate, because it is part of the reward.
        let kl = |i: usize| f64::from(rollouts.logp[i]) - f64::from(ref_logp[i]);
        let mut sum = 0.0;
        for (row, reward) in rows(&rollouts.offsets).zip(&mut rewards) {
            let of_row = masked_sum(&mask, row, kl);
            sum += of_row;
            *reward = reward.map(|r| r - s.beta * of_row);
        }
        metrics.push(Metric::ratio("kl", sum, mask.iter().filter(|&&m| m != 0).count() as f64));
    }

    let groups = by_prompt(&rollouts.prompt_of, &rewards);
    let mut of_rows: Vec<Option<f64>> = rewards
        .iter()
        .zip(&rollouts.prompt_of)
        .map(|(reward, &prompt)| {
            let group = &groups[prompt as usize];
            let siblings = group.len().checked_sub(1).filter(|&n| n > 0)? as f64;
            reward.map(|r| r - (group.iter().sum::<f64>() - r) / siblings)
        })
        .collect();
    if s.normalize_advantages
        && let Some((mean, std)) = mean_and_std(of_rows.iter().flatten().copied())
    {
        of_rows.iter_mut().flatten().for_each(|a| *a = (*a - mean) / (std + 1e-4));
    }
    // As in TRL, a completion that is its prompt's only one has a deviation of zero.
    let of_prompts = rows_by_prompt(&rollouts.prompt_of);
    let zero_std = groups.iter().zip(of_prompts).map(|(group, rows)| rows.len() == 1 || all_alike(group));
    metrics.extend(Metric::mean_of("frac_reward_zero_std", zero_std.map(|zero| f64::from(u8::from(zero)))));
    let mut advantages = vec![0.0; mask.len()];
    for (tokens, of_row) in rows(&rollouts.offsets).zip(of_rows) {
        advantages[tokens].fill(of_row.unwrap_or(0.0) as f32);
    }
    Ok(Advantages { advantages, returns: None, mask: Some(mask), metrics })
}

/// Computes the mean over completions of `-min(ratio A, clip(ratio, 1 - epsilon, 1 + epsilon_high) A)`; the ratio is that of the
/// complete completion, `exp(sum_t (logp - old_logp))`.
fn loss(s: &RlooSettings, t: &Tokens) -> PolicyGradient {
    let (low, high) = (1.0 - s.epsilon, 1.0 + s.epsilon_high.unwrap_or(s.epsilon));
    let weight = 1.0 / f64::from(t.scale.items.max(1));
    let mut d_logp = vec![0.0; t.logp.len()];
    let mut total = 0.0;
    let (mut tokens, mut entropy) = (0.0, 0.0);
    let (mut clipped_low, mut clipped_high) = (Vec::new(), Vec::new());
    for row in rows(&t.offsets) {
        let log_ratio = masked_sum(&t.mask, row.clone(), |i| f64::from(t.logp[i]) - f64::from(t.old_logp[i]));
        // A completely masked row stays in the mean, with a ratio of 1, as in TRL.
        let advantage = t.advantages.get(row.start).copied().filter(|_| !row.is_empty()).unwrap_or(0.0);
        let ratio = Dual::variable(log_ratio).exp();
        let lost = -(ratio * advantage).min(ratio.clamp(low, high) * advantage);
        total += weight * lost.value;
        spread(weight * lost.slope(), &t.mask, row.clone(), &mut d_logp);

        clipped_low.push(f64::from(u8::from(ratio.value < low && advantage < 0.0)));
        clipped_high.push(f64::from(u8::from(ratio.value > high && advantage > 0.0)));
        tokens += masked_sum(&t.mask, row.clone(), |_| 1.0);
        entropy += t.entropy.as_ref().map_or(0.0, |e| masked_sum(&t.mask, row, |i| f64::from(e[i])));
    }
    let n = clipped_low.len() as f64;
    let (sum_low, sum_high) = (clipped_low.iter().sum::<f64>(), clipped_high.iter().sum::<f64>());
    let mut metrics = vec![
        Metric::ratio("entropy", entropy, tokens),
        Metric::ratio("clip_ratio/low_mean", sum_low, n),
        Metric::ratio("clip_ratio/high_mean", sum_high, n),
        Metric::ratio("clip_ratio/region_mean", sum_low + sum_high, n),
    ];
    metrics.extend(clipped_low.into_iter().reduce(f64::min).map(|least| Metric::min("clip_ratio/low_min", least)));
    metrics.extend(clipped_high.into_iter().reduce(f64::max).map(|most| Metric::max("clip_ratio/high_max", most)));
    PolicyGradient { loss: total, d_logp, d_entropy: None, d_values: None, metrics }
}
