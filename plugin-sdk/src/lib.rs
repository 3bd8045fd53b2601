//! Write rewards and algorithms for `rlhost` in Rust.
//!
//! A reward is a closure over one completion:
//!
//! ```
//! use rlhost_plugin_sdk::prelude::*;
//!
//! reward! {
//!     /// Prefers completions that say thanks.
//!     |sample| if sample.completion.contains("thank") { 1.0 } else { 0.0 }
//! }
//! ```
//!
//! An algorithm implements [`policy::Policy`] and ends with `policy_plugin!(MyType);`; if it gives each turn of an episode its own
//! advantage, also [`policy::TurnPolicy`] and `policy_plugin!(MyType, turns);`. Over pairs of completions it is
//! [`preference::Preference`] and `preference_plugin!(MyType);`, or [`preference::WeightedPreference`] and
//! `weighted_preference_plugin!(MyType);` if it weights them, or [`preference::PromptedPreference`] and
//! `prompted_preference_plugin!(MyType);` if its loss depends on the prompts, over labelled completions [`labelled::Labelled`] and
//! `labelled_plugin!(MyType);`, and for a reward model [`reward_model::RewardModel`] and `reward_model_plugin!(MyType);`.
//! What models act in (a game, tools) implements [`environment::Environment`] and ends with `environment_plugin!(MyType);`.
//! Build either with `cargo build --release --target wasm32-wasip2` as a `cdylib`.

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

pub mod asking;
pub mod bindings;
pub mod config;
pub mod dual;
pub mod environment;
pub mod http;
pub mod labelled;
pub mod metric;
pub mod pairing;
pub mod policy;
pub mod preference;
pub mod reward;
pub mod reward_model;
pub mod rows;
pub mod scores;
#[doc(hidden)]
pub mod slot;
pub mod stateful;
pub mod turns;

pub use bindings::types::Error;
pub use metric::Metric;

/// Logs a line under the plugin's name.
pub fn log(message: &str) {
    #[cfg(target_arch = "wasm32")]
    bindings::host::log(bindings::host::Level::Info, message);
    #[cfg(not(target_arch = "wasm32"))]
    eprintln!("{message}");
}

/// Logs a warning under the plugin's name.
pub fn warn(message: &str) {
    #[cfg(target_arch = "wasm32")]
    bindings::host::log(bindings::host::Level::Warn, message);
    #[cfg(not(target_arch = "wasm32"))]
    eprintln!("warning: {message}");
}

/// What a reward usually needs in scope.
pub mod prelude {
    pub use crate::config::Config;
    pub use crate::reward::Sample;
    pub use crate::{Error, Metric, asking_reward, environment_plugin, reward, stateful_reward};
    pub use crate::{labelled_plugin, online_preference_plugin, policy_plugin, preference_plugin, reward_model_plugin};
    pub use crate::{prompted_preference_plugin, weighted_preference_plugin};
    pub use schemars::JsonSchema;
    pub use serde::{Deserialize, Serialize};
}

#[doc(hidden)]
pub use {schemars, serde, serde_json};

/// Exports `plugin` and other interfaces, and embeds the world that contains them.
#[doc(hidden)]
#[macro_export]
macro_rules! export_interfaces {
    ($plugin:ident, $world:ident, $($interface:ident: $export:ident),+) => {
        #[cfg(target_arch = "wasm32")]
        #[allow(unsafe_code)]
        const _: () = {
            $crate::bindings::contract::plugin::__export_rlhost_plugin_plugin_0_1_0_cabi!($plugin with_types_in $crate::bindings::contract::plugin);
            $($crate::bindings::contract::$interface::$export!($plugin with_types_in $crate::bindings::contract::$interface);)+

            #[unsafe(link_section = concat!("component-type:rlhost:", stringify!($world)))]
            static WORLD: [u8; $crate::bindings::worlds::$world.len()] = {
                let mut section = [0; $crate::bindings::worlds::$world.len()];
                section.copy_from_slice($crate::bindings::worlds::$world);
                section
            };
        };
    };
}
