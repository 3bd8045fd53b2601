//! Online policy algorithms: advantages from a generation's rewards, and a loss with its
//! derivatives per token.

use crate::Error;
pub use crate::bindings::contract::plugin::Needs;
pub use crate::bindings::contract::policy::{Advantages, Gradient, Tokens};
pub use crate::bindings::types::{RewardColumn, Rollouts, Scale};
use crate::config::Config;
use std::ops::Range;

/// An online policy algorithm.
pub trait Policy: Sized + Send + 'static {
    /// Its settings.
    type Config: Config;
    /// One line for people.
    const DESCRIPTION: &'static str;

    /// The columns it needs under these settings.
    fn needs(config: &Self::Config) -> Needs;

    /// Takes its settings.
    fn new(config: Self::Config) -> Result<Self, Error>;

    /// Advantages for the whole generation batch of all ranks.
    fn estimate(&mut self, rollouts: &Rollouts) -> Result<Advantages, Error>;

    /// One micro-batch's part of the loss, and its derivatives.
    fn loss(&mut self, tokens: &Tokens) -> Result<Gradient, Error>;
}

/// The tokens of each row, as ranges.
pub fn rows(offsets: &[u32]) -> impl Iterator<Item = Range<usize>> + '_ {
    offsets.windows(2).map(|w| w[0] as usize..w[1] as usize)
}

/// Where an exported algorithm keeps itself and its settings.
#[doc(hidden)]
pub struct Exported<P: Policy> {
    pub config: P::Config,
    pub policy: P,
}

/// Exports a type that implements [`Policy`](crate::policy::Policy). Name and version are the
/// crate's.
#[macro_export]
macro_rules! policy_plugin {
    ($policy:ty) => {
        #[doc(hidden)]
        pub struct __Plugin;
        static __POLICY: $crate::slot::Slot<$crate::policy::Exported<$policy>> = $crate::slot::Slot::new();

        impl $crate::bindings::contract::plugin::Guest for __Plugin {
            fn describe() -> $crate::bindings::contract::plugin::Info {
                use $crate::policy::Policy;
                let needs = __POLICY.read(|p| match p {
                    Some(p) => <$policy>::needs(&p.config),
                    None => <$policy>::needs(&::core::default::Default::default()),
                });
                $crate::bindings::contract::plugin::Info {
                    name: env!("CARGO_PKG_NAME").into(),
                    version: env!("CARGO_PKG_VERSION").into(),
                    description: <$policy>::DESCRIPTION.into(),
                    config_schema: $crate::config::schema::<<$policy as Policy>::Config>(),
                    needs,
                    stateless: true,
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

        $crate::export_interfaces!(__Plugin, POLICY, policy: __export_rlhost_plugin_policy_0_1_0_cabi);
    };
}
