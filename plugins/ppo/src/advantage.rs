//! Computes advantages and returns from scores and values.

use crate::control::KL;
use crate::moments::ScoreMoments;
use crate::settings::{PpoKlEstimator, PpoSettings};
use rlhost_plugin_sdk::policy::{Advantages, Rollouts};
use rlhost_plugin_sdk::rows::{counted, masked_sum, rows};
use rlhost_plugin_sdk::scores::{self, mean_and_std, scores};
use rlhost_plugin_sdk::{Error, Metric};
use std::ops::Range;

/// A scorable completion, with its score after normalisation and penalty.
struct NormalizedScore {
    row: Range<usize>,
    score: f64,
    penalty: f64,
}

pub(crate) fn estimate(s: &PpoSettings, kl_coef: f64, all: &ScoreMoments, rollouts: &Rollouts) -> Result<Advantages, Error> {
    let values = rollouts.values.as_ref().ok_or_else(|| Error::Input("PPO needs the critic's values".into()))?;
    let given = scores(rollouts);
    let mut mask = rollouts.mask.clone();
    let mut scored = Vec::new();
    for ((row, score), &finished) in rows(&rollouts.offsets).zip(&given).zip(&rollouts.finished) {
        match score {
            // Without a score, the row has neither an advantage nor a return.
            None => mask[row].fill(0),
            Some(score) => {
                let score = if s.normalize_reward { all.normalized(*score) } else { *score };
                let penalty = s.missing_eos_penalty.filter(|_| !finished).unwrap_or(0.0);
                scored.push(NormalizedScore { row, score: score - penalty, penalty });
            }
        }
    }
    let kl = divergence(s, rollouts)?;

    let mut rewards: Vec<f64> = kl.iter().map(|kl| -kl_coef * kl).collect();
    let of_turns = rollouts.turns.as_ref().map(|turns| turns.at_last_tokens(rollouts));
    rewards.iter_mut().zip(of_turns.iter().flatten()).for_each(|(reward, of_turn)| *reward += of_turn);
    for scored in &scored {
        if let Some(last) = counted(&mask, scored.row.clone()).next_back() {
            rewards[last] += if of_turns.is_some() { -scored.penalty } else { scored.score };
        }
    }
    if s.whiten_rewards {
        whiten(&mut rewards, &mask, true);
    }
    let mut advantages = vec![0.0; mask.len()];
    let mut returns = vec![0.0; mask.len()];
    for NormalizedScore { row, .. } in &scored {
        // The value after the last token is 0. Tokens that the policy did not choose are part of the state in which it chooses the next
        // one, not steps of their own.
        let (mut next_value, mut next_advantage) = (0.0, 0.0);
        for i in counted(&mask, row.clone()).rev() {
            let value = f64::from(values[i]);
            let delta = rewards[i] + s.gamma * next_value - value;
            advantages[i] = delta + s.gamma * s.lam * next_advantage;
            returns[i] = advantages[i] + value;
            (next_value, next_advantage) = (value, advantages[i]);
        }
    }
    whiten(&mut advantages, &mask, false);
    let mut metrics = metrics(kl_coef, rollouts, &given, &scored, &mask, &kl);
    if s.normalize_reward {
        let (mean, std) = all.mean_and_std();
        metrics.extend([Metric::mean("objective/score_mean", mean, 1.0), Metric::mean("objective/score_std", std, 1.0)]);
    }
    let narrow = |column: Vec<f64>| column.into_iter().map(|x| x as f32).collect();
    Ok(Advantages { advantages: narrow(advantages), returns: Some(narrow(returns)), mask: Some(mask), metrics })
}

/// Returns the divergence from the reference at each token; zeros without a reference.
fn divergence(s: &PpoSettings, rollouts: &Rollouts) -> Result<Vec<f64>, Error> {
    if !s.has_reference() {
        return Ok(vec![0.0; rollouts.logp.len()]);
    }
    let ref_logp =
        rollouts.ref_logp.as_ref().ok_or_else(|| Error::Input("kl_coef needs the reference log-probabilities".into()))?;
    let of_token = |(&logp, &ref_logp): (&f32, &f32)| {
        let d = f64::from(logp) - f64::from(ref_logp);
        match s.kl_estimator {
            PpoKlEstimator::K1 => d,
            PpoKlEstimator::K3 => (-d).exp_m1() + d,
        }
    };
    Ok(rollouts.logp.iter().zip(ref_logp).map(of_token).collect())
}

/// Computes `(x - mean) / sqrt(variance + 1e-8)` over the batch's counted tokens, and sets the others to zero. With `keep_mean`, adds the
/// mean again.
fn whiten(column: &mut [f64], mask: &[u8], keep_mean: bool) {
    let all = column.iter().zip(mask).filter(|&(_, &m)| m != 0).map(|(&x, _)| x);
    let Some((mean, std)) = mean_and_std(all) else { return };
    for (x, &m) in column.iter_mut().zip(mask) {
        let white = (*x - mean) / (std * std + 1e-8).sqrt();
        *x = if m == 0 { 0.0 } else { white + if keep_mean { mean } else { 0.0 } };
    }
}

/// Returns the metrics of a generation: sums over each completion's tokens, averaged over completions. `objective/entropy` is the
/// sum of `-logp`, without upstream's 1 for each padded position.
fn metrics(
    kl_coef: f64,
    rollouts: &Rollouts,
    given: &[Option<f64>],
    scored: &[NormalizedScore],
    mask: &[u8],
    kl: &[f64],
) -> Vec<Metric> {
    let n = scored.len() as f64;
    let per_completion =
        |of: &dyn Fn(usize) -> f64| scored.iter().map(|s| masked_sum(mask, s.row.clone(), of)).sum::<f64>() / n.max(1.0);
    let divergence = per_completion(&|i| kl[i]);
    let of_token =
        |s: &NormalizedScore| masked_sum(mask, s.row.clone(), |i| kl[i]) / masked_sum(mask, s.row.clone(), |_| 1.0).max(1.0);
    let score = scored.iter().map(|s| s.score).sum::<f64>() / n.max(1.0);
    let mut all = scores::metrics(given);
    let ended = rollouts.finished.iter().filter(|&&finished| finished).count() as f64;
    all.push(Metric::mean("val/num_eos_tokens", ended, 1.0));
    all.extend([
        Metric::mean(KL, scored.iter().map(of_token).sum::<f64>() / n.max(1.0), n),
        Metric::mean("objective/kl", divergence, n),
        Metric::mean("objective/kl_coef", kl_coef, n),
        Metric::mean("objective/entropy", per_completion(&|i| -f64::from(rollouts.logp[i])), n),
        Metric::mean("objective/non_score_reward", -kl_coef * divergence, n),
        Metric::mean("objective/scores", score, n),
        Metric::mean("objective/rlhf_reward", score - kl_coef * divergence, n),
    ]);
    all
}
