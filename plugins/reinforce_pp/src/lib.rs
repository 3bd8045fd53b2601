//! REINFORCE++ (Hu et al. 2025, arXiv 2501.03262): PPO's clipped loss without a critic. Advantages are the tokens' returns,
//! normalised over the complete batch instead of each group. A variant with a baseline first subtracts the mean of the prompt's
//! completions from the scores.
//!
//! Names, defaults, and what the paper leaves open follow OpenRLHF, its authors' implementation.

#[cfg(test)]
mod tests;

use rlhost_plugin_sdk::dual::Dual;
use rlhost_plugin_sdk::policy::{Advantages, Defaults, Needs, Policy, PolicyGradient, Rollouts, Tokens};
use rlhost_plugin_sdk::prelude::*;
use rlhost_plugin_sdk::rows::{counted, masked_sum, rows};
use rlhost_plugin_sdk::scores::{self, by_prompt, mean_and_std, scores};

/// The baseline subtracted from a score.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Baseline {
    /// Nothing.
    None,
    /// The mean of its prompt's scores.
    Group,
}

/// Estimator of the KL divergence from the reference model at a token, with `d = logp - ref_logp` (Schulman,
/// joschu.net/blog/kl-approx.html).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ReinforcePpKlEstimator {
    /// `d`, for rewards.
    K1,
    /// `d^2 / 2`, for a loss: its gradient is the divergence's.
    K2,
    /// `e^-d - 1 + d`.
    K3,
}

/// Maximum magnitude of a token's divergence. OpenRLHF limits it so that no token of a rare text outweighs all scores.
const MOST_KL: f64 = 10.0;

impl ReinforcePpKlEstimator {
    fn estimate(self, d: Dual) -> Dual {
        let kl = match self {
            Self::K1 => d,
            Self::K2 => d * d * 0.5,
            Self::K3 => {
                // Further down, where the divergence is at its limit, the exponential could be infinite.
                let d = d.max(-MOST_KL);
                (-d).exp_m1() + d
            }
        };
        kl.clamp(-MOST_KL, MOST_KL)
    }
}

/// Settings of REINFORCE++.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ReinforcePpSettings {
    /// The baseline subtracted from a score.
    pub baseline: Baseline,
    /// Weight of the KL divergence from the reference model.
    #[schemars(range(min = 0.0))]
    pub kl_coef: f64,
    /// Estimator of that divergence, which is clipped to 10 per token in either direction.
    pub kl_estimator: ReinforcePpKlEstimator,
    /// Add the divergence to the loss instead of subtracting it from the tokens' rewards; the paper does so with a baseline and
    /// k2.
    pub use_kl_loss: bool,
    /// Discount of future rewards per token; 1 with a group baseline.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub gamma: f64,
    /// Minimum and maximum score after the baseline [no limit]; OpenRLHF's default of -10 and 10 is meant for a reward model's
    /// scores.
    pub reward_clip_range: Option<(f64, f64)>,
    /// Give each turn of an episode its own reward, at its last token, instead of their sum at the end; without a baseline.
    pub turn_rewards: bool,
    /// Lower clipping range of the probability ratio: it is clipped at 1 - epsilon.
    #[schemars(range(min = 0.0))]
    pub epsilon: f64,
    /// Upper clipping range of the ratio [epsilon].
    #[schemars(range(min = 0.0))]
    pub epsilon_high: Option<f64>,
}

impl Default for ReinforcePpSettings {
    fn default() -> Self {
        Self {
            baseline: Baseline::None,
            kl_coef: 0.01,
            kl_estimator: ReinforcePpKlEstimator::K1,
            use_kl_loss: false,
            gamma: 1.0,
            reward_clip_range: None,
            turn_rewards: false,
            epsilon: 0.2,
            epsilon_high: None,
        }
    }
}

impl ReinforcePpSettings {
    /// Returns the discount. A group baseline is that of whole completions, so OpenRLHF does not discount with it.
    fn discount(&self) -> f64 {
        if self.baseline == Baseline::Group { 1.0 } else { self.gamma }
    }

    /// Returns warnings about settings that work but are probably not intended. OpenRLHF warns about both.
    fn warnings(&self) -> Vec<String> {
        let mut doubts = Vec::new();
        if self.gamma != self.discount() {
            doubts.push(format!("gamma is {}; with baseline = group it is taken as 1", self.gamma));
        }
        if self.use_kl_loss && self.kl_coef > 0.0 && self.kl_estimator == ReinforcePpKlEstimator::K1 {
            doubts.push("the mean gradient of k1 as a loss is zero, whatever the divergence; use kl_estimator = k2 or k3".into());
        }
        doubts
    }
}

/// The algorithm with its settings.
pub struct ReinforcePp {
    settings: ReinforcePpSettings,
}

impl Policy for ReinforcePp {
    type Config = ReinforcePpSettings;
    const DESCRIPTION: &'static str = "REINFORCE++, with or without group baselines";
    const DEFAULTS: Defaults = Defaults::NO_AUX_LOSS;

    fn needs(config: &ReinforcePpSettings) -> Needs {
        let mut needs = Needs::ENTROPY;
        if config.kl_coef > 0.0 {
            needs |= Needs::REF_LOGP;
        }
        if config.turn_rewards {
            needs |= Needs::TURN_REWARD;
        }
        needs
    }

    fn compares(settings: &ReinforcePpSettings) -> bool {
        settings.baseline == Baseline::Group
    }

    fn new(settings: ReinforcePpSettings) -> Result<Self, Error> {
        if settings.turn_rewards && settings.baseline == Baseline::Group {
            return Err(Error::Config("turn_rewards needs baseline = none: a group's baseline is that of whole episodes".into()));
        }
        match settings.reward_clip_range {
            Some((low, high)) if low.is_nan() || high.is_nan() || low > high => {
                Err(Error::Config(format!("reward_clip_range must be the least and the greatest score, not {low} and {high}")))
            }
            _ => {
                settings.warnings().iter().for_each(|doubt| rlhost_plugin_sdk::warn(doubt));
                Ok(Self { settings })
            }
        }
    }

    fn estimate(&mut self, rollouts: &Rollouts) -> Result<Advantages, Error> {
        estimate(&self.settings, rollouts)
    }

    fn loss(&mut self, tokens: &Tokens) -> Result<PolicyGradient, Error> {
        loss(&self.settings, tokens)
    }
}

rlhost_plugin_sdk::policy_plugin!(ReinforcePp);

fn reference<'a>(s: &ReinforcePpSettings, column: &'a Option<Vec<f32>>) -> Result<Option<&'a [f32]>, Error> {
    match column.as_deref() {
        None if s.kl_coef > 0.0 => Err(Error::Input("kl_coef needs the reference log-probabilities".into())),
        column => Ok(column.filter(|_| s.kl_coef > 0.0)),
    }
}

/// Returns each token's reward without the divergence: the last one gets the score minus the baseline, or the last one of each turn gets
/// the turn's score.
fn token_rewards(s: &ReinforcePpSettings, rollouts: &Rollouts, given: &[Option<f64>]) -> Vec<f64> {
    let (low, high) = s.reward_clip_range.unwrap_or((f64::NEG_INFINITY, f64::INFINITY));
    if let Some(turns) = &rollouts.turns {
        return turns
            .at_last_tokens(rollouts)
            .into_iter()
            .map(|score| if score == 0.0 { 0.0 } else { score.clamp(low, high) })
            .collect();
    }
    let groups: Vec<_> = by_prompt(&rollouts.prompt_of, given).into_iter().map(mean_and_std).collect();
    let mut earned = vec![0.0; rollouts.mask.len()];
    for ((row, score), &prompt) in rows(&rollouts.offsets).zip(given).zip(&rollouts.prompt_of) {
        let baseline = match (s.baseline, groups[prompt as usize]) {
            (Baseline::Group, Some((mean, _))) => mean,
            _ => 0.0,
        };
        if let (Some(score), Some(last)) = (score, counted(&rollouts.mask, row).next_back()) {
            earned[last] = (score - baseline).clamp(low, high);
        }
    }
    earned
}

/// Computes advantages. A token's reward is `-kl_coef KL`, plus the part of the score that it gets. Its advantage is the discounted sum of
/// the rewards from there on, normalised by the mean and the deviation of all tokens of the batch.
fn estimate(s: &ReinforcePpSettings, rollouts: &Rollouts) -> Result<Advantages, Error> {
    let given = scores(rollouts);
    let earned = token_rewards(s, rollouts, &given);
    let ref_logp = reference(s, &rollouts.ref_logp)?;
    let kl = |i: usize| ref_logp.map_or(0.0, |r| s.kl_estimator.estimate(Dual::constant(rollouts.logp[i]) - r[i]).value);
    let in_reward = if s.use_kl_loss { 0.0 } else { s.kl_coef };

    let mut mask = rollouts.mask.clone();
    let mut returns = vec![0.0; mask.len()];
    let (mut tokens, mut divergence, mut whole_returns) = (0.0, 0.0, Vec::new());
    for (row, score) in rows(&rollouts.offsets).zip(&given) {
        if score.is_none() {
            mask[row].fill(0);
            continue;
        }
        let (mut rewards, mut to_come) = (0.0, 0.0);
        for i in counted(&mask, row.clone()).rev() {
            let reward = earned[i] - in_reward * kl(i);
            rewards += reward;
            to_come = reward + s.discount() * to_come;
            returns[i] = to_come;
        }
        whole_returns.push(rewards);
        tokens += masked_sum(&mask, row.clone(), |_| 1.0);
        divergence += masked_sum(&mask, row, kl);
    }

    let mean = returns.iter().sum::<f64>() / f64::max(tokens, 1.0);
    let squares: f64 = (0..mask.len()).filter(|&i| mask[i] != 0).map(|i| (returns[i] - mean).powi(2)).sum();
    let std = (squares / f64::max(tokens, 1.0)).max(1e-8).sqrt();
    let normalized = |(r, &m): (f64, &u8)| if m == 0 { 0.0 } else { ((r - mean) / std) as f32 };
    let advantages = returns.into_iter().zip(&mask).map(normalized).collect();

    let mut metrics = scores::metrics(&given);
    metrics.extend(Metric::mean_of("return", whole_returns));
    if ref_logp.is_some() {
        metrics.push(Metric::ratio("kl", divergence, tokens));
    }
    Ok(Advantages { advantages, returns: None, mask: Some(mask), metrics })
}

/// Computes the mean over the step's tokens of `-min(ratio A, clip(ratio, 1 - epsilon, 1 + epsilon_high) A)`, plus `kl_coef KL`
/// if that is part of the loss.
fn loss(s: &ReinforcePpSettings, t: &Tokens) -> Result<PolicyGradient, Error> {
    let ref_logp = reference(s, &t.ref_logp)?.filter(|_| s.use_kl_loss);
    let (low, high) = (1.0 - s.epsilon as f32, 1.0 + s.epsilon_high.unwrap_or(s.epsilon) as f32);
    let weight = 1.0 / (t.scale.tokens as f64).max(1.0);
    let mut d_logp = vec![0.0; t.logp.len()];
    let (mut n, mut policy, mut whole, mut clipped, mut away, mut entropy) = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0);
    for i in (0..t.mask.len()).filter(|&i| t.mask[i] != 0) {
        let logp = Dual::variable(t.logp[i]);
        let ratio = (logp - t.old_logp[i]).exp();
        let (free, bounded) = (ratio * t.advantages[i], ratio.clamp(low, high) * t.advantages[i]);
        let surrogate = -free.min(bounded);
        let kl = ref_logp.map_or(Dual::constant(0.0), |r| s.kl_estimator.estimate(logp - r[i]) * s.kl_coef as f32);
        let lost = surrogate + kl;
        d_logp[i] = (weight * lost.slope()) as f32;

        n += 1.0;
        policy += surrogate.value;
        whole += lost.value;
        clipped += f64::from(u8::from(bounded.value < free.value));
        away += f64::from(t.old_logp[i]) - f64::from(t.logp[i]);
        entropy += t.entropy.as_ref().map_or(0.0, |e| f64::from(e[i]));
    }
    let metrics = vec![
        Metric::ratio("policy_loss", policy, n),
        Metric::ratio("ppo_clip_ratio", clipped, n),
        Metric::ratio("ppo_kl", away, n),
        Metric::ratio("entropy", entropy, n),
    ];
    Ok(PolicyGradient { loss: weight * whole, d_logp, d_entropy: None, d_values: None, metrics })
}
