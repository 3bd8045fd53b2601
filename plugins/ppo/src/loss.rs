//! The clipped losses of policy and critic.

use crate::settings::PpoSettings;
use rlhost_plugin_sdk::dual::Dual;
use rlhost_plugin_sdk::policy::{PolicyGradient, Tokens};
use rlhost_plugin_sdk::{Error, Metric};

/// Computes the mean over the step's tokens of `max(-A ratio, -A clip(ratio, 1 - c, 1 + c))`, which a dual clip limits to `-A
/// clip_ratio_c` where `A` is negative, plus `vf_coef` times that of `max((V - R)^2, (clip(V, V_old - c, V_old + c) - R)^2) / 2`, minus
/// `entropy_coef` times that of the entropy.
pub(crate) fn loss(s: &PpoSettings, t: &Tokens) -> Result<PolicyGradient, Error> {
    let needed = |column: &Option<Vec<f32>>, what: &str| {
        column.clone().ok_or_else(|| Error::Input(format!("PPO needs {what}, which the batch does not have")))
    };
    let values = needed(&t.values, "the critic's values")?;
    let old_values = needed(&t.old_values, "the critic's values at generation")?;
    let returns = needed(&t.returns, "returns")?;
    let entropy = if s.entropy_coef == 0.0 { None } else { Some(needed(&t.entropy, "entropies")?) };
    let weight = 1.0 / (t.scale.tokens as f64).max(1.0);
    let (low, high, range) = (1.0 - s.cliprange as f32, 1.0 + s.cliprange as f32, s.cliprange_value as f32);

    let mut d_logp = vec![0.0; t.logp.len()];
    let mut d_values = vec![0.0; t.logp.len()];
    let mut sums = PpoLossSums::default();
    for i in (0..t.mask.len()).filter(|&i| t.mask[i] != 0) {
        let (advantage, log_ratio) = (t.advantages[i], Dual::variable(t.logp[i]) - t.old_logp[i]);
        let ratio = log_ratio.exp();
        let (unclipped, clipped) = (-(ratio * advantage), -(ratio.clamp(low, high) * advantage));
        let once = unclipped.max(clipped);
        let limit = s.clip_ratio_c.filter(|_| advantage < 0.0).map(|most| -f64::from(advantage) * most);
        let policy = limit.map_or(once, |limit| once.min(limit));

        let value = Dual::variable(values[i]);
        let off = value - returns[i];
        let off_clipped = value.clamp(old_values[i] - range, old_values[i] + range) - returns[i];
        let (square, square_clipped) = (off * off, off_clipped * off_clipped);
        let critic = square.max(square_clipped) * 0.5;

        d_logp[i] = (weight * policy.slope()) as f32;
        d_values[i] = (weight * s.vf_coef * critic.slope()) as f32;
        let one = |yes: bool| f64::from(u8::from(yes));
        sums.tokens += 1.0;
        sums.policy += policy.value;
        sums.critic += critic.value;
        sums.policy_clipped += one(clipped.value > unclipped.value);
        sums.policy_clipped_twice += one(limit.is_some_and(|limit| once.value > limit));
        sums.critic_clipped += one(square_clipped.value > square.value);
        sums.square_log_ratio += log_ratio.value.powi(2);
        sums.ratio += ratio.value;
        sums.square_distance += (ratio.value - 1.0).powi(2);
        sums.entropy += t.entropy.as_ref().map_or(0.0, |e| f64::from(e[i]));
    }
    let mut loss = weight * (sums.policy + s.vf_coef * sums.critic);
    let d_entropy = entropy.map(|_| {
        loss -= weight * s.entropy_coef * sums.entropy;
        t.mask.iter().map(|&m| if m == 0 { 0.0 } else { (-weight * s.entropy_coef) as f32 }).collect()
    });
    let mut metrics = sums.metrics();
    if s.clip_ratio_c.is_some() {
        metrics.push(Metric::ratio("policy/clipfrac_lower_avg", sums.policy_clipped_twice, sums.tokens));
    }
    Ok(PolicyGradient { loss, d_logp, d_entropy, d_values: Some(d_values), metrics })
}

/// Sums over the tokens of a micro-batch.
#[derive(Default)]
struct PpoLossSums {
    tokens: f64,
    policy: f64,
    critic: f64,
    policy_clipped: f64,
    policy_clipped_twice: f64,
    critic_clipped: f64,
    square_log_ratio: f64,
    ratio: f64,
    square_distance: f64,
    entropy: f64,
}

impl PpoLossSums {
    /// Returns means over tokens, where upstream averages micro-batches. Upstream, `val/ratio_var` is the variance of the micro-batches'
    /// means; here it is the variance of the tokens' ratios about 1. A variance about their own mean would depend on how a step is split.
    fn metrics(&self) -> Vec<Metric> {
        let n = self.tokens;
        vec![
            Metric::ratio("loss/policy_avg", self.policy, n),
            Metric::ratio("loss/value_avg", self.critic, n),
            Metric::ratio("policy/approxkl_avg", 0.5 * self.square_log_ratio, n),
            Metric::ratio("policy/clipfrac_avg", self.policy_clipped, n),
            Metric::ratio("policy/entropy_avg", self.entropy, n),
            Metric::ratio("val/clipfrac_avg", self.critic_clipped, n),
            Metric::ratio("val/ratio", self.ratio, n),
            Metric::ratio("val/ratio_var", self.square_distance, n),
        ]
    }
}
