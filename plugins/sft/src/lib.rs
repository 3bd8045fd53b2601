//! Supervised fine-tuning: the mean cross-entropy of given completions. Each token is weighted by its advantage, which is 1
//! unless the dataset says otherwise. Names and defaults are TRL's.

use rlhost_plugin_sdk::policy::{Advantages, Gradient, Needs, Policy, Rollouts, Tokens};
use rlhost_plugin_sdk::prelude::*;

/// The loss of a token of probability `p`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LossType {
    /// `-ln p`, its negative log-likelihood.
    Nll,
    /// `-sg(p) ln p`, where tokens that the policy finds unlikely have less influence (Dynamic Fine-Tuning, Wu et al. 2025, arXiv
    /// 2508.05629).
    Dft,
    /// TRL's former name of `nll`.
    ChunkedNll,
}

/// Settings of supervised fine-tuning.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// The loss of a token.
    pub loss_type: LossType,
}

impl Default for Settings {
    fn default() -> Self {
        Self { loss_type: LossType::Nll }
    }
}

/// The algorithm with its settings.
pub struct Sft {
    settings: Settings,
}

impl Policy for Sft {
    type Config = Settings;
    const DESCRIPTION: &'static str = "Supervised fine-tuning on given completions (nll, dft)";
    const LEARNING_RATE: f64 = 2e-5;

    fn needs(_: &Settings) -> Needs {
        Needs::ENTROPY
    }

    /// With `nll`, the loss is the cross-entropy with any targets. `dft` would weight smoothed targets by a value that is not a
    /// probability.
    fn smoothed(settings: &Settings) -> bool {
        settings.loss_type != LossType::Dft
    }

    fn new(settings: Settings) -> Result<Self, Error> {
        Ok(Self { settings })
    }

    /// The policy's own completions all count equally.
    fn estimate(&mut self, rollouts: &Rollouts) -> Result<Advantages, Error> {
        let advantages = vec![1.0; rollouts.mask.len()];
        Ok(Advantages { advantages, returns: None, mask: None, metrics: Vec::new() })
    }

    fn loss(&mut self, t: &Tokens) -> Result<Gradient, Error> {
        let weight = 1.0 / (t.scale.tokens as f64).max(1.0);
        let counted = || (0..t.mask.len()).filter(|&i| t.mask[i] != 0);
        let mut d_logp = vec![0.0; t.logp.len()];
        let mut loss = 0.0;
        for i in counted() {
            let logp = f64::from(t.logp[i]);
            let held = match self.settings.loss_type {
                LossType::Nll | LossType::ChunkedNll => 1.0,
                LossType::Dft => logp.exp(),
            };
            let by = -weight * f64::from(t.advantages[i]) * held;
            d_logp[i] = by as f32;
            loss += by * logp;
        }
        let entropy = t.entropy.as_ref().and_then(|e| Metric::mean_of("entropy", counted().map(|i| f64::from(e[i]))));
        Ok(Gradient { loss, d_logp, d_entropy: None, d_values: None, metrics: entropy.into_iter().collect() })
    }
}

rlhost_plugin_sdk::policy_plugin!(Sft);

#[cfg(test)]
mod tests {
    use super::*;
    use rlhost_plugin_sdk::policy::Scale;
    use rlhost_plugin_sdk::policy::testing::{Noise, close};

    fn loss(loss_type: LossType, tokens: &Tokens) -> Gradient {
        Sft::new(Settings { loss_type }).unwrap().loss(tokens).unwrap()
    }

    fn tokens(offsets: &[u32], mask: &[u8], advantages: &[f32], logp: &[f32], entropy: &[f32]) -> Tokens {
        Tokens {
            step: 0,
            offsets: offsets.to_vec(),
            mask: mask.to_vec(),
            advantages: advantages.to_vec(),
            logp: logp.to_vec(),
            old_logp: vec![0.0; logp.len()],
            ref_logp: None,
            sampling_logp: None,
            entropy: Some(entropy.to_vec()),
            values: None,
            old_values: None,
            returns: None,
            scale: Scale { rows: 4, tokens: 8, max_completion_length: 9 },
        }
    }

    #[test]
    fn the_loss_is_the_mean_over_the_steps_counted_tokens() {
        let (advantages, logp) = ([1.0, 1.0, 1.0, 2.0], [-1.0, -2.0, -9.0, -0.5]);
        let got = loss(LossType::Nll, &tokens(&[0, 2, 4], &[1, 1, 0, 1], &advantages, &logp, &[1.0, 2.0, 7.0, 3.0]));
        assert_eq!((got.loss, got.d_logp), (0.5, vec![-0.125, -0.125, 0.0, -0.25]));
        assert_eq!((got.metrics[0].value, got.metrics[0].weight), (2.0, 3.0));
    }

    #[test]
    fn dynamic_fine_tuning_weighs_a_token_by_its_probability_and_holds_that_fixed() {
        let mut noise = Noise(3);
        let (mask, logp) = ([1, 1, 0, 1, 0, 1, 1], noise.column(7, -2.0, 1.9));
        let advantages = noise.column(7, 0.0, 1.0);
        let t = tokens(&[0, 3, 7], &mask, &advantages, &logp, &[0.0; 7]);
        // Logarithms at `at`, with the weights from `logp`.
        let wanted = |at: &[f64]| -> f64 {
            let token = |i: usize| -f64::from(advantages[i]) * f64::from(logp[i]).exp() * at[i];
            (0..7).filter(|&i| mask[i] == 1).map(token).sum::<f64>() / 8.0
        };
        let here: Vec<f64> = logp.iter().map(|&l| f64::from(l)).collect();
        let got = loss(LossType::Dft, &t);
        assert!((got.loss - wanted(&here)).abs() < 1e-12, "{} is not {}", got.loss, wanted(&here));
        let h = 1e-5;
        let moved = |i: usize, by: f64| wanted(&[&here[..i], &[here[i] + by], &here[i + 1..]].concat());
        let slopes: Vec<f64> = (0..7).map(|i| (moved(i, h) - moved(i, -h)) / (2.0 * h)).collect();
        close("d_logp", &got.d_logp, &slopes);
    }

    #[test]
    fn targets_may_be_smoothed_where_the_loss_is_a_cross_entropy() {
        assert!([LossType::Nll, LossType::Dft].map(|loss_type| Sft::smoothed(&Settings { loss_type })) == [true, false]);
    }

    #[test]
    fn losses_have_the_names_that_they_have_in_trl() {
        use rlhost_plugin_sdk::config::parse;
        let given = |config: &str| parse::<Settings>(config).map(|s| s.loss_type);
        assert_eq!(given("{}").unwrap(), LossType::Nll);
        assert_eq!(given(r#"{"loss_type": "nll"}"#).unwrap(), LossType::Nll);
        assert_eq!(given(r#"{"loss_type": "dft"}"#).unwrap(), LossType::Dft);
        assert!(given(r#"{"loss_type": "dapo"}"#).is_err());
    }
}
