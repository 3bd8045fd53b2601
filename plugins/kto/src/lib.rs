//! Kahneman-Tversky Optimization (Ethayarajh et al. 2024, arXiv 2402.01306) over pairs: chosen completions are desirable,
//! rejected completions undesirable, and each is judged on its own. Names, defaults and metrics are those of TRL's `KTOTrainer`.
//!
//! Differences from it:
//! - It takes pairs, so there are as many desirable as undesirable completions. `KTOTrainer` takes single completions with a
//!   label.
//! - `KTOTrainer` estimates the KL baseline from completions paired with another's prompt, whose log-probabilities a plugin
//!   doesn't see. Here it is that of `kto_pair`, as TRL's `DPOTrainer` had it: the other side's completions under their own
//!   prompts.
//! - That baseline is a mean over one micro-batch, as in TRL, so the micro-batch size affects the loss of `kto`.
//!   `apo_zero_unpaired` has no baseline.
//! - `kl` is the mean of both sides' baselines. It is omitted for `apo_zero_unpaired`, where TRL logs 0. `rewards/accuracies`,
//!   which has no meaning without pairs, is that of DPO.

#[cfg(test)]
mod tests;

use rlhost_plugin_sdk::dual::Dual;
use rlhost_plugin_sdk::preference::{Gradient, Needs, Pairs, Preference, Total, figures};
use rlhost_plugin_sdk::prelude::*;

/// The loss of a completion, from its log-ratio to the reference model: `c` for a chosen and `r` for a rejected one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LossType {
    /// `1 - sigmoid(beta (c - z))` and `1 - sigmoid(beta (z - r))`, where `z` is the divergence from the reference model,
    /// estimated from the other side's completions in the micro-batch, so its size matters.
    Kto,
    /// `1 - sigmoid(beta c)` and `sigmoid(beta r)` (APO-zero, D'Oosterlinck et al. 2024, arXiv 2408.06266, equation 7).
    ApoZeroUnpaired,
}

/// Settings of KTO.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// The loss of a completion.
    pub loss_type: LossType,
    /// Strength of the tie to the reference model.
    #[schemars(range(min = 0.0))]
    pub beta: f64,
    /// Weight of the chosen completions' losses.
    #[schemars(range(min = 0.0))]
    pub desirable_weight: f64,
    /// Weight of the rejected completions' losses.
    #[schemars(range(min = 0.0))]
    pub undesirable_weight: f64,
}

impl Default for Settings {
    fn default() -> Self {
        Self { loss_type: LossType::Kto, beta: 0.1, desirable_weight: 1.0, undesirable_weight: 1.0 }
    }
}

/// The algorithm with its settings.
pub struct Kto {
    settings: Settings,
}

fn log_ratios(logps: &[f64], ref_logps: &[f64]) -> Vec<f64> {
    logps.iter().zip(ref_logps).map(|(logp, reference)| logp - reference).collect()
}

/// Returns the divergence of the policy from the reference model: the mean log-ratio of completions that it did not write, at
/// least 0.
fn divergence(log_ratios: &[f64]) -> f64 {
    (log_ratios.iter().sum::<f64>() / (log_ratios.len() as f64).max(1.0)).max(0.0)
}

impl Preference for Kto {
    type Config = Settings;
    const DESCRIPTION: &'static str = "Kahneman-Tversky Optimization over pairs (kto, apo_zero_unpaired)";

    fn needs(_: &Settings) -> Needs {
        Needs::MEAN_LOGITS | Needs::REF_LOGP
    }

    fn new(settings: Settings) -> Result<Self, Error> {
        if settings.beta <= 0.0 {
            return Err(Error::Config("beta must be greater than 0".into()));
        }
        Ok(Self { settings })
    }

    fn loss(&mut self, p: &Pairs) -> Result<Gradient, Error> {
        let s = &self.settings;
        let (chosen, rejected) = (p.chosen.logps(), p.rejected.logps());
        let chosen_ratios = log_ratios(&chosen, &p.chosen.ref_logps()?);
        let rejected_ratios = log_ratios(&rejected, &p.rejected.ref_logps()?);
        // Values and not `Dual`s: the baselines are constants in the derivative.
        let (z_chosen, z_rejected) = match s.loss_type {
            LossType::Kto => (divergence(&rejected_ratios), divergence(&chosen_ratios)),
            LossType::ApoZeroUnpaired => (0.0, 0.0),
        };
        let completions = 2.0 * f64::from(p.scale.rows.max(1));

        let mut total = Total::new(p);
        for row in 0..chosen.len() {
            // A log-ratio has its log-probability's derivatives, because the reference is constant.
            let [c, r] = Dual::variables([chosen_ratios[row], rejected_ratios[row]]);
            // 1 - sigmoid(x) as sigmoid(-x), which is accurate if it is small.
            let desirable = (-(c - z_chosen) * s.beta).sigmoid() * s.desirable_weight;
            let undesirable = ((r - z_rejected) * s.beta).sigmoid() * s.undesirable_weight;
            total.add(row, row, (desirable + undesirable) / completions);
        }
        let rewards =
            [chosen_ratios, rejected_ratios].map(|ratios| ratios.iter().map(|ratio| s.beta * ratio).collect::<Vec<_>>());
        let mut metrics = figures(p, Some([&rewards[0], &rewards[1]]), [&chosen, &rejected]);
        if s.loss_type == LossType::Kto {
            metrics.extend(Metric::mean_of("kl", chosen.iter().map(|_| (z_chosen + z_rejected) / 2.0)));
        }
        Ok(total.gradient(p, metrics))
    }
}

rlhost_plugin_sdk::preference_plugin!(Kto);
