//! The mean and standard deviation of all scores of a run, as in TRL's RunningMoments (up to 0.11) and OpenRLHF's normalisation.

use serde::{Deserialize, Serialize};

/// Number added to the deviation, as in TRL: f32's epsilon.
const EPS: f64 = f32::EPSILON as f64;

/// Count, mean and sum of squared distances from it, updated a batch at a time (Chan et al. 1983).
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub struct ScoreMoments {
    count: f64,
    mean: f64,
    squares: f64,
}

impl ScoreMoments {
    /// Adds scores.
    pub(crate) fn update(&mut self, scores: impl Iterator<Item = f64> + Clone) {
        let n = scores.clone().count() as f64;
        if n == 0.0 {
            return;
        }
        let mean = scores.clone().sum::<f64>() / n;
        let squares: f64 = scores.map(|score| (score - mean) * (score - mean)).sum();
        let (all, apart) = (self.count + n, mean - self.mean);
        self.squares += squares + apart * apart * self.count * n / all;
        self.mean += apart * n / all;
        self.count = all;
    }

    /// Returns the mean and standard deviation (n - 1); a deviation of 1 for fewer than two scores.
    pub(crate) fn mean_and_std(&self) -> (f64, f64) {
        let std = if self.count > 1.0 { (self.squares / (self.count - 1.0)).sqrt() } else { 1.0 };
        (self.mean, std)
    }

    /// Returns a score's distance from the mean in standard deviations.
    pub(crate) fn normalized(&self, score: f64) -> f64 {
        let (mean, std) = self.mean_and_std();
        (score - mean) / (std + EPS)
    }
}
