//! Supervised fine-tuning: the mean cross-entropy of given completions, each token weighted by its
//! advantage, which is 1 where the dataset says nothing else.

use rlhost_plugin_sdk::policy::{Advantages, Gradient, Needs, Policy, Rollouts, Tokens};
use rlhost_plugin_sdk::prelude::*;

/// Settings; there are none.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {}

/// The algorithm.
pub struct Sft;

impl Policy for Sft {
    type Config = Settings;
    const DESCRIPTION: &'static str = "Supervised fine-tuning: the cross-entropy of given completions";

    fn needs(_: &Settings) -> Needs {
        Needs::ENTROPY
    }

    fn new(_: Settings) -> Result<Self, Error> {
        Ok(Self)
    }

    /// Completions of the policy's own all count alike.
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
            let by = -weight * f64::from(t.advantages[i]);
            d_logp[i] = by as f32;
            loss += by * f64::from(t.logp[i]);
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

    #[test]
    fn the_loss_is_the_mean_over_the_steps_counted_tokens() {
        let tokens = Tokens {
            step: 0,
            offsets: vec![0, 2, 4],
            mask: vec![1, 1, 0, 1],
            advantages: vec![1.0, 1.0, 1.0, 2.0],
            logp: vec![-1.0, -2.0, -9.0, -0.5],
            old_logp: vec![0.0; 4],
            ref_logp: None,
            sampling_logp: None,
            entropy: Some(vec![1.0, 2.0, 7.0, 3.0]),
            values: None,
            old_values: None,
            returns: None,
            scale: Scale { rows: 4, tokens: 8, max_completion_length: 9 },
        };
        let got = Sft.loss(&tokens).unwrap();
        assert_eq!((got.loss, got.d_logp), (0.5, vec![-0.125, -0.125, 0.0, -0.25]));
        assert_eq!((got.metrics[0].value, got.metrics[0].weight), (2.0, 3.0));
    }
}
