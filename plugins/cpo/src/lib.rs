//! Contrastive Preference Optimization (Xu et al. 2024) with the loss types sigmoid, hinge, ipo, simpo and alphapo. It needs no
//! reference model; the negative log-likelihood of the chosen completions keeps the policy in place. Names, defaults and metrics
//! are TRL's.
//!
//! Differences from TRL: the negative log-likelihood is a mean over the chosen tokens of the complete optimizer step, not of a
//! micro-batch. `nll_loss` is reported even if its weight is zero. `logits/*` are means over the completions' tokens, as in DPO,
//! without prompts and padding.

pub mod settings;
#[cfg(test)]
mod tests;

use rlhost_plugin_sdk::dual::Dual;
use rlhost_plugin_sdk::preference::{
    Defaults, Needs, Preference, PreferenceGradient, PreferenceLossSum, PreferencePairs, pair_metrics,
};
use rlhost_plugin_sdk::{Error, Metric};
pub use settings::{CpoLossType, CpoSettings};

/// Maximum exponent in a reward; beyond it, f32 overflows. With `alpha` above zero, the summed log-probabilities of a long completion reach
/// it.
const MAX_EXPONENT: f64 = 80.0;

/// The algorithm with its settings.
pub struct Cpo {
    settings: CpoSettings,
}

/// Returns a completion's reward from its log-probability: the log-probability itself, or `(1 - p^-alpha) / alpha`.
fn reward(s: &CpoSettings, logp: Dual<2>) -> Dual<2> {
    if s.alpha == 0.0 { logp } else { (-(logp * -s.alpha).min(MAX_EXPONENT).exp() + 1.0) / s.alpha }
}

/// Returns the loss of one pair from the difference `x` of its rewards.
fn pair_loss(s: &CpoSettings, x: Dual<2>) -> Dual<2> {
    let logistic = |x: Dual<2>| {
        let x = x * s.beta;
        -x.log_sigmoid() * (1.0 - s.label_smoothing) - (-x).log_sigmoid() * s.label_smoothing
    };
    match s.loss_type {
        CpoLossType::Sigmoid => logistic(x),
        CpoLossType::Simpo | CpoLossType::Alphapo => logistic(x - s.simpo_gamma / s.beta),
        CpoLossType::Hinge => (-x * s.beta + 1.0).max(0.0),
        CpoLossType::Ipo => (x - 0.5 / s.beta).square(),
    }
}

impl Preference for Cpo {
    type Config = CpoSettings;
    const DESCRIPTION: &'static str = "Contrastive Preference Optimization (sigmoid, hinge, ipo, simpo, alphapo)";
    const FRAMED: bool = true;
    const DEFAULTS: Defaults = Defaults::NO_AUX_LOSS;

    fn needs(_: &CpoSettings) -> Needs {
        Needs::MEAN_LOGITS
    }

    fn new(settings: CpoSettings) -> Result<Self, Error> {
        if settings.beta <= 0.0 {
            return Err(Error::Config("beta must be greater than 0".into()));
        }
        Ok(Self { settings })
    }

    fn loss(&mut self, p: &PreferencePairs) -> Result<PreferenceGradient, Error> {
        let s = &self.settings;
        let (chosen, rejected) = (p.chosen.logps(), p.rejected.logps());
        let (chosen_lengths, rejected_lengths) = (p.chosen.lengths(), p.rejected.lengths());
        let length = |lengths: &[f64], row: usize| if s.per_token() { lengths[row].max(1.0) } else { 1.0 };
        let pairs = f64::from(p.scale.items);
        let nll_weight = s.nll_weight() / (p.scale.tokens as f64).max(1.0);

        let mut total = PreferenceLossSum::new(p);
        let (mut logps, mut rewards) = ([Vec::new(), Vec::new()], [Vec::new(), Vec::new()]);
        for row in 0..chosen.len() {
            let [c, r] = Dual::variables([chosen[row], rejected[row]]);
            let nll = -c * nll_weight;
            let of_pair = [c / length(&chosen_lengths, row), r / length(&rejected_lengths, row)];
            let [c, r] = of_pair.map(|logp| reward(s, logp));
            total.add(row, row, pair_loss(s, c - r) / pairs + nll);
            for (side, (logp, reward)) in of_pair.into_iter().zip([c, r]).enumerate() {
                logps[side].push(logp.value);
                rewards[side].push(s.beta * reward.value);
            }
        }
        let mut metrics = pair_metrics(p, Some([&rewards[0], &rewards[1]]), [&logps[0], &logps[1]]);
        metrics.extend(Metric::mean_of("nll_loss", p.chosen.logp.iter().map(|&logp| -f64::from(logp))));
        Ok(total.gradient(p, metrics))
    }
}

rlhost_plugin_sdk::preference_plugin!(Cpo);
