//! Odds Ratio Preference Optimization (Hong et al. 2024): the negative log-likelihood of the chosen completions plus, weighted by
//! `beta`, the loss of the odds ratio of chosen to rejected completion. It needs no reference model. Names, defaults and metrics
//! are TRL's.
//!
//! As in TRL, the negative log-likelihood includes the prompt; in the paper it is the chosen completion's alone, which `prompt_likelihood`
//! restores. It is a mean over the tokens of the complete optimizer step, while TRL's is a mean over each micro-batch. `logits/*` are means
//! over the completions' tokens, as in DPO, without prompts and padding.

#[cfg(test)]
mod tests;

use rlhost_plugin_sdk::dual::Dual;
use rlhost_plugin_sdk::preference::{
    Defaults, Needs, Preference, PreferenceGradient, PreferenceLossSum, PreferencePairs, pair_metrics,
};
use rlhost_plugin_sdk::prelude::*;

/// Settings of ORPO.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct OrpoSettings {
    /// Weight of the odds ratio loss, lambda in the paper.
    #[schemars(range(min = 0.0))]
    pub beta: f64,
    /// Whether the negative log-likelihood includes the prompt, as in TRL, or is the completion's alone, as in the paper
    pub prompt_likelihood: bool,
}

impl Default for OrpoSettings {
    fn default() -> Self {
        Self { beta: 0.1, prompt_likelihood: true }
    }
}

/// The algorithm with its settings.
pub struct Orpo {
    settings: OrpoSettings,
}

/// Returns the logarithm of the odds `p / (1 - p)` of a completion's mean log-probability. A certain completion would have infinite odds,
/// so its probability is limited to slightly below 1.
fn log_odds(logp: Dual<2>) -> Dual<2> {
    let logp = logp.min(-1e-7);
    logp - (-logp.exp() + 1.0).ln()
}

impl Preference for Orpo {
    type Config = OrpoSettings;
    const DESCRIPTION: &'static str = "Odds Ratio Preference Optimization";
    const FRAMED: bool = true;
    const DEFAULTS: Defaults = Defaults::NO_AUX_LOSS;

    fn needs(settings: &OrpoSettings) -> Needs {
        if settings.prompt_likelihood { Needs::MEAN_LOGITS | Needs::PROMPT_LOGP } else { Needs::MEAN_LOGITS }
    }

    fn new(settings: OrpoSettings) -> Result<Self, Error> {
        Ok(Self { settings })
    }

    fn loss(&mut self, p: &PreferencePairs) -> Result<PreferenceGradient, Error> {
        let beta = self.settings.beta;
        let of_chosen = p.chosen.logp.iter().map(|&logp| -f64::from(logp));
        if !self.settings.prompt_likelihood {
            return Ok(loss(beta, p, p.scale.tokens, Metric::mean_of("nll_loss", of_chosen)));
        }
        let missing =
            || Error::Input("prompt_likelihood needs the prompts' log-probabilities, which the batch does not have".into());
        let prompts = &p.prompts.as_ref().ok_or_else(missing)?.logp;
        let tokens = p.scale.tokens + p.scale.prompt_tokens;
        let likelihood = prompts.iter().map(|&logp| -f64::from(logp)).chain(of_chosen);
        let mut gradient = loss(beta, p, tokens, Metric::mean_of("nll_loss", likelihood));
        let each = 1.0 / (tokens as f64).max(1.0);
        gradient.loss -= each * prompts.iter().map(|&logp| f64::from(logp)).sum::<f64>();
        gradient.d_prompts = Some(vec![-each as f32; prompts.len()]);
        Ok(gradient)
    }
}

/// Returns the loss of pairs. The negative log-likelihood of their chosen completions is divided by `tokens`.
fn loss(beta: f64, p: &PreferencePairs, tokens: u64, nll_loss: Option<Metric>) -> PreferenceGradient {
    let (chosen, rejected) = (p.chosen.logps(), p.rejected.logps());
    let (chosen_lengths, rejected_lengths) = (p.chosen.lengths(), p.rejected.lengths());
    let (pairs, tokens) = (f64::from(p.scale.items), (tokens as f64).max(1.0));

    let mut total = PreferenceLossSum::new(p);
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
    let mut metrics = pair_metrics(p, Some([&rewards[0], &rewards[1]]), [&logps[0], &logps[1]]);
    metrics.extend(nll_loss);
    metrics.extend(Metric::mean_of("log_odds_ratio", ratios));
    metrics.extend(Metric::mean_of("log_odds_chosen", log_odds_chosen));
    total.gradient(p, metrics)
}

rlhost_plugin_sdk::preference_plugin!(Orpo);
