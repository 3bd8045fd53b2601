//! Plugins with a state that survives checkpoints and hot swaps.

use crate::Error;
use crate::bindings::contract::reward::{Batch, Scores};
use crate::reward::{IntoScore, Sample};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The result of a stateful reward for a batch: scores, optional scores, or either with an error.
pub trait IntoScores {
    /// Converts the result to the contract's form.
    fn into_scores(self) -> Result<Vec<Option<f32>>, Error>;
}

impl<T: IntoScore> IntoScores for Vec<T> {
    fn into_scores(self) -> Result<Vec<Option<f32>>, Error> {
        self.into_iter().map(IntoScore::into_score).collect()
    }
}

impl<T: IntoScores> IntoScores for Result<T, Error> {
    fn into_scores(self) -> Result<Vec<Option<f32>>, Error> {
        self.and_then(IntoScores::into_scores)
    }
}

/// The state of a reward or algorithm. Derive `Serialize` and `Deserialize`, and implement `Default` for the start of a run. With
/// `#[serde(default)]`, a later version may add fields.
pub trait PersistentState: Serialize + DeserializeOwned + Default + Send + 'static {}

impl<T: Serialize + DeserializeOwned + Default + Send + 'static> PersistentState for T {}

/// A configured reward with its state.
#[doc(hidden)]
pub struct StatefulReward<C, S> {
    pub config: C,
    pub state: S,
}

#[doc(hidden)]
pub fn score_batch<C, S, R: IntoScores>(
    plugin: &mut StatefulReward<C, S>,
    batch: &Batch,
    score: impl FnOnce(&C, &mut S, &[Sample<'_>]) -> R,
) -> Result<Scores, Error> {
    let samples: Vec<Sample<'_>> = (0..batch.prompt_of.len()).map(|row| Sample::new(batch, row)).collect();
    let rewards = score(&plugin.config, &mut plugin.state, &samples).into_scores()?;
    Ok(Scores { rewards, metrics: Vec::new() })
}

#[doc(hidden)]
pub fn snapshot<S: PersistentState>(state: &S) -> Result<Vec<u8>, Error> {
    serde_json::to_vec(state).map_err(|e| Error::Internal(e.to_string()))
}

#[doc(hidden)]
pub fn restored<S: PersistentState>(snapshot: &[u8]) -> Result<S, Error> {
    serde_json::from_slice(snapshot).map_err(|e| Error::Input(e.to_string()))
}

/// Exports a reward with a state: a closure over the configuration, the mutable state and the samples of a batch. Name, version and
/// description are the crate's.
///
/// ```
/// use rlhost_plugin_sdk::prelude::*;
///
/// /// Lengths seen so far.
/// #[derive(Default, Deserialize, Serialize)]
/// #[serde(default)]
/// struct Seen {
///     completions: u64,
///     tokens: u64,
/// }
///
/// stateful_reward! {
///     state: Seen,
///     needs: TOKEN_IDS,
///     |_config, seen, samples| {
///         let mean = seen.tokens as f32 / seen.completions.max(1) as f32;
///         seen.completions += samples.len() as u64;
///         seen.tokens += samples.iter().map(|s| s.token_ids.len() as u64).sum::<u64>();
///         samples.iter().map(|s| s.token_ids.len() as f32 - mean).collect::<Vec<_>>()
///     }
/// }
/// ```
#[macro_export]
macro_rules! stateful_reward {
    (state: $state:ty, needs: $($need:ident)|+, |$c:ident, $st:ident, $s:ident| $body:expr) => {
        $crate::stateful_reward!(config: $crate::config::NoConfig, state: $state, needs: $($need)|+, |$c, $st, $s| $body);
    };
    (config: $config:ty, state: $state:ty, needs: $($need:ident)|+, |$c:ident, $st:ident, $s:ident| $body:expr) => {
        fn score(
            $c: &$config,
            $st: &mut $state,
            $s: &[$crate::reward::Sample<'_>],
        ) -> impl $crate::stateful::IntoScores + use<> {
            $body
        }

        #[doc(hidden)]
        pub struct __Plugin;
        static __PLUGIN: $crate::slot::ExportSlot<$crate::stateful::StatefulReward<$config, $state>> = $crate::slot::ExportSlot::new();

        impl $crate::bindings::contract::plugin::Guest for __Plugin {
            fn describe() -> $crate::bindings::contract::plugin::Info {
                $crate::bindings::contract::plugin::Info {
                    name: env!("CARGO_PKG_NAME").into(),
                    version: env!("CARGO_PKG_VERSION").into(),
                    description: env!("CARGO_PKG_DESCRIPTION").into(),
                    config_schema: $crate::config::schema::<$config>(),
                    needs: ($($crate::Needs::$need)|+).names(),
                    stateless: false,
                }
            }

            fn configure(config: ::std::string::String) -> ::core::result::Result<(), $crate::Error> {
                let config = $crate::config::parse::<$config>(&config)?;
                __PLUGIN.set($crate::stateful::StatefulReward { config, state: ::core::default::Default::default() });
                Ok(())
            }
        }

        impl $crate::bindings::contract::reward::Guest for __Plugin {
            fn score(
                batch: $crate::bindings::contract::reward::Batch,
            ) -> ::core::result::Result<$crate::bindings::contract::reward::Scores, $crate::Error> {
                __PLUGIN.with(|plugin| $crate::stateful::score_batch(plugin, &batch, score))
            }
        }

        impl $crate::bindings::contract::state::Guest for __Plugin {
            fn snapshot() -> ::core::result::Result<::std::vec::Vec<u8>, $crate::Error> {
                __PLUGIN.with(|plugin| $crate::stateful::snapshot(&plugin.state))
            }

            fn restore(
                snapshot: ::std::vec::Vec<u8>,
                _written_by: ::std::string::String,
            ) -> ::core::result::Result<(), $crate::Error> {
                __PLUGIN.with(|plugin| $crate::stateful::restored(&snapshot).map(|state| plugin.state = state))
            }
        }

        $crate::export_interfaces!(__Plugin, plugin, reward, state);
    };
}
