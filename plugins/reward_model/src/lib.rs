//! The loss of reward models (Bradley and Terry 1952): the chosen completion's value should exceed the rejected one's, by a
//! `margin` if the dataset has one. Names, defaults and metrics are TRL's.
//!
//! Difference from TRL: `min_reward` and `max_reward` of several micro-batches are the minimum and maximum over all, not means
//! over micro-batches.

#[cfg(test)]
mod tests;

use rlhost_plugin_sdk::prelude::*;
use rlhost_plugin_sdk::reward_model::{RewardModel, RewardModelGradient, RewardModelLossSum, RewardModelPairs};

/// Settings of the loss.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct BradleyTerrySettings {
    /// Weight of the squared sum of a pair's rewards, which centers them at zero (arXiv 2312.09244); TRL recommends 0.01.
    #[schemars(range(min = 0.0))]
    pub center_rewards_coefficient: Option<f64>,
}

/// The loss with its settings.
pub struct BradleyTerry {
    settings: BradleyTerrySettings,
}

impl RewardModel for BradleyTerry {
    type Config = BradleyTerrySettings;
    const DESCRIPTION: &'static str = "Reward model (Bradley-Terry)";

    fn new(settings: BradleyTerrySettings) -> Result<Self, Error> {
        Ok(Self { settings })
    }

    fn loss(&mut self, pairs: &RewardModelPairs) -> Result<RewardModelGradient, Error> {
        let rows = f64::from(pairs.scale.items);
        let mut total = RewardModelLossSum::default();
        for (row, (chosen, rejected)) in pairs.values().enumerate() {
            let margin = pairs.margin.as_ref().map_or(0.0, |margin| f64::from(margin[row]));
            let mut term = -(chosen - rejected - margin).log_sigmoid();
            if let Some(coefficient) = self.settings.center_rewards_coefficient {
                term = term + (chosen + rejected).square() * coefficient;
            }
            total.add(term / rows);
        }
        Ok(total.gradient(figures(pairs)))
    }
}

/// Returns TRL's metrics of these pairs.
fn figures(pairs: &RewardModelPairs) -> Vec<Metric> {
    let both = || pairs.chosen.iter().zip(&pairs.rejected);
    let all = || pairs.chosen.iter().chain(&pairs.rejected).map(|&value| f64::from(value));
    let metrics = [
        Metric::mean_of("accuracy", both().map(|(chosen, rejected)| f64::from(u8::from(chosen > rejected)))),
        Metric::mean_of("margin", both().map(|(chosen, rejected)| f64::from(chosen - rejected))),
        all().reduce(f64::min).map(|least| Metric::min("min_reward", least)),
        Metric::mean_of("mean_reward", all()),
        all().reduce(f64::max).map(|most| Metric::max("max_reward", most)),
    ];
    metrics.into_iter().flatten().collect()
}

rlhost_plugin_sdk::reward_model_plugin!(BradleyTerry);
