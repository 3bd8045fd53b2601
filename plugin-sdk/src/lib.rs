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
//! An algorithm implements [`policy::Policy`] and ends with `policy_plugin!(MyType);`. Algorithms over pairs of completions implement
//! [`preference::Preference`] (`preference_plugin!(MyType);`), those over labelled completions [`labelled::Labelled`]
//! (`labelled_plugin!(MyType);`), and losses of a reward model [`reward_model::RewardModel`] (`reward_model_plugin!(MyType);`). All of them
//! are layers over [`algorithm::Algorithm`] (`algorithm_plugin!(MyType);`), which supports losses of any other columns. An environment (a
//! game, tools) implements [`environment::Environment`] and ends with `environment_plugin!(MyType);`. Build any of them with
//! `cargo build --release --target wasm32-wasip2` as a `cdylib`.

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

pub mod algorithm;
pub mod asking;
mod batch;
pub mod bindings;
pub mod columns;
pub mod config;
pub mod distillation;
pub mod dual;
pub mod environment;
pub mod http;
pub mod labelled;
pub mod metric;
mod needs;
pub mod pairing;
pub mod policy;
pub mod preference;
pub mod reward;
pub mod reward_model;
mod rollouts;
pub mod rows;
pub mod scores;
#[doc(hidden)]
pub mod slot;
pub mod stateful;
pub mod turns;

pub use bindings::types::Error;
pub use metric::Metric;
pub use needs::Needs;

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

/// Items that a reward usually needs in scope.
pub mod prelude {
    pub use crate::config::Config;
    pub use crate::reward::Sample;
    pub use crate::{Error, Metric, asking_reward, environment_plugin, reward, reward_model_plugin, stateful_reward};
    pub use crate::{algorithm_plugin, labelled_plugin, online_preference_plugin, policy_plugin, preference_plugin};
    pub use schemars::JsonSchema;
    pub use serde::{Deserialize, Serialize};
}

#[doc(hidden)]
pub use {schemars, serde, serde_json};

/// Exports the contract's interfaces that a type implements, and embeds the component-type section of each.
#[doc(hidden)]
#[macro_export]
macro_rules! export_interfaces {
    ($plugin:ident $(, $interface:ident)+) => {
        $($crate::export_interfaces!(@$interface $plugin);)+
    };
    (@plugin $plugin:ident) => {
        $crate::export_interfaces!(@$plugin, plugin, PLUGIN, __export_rlhost_plugin_plugin_1_0_0_cabi);
    };
    (@state $plugin:ident) => {
        $crate::export_interfaces!(@$plugin, state, STATE, __export_rlhost_plugin_state_1_0_0_cabi);
    };
    (@observer $plugin:ident) => {
        $crate::export_interfaces!(@$plugin, observer, OBSERVER, __export_rlhost_plugin_observer_1_0_0_cabi);
    };
    (@reward $plugin:ident) => {
        $crate::export_interfaces!(@$plugin, reward, REWARD, __export_rlhost_plugin_reward_1_0_0_cabi);
    };
    (@algorithm $plugin:ident) => {
        $crate::export_interfaces!(@$plugin, algorithm, ALGORITHM, __export_rlhost_plugin_algorithm_1_0_0_cabi);
    };
    (@estimator $plugin:ident) => {
        $crate::export_interfaces!(@$plugin, estimator, ESTIMATOR, __export_rlhost_plugin_estimator_1_0_0_cabi);
    };
    (@pairing $plugin:ident) => {
        $crate::export_interfaces!(@$plugin, pairing, PAIRING, __export_rlhost_plugin_pairing_1_0_0_cabi);
    };
    (@teacher_prompts $plugin:ident) => {
        $crate::export_interfaces!(@$plugin, teacher_prompts, TEACHER_PROMPTS, __export_rlhost_plugin_teacher_prompts_1_0_0_cabi);
    };
    (@environment $plugin:ident) => {
        $crate::export_interfaces!(@$plugin, environment, ENVIRONMENT, __export_rlhost_plugin_environment_1_0_0_cabi);
    };
    (@inside $plugin:ident) => {
        $crate::export_interfaces!(@$plugin, inside, INSIDE, __export_rlhost_plugin_inside_1_0_0_cabi);
    };
    (@$plugin:ident, $interface:ident, $section:ident, $export:ident) => {
        #[cfg(target_arch = "wasm32")]
        #[allow(unsafe_code)]
        const _: () = {
            $crate::bindings::contract::$interface::$export!($plugin with_types_in $crate::bindings::contract::$interface);

            #[unsafe(link_section = concat!("component-type:rlhost:", stringify!($interface)))]
            static SECTION: [u8; $crate::bindings::sections::$section.len()] = {
                let mut section = [0; $crate::bindings::sections::$section.len()];
                section.copy_from_slice($crate::bindings::sections::$section);
                section
            };
        };
    };
}
