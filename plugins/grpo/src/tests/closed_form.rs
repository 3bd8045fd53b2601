//! The losses in f64, directly from the papers' formulas. Detached terms are evaluated at `base`, so that finite differences of the closed
//! form are the intended derivatives.

use super::*;

/// Log-probabilities and entropies at which the loss is evaluated.
#[derive(Clone)]
pub(super) struct LossPoint {
    pub logp: Vec<f64>,
    pub entropy: Vec<f64>,
}

impl LossPoint {
    pub(super) fn from_tokens(t: &Tokens) -> Self {
        let wide = |column: &[f32]| column.iter().map(|&x| f64::from(x)).collect();
        Self { logp: wide(&t.logp), entropy: wide(t.entropy.as_ref().unwrap()) }
    }
}

fn at(column: &[f32], i: usize) -> f64 {
    f64::from(column[i])
}

/// Computes the entropy threshold by sorting and interpolating.
fn threshold(s: &GrpoSettings, t: &Tokens, base: &LossPoint) -> f64 {
    let mut all: Vec<f64> = (0..t.mask.len()).filter(|&i| t.mask[i] == 1).map(|i| base.entropy[i]).collect();
    all.sort_by(|a, b| a.partial_cmp(b).unwrap());
    let rank = (1.0 - s.top_entropy_quantile) * (all.len() - 1) as f64;
    let below = rank.floor() as usize;
    all[below] + (rank - rank.floor()) * (all[rank.ceil() as usize] - all[below])
}

/// Computes the correction's factors of tokens' losses.
fn factors(s: &GrpoSettings, t: &Tokens, row: &[usize]) -> Vec<f64> {
    if !s.vllm_importance_sampling_correction {
        return vec![1.0; row.len()];
    }
    let ratio = |i: usize| f64::from(t.old_logp[i]) - f64::from(t.sampling_logp.as_ref().unwrap()[i]);
    let whole: f64 = row.iter().map(|&i| ratio(i)).sum();
    let most = s.vllm_importance_sampling_clip_max.value().unwrap_or(f64::MAX);
    let least = s.vllm_importance_sampling_clip_min.unwrap_or(0.0);
    let masked = |w: f64| if (least..=most).contains(&w) { w } else { 0.0 };
    let of = |i: usize| match s.vllm_importance_sampling_mode {
        CorrectionMode::TokenTruncate => ratio(i).exp().clamp(least, most),
        CorrectionMode::TokenMask => masked(ratio(i).exp()),
        CorrectionMode::SequenceTruncate => whole.exp().clamp(least, most),
        CorrectionMode::SequenceMask => masked(whole.exp()),
    };
    row.iter().map(|&i| of(i)).collect()
}

/// Computes the contribution of a completion's sum over `n` tokens to the loss.
fn share(s: &GrpoSettings, t: &Tokens, sum: f64, n: f64) -> f64 {
    let (rows, tokens, longest) = (f64::from(t.scale.items), t.scale.tokens as f64, f64::from(t.scale.max_completion_length));
    match s.loss_type {
        GrpoLossType::Grpo | GrpoLossType::Sapo => sum / n / rows,
        GrpoLossType::Bnpo | GrpoLossType::Dapo | GrpoLossType::Cispo | GrpoLossType::Vespo => sum / tokens,
        GrpoLossType::DrGrpo => sum / (rows * longest),
        GrpoLossType::Luspo => sum / rows,
    }
}

pub(super) fn loss(s: &GrpoSettings, t: &Tokens, coef: f64, p: &LossPoint, base: &LossPoint) -> f64 {
    let cut = if s.top_entropy_quantile < 1.0 { threshold(s, t, base) } else { f64::NEG_INFINITY };
    let mut total = 0.0;
    for row in t.offsets.windows(2) {
        let row: Vec<usize> = (row[0] as usize..row[1] as usize).filter(|&i| t.mask[i] == 1).collect();
        let n = row.len() as f64;
        if row.is_empty() {
            continue;
        }
        let log_ratio = |p: &LossPoint, i: usize| p.logp[i] - at(&t.old_logp, i);
        let mean = |p: &LossPoint| row.iter().map(|&i| log_ratio(p, i)).sum::<f64>() / n;
        let away = row.iter().map(|&i| at(t.sampling_logp.as_ref().unwrap(), i) - base.logp[i]).sum::<f64>() / n;
        let factors = factors(s, t, &row);
        let log_w = row.iter().zip(&factors).map(|(&i, f)| log_ratio(base, i) + f.ln().max(1e-8f64.ln())).sum::<f64>();
        let log_w = log_w.clamp(1e-8f64.ln(), 20.0);
        let mut sum = 0.0;
        for (&i, factor) in row.iter().zip(factors) {
            let ratio_at = |p: &LossPoint| match s.importance_sampling_level {
                ImportanceSamplingLevel::Token => log_ratio(p, i).exp(),
                ImportanceSamplingLevel::Sequence => mean(p).exp(),
            };
            let (a, ratio) = (at(&t.advantages, i), ratio_at(p));
            let high = s.epsilon_high.unwrap_or(s.epsilon);
            let mut token = match s.loss_type {
                GrpoLossType::Cispo => -ratio_at(base).min(high) * a * p.logp[i],
                GrpoLossType::Sapo => {
                    let tau = if a > 0.0 { s.sapo_temperature_pos } else { s.sapo_temperature_neg };
                    -4.0 / tau * a / (1.0 + (-tau * (ratio - 1.0)).exp())
                }
                GrpoLossType::Vespo => {
                    let (k, lambda) =
                        if a >= 0.0 { (s.vespo_k_pos, s.vespo_lambda_pos) } else { (s.vespo_k_neg, s.vespo_lambda_neg) };
                    let w = log_w.exp();
                    -w.powf(k) * (lambda * (1.0 - w)).exp() * a * p.logp[i]
                }
                _ => {
                    let unclipped = s.delta.map_or(ratio, |d| ratio.min(d)) * a;
                    -unclipped.min(ratio.clamp(1.0 - s.epsilon, 1.0 + high) * a)
                }
            };
            if s.loss_type != GrpoLossType::Vespo {
                token *= factor;
            }
            if s.off_policy_mask_threshold.is_some_and(|most| a < 0.0 && away > most) || base.entropy[i] < cut {
                token = 0.0;
            }
            if s.beta > 0.0 {
                let d = at(t.ref_logp.as_ref().unwrap(), i) - p.logp[i];
                token += s.beta * (d.exp() - d - 1.0) * if s.use_bias_correction_kl { ratio } else { 1.0 };
            }
            sum += token;
        }
        total += share(s, t, sum, n);
    }
    let counted: Vec<usize> = (0..t.mask.len()).filter(|&i| t.mask[i] == 1).collect();
    let kept: Vec<f64> = counted.iter().filter(|&&i| base.entropy[i] >= cut).map(|&i| p.entropy[i]).collect();
    let mean_entropy = kept.iter().sum::<f64>() / kept.len().max(1) as f64;
    total - coef * mean_entropy * counted.len() as f64 / t.scale.tokens as f64
}
