//! Online policy algorithms: compute advantages from a generation's rewards, and a loss with its derivatives per token.

pub mod testing;

use crate::Error;
pub use crate::bindings::contract::plugin::Needs;
pub use crate::bindings::contract::policy::{Advantages, Gradient, Tokens};
pub use crate::bindings::types::{RewardColumn, Rollouts, Scale};
use crate::config::Config;
pub use crate::config::Defaults;
pub use crate::rows::rows;
use crate::stateful::State;

/// An online policy algorithm.
pub trait Policy: Sized + Send + 'static {
    /// Its settings.
    type Config: Config;
    /// One line that says what it does.
    const DESCRIPTION: &'static str;
    /// The peak learning rate of a run that sets none, for a full-size model.
    const LEARNING_RATE: f64 = crate::config::LEARNING_RATE;
    /// Its own defaults for keys of the run.
    const DEFAULTS: Defaults = Defaults::NONE;

    /// Returns the columns it needs under these settings.
    fn needs(config: &Self::Config) -> Needs;

    /// Returns whether `logp` of given tokens may be that of smoothed targets under these settings: with
    /// `label_smoothing_factor`, the host counts each target as that much of all tokens of the vocabulary alike. So it may where
    /// a loss is a sum of `logp` with fixed weights, its derivatives.
    fn smoothed(_config: &Self::Config) -> bool {
        false
    }

    /// Creates the algorithm from its settings.
    fn new(config: Self::Config) -> Result<Self, Error>;

    /// Returns advantages for the complete generation batch of all ranks.
    fn estimate(&mut self, rollouts: &Rollouts) -> Result<Advantages, Error>;

    /// Returns one micro-batch's part of the loss, and its derivatives.
    fn loss(&mut self, tokens: &Tokens) -> Result<Gradient, Error>;
}

/// An algorithm with a state, such as an adapted coefficient, that survives checkpoints and hot swaps. Exported by
/// `policy_plugin!(MyType, stateful);`.
pub trait Stateful: Policy {
    /// Its state, without its settings. Settings may change when a run is forked or a plugin swapped, so a state must work with
    /// new ones.
    type State: State;

    /// Returns its state, to be read for a snapshot or replaced by one.
    fn state(&mut self) -> &mut Self::State;
}

/// An algorithm that adapts to the metrics of training. Exported by `policy_plugin!(MyType, observing);`, together with its
/// state: without it, everything adapted would be lost at every resume.
pub trait Observing: Stateful {
    /// Receives the metrics of an optimizer step after it, reduced over micro-batches and ranks, so that all ranks adapt alike.
    /// Metrics for which a step had no values are missing.
    fn observe(&mut self, step: u64, metrics: &[(String, f64)]);
}

/// Returns a metric by name from those that [`Observing::observe`] receives.
#[must_use]
pub fn figure(metrics: &[(String, f64)], name: &str) -> Option<f64> {
    metrics.iter().find(|(n, _)| n == name).map(|&(_, value)| value)
}

/// Holds an exported algorithm and its settings.
#[doc(hidden)]
pub struct Exported<P: Policy> {
    pub config: P::Config,
    pub policy: P,
}

/// Exports a type that implements [`Policy`](crate::policy::Policy). With `stateful`, it also exports its
/// [state](crate::policy::Stateful), and with `observing`, its state and its [observer](crate::policy::Observing). Name and
/// version are the crate's.
///
/// ```
/// use rlhost_plugin_sdk::policy::{Advantages, Gradient, Needs, Observing, Policy, Rollouts, Stateful, Tokens, figure};
/// use rlhost_plugin_sdk::{config::NoConfig, prelude::*};
///
/// /// The highest KL divergence so far.
/// #[derive(Default, Deserialize, Serialize)]
/// struct Peak(f64);
///
/// #[derive(Default)]
/// struct Watching {
///     peak: Peak,
/// }
///
/// impl Policy for Watching {
///     // ...
/// #   type Config = NoConfig;
/// #   const DESCRIPTION: &'static str = "Watches";
/// #   fn needs(_: &NoConfig) -> Needs {
/// #       Needs::empty()
/// #   }
/// #   fn new(_: NoConfig) -> Result<Self, Error> {
/// #       Ok(Self::default())
/// #   }
/// #   fn estimate(&mut self, _: &Rollouts) -> Result<Advantages, Error> {
/// #       Err(Error::Internal("a test".into()))
/// #   }
/// #   fn loss(&mut self, _: &Tokens) -> Result<Gradient, Error> {
/// #       Err(Error::Internal("a test".into()))
/// #   }
/// }
///
/// impl Stateful for Watching {
///     type State = Peak;
///     fn state(&mut self) -> &mut Peak {
///         &mut self.peak
///     }
/// }
///
/// impl Observing for Watching {
///     fn observe(&mut self, _step: u64, metrics: &[(String, f64)]) {
///         self.peak.0 = figure(metrics, "kl").map_or(self.peak.0, |kl| kl.max(self.peak.0));
///     }
/// }
///
/// policy_plugin!(Watching, observing);
///
/// # use rlhost_plugin_sdk::bindings::contract::{observer::Guest as _, plugin::Guest as _, state::Guest as _};
/// # assert!(__Plugin::snapshot().is_err());
/// # __Plugin::configure("{}".into()).unwrap();
/// # __Plugin::observe(1, vec![("reward".into(), 9.0), ("kl".into(), 2.5)]);
/// # __Plugin::observe(2, vec![("kl".into(), 1.5)]);
/// # let snapshot = __Plugin::snapshot().unwrap();
/// # assert_eq!(snapshot, b"2.5");
/// # __Plugin::configure("{}".into()).unwrap();
/// # assert_eq!(__Plugin::snapshot().unwrap(), b"0.0");
/// # __Plugin::restore(snapshot, "watching 0.1.0".into()).unwrap();
/// # assert_eq!(__Plugin::snapshot().unwrap(), b"2.5");
/// # assert!(__Plugin::restore(b"{".to_vec(), "watching 0.1.0".into()).is_err());
/// # assert!(!__Plugin::describe().stateless);
/// ```
#[macro_export]
macro_rules! policy_plugin {
    ($policy:ty) => {
        $crate::policy_plugin!(@policy $policy, stateless: true);
        $crate::export_interfaces!(__Plugin, POLICY, policy: __export_rlhost_plugin_policy_0_1_0_cabi);
    };
    ($policy:ty, stateful) => {
        $crate::policy_plugin!(@policy $policy, stateless: false);
        $crate::policy_plugin!(@state $policy);
        $crate::export_interfaces!(
            __Plugin,
            STATEFUL_POLICY,
            policy: __export_rlhost_plugin_policy_0_1_0_cabi,
            state: __export_rlhost_plugin_state_0_1_0_cabi
        );
    };
    ($policy:ty, observing) => {
        $crate::policy_plugin!(@policy $policy, stateless: false);
        $crate::policy_plugin!(@state $policy);

        impl $crate::bindings::contract::observer::Guest for __Plugin {
            fn observe(step: u64, metrics: ::std::vec::Vec<(::std::string::String, f64)>) {
                // Before `configure` there is no plugin to tell, and the contract has no answer here.
                let _ = __POLICY.with(|p| {
                    $crate::policy::Observing::observe(&mut p.policy, step, &metrics);
                    ::core::result::Result::Ok(())
                });
            }
        }

        $crate::export_interfaces!(
            __Plugin,
            OBSERVING_POLICY,
            policy: __export_rlhost_plugin_policy_0_1_0_cabi,
            state: __export_rlhost_plugin_state_0_1_0_cabi,
            observer: __export_rlhost_plugin_observer_0_1_0_cabi
        );
    };
    (@policy $policy:ty, stateless: $stateless:literal) => {
        #[doc(hidden)]
        pub struct __Plugin;
        static __POLICY: $crate::slot::Slot<$crate::policy::Exported<$policy>> = $crate::slot::Slot::new();

        impl $crate::bindings::contract::plugin::Guest for __Plugin {
            fn describe() -> $crate::bindings::contract::plugin::Info {
                use $crate::policy::Policy;
                let asked = |config: &<$policy as Policy>::Config| (<$policy>::needs(config), <$policy>::smoothed(config));
                let (needs, smoothed) = __POLICY.read(|p| match p {
                    Some(p) => asked(&p.config),
                    None => asked(&::core::default::Default::default()),
                });
                $crate::bindings::contract::plugin::Info {
                    name: env!("CARGO_PKG_NAME").into(),
                    version: env!("CARGO_PKG_VERSION").into(),
                    description: <$policy>::DESCRIPTION.into(),
                    config_schema: $crate::config::algorithm_schema::<<$policy as Policy>::Config>(
                        $crate::serde_json::json!({
                            "learning_rate": <$policy>::LEARNING_RATE,
                            "defaults": <$policy>::DEFAULTS,
                            "smoothed": smoothed,
                        }),
                    ),
                    needs,
                    stateless: $stateless,
                }
            }

            fn configure(config: ::std::string::String) -> ::core::result::Result<(), $crate::Error> {
                let config: <$policy as $crate::policy::Policy>::Config = $crate::config::parse(&config)?;
                let policy = <$policy as $crate::policy::Policy>::new(config.clone())?;
                __POLICY.set($crate::policy::Exported { config, policy });
                Ok(())
            }
        }

        impl $crate::bindings::contract::policy::Guest for __Plugin {
            fn estimate(
                rollouts: $crate::policy::Rollouts,
            ) -> ::core::result::Result<$crate::policy::Advantages, $crate::Error> {
                __POLICY.with(|p| $crate::policy::Policy::estimate(&mut p.policy, &rollouts))
            }

            fn loss(tokens: $crate::policy::Tokens) -> ::core::result::Result<$crate::policy::Gradient, $crate::Error> {
                __POLICY.with(|p| $crate::policy::Policy::loss(&mut p.policy, &tokens))
            }
        }
    };
    (@state $policy:ty) => {
        impl $crate::bindings::contract::state::Guest for __Plugin {
            fn snapshot() -> ::core::result::Result<::std::vec::Vec<u8>, $crate::Error> {
                __POLICY.with(|p| $crate::stateful::snapshot($crate::policy::Stateful::state(&mut p.policy)))
            }

            fn restore(
                snapshot: ::std::vec::Vec<u8>,
                _written_by: ::std::string::String,
            ) -> ::core::result::Result<(), $crate::Error> {
                __POLICY.with(|p| {
                    $crate::stateful::restored(&snapshot).map(|state| *$crate::policy::Stateful::state(&mut p.policy) = state)
                })
            }
        }
    };
}
