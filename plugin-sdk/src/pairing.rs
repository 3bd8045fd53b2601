//! Choosing pairs from rollouts. Together with [`Preference`](crate::preference::Preference), this is an online algorithm over
//! pairs.

use crate::Error;
pub use crate::bindings::contract::pairing::{Choice, Pair};
pub use crate::bindings::types::{RewardColumn, Rollouts};

/// Chooses which of the policy's completions to compare.
///
/// ```
/// use rlhost_plugin_sdk::pairing::{Choice, Pair, Pairing, Rollouts};
/// # use rlhost_plugin_sdk::config::NoConfig;
/// use rlhost_plugin_sdk::prelude::*;
/// # use rlhost_plugin_sdk::preference::{Gradient, Needs, Pairs, Preference, Total};
/// use rlhost_plugin_sdk::scores::{rows_by_prompt, scores};
///
/// /// Learns from each prompt's best and worst completion.
/// struct BestAndWorst;
///
/// impl Pairing for BestAndWorst {
///     fn choose(&mut self, rollouts: &Rollouts) -> Result<Choice, Error> {
///         let rewards = scores(rollouts);
///         let mut pairs = Vec::new();
///         for mut group in rows_by_prompt(&rollouts.prompt_of) {
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
    /// Chooses the pairs of a generation batch, as indices of its rows. Rows in no pair are not trained on.
    fn choose(&mut self, rollouts: &Rollouts) -> Result<Choice, Error>;
}

/// Exports a type that implements [`Preference`](crate::preference::Preference) and
/// [`Pairing`](crate::pairing::Pairing). Name and version are the crate's.
#[macro_export]
macro_rules! online_preference_plugin {
    ($algorithm:ty) => {
        $crate::preference_plugin!(@interfaces $algorithm, described);

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
