//! Online Direct Preference Optimization (Guo et al. 2024): the policy writes two completions of each prompt, rewards decide which is
//! better, and the pair is learned from as in DPO (Rafailov et al. 2023) or IPO (Azar et al. 2023). Names, defaults and metrics are TRL's.
//!
//! Differences from TRL:
//! - A pair is skipped if one of its completions has no reward. TRL counts a missing reward as 0.
//! - `objective/*` are computed from the policy that wrote the completions, without padding, and, like all log-probabilities in rlhost, at
//!   temperature 1.
//! - `beta` is one number, not one per epoch, because a plugin does not know the epoch.

#[cfg(test)]
mod tests;

use rlhost_plugin_sdk::dual::Dual;
use rlhost_plugin_sdk::pairing::{Choice, Pair, Pairing, Rollouts};
use rlhost_plugin_sdk::preference::{
    Defaults, Needs, Preference, PreferenceGradient, PreferenceLossSum, PreferencePairs, pair_metrics, rows,
};
use rlhost_plugin_sdk::prelude::*;
use rlhost_plugin_sdk::scores::{rows_by_prompt, scores};

/// The loss of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum OnlineDpoLossType {
    /// Logistic loss of the difference of log-ratios to the reference model.
    Sigmoid,
    /// Squared distance of that difference from `1 / 2 beta`; uses sums, not means per token.
    Ipo,
}

/// Settings of online DPO.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct OnlineDpoSettings {
    /// The loss of a pair.
    pub loss_type: OnlineDpoLossType,
    /// Strength of the tie to the reference model.
    #[schemars(range(min = 0.0))]
    pub beta: f64,
    /// Subtracted from the reward of a completion that did not end on its own.
    #[schemars(range(min = 0.0))]
    pub missing_eos_penalty: Option<f64>,
}

impl Default for OnlineDpoSettings {
    fn default() -> Self {
        Self { loss_type: OnlineDpoLossType::Sigmoid, beta: 0.1, missing_eos_penalty: None }
    }
}

/// The algorithm with its settings.
pub struct OnlineDpo {
    settings: OnlineDpoSettings,
}

impl OnlineDpo {
    /// Returns the rewards after the penalty; `None` for rows without a reward.
    fn scores(&self, rollouts: &Rollouts) -> Vec<Option<f64>> {
        let penalty = self.settings.missing_eos_penalty.unwrap_or(0.0);
        let rewards = scores(rollouts).into_iter().zip(&rollouts.finished);
        rewards.map(|(reward, &finished)| reward.map(|r| if finished { r } else { r - penalty })).collect()
    }

    /// Returns the metrics of a generation, per completion.
    fn objective(&self, rollouts: &Rollouts, scores: &[Option<f64>]) -> Vec<Metric> {
        let sum = |of_token: &dyn Fn(usize) -> f64| -> Vec<f64> {
            rows(&rollouts.offsets).map(|row| row.filter(|&i| rollouts.mask[i] != 0).map(of_token).sum()).collect()
        };
        let logp = |i: usize| f64::from(rollouts.logp[i]);
        let mut metrics = vec![
            Metric::mean_of("objective/scores", scores.iter().flatten().copied()),
            Metric::mean_of("objective/entropy", sum(&|i| -logp(i))),
            Metric::mean_of("val/contain_eos_token", rollouts.finished.iter().map(|&f| f64::from(u8::from(f)))),
        ];
        if let Some(ref_logp) = &rollouts.ref_logp {
            let kl = sum(&|i| logp(i) - f64::from(ref_logp[i]));
            let non_score: Vec<f64> = kl.iter().map(|kl| -self.settings.beta * kl).collect();
            let rlhf = scores.iter().zip(&non_score).filter_map(|(score, other)| Some((*score)? + other));
            metrics.push(Metric::mean_of("objective/rlhf_reward", rlhf));
            metrics.push(Metric::mean_of("objective/kl", kl));
            metrics.push(Metric::mean_of("objective/non_score_reward", non_score));
        }
        metrics.into_iter().flatten().collect()
    }
}

impl Pairing for OnlineDpo {
    fn choose(&mut self, rollouts: &Rollouts) -> Result<Choice, Error> {
        let scores = self.scores(rollouts);
        let (mut pairs, mut margins) = (Vec::new(), Vec::new());
        for group in rows_by_prompt(&rollouts.prompt_of).into_iter().filter(|group| !group.is_empty()) {
            let &[first, second] = group.as_slice() else {
                let n = group.len();
                return Err(Error::Config(format!(
                    "two completions of each prompt make a pair, not {n}; set num_generations to 2"
                )));
            };
            let (Some(a), Some(b)) = (scores[first], scores[second]) else { continue };
            let (chosen, rejected) = if a >= b { (first, second) } else { (second, first) };
            pairs.push(Pair { chosen: chosen as u32, rejected: rejected as u32 });
            margins.push((a - b).abs());
        }
        let mut metrics = self.objective(rollouts, &scores);
        metrics.extend(Metric::mean_of("objective/scores_margin", margins));
        Ok(Choice { pairs, metrics })
    }
}

impl Preference for OnlineDpo {
    type Config = OnlineDpoSettings;
    const DESCRIPTION: &'static str = "Online Direct Preference Optimization (sigmoid, ipo)";
    const LEARNING_RATE: f64 = 5e-7;
    const DEFAULTS: Defaults = Defaults { temperature: Some(0.9), max_completion_length: Some(64), ..Defaults::NO_AUX_LOSS };

    fn needs(_: &OnlineDpoSettings) -> Needs {
        Needs::REF_LOGP
    }

    fn new(settings: OnlineDpoSettings) -> Result<Self, Error> {
        if settings.beta <= 0.0 {
            return Err(Error::Config("beta must be greater than 0".into()));
        }
        Ok(Self { settings })
    }

    fn loss(&mut self, p: &PreferencePairs) -> Result<PreferenceGradient, Error> {
        let beta = self.settings.beta;
        let (chosen, rejected) = (p.chosen.logps(), p.rejected.logps());
        let (ref_chosen, ref_rejected) = (p.chosen.ref_logps()?, p.rejected.ref_logps()?);
        let mut total = PreferenceLossSum::new(p);
        let mut rewards = [Vec::new(), Vec::new()];
        for row in 0..chosen.len() {
            let [c, r] = Dual::variables([chosen[row], rejected[row]]);
            let (c, r) = (c - ref_chosen[row], r - ref_rejected[row]);
            let loss = match self.settings.loss_type {
                OnlineDpoLossType::Sigmoid => -((c - r) * beta).log_sigmoid(),
                OnlineDpoLossType::Ipo => (c - r - 0.5 / beta).square(),
            };
            total.add(row, row, loss / f64::from(p.scale.items));
            rewards[0].push(beta * c.value);
            rewards[1].push(beta * r.value);
        }
        let mut metrics = pair_metrics(p, Some([&rewards[0], &rewards[1]]), [&chosen, &rejected]);
        metrics.extend(Metric::mean_of("beta", chosen.iter().map(|_| beta)));
        Ok(total.gradient(p, metrics))
    }
}

rlhost_plugin_sdk::online_preference_plugin!(OnlineDpo);
