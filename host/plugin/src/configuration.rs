//! The wasmtime settings for compiling and running plugins.

use crate::config::PLUGIN_STACK;
use wasmtime::Config;

/// The effort that the compiler spends on optimising code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CompileEffort {
    /// All optimisations.
    Full,
    /// Takes three quarters of the time, for code that is a few percent slower. Used for interpreters, which take seconds to compile.
    Less,
}

/// Returns the wasmtime settings for compiling and running plugins. Code compiled with one effort also runs under the other.
pub(super) fn configuration(effort: CompileEffort) -> Config {
    let mut config = Config::new();
    if effort == CompileEffort::Less {
        config.cranelift_opt_level(wasmtime::OptLevel::None);
    }
    config.epoch_interruption(true).concurrency_support(false).relaxed_simd_deterministic(true).max_wasm_stack(PLUGIN_STACK);
    config
}
