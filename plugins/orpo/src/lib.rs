//! Odds Ratio Preference Optimization (Hong et al. 2024): the negative log-likelihood of the chosen completions plus, weighted by
//! `beta`, the loss of the odds ratio of chosen to rejected completion. It needs no reference model. Names, defaults and metrics
//! are TRL's.
//!
//! Differences from TRL: the negative log-likelihood is that of the completion, as in the paper, without its prompt, whose
//! log-probabilities a plugin doesn't see. It is a mean over the chosen tokens of the complete optimizer step, not of a
//! micro-batch. `logits/*` are means over the completions' tokens, as in DPO, without prompts and padding.

#[cfg(test)]
mod tests;

use rlhost_plugin_sdk::dual::Dual;
use rlhost_plugin_sdk::preference::{Gradient, Needs, Pairs, Preference, Total, figures};
use rlhost_plugin_sdk::prelude::*;

/// Settings of ORPO.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Weight of the odds ratio loss, lambda in the paper.
    #[schemars(range(min = 0.0))]
    pub beta: f64,
}

impl Default for Settings {
    fn default() -> Self {
        Self { beta: 0.1 }
    }
}

/// The algorithm with its settings.
pub struct Orpo {
    settings: Settings,
}

/// Returns the logarithm of the odds `p / (1 - p)` of a completion's mean log-probability. A certain completion would have
/// infinite odds, so it counts as slightly less than certain.
fn log_odds(logp: Dual<2>) -> Dual<2> {
    let logp = logp.min(-1e-7);
    logp - (-logp.exp() + 1.0).ln()
}

impl Preference for Orpo {
    type Config = Settings;
    const DESCRIPTION: &'static str = "Odds Ratio Preference Optimization";
    const FRAMED: bool = true;

    fn needs(_: &Settings) -> Needs {
        Needs::MEAN_LOGITS
    }

    fn new(settings: Settings) -> Result<Self, Error> {
        Ok(Self { settings })
    }

    fn loss(&mut self, p: &Pairs) -> Result<Gradient, Error> {
        let beta = self.settings.beta;
        let (chosen, rejected) = (p.chosen.logps(), p.rejected.logps());
        let (chosen_lengths, rejected_lengths) = (p.chosen.lengths(), p.rejected.lengths());
        let (pairs, tokens) = (f64::from(p.scale.rows), (p.scale.tokens as f64).max(1.0));

        let mut total = Total::new(p);
        let (mut logps, mut rewards) = ([Vec::new(), Vec::new()], [Vec::new(), Vec::new()]);
        let (mut ratios, mut log_odds_chosen) = (Vec::new(), Vec::new());
        for row in 0..chosen.len() {
            let [c, r] = Dual::variables([chosen[row], rejected[row]]);
            let nll = -c / tokens;
            let means = [c / chosen_lengths[row].max(1.0), r / rejected_lengths[row].max(1.0)];
            let odds_ratio = log_odds(means[0]) - log_odds(means[1]);
            let ratio = odds_ratio.log_sigmoid();
            total.add(row, row, nll - ratio * (beta / pairs));
            ratios.push(ratio.value);
            log_odds_chosen.push(odds_ratio.value);
            for (side, logp) in means.into_iter().enumerate() {
                logps[side].push(logp.value);
                rewards[side].push(beta * logp.value);
            }
        }
        let mut metrics = figures(p, Some([&rewards[0], &rewards[1]]), [&logps[0], &logps[1]]);
        metrics.extend(Metric::mean_of("nll_loss", p.chosen.logp.iter().map(|&logp| -f64::from(logp))));
        metrics.extend(Metric::mean_of("log_odds_ratio", ratios));
        metrics.extend(Metric::mean_of("log_odds_chosen", log_odds_chosen));
        Ok(total.gradient(p, metrics))
    }
}

rlhost_plugin_sdk::preference_plugin!(Orpo);
