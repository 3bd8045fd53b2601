//! Online policy algorithms: compute advantages from a generation's rewards, and a loss with its derivatives per token.

pub mod testing;

use crate::Error;
use crate::bindings::contract::plugin::Info;
pub use crate::bindings::contract::plugin::Needs;
pub use crate::bindings::contract::policy::{Advantages, Gradient, Tokens};
pub use crate::bindings::types::{RewardColumn, Rollouts, Scale};
use crate::config::Config;
pub use crate::config::Defaults;
pub use crate::rows::rows;
use crate::stateful::State;
pub use crate::turns::Turns;

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

    /// Returns whether it compares the completions of a prompt with each other under these settings, so that training needs at least
    /// two. An evaluation may have one, which then has nothing to be compared with.
    fn compares(_config: &Self::Config) -> bool {
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

/// An algorithm that can give each turn of an episode its own advantage. Exported by `policy_plugin!(MyType, turns);`, or with
/// its state and its observer by `policy_plugin!(MyType, observing, turns);`.
pub trait TurnPolicy: Policy {
    /// Returns whether it uses the rewards of turns under these settings. If so, [`Self::estimate_turns`] is called in place of
    /// [`Policy::estimate`], and runs without an environment refuse it.
    fn sees_turns(config: &Self::Config) -> bool;

    /// Returns the same as [`Policy::estimate`]. `turns` has the reward of each turn.
    fn estimate_turns(&mut self, rollouts: &Rollouts, turns: &Turns) -> Result<Advantages, Error>;
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

#[doc(hidden)]
#[must_use]
pub fn described<P: Policy>(
    name: &str,
    version: &str,
    stateless: bool,
    exported: Option<&Exported<P>>,
    turns: impl FnOnce(&P::Config) -> Option<bool>,
) -> Info {
    let config = exported.map_or_else(P::Config::default, |e| e.config.clone());
    let mut hints = serde_json::json!({
        "learning_rate": P::LEARNING_RATE,
        "defaults": P::DEFAULTS,
        "smoothed": P::smoothed(&config),
        "compares": P::compares(&config),
    });
    if let Some(sees_turns) = turns(&config) {
        hints["turn_rewards"] = sees_turns.into();
    }
    Info {
        name: name.into(),
        version: version.into(),
        description: P::DESCRIPTION.into(),
        config_schema: crate::config::algorithm_schema::<P::Config>(hints),
        needs: P::needs(&config),
        stateless,
    }
}

/// Exports a type that implements [`Policy`](crate::policy::Policy). With `stateful`, it also exports its
/// [state](crate::policy::Stateful), and with `observing`, its state and its [observer](crate::policy::Observing). With `turns`,
/// also after `observing`, it can give each [turn](crate::policy::TurnPolicy) its own advantage. Name and version are the crate's.
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
        $crate::policy_plugin!(@policy $policy, stateless: true, turns: |_| None);
        $crate::export_interfaces!(__Plugin, POLICY, policy: __export_rlhost_plugin_policy_0_1_0_cabi);
    };
    ($policy:ty, stateful) => {
        $crate::policy_plugin!(@policy $policy, stateless: false, turns: |_| None);
        $crate::policy_plugin!(@state $policy);
        $crate::export_interfaces!(
            __Plugin,
            STATEFUL_POLICY,
            policy: __export_rlhost_plugin_policy_0_1_0_cabi,
            state: __export_rlhost_plugin_state_0_1_0_cabi
        );
    };
    ($policy:ty, observing) => {
        $crate::policy_plugin!(@policy $policy, stateless: false, turns: |_| None);
        $crate::policy_plugin!(@state $policy);
        $crate::policy_plugin!(@observer $policy);
        $crate::export_interfaces!(
            __Plugin,
            OBSERVING_POLICY,
            policy: __export_rlhost_plugin_policy_0_1_0_cabi,
            state: __export_rlhost_plugin_state_0_1_0_cabi,
            observer: __export_rlhost_plugin_observer_0_1_0_cabi
        );
    };
    ($policy:ty, turns) => {
        $crate::policy_plugin!(@policy $policy, stateless: true, turns: |c| Some(<$policy as $crate::policy::TurnPolicy>::sees_turns(c)));
        $crate::policy_plugin!(@turns $policy);
        $crate::export_interfaces!(
            __Plugin,
            TURN_POLICY,
            policy: __export_rlhost_plugin_policy_0_1_0_cabi,
            turn_policy: __export_rlhost_plugin_turn_policy_0_2_0_cabi
        );
    };
    ($policy:ty, observing, turns) => {
        $crate::policy_plugin!(@policy $policy, stateless: false, turns: |c| Some(<$policy as $crate::policy::TurnPolicy>::sees_turns(c)));
        $crate::policy_plugin!(@state $policy);
        $crate::policy_plugin!(@observer $policy);
        $crate::policy_plugin!(@turns $policy);
        $crate::export_interfaces!(
            __Plugin,
            OBSERVING_TURN_POLICY,
            policy: __export_rlhost_plugin_policy_0_1_0_cabi,
            state: __export_rlhost_plugin_state_0_1_0_cabi,
            observer: __export_rlhost_plugin_observer_0_1_0_cabi,
            turn_policy: __export_rlhost_plugin_turn_policy_0_2_0_cabi
        );
    };
    (@policy $policy:ty, stateless: $stateless:literal, turns: $turns:expr) => {
        #[doc(hidden)]
        pub struct __Plugin;
        static __POLICY: $crate::slot::Slot<$crate::policy::Exported<$policy>> = $crate::slot::Slot::new();

        impl $crate::bindings::contract::plugin::Guest for __Plugin {
            fn describe() -> $crate::bindings::contract::plugin::Info {
                let (name, version) = (env!("CARGO_PKG_NAME"), env!("CARGO_PKG_VERSION"));
                __POLICY.read(|p| $crate::policy::described(name, version, $stateless, p, $turns))
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
    (@turns $policy:ty) => {
        impl $crate::bindings::contract::turn_policy::Guest for __Plugin {
            fn estimate(
                rollouts: $crate::policy::Rollouts,
                turns: $crate::policy::Turns,
            ) -> ::core::result::Result<$crate::policy::Advantages, $crate::Error> {
                turns.check(&rollouts)?;
                __POLICY.with(|p| $crate::policy::TurnPolicy::estimate_turns(&mut p.policy, &rollouts, &turns))
            }
        }
    };
    (@observer $policy:ty) => {
        impl $crate::bindings::contract::observer::Guest for __Plugin {
            fn observe(step: u64, metrics: ::std::vec::Vec<(::std::string::String, f64)>) {
                // Before `configure` there is no plugin to tell, and the contract has no answer here.
                let _ = __POLICY.with(|p| {
                    $crate::policy::Observing::observe(&mut p.policy, step, &metrics);
                    ::core::result::Result::Ok(())
                });
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
