//! Truncated importance sampling: multiplies the loss by the ratio of a completion's probability in training's forward pass to its
//! probability at sampling.

use crate::masks::known_log_ratio;
use crate::settings::GrpoSettings;
use rlhost_plugin_sdk::policy::Tokens;
use rlhost_plugin_sdk::rows::{counted, rows};
use rlhost_plugin_sdk::{Error, Metric};

/// Correction of a batch's tokens.
pub(crate) struct Correction {
    /// Factor of each token's loss: 1 for masked tokens, and for all tokens without a correction.
    pub factors: Vec<f64>,
    /// Whether each token's ratio, or that of its completion, was beyond the bounds.
    beyond: Vec<bool>,
}

impl Correction {
    /// Computes the correction of these tokens.
    ///
    /// # Errors
    /// If sampling log-probabilities are missing.
    pub(crate) fn new(s: &GrpoSettings, t: &Tokens) -> Result<Self, Error> {
        let (mut factors, mut beyond) = (vec![1.0; t.mask.len()], vec![false; t.mask.len()]);
        if !s.vllm_importance_sampling_correction {
            return Ok(Self { factors, beyond });
        }
        let missing = || Error::Input("the correction needs sampling log-probabilities, which the batch does not have".into());
        let sampling_logp = t.sampling_logp.as_ref().ok_or_else(missing)?;
        // Tokens with unknown sampling probability are not corrected.
        let away = |i: usize| known_log_ratio(t.old_logp[i], sampling_logp[i]);
        let by_token = s.vllm_importance_sampling_mode.is_by_token();
        for row in rows(&t.offsets) {
            let tokens = counted(&t.mask, row);
            let whole = (!by_token).then(|| bounded(s, tokens.clone().map(away).sum::<f64>().exp()));
            tokens.for_each(|i| (factors[i], beyond[i]) = whole.unwrap_or_else(|| bounded(s, away(i).exp())));
        }
        Ok(Self { factors, beyond })
    }

    /// Returns the correction's metrics: per token, or per completion if each completion has one factor.
    pub(crate) fn metrics(&self, s: &GrpoSettings, t: &Tokens) -> Vec<Metric> {
        let by_token = s.vllm_importance_sampling_mode.is_by_token();
        let of_row = |row| counted(&t.mask, row).take(if by_token { usize::MAX } else { 1 });
        let all: Vec<usize> = rows(&t.offsets).flat_map(of_row).collect();
        if all.is_empty() || !s.vllm_importance_sampling_correction {
            return Vec::new();
        }
        let (factors, count) = (|| all.iter().map(|i| self.factors[*i]), all.len() as f64);
        let beyond = all.iter().filter(|i| self.beyond[**i]).count() as f64;
        let name = |which: &str| format!("sampling/importance_sampling_ratio/{which}");
        vec![
            Metric::min(name("min"), factors().fold(f64::INFINITY, f64::min)),
            Metric::ratio(name("mean"), factors().sum(), count),
            Metric::max(name("max"), factors().fold(f64::NEG_INFINITY, f64::max)),
            Metric::ratio(name("clipped"), beyond, count),
        ]
    }
}

/// Returns a ratio within the bounds, or zero, and whether it was beyond them.
fn bounded(s: &GrpoSettings, ratio: f64) -> (f64, bool) {
    let least = s.vllm_importance_sampling_clip_min.unwrap_or(f64::NEG_INFINITY);
    let most = s.vllm_importance_sampling_clip_max.value().unwrap_or(f64::INFINITY);
    let is_beyond = ratio < least || ratio > most;
    let factor = match s.vllm_importance_sampling_mode.is_clipping() {
        true => ratio.max(least).min(most),
        false if is_beyond => 0.0,
        false => ratio,
    };
    (factor, is_beyond)
}
