//! Pairs from rollouts: with [`Preference`](crate::preference::Preference), an online algorithm
//! over pairs.

use crate::Error;
pub use crate::bindings::contract::pairing::{Choice, Pair};
pub use crate::bindings::types::{RewardColumn, Rollouts};

/// Chooses which of the policy's own completions are compared.
///
/// ```
/// use rlhost_plugin_sdk::pairing::{Choice, Pair, Pairing, Rollouts};
/// # use rlhost_plugin_sdk::config::NoConfig;
/// use rlhost_plugin_sdk::prelude::*;
/// # use rlhost_plugin_sdk::preference::{Gradient, Needs, Pairs, Preference, Total};
///
/// /// Learns from each prompt's best and worst completion.
/// struct BestAndWorst;
///
/// impl Pairing for BestAndWorst {
///     fn choose(&mut self, rollouts: &Rollouts) -> Result<Choice, Error> {
///         let rewards = rollouts.total_rewards();
///         let mut pairs = Vec::new();
///         for mut group in rollouts.groups() {
///             group.retain(|&row| rewards[row].is_some());
///             group.sort_by(|&a, &b| rewards[b].unwrap_or(0.0).total_cmp(&rewards[a].unwrap_or(0.0)));
///             if let [best, .., worst] = group[..] {
///                 pairs.push(Pair { chosen: best as u32, rejected: worst as u32 });
///             }
///         }
///         Ok(Choice { pairs, metrics: Vec::new() })
///     }
/// }
///
/// # impl Preference for BestAndWorst {
/// #     type Config = NoConfig;
/// #     const DESCRIPTION: &'static str = "";
/// #     fn needs(_: &NoConfig) -> Needs { Needs::empty() }
/// #     fn new(_: NoConfig) -> Result<Self, Error> { Ok(Self) }
/// #     fn loss(&mut self, p: &Pairs) -> Result<Gradient, Error> { Ok(Total::new(p).gradient(p, Vec::new())) }
/// # }
/// // and `impl Preference for BestAndWorst`, for the loss of the pairs
/// online_preference_plugin!(BestAndWorst);
/// ```
pub trait Pairing {
    /// The pairs of a generation batch, as indices of its rows; a row that is in none is not
    /// trained on.
    fn choose(&mut self, rollouts: &Rollouts) -> Result<Choice, Error>;
}

impl Rollouts {
    /// The weighted sum of the rewards that each row has; none where it has none.
    #[must_use]
    pub fn total_rewards(&self) -> Vec<Option<f64>> {
        (0..self.prompt_of.len())
            .map(|row| {
                let given = self.rewards.iter().filter_map(|c| Some(f64::from(c.weight) * f64::from((*c.values.get(row)?)?)));
                given.fold(None, |sum, r| Some(sum.unwrap_or(0.0) + r))
            })
            .collect()
    }

    /// The rows of each prompt, in their order.
    #[must_use]
    pub fn groups(&self) -> Vec<Vec<usize>> {
        let prompts = self.prompt_of.iter().max().map_or(0, |&p| p as usize + 1);
        let mut groups = vec![Vec::new(); prompts];
        for (row, &prompt) in self.prompt_of.iter().enumerate() {
            groups[prompt as usize].push(row);
        }
        groups
    }
}

/// Exports a type that implements [`Preference`](crate::preference::Preference) and
/// [`Pairing`](crate::pairing::Pairing). Name and version are the crate's.
#[macro_export]
macro_rules! online_preference_plugin {
    ($algorithm:ty) => {
        $crate::preference_plugin!(@interfaces $algorithm);

        impl $crate::bindings::contract::pairing::Guest for __Plugin {
            fn choose(
                rollouts: $crate::pairing::Rollouts,
            ) -> ::core::result::Result<$crate::pairing::Choice, $crate::Error> {
                __ALGORITHM.with(|e| $crate::pairing::Pairing::choose(&mut e.algorithm, &rollouts))
            }
        }

        $crate::export_interfaces!(
            __Plugin,
            ONLINE_PREFERENCE,
            preference: __export_rlhost_plugin_preference_0_1_0_cabi,
            pairing: __export_rlhost_plugin_pairing_0_1_0_cabi
        );
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rewards_add_up_by_weight_and_rows_group_by_prompt() {
        let column = |weight, values: &[Option<f32>]| RewardColumn { name: String::new(), weight, values: values.to_vec() };
        let rollouts = Rollouts {
            step: 0,
            rewards: vec![column(2.0, &[Some(1.0), None, None]), column(0.5, &[Some(4.0), Some(-1.0), None])],
            prompt_of: vec![1, 0, 1],
            finished: vec![true; 3],
            offsets: vec![0; 4],
            mask: Vec::new(),
            logp: Vec::new(),
            ref_logp: None,
            values: None,
            entropy: None,
        };
        assert_eq!(rollouts.total_rewards(), [Some(4.0), Some(-0.5), None]);
        assert_eq!(rollouts.groups(), [vec![1], vec![0, 2]]);
    }
}
