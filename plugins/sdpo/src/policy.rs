//! The loss of a policy gradient: PPO's clipped surrogate with advantages relative to the prompt's other completions.

use crate::settings::{AdvantageScaling, RatioLevel, SdpoLossType, SdpoSettings};
use rlhost_plugin_sdk::dual::Dual;
use rlhost_plugin_sdk::policy::{PolicyGradient, Scale, Tokens};
use rlhost_plugin_sdk::rows::{counted, masked_mean, rows, spread};
use rlhost_plugin_sdk::scores::{by_prompt, mean_and_std};

/// Number added to a standard deviation before dividing by it.
const STD_EPSILON: f64 = 1e-4;

/// Returns each completion's reward, centred on its prompt's mean and divided by a deviation; 0 where it has no reward.
pub(crate) fn advantages(scaling: AdvantageScaling, prompt_of: &[u32], scores: &[Option<f64>]) -> Vec<f64> {
    let of_group: Vec<Option<(f64, f64)>> = by_prompt(prompt_of, scores).into_iter().map(mean_and_std).collect();
    let of_batch = mean_and_std(scores.iter().flatten().copied()).map_or(0.0, |(_, std)| std);
    let advantage = |(score, &prompt): (&Option<f64>, &u32)| {
        let (Some(score), Some((mean, of_group))) = (score, of_group[prompt as usize]) else { return 0.0 };
        match scaling {
            AdvantageScaling::Group => (score - mean) / (of_group + STD_EPSILON),
            AdvantageScaling::Batch => (score - mean) / (of_batch + STD_EPSILON),
            // TRL divides by a deviation of 1.
            AdvantageScaling::None => (score - mean) / (1.0 + STD_EPSILON),
        }
    };
    scores.iter().zip(prompt_of).map(advantage).collect()
}

/// Returns the weight of a token's loss in the step's.
fn weight(loss_type: SdpoLossType, scale: &Scale, of_row: usize) -> f64 {
    let sequences = f64::from(scale.items.max(1));
    match loss_type {
        SdpoLossType::Grpo => 1.0 / (of_row.max(1) as f64 * sequences),
        SdpoLossType::Bnpo | SdpoLossType::Dapo => 1.0 / (scale.tokens as f64).max(1.0),
        SdpoLossType::DrGrpo => 1.0 / (sequences * f64::from(scale.max_completion_length.max(1))),
    }
}

/// Computes `-min(ratio A, clip(ratio, 1 - epsilon, 1 + epsilon_high) A)` of each token, and its derivatives.
pub(crate) fn loss(s: &SdpoSettings, t: &Tokens) -> PolicyGradient {
    let (low, high) = (1.0 - s.epsilon, 1.0 + s.epsilon_high.unwrap_or(s.epsilon));
    let log_ratio = |i: usize| f64::from(t.logp[i]) - f64::from(t.old_logp[i]);
    let surrogate = |i: usize, log_ratio: Dual| {
        let ratio = log_ratio.exp();
        -(ratio * t.advantages[i]).min(ratio.clamp(low, high) * t.advantages[i])
    };
    let (mut loss, mut d_logp) = (0.0, vec![0.0; t.logp.len()]);
    for row in rows(&t.offsets) {
        let tokens = counted(&t.mask, row.clone());
        let count = tokens.clone().count();
        let weight = weight(s.loss_type, &t.scale, count);
        let mean = masked_mean(&t.mask, row.clone(), log_ratio);
        let mut by_mean = 0.0;
        for i in tokens {
            match s.importance_sampling_level {
                RatioLevel::Token => {
                    let of_token = surrogate(i, Dual::variable(log_ratio(i)));
                    loss += weight * of_token.value;
                    d_logp[i] = (weight * of_token.slope()) as f32;
                }
                // All tokens of the completion depend on the mean.
                RatioLevel::Sequence => {
                    let of_token = surrogate(i, Dual::variable(mean));
                    loss += weight * of_token.value;
                    by_mean += weight * of_token.slope();
                }
            }
        }
        spread(by_mean / count.max(1) as f64, &t.mask, row, &mut d_logp);
    }
    PolicyGradient { loss, d_logp, ..PolicyGradient::default() }
}
