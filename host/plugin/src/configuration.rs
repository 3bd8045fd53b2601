//! The settings for compiling and running plugins.

use crate::config::PLUGIN_STACK;
use wasmtime::Config;

/// How much time the compiler takes for better code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CompileEffort {
    /// As much as it brings.
    Full,
    /// Three quarters of the time, for code that is a few percent slower. For interpreters, which take seconds.
    Less,
}

/// Returns the settings for compiling and running plugins. Code can be run whatever effort went into it.
pub(super) fn configuration(effort: CompileEffort) -> Config {
    let mut config = Config::new();
    if effort == CompileEffort::Less {
        config.cranelift_opt_level(wasmtime::OptLevel::None);
    }
    config.epoch_interruption(true).concurrency_support(false).relaxed_simd_deterministic(true).max_wasm_stack(PLUGIN_STACK);
    config
}
