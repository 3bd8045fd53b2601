//! A KL coefficient that keeps the divergence near a target (Ziegler et al. 2019, section 2.2):
//! `coef *= 1 + clip(kl / target - 1, -0.2, 0.2) * completions / horizon`, the divergence being that of a token, as in OpenRLHF.

use crate::settings::Settings;
use rlhost_plugin_sdk::policy::figure;
use serde::{Deserialize, Serialize};

/// The divergence of a completion's tokens, averaged over them and then over completions.
pub(crate) const KL: &str = "kl";

/// What adapting has come to. Without a target nothing of it is used.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub struct KlControl {
    /// The coefficient; `kl_coef` before the first generation has been heard of.
    coef: Option<f64>,
    /// Completions since it last moved.
    completions: u64,
    /// Completions of the whole run.
    pub(crate) episode: u64,
}

impl KlControl {
    /// The coefficient for the generation at hand.
    pub(crate) fn coef(&self, s: &Settings) -> f64 {
        self.coef.filter(|_| s.kl_target.is_some()).unwrap_or(s.kl_coef)
    }

    /// A generation of so many completions.
    pub(crate) fn saw(&mut self, completions: usize) {
        self.completions += completions as u64;
        self.episode += completions as u64;
    }

    /// Moves once for each step that began with a generation; the others have no such figure.
    pub(crate) fn observe(&mut self, s: &Settings, metrics: &[(String, f64)]) {
        let (Some(target), Some(kl)) = (s.kl_target, figure(metrics, KL)) else { return };
        let error = (kl / target - 1.0).clamp(-0.2, 0.2);
        self.coef = Some(self.coef(s) * (1.0 + error * self.completions as f64 / s.kl_horizon));
        self.completions = 0;
    }
}
