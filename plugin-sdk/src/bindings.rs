//! The contract of `wit/rlhost-plugin.wit`, as wit-bindgen sees it: traits and types of every
//! interface, and for each a macro that exports it. Which of them a plugin exports follows from
//! the world that its macro embeds (see `build.rs`).
#![allow(missing_docs, unsafe_code, clippy::all, clippy::pedantic, unused)]

wit_bindgen::generate!({
    inline: "
        package rlhost:sdk;
        world everything {
            import rlhost:plugin/host@0.1.0;
            export rlhost:plugin/plugin@0.1.0;
            export rlhost:plugin/reward@0.1.0;
            export rlhost:plugin/policy@0.1.0;
            export rlhost:plugin/preference@0.1.0;
            export rlhost:plugin/pairing@0.1.0;
            export rlhost:plugin/state@0.1.0;
            export rlhost:plugin/observer@0.1.0;
        }
    ",
    path: "wit",
    pub_export_macro: true,
    default_bindings_module: "rlhost_plugin_sdk::bindings",
    generate_all,
});

pub use exports::rlhost::plugin as contract;
pub use rlhost::plugin::{host, types};

/// The encoded worlds, for the `component-type` section from which the linker makes a component.
pub mod worlds {
    pub const REWARD: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/reward-plugin.component-type"));
    pub const STATEFUL_REWARD: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/stateful-reward-plugin.component-type"));
    pub const POLICY: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/policy-plugin.component-type"));
    pub const STATEFUL_POLICY: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/stateful-policy-plugin.component-type"));
    pub const OBSERVING_POLICY: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/observing-policy-plugin.component-type"));
    pub const PREFERENCE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/preference-plugin.component-type"));
    pub const ONLINE_PREFERENCE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/online-preference-plugin.component-type"));
}
