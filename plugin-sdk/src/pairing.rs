//! Choice of pairs from rollouts. Together with [`Preference`], this makes an online algorithm over pairs.

use crate::Error;
use crate::algorithm::{Algorithm, Data, Gradient, Source, WeightedReward};
pub use crate::algorithm::{Choice, Pair};
use crate::batch::Batch;
use crate::config::Defaults;
use crate::needs::Needs;
use crate::preference::{self, Preference};
pub use crate::rollouts::{RewardColumn, Rollouts};

/// Chooses which of the policy's completions to compare.
///
/// ```
/// use rlhost_plugin_sdk::pairing::{Choice, Pair, Pairing, Rollouts};
/// # use rlhost_plugin_sdk::config::NoConfig;
/// use rlhost_plugin_sdk::prelude::*;
/// # use rlhost_plugin_sdk::preference::{PreferenceGradient, Needs, PreferencePairs, Preference, PreferenceLossSum};
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
/// #     fn loss(&mut self, p: &PreferencePairs) -> Result<PreferenceGradient, Error> { Ok(PreferenceLossSum::new(p).gradient(p, Vec::new())) }
/// # }
/// // and `impl Preference for BestAndWorst`, for the loss of the pairs
/// online_preference_plugin!(BestAndWorst);
/// ```
pub trait Pairing {
    /// Chooses the pairs of a generation batch, as indices of its rows. Rows in no pair are not trained on.
    fn choose(&mut self, rollouts: &Rollouts) -> Result<Choice, Error>;
}

/// Adapts an online preference algorithm to [`Algorithm`].
#[doc(hidden)]
pub struct OnlinePreferenceAlgorithm<P>(P);

impl<P: Preference + Pairing> Algorithm for OnlinePreferenceAlgorithm<P> {
    type Config = P::Config;
    const DESCRIPTION: &'static str = P::DESCRIPTION;
    const LEARNING_RATE: f64 = P::LEARNING_RATE;
    const DEFAULTS: Defaults = P::DEFAULTS;
    const FRAMED: bool = P::FRAMED;

    fn needs(config: &P::Config) -> Needs {
        P::needs(config) | Needs::LOGP | Needs::OLD_LOGP | Needs::FINISHED
    }

    fn data(_: &P::Config) -> Data {
        Data::pairs(Source::Policy)
    }

    fn new(config: P::Config) -> Result<Self, Error> {
        P::new(config).map(Self)
    }

    fn loss(&mut self, batch: &Batch) -> Result<Gradient, Error> {
        preference::loss(&mut self.0, batch)
    }

    fn choose(&mut self, generation: &Batch, rewards: &[WeightedReward]) -> Result<Choice, Error> {
        self.0.choose(&Rollouts::from_batch(generation, rewards)?)
    }
}

/// Exports a type that implements [`Preference`] and [`Pairing`](crate::pairing::Pairing). Name and version are the crate's.
#[macro_export]
macro_rules! online_preference_plugin {
    ($algorithm:ty) => {
        $crate::algorithm_plugin!($crate::pairing::OnlinePreferenceAlgorithm<$algorithm>, pairing);
    };
}
