//! Kahneman-Tversky Optimization (Ethayarajh et al. 2024, arXiv 2402.01306): completions are desirable or undesirable, and each
//! is judged on its own. Losses, names, defaults and metrics are those of TRL's `KTOTrainer`.
//!
//! `kl` is omitted for `apo_zero_unpaired`, where TRL logs 0.

#[cfg(test)]
mod tests;

use rlhost_plugin_sdk::dual::Dual;
use rlhost_plugin_sdk::labelled::{Examples, Labelled, LabelledGradient, LabelledLossSum, Needs, rows};
use rlhost_plugin_sdk::prelude::*;

/// The loss of a completion, from its log-ratio to the reference model: `c` for a desirable and `r` for an undesirable one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum KtoLossType {
    /// `1 - sigmoid(beta (c - z))` and `1 - sigmoid(beta (z - r))`, where `z` is the divergence from the reference model,
    /// estimated from mismatched completions of the micro-batch, so its size matters.
    Kto,
    /// `1 - sigmoid(beta c)` and `sigmoid(beta r)` (APO-zero, D'Oosterlinck et al. 2024, arXiv 2408.06266, equation 7).
    ApoZeroUnpaired,
}

/// Settings of KTO.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct KtoSettings {
    /// The loss of a completion.
    pub loss_type: KtoLossType,
    /// Strength of the tie to the reference model.
    #[schemars(range(min = 0.0))]
    pub beta: f64,
    /// Weight of the desirable completions' losses.
    #[schemars(range(min = 0.0))]
    pub desirable_weight: f64,
    /// Weight of the undesirable completions' losses.
    #[schemars(range(min = 0.0))]
    pub undesirable_weight: f64,
}

impl Default for KtoSettings {
    fn default() -> Self {
        Self { loss_type: KtoLossType::Kto, beta: 0.1, desirable_weight: 1.0, undesirable_weight: 1.0 }
    }
}

/// The algorithm with its settings.
pub struct Kto {
    settings: KtoSettings,
}

impl Labelled for Kto {
    type Config = KtoSettings;
    const DESCRIPTION: &'static str = "Kahneman-Tversky Optimization (kto, apo_zero_unpaired)";

    fn needs(settings: &KtoSettings) -> Needs {
        let needs = Needs::MEAN_LOGITS | Needs::REF_LOGP;
        match settings.loss_type {
            KtoLossType::Kto => needs | Needs::MISMATCHED_LOGP | Needs::MISMATCHED_REF_LOGP,
            KtoLossType::ApoZeroUnpaired => needs,
        }
    }

    fn new(settings: KtoSettings) -> Result<Self, Error> {
        if settings.beta <= 0.0 {
            return Err(Error::Config("beta must be greater than 0".into()));
        }
        Ok(Self { settings })
    }

    fn loss(&mut self, e: &Examples) -> Result<LabelledGradient, Error> {
        let s = &self.settings;
        // A number rather than a `Dual`, because the baseline is a constant in the derivative.
        let z = match s.loss_type {
            KtoLossType::Kto => e.mismatched_log_ratio()?.max(0.0),
            KtoLossType::ApoZeroUnpaired => 0.0,
        };
        let ratios = e.log_ratios()?;
        let all = f64::from(e.scale.items.max(1));
        let mut total = LabelledLossSum::new(e);
        for (row, (&ratio, &desirable)) in ratios.iter().zip(&e.labels).enumerate() {
            let [ratio] = Dual::variables([ratio]);
            // 1 - sigmoid(x) is computed as sigmoid(-x), which is accurate if it is small.
            let (away, weight) = if desirable { (-(ratio - z), s.desirable_weight) } else { (ratio - z, s.undesirable_weight) };
            total.add(row, (away * s.beta).sigmoid() * (weight / all));
        }
        let mut metrics = figures(e, &ratios, s.beta);
        if s.loss_type == KtoLossType::Kto {
            metrics.extend(Metric::mean_of("kl", e.labels.iter().map(|_| z)));
        }
        Ok(total.gradient(e, metrics))
    }
}

/// Returns TRL's metrics. Those of completions are averaged over completions with a label, logits over their tokens.
/// `rewards/margins` is the difference of both means in a micro-batch.
fn figures(e: &Examples, ratios: &[f64], beta: f64) -> Vec<Metric> {
    let logps = e.logps();
    let tokens: Vec<_> = rows(&e.offsets).collect();
    let mean = |name: String, label: bool, of: &dyn Fn(usize) -> f64| Metric::mean_of(name, e.rows(label).map(of));
    let mut figures = Vec::new();
    for (side, label) in [("chosen", true), ("rejected", false)] {
        figures.extend(mean(format!("rewards/{side}"), label, &|row| beta * ratios[row]));
        figures.extend(mean(format!("logps/{side}"), label, &|row| logps[row]));
        let logits = e.mean_logits.iter().flat_map(|logits| e.rows(label).flat_map(|row| &logits[tokens[row].clone()]));
        figures.extend(Metric::mean_of(format!("logits/{side}"), logits.map(|&l| f64::from(l))));
    }
    if e.desirable > 0 && e.undesirable > 0 {
        // Each row's part, so that calls for parts of the micro-batch add up to its margin.
        let all = f64::from(e.desirable + e.undesirable);
        let part = |row: usize| {
            let share = if e.labels[row] { all / f64::from(e.desirable) } else { -all / f64::from(e.undesirable) };
            share * beta * ratios[row]
        };
        figures.extend(Metric::mean_of("rewards/margins", (0..ratios.len()).map(part)));
    }
    figures
}

rlhost_plugin_sdk::labelled_plugin!(Kto);
