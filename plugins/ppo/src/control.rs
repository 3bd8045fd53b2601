//! State of PPO across generations: the mean and deviation of all scores, and a KL coefficient that keeps the divergence per token near a
//! target, as in OpenRLHF (Ziegler et al. 2019, section 2.2): `coef *= 1 + clip(kl / target - 1, -0.2, 0.2) * completions / horizon`.

use crate::moments::ScoreMoments;
use crate::settings::PpoSettings;
use rlhost_plugin_sdk::policy::find_metric;
use serde::{Deserialize, Serialize};

/// Mean divergence of a completion's tokens, averaged over completions.
pub(crate) const KL: &str = "kl";

/// State of the adaptive coefficient, which is unused without a target, and of score normalisation.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub struct KlControl {
    /// The coefficient; `kl_coef` before the first observed generation.
    coef: Option<f64>,
    /// Completions since the coefficient last changed.
    completions: u64,
    /// Completions of the whole run.
    pub(crate) episode: u64,
    /// Moments of all scores of the run.
    pub(crate) scores: ScoreMoments,
}

impl KlControl {
    /// Returns the coefficient for this generation.
    pub(crate) fn coef(&self, s: &PpoSettings) -> f64 {
        self.coef.filter(|_| s.kl_target.is_some()).unwrap_or(s.kl_coef)
    }

    /// Counts a generation's completions.
    pub(crate) fn count_completions(&mut self, completions: usize) {
        self.completions += completions as u64;
        self.episode += completions as u64;
    }

    /// Adjusts the coefficient after each step that started with a generation; other steps don't have this metric.
    pub(crate) fn observe(&mut self, s: &PpoSettings, metrics: &[(String, f64)]) {
        let (Some(target), Some(kl)) = (s.kl_target, find_metric(metrics, KL)) else { return };
        let error = (kl / target - 1.0).clamp(-0.2, 0.2);
        self.coef = Some(self.coef(s) * (1.0 + error * self.completions as f64 / s.kl_horizon));
        self.completions = 0;
    }
}
