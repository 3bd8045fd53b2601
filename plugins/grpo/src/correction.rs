//! Truncated importance sampling: multiplies the loss by the ratio of a completion's probability in training's forward pass to its
//! probability at sampling.

use crate::masks::known_log_ratio;
use crate::settings::GrpoSettings;
use rlhost_plugin_sdk::policy::Tokens;
use rlhost_plugin_sdk::rows::{counted, rows};
use rlhost_plugin_sdk::{Error, Metric};

/// Returns the factor of each token's loss: 1 for masked tokens, and for all tokens without a correction.
pub(crate) fn factors(s: &GrpoSettings, t: &Tokens) -> Result<Vec<f64>, Error> {
    let mut factors = vec![1.0; t.mask.len()];
    if !s.vllm_importance_sampling_correction {
        return Ok(factors);
    }
    let missing = || Error::Input("the correction needs sampling log-probabilities, which the batch does not have".into());
    let sampling_logp = t.sampling_logp.as_ref().ok_or_else(missing)?;
    // Tokens with unknown sampling probability are not corrected.
    let away = |i: usize| known_log_ratio(t.old_logp[i], sampling_logp[i]);
    let by_token = s.vllm_importance_sampling_mode.is_by_token();
    for row in rows(&t.offsets) {
        let tokens = counted(&t.mask, row);
        let whole = (!by_token).then(|| bounded(s, tokens.clone().map(away).sum::<f64>().exp()));
        tokens.for_each(|i| factors[i] = whole.unwrap_or_else(|| bounded(s, away(i).exp())));
    }
    Ok(factors)
}

/// Returns a ratio within the bounds, or zero.
fn bounded(s: &GrpoSettings, ratio: f64) -> f64 {
    let least = s.vllm_importance_sampling_clip_min.unwrap_or(f64::NEG_INFINITY);
    let most = s.vllm_importance_sampling_clip_max.value().unwrap_or(f64::INFINITY);
    if s.vllm_importance_sampling_mode.is_clipping() {
        ratio.max(least).min(most)
    } else if ratio < least || ratio > most {
        0.0
    } else {
        ratio
    }
}

/// Returns the metrics of a correction's factors: per token, or per completion if each completion has one factor.
pub(crate) fn metrics(s: &GrpoSettings, factors: &[f64], t: &Tokens) -> Vec<Metric> {
    let by_token = s.vllm_importance_sampling_mode.is_by_token();
    let of_row = |row| counted(&t.mask, row).map(|i| factors[i]).take(if by_token { usize::MAX } else { 1 });
    let all: Vec<f64> = rows(&t.offsets).flat_map(of_row).collect();
    if all.is_empty() || !s.vllm_importance_sampling_correction {
        return Vec::new();
    }
    let name = |which: &str| format!("sampling/importance_sampling_ratio/{which}");
    vec![
        Metric::min(name("min"), all.iter().copied().fold(f64::INFINITY, f64::min)),
        Metric::ratio(name("mean"), all.iter().sum(), all.len() as f64),
        Metric::max(name("max"), all.iter().copied().fold(f64::NEG_INFINITY, f64::max)),
    ]
}
