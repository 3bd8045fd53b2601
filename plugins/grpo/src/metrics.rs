//! Metrics of a loss, under TRL's names. Means are over tokens, or over completions for values per completion; without values,
//! they are zero.

use crate::entropy::{ENTROPY_OF_KEPT, EntropyControl};
use crate::settings::{GrpoLossType, GrpoSettings, ImportanceSamplingLevel};
use crate::surrogate::TokenLoss;
use rlhost_plugin_sdk::Metric;

/// Sums over a completion's tokens.
#[derive(Default)]
pub(crate) struct RowSums {
    tokens: f64,
    kl: f64,
    entropy: f64,
    /// Entropy and number of the tokens kept by the top-entropy mask.
    kept: (f64, f64),
    low: f64,
    high: f64,
    region: f64,
    phi: Option<f64>,
}

impl RowSums {
    /// Adds a token.
    pub(crate) fn add(&mut self, lost: &TokenLoss, entropy: f32, kept: bool) {
        let one = |clipped: bool| f64::from(u8::from(clipped));
        self.tokens += 1.0;
        self.kl += f64::from(lost.kl);
        self.entropy += f64::from(entropy);
        if kept {
            self.kept = (self.kept.0 + f64::from(entropy), self.kept.1 + 1.0);
        }
        self.low += one(lost.clipped_low);
        self.high += one(lost.clipped_high);
        self.region += one(lost.clipped_low || lost.clipped_high);
        self.phi = self.phi.or(Some(f64::from(lost.phi)));
    }
}

/// Sums over a micro-batch.
#[derive(Default)]
pub(crate) struct MicroBatchSums {
    rows: f64,
    tokens: f64,
    kl: f64,
    entropy: f64,
    kept: (f64, f64),
    /// Number of ratios, and number of clipped ones.
    ratios: f64,
    low: f64,
    high: f64,
    region: f64,
    /// Smallest and largest fraction of a completion's ratios that are clipped on either side.
    low_min: Option<f64>,
    high_max: Option<f64>,
    phi: f64,
}

impl MicroBatchSums {
    /// Adds a completion. If it has a single ratio, that counts as one even if all its tokens are masked, in which case it is 1 and never
    /// clipped.
    pub(crate) fn add(&mut self, s: &GrpoSettings, row: &RowSums) {
        self.rows += 1.0;
        self.tokens += row.tokens;
        self.kl += row.kl;
        self.entropy += row.entropy;
        self.kept = (self.kept.0 + row.kept.0, self.kept.1 + row.kept.1);
        self.phi += row.phi.unwrap_or(1.0);
        let (ratios, per) = match s.importance_sampling_level {
            ImportanceSamplingLevel::Token => (row.tokens, 1.0),
            ImportanceSamplingLevel::Sequence => (1.0, row.tokens.max(1.0)),
        };
        if ratios == 0.0 {
            return;
        }
        let (low, high) = (row.low / per, row.high / per);
        self.ratios += ratios;
        self.low += low;
        self.high += high;
        self.region += row.region / per;
        self.low_min = Some(self.low_min.map_or(low / ratios, |least| least.min(low / ratios)));
        self.high_max = Some(self.high_max.map_or(high / ratios, |most| most.max(high / ratios)));
    }

    /// Returns the metrics. `policy` is the micro-batch's part of the loss before the entropy bonus.
    pub(crate) fn metrics(&self, s: &GrpoSettings, control: &EntropyControl, policy: f64, step_rows: u32) -> Vec<Metric> {
        let mut all = Vec::new();
        if s.beta > 0.0 {
            all.push(Metric::ratio("kl", self.kl, self.tokens));
        }
        all.push(Metric::ratio("entropy", self.entropy, self.tokens));
        match s.loss_type {
            GrpoLossType::Grpo | GrpoLossType::Bnpo | GrpoLossType::DrGrpo | GrpoLossType::Dapo | GrpoLossType::Luspo => {
                all.push(Metric::ratio("clip_ratio/low_mean", self.low, self.ratios));
                all.push(Metric::ratio("clip_ratio/high_mean", self.high, self.ratios));
                all.push(Metric::ratio("clip_ratio/region_mean", self.region, self.ratios));
                all.extend(self.low_min.map(|least| Metric::min("clip_ratio/low_min", least)));
                all.extend(self.high_max.map(|most| Metric::max("clip_ratio/high_max", most)));
            }
            GrpoLossType::Cispo => all.push(Metric::ratio("cispo_clip_ratio", self.high, self.ratios)),
            GrpoLossType::Vespo => all.push(Metric::ratio("vespo/phi_seq_mean", self.phi, self.rows)),
            GrpoLossType::Sapo => {}
        }
        if s.has_entropy_bonus() {
            // Weighted so that the parts of a step add up and steps are averaged.
            all.push(Metric::ratio("policy_loss", policy * f64::from(step_rows), self.rows));
            all.push(Metric::mean("entropy_coef", control.coef(s), self.rows));
            if s.top_entropy_quantile < 1.0 {
                all.push(Metric::ratio(ENTROPY_OF_KEPT, self.kept.0, self.kept.1));
            }
        }
        all
    }
}
