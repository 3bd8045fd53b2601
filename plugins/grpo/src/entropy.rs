//! The entropy bonus: `- coef * H`, where H is the mean entropy per token, for every loss type; and an adaptive coefficient that
//! keeps H near a target (Skywork-OR1, arXiv 2505.22312).

use crate::settings::GrpoSettings;
use rlhost_plugin_sdk::policy::{Tokens, find_metric};
use serde::{Deserialize, Serialize};

/// Mean entropy of the tokens that the bonus applies to, if not all.
pub(crate) const ENTROPY_OF_KEPT: &str = "entropy_of_kept";

/// State of the adaptive coefficient; unused if the coefficient is fixed.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub struct EntropyControl {
    /// The coefficient; `entropy_coef` before the first step.
    coef: Option<f64>,
    /// Mean entropy of the last step. No bonus is applied before there is one.
    last_entropy: Option<f64>,
}

impl EntropyControl {
    /// Returns the current coefficient, applied or not.
    pub(crate) fn coef(&self, s: &GrpoSettings) -> f64 {
        if s.use_adaptive_entropy { self.coef.unwrap_or(s.entropy_coef) } else { s.entropy_coef }
    }

    /// Returns the coefficient for this step, the same for all of its micro-batches.
    pub(crate) fn effective_coef(&self, s: &GrpoSettings) -> f64 {
        let held_back = s.use_adaptive_entropy && self.last_entropy.is_none_or(|entropy| entropy > s.entropy_target);
        if held_back { 0.0 } else { self.coef(s) }
    }

    /// Adjusts the coefficient, upward if the step's entropy is not above the target.
    pub(crate) fn observe(&mut self, s: &GrpoSettings, metrics: &[(String, f64)]) {
        let name = if s.top_entropy_quantile < 1.0 { ENTROPY_OF_KEPT } else { "entropy" };
        let (true, Some(entropy)) = (s.use_adaptive_entropy, find_metric(metrics, name)) else { return };
        let coef = self.coef(s);
        self.coef = Some(if entropy <= s.entropy_target {
            (coef + s.entropy_coef_delta).min(s.entropy_coef_max)
        } else {
            (coef - s.entropy_coef_delta).max(s.entropy_coef_min)
        });
        self.last_entropy = Some(entropy);
    }
}

/// Returns the bonus's part of the loss and its derivatives with respect to the entropies. Over the step, it is the mean of all
/// tokens. With a `kept` mask, whose size in the step is unknown here, it is the mean of each micro-batch's kept tokens, weighted
/// by its share of all tokens.
pub(crate) fn bonus(coef: f64, t: &Tokens, entropy: &[f32], kept: Option<&[bool]>) -> (f64, Vec<f32>) {
    let acted_on = |i: &usize| t.mask[*i] != 0 && kept.is_none_or(|kept| kept[*i]);
    let counted = t.mask.iter().filter(|&&m| m != 0).count() as f64;
    let share = counted / (t.scale.tokens as f64).max(1.0);
    let n = (0..t.mask.len()).filter(acted_on).count().max(1) as f64;
    let slope = -coef * share / n;
    let sum: f64 = (0..t.mask.len()).filter(acted_on).map(|i| f64::from(entropy[i])).sum();
    (slope * sum, (0..t.mask.len()).map(|i| if acted_on(&i) { slope as f32 } else { 0.0 }).collect())
}
