//! Bindings for wasmtime of contract version 1.0: one set for all interfaces. Each interface is looked up separately, so an instance needs
//! to export only those of its role.

#[allow(missing_docs)]
mod bindings {
    wasmtime::component::bindgen!({
        inline: "
            package rlhost:host;
            world contract {
                import rlhost:plugin/types@1.0.0;
                import rlhost:plugin/host@1.0.0;
                import rlhost:plugin/cells@1.0.0;
                export rlhost:plugin/plugin@1.0.0;
                export rlhost:plugin/state@1.0.0;
                export rlhost:plugin/observer@1.0.0;
                export rlhost:plugin/reward@1.0.0;
                export rlhost:plugin/algorithm@1.0.0;
                export rlhost:plugin/estimator@1.0.0;
                export rlhost:plugin/pairing@1.0.0;
                export rlhost:plugin/teacher-prompts@1.0.0;
                export rlhost:plugin/environment@1.0.0;
                export rlhost:plugin/inside@1.0.0;
            }
        ",
        path: "../../plugin-sdk/wit",
        additional_derives: [PartialEq],
    });
}

pub use bindings::exports::rlhost::plugin::{algorithm, environment, estimator, pairing, plugin, reward, teacher_prompts};
pub use bindings::rlhost::plugin::{cells, host, types};
