//! The contract of `wit/rlhost-plugin.wit`, as wit-bindgen sees it: traits and types of every
//! interface, and for each a macro that exports it. Which of them a plugin exports follows from
//! the world that its macro embeds.
//!
//! `generated.rs` and the `.component-type` files are kept rather than made by each build, which
//! would compile a generator first. `tests/generated.rs` holds them against the contract and, with
//! `RLHOST_WRITE_GENERATED=1`, writes them anew.
#![allow(missing_docs, unsafe_code, clippy::all, clippy::pedantic, unused)]

#[rustfmt::skip]
mod generated;

pub use generated::exports::rlhost::plugin as contract;
pub use generated::rlhost::plugin::{host, types};

/// The encoded worlds, for the `component-type` section from which the linker makes a component.
pub mod worlds {
    pub const REWARD: &[u8] = include_bytes!("reward-plugin.component-type");
    pub const STATEFUL_REWARD: &[u8] = include_bytes!("stateful-reward-plugin.component-type");
    pub const POLICY: &[u8] = include_bytes!("policy-plugin.component-type");
    pub const STATEFUL_POLICY: &[u8] = include_bytes!("stateful-policy-plugin.component-type");
    pub const OBSERVING_POLICY: &[u8] = include_bytes!("observing-policy-plugin.component-type");
    pub const PREFERENCE: &[u8] = include_bytes!("preference-plugin.component-type");
    pub const ONLINE_PREFERENCE: &[u8] = include_bytes!("online-preference-plugin.component-type");
}
