//! REINFORCE with a batch baseline: every token's advantage is its row's weighted reward less the
//! mean over the batch, and the loss is `-advantage * logp`, averaged over the step's tokens.

use rlhost_plugin_sdk::config::NoConfig;
use rlhost_plugin_sdk::policy::{Advantages, Needs, Policy, PolicyGradient, Rollouts, Tokens, rows};
use rlhost_plugin_sdk::{Error, policy_plugin};

/// The algorithm; it has no settings.
pub struct Reinforce;

/// A row's weighted rewards, summed over the columns that score it.
fn total(rollouts: &Rollouts, row: usize) -> Option<f64> {
    let scored = rollouts.rewards.iter().filter_map(|c| c.values[row].map(|v| f64::from(c.weight) * f64::from(v)));
    scored.reduce(|sum, reward| sum + reward)
}

impl Policy for Reinforce {
    type Config = NoConfig;
    const DESCRIPTION: &'static str = env!("CARGO_PKG_DESCRIPTION");

    fn needs(_: &NoConfig) -> Needs {
        Needs::empty()
    }

    fn new(_: NoConfig) -> Result<Self, Error> {
        Ok(Self)
    }

    fn estimate(&mut self, rollouts: &Rollouts) -> Result<Advantages, Error> {
        let totals: Vec<Option<f64>> = (0..rollouts.prompt_of.len()).map(|row| total(rollouts, row)).collect();
        let scored: Vec<f64> = totals.iter().copied().flatten().collect();
        let baseline = scored.iter().sum::<f64>() / scored.len() as f64;

        let mut mask = rollouts.mask.clone();
        let mut advantages = vec![0.0; mask.len()];
        for (tokens, total) in rows(&rollouts.offsets).zip(totals) {
            match total {
                Some(total) => advantages[tokens].fill((total - baseline) as f32),
                None => mask[tokens].fill(0),
            }
        }
        Ok(Advantages { advantages, returns: None, mask: Some(mask), metrics: Vec::new() })
    }

    fn loss(&mut self, tokens: &Tokens) -> Result<PolicyGradient, Error> {
        let share = 1.0 / tokens.scale.tokens.max(1) as f64;
        let mut loss = 0.0;
        let mut d_logp = vec![0.0; tokens.logp.len()];
        for (token, slope) in d_logp.iter_mut().enumerate().filter(|(token, _)| tokens.mask[*token] != 0) {
            let derivative = -f64::from(tokens.advantages[token]) * share;
            loss += derivative * f64::from(tokens.logp[token]);
            *slope = derivative as f32;
        }
        Ok(PolicyGradient { loss, d_logp, d_entropy: None, d_values: None, metrics: Vec::new() })
    }
}

policy_plugin!(Reinforce);

#[cfg(test)]
mod tests {
    use super::*;
    use rlhost_plugin_sdk::policy::{RewardColumn, Scale};

    #[test]
    fn a_row_that_nobody_scores_counts_for_nothing() {
        let column = |weight, values: &[Option<f32>]| RewardColumn { name: String::new(), weight, values: values.to_vec() };
        let rollouts = Rollouts {
            rewards: vec![column(2.0, &[Some(1.0), None, None]), column(1.0, &[Some(1.0), Some(5.0), None])],
            prompt_of: vec![0, 0, 1],
            finished: vec![true; 3],
            offsets: vec![0, 2, 3, 5],
            mask: vec![1, 0, 1, 1, 1],
            logp: vec![-1.0; 5],
            ..Rollouts::default()
        };
        let answer = Reinforce.estimate(&rollouts).unwrap();
        assert_eq!(answer.advantages, [-1.0, -1.0, 1.0, 0.0, 0.0]);
        assert_eq!(answer.mask, Some(vec![1, 0, 1, 0, 0]));
    }

    #[test]
    fn the_loss_is_an_average_over_the_tokens_of_the_step() {
        let tokens = Tokens {
            step: 0,
            offsets: vec![0, 3],
            mask: vec![1, 0, 1],
            advantages: vec![3.0, 7.0, -1.0],
            logp: vec![-1.0, -9.0, -2.0],
            old_logp: vec![0.0; 3],
            ref_logp: None,
            sampling_logp: None,
            entropy: None,
            values: None,
            old_values: None,
            returns: None,
            scale: Scale { items: 2, tokens: 4, max_completion_length: 3, ..Scale::default() },
        };
        let answer = Reinforce.loss(&tokens).unwrap();
        assert_eq!(answer.loss, (3.0 - 2.0) / 4.0);
        assert_eq!(answer.d_logp, [-0.75, 0.0, 0.25]);
    }
}
