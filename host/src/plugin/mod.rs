//! The plugin host: WebAssembly components that give rewards and algorithms, in a sandbox.
//!
//! Flat slices go in and come out; no tensor, file, clock or network reaches a plugin. Whatever
//! a plugin returns is checked before anything else sees it.

mod any;
mod cache;
mod capture;
mod census;
mod compiler;
mod deadline;
mod embedded;
mod engine;
mod figures;
mod hints;
mod instance;
mod limits;
mod loaded;
mod policy;
mod preference;
mod reward;
mod sandbox;
mod schema;
mod source;
mod wasi;
mod watch;
mod world;
mod wrap;

pub use any::{AnyPlugin, Outline, as_component};
pub use compiler::{CompileOrder, compile_apart};
pub use embedded::EMBEDDED;
pub use engine::Engine;
pub use hints::Hints;
pub use instance::{LARGEST_STATE, Memory, Plugin};
pub use loaded::Info;
pub use policy::{Advantages, Gradient, PolicyPlugin, RewardColumn, Rollouts, Scale, Tokens};
pub use preference::{Choice, Pair, PairGradient, Pairs, PreferencePlugin, Side};
pub use reward::{Column, Outcome, RewardBatch, RewardPlugin, Scores};
pub use source::{Source, read_file};
pub use watch::Watch;

pub use world::Role;
pub use world::types::{Metric, Reduction};

#[cfg(any(test, fuzzing))]
pub(crate) use schema::resolve as resolve_settings;

/// Whether a plugin's bytes would be compiled.
#[cfg(any(test, fuzzing))]
pub(crate) fn is_compiled(bytes: &[u8]) -> bool {
    compiler::counted(bytes).is_ok()
}

/// Columns that a plugin asks for; the host makes and sends only these.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// Texts of the prompts.
    pub prompt_text: bool,
    /// Texts of the completions.
    pub completion_text: bool,
    /// Token ids of the completions.
    pub token_ids: bool,
    /// The dataset's further columns.
    pub dataset_columns: bool,
    /// Log-probabilities under the reference model.
    pub ref_logp: bool,
    /// Log-probabilities as they were when sampled.
    pub sampling_logp: bool,
    /// The critic's values.
    pub values: bool,
    /// Entropies of the policy.
    pub entropy: bool,
    /// Mean logits.
    pub mean_logits: bool,
}

/// Why a plugin could not be loaded or used. Every message names the plugin.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No file and no embedded plugin has this name.
    #[error("no plugin {name:?}: there is no such file, and the embedded plugins are {}", known.join(", "))]
    NotFound {
        /// What was asked for.
        name: String,
        /// Names of the embedded plugins.
        known: Vec<String>,
    },
    /// The file can't be read.
    #[error("can't read plugin {name}: {source}")]
    Io {
        /// The file.
        name: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// The bytes are no component.
    #[error("plugin {name} is not a WebAssembly component: {detail}")]
    NotComponent {
        /// The plugin.
        name: String,
        /// What the bytes are instead.
        detail: String,
    },
    /// It holds too much, or compiling it did not end well.
    #[error("plugin {name} can't be compiled: {detail}")]
    Uncompiled {
        /// The plugin.
        name: String,
        /// What is too much, or what happened.
        detail: String,
    },
    /// A component of another world.
    #[error("plugin {name} can't serve as {wanted}: {detail}")]
    WrongWorld {
        /// The plugin.
        name: String,
        /// The role it was to have.
        wanted: &'static str,
        /// What it lacks or asks too much.
        detail: String,
    },
    /// Its description or configuration is wrong.
    #[error("plugin {name}: {detail}")]
    Config {
        /// The plugin.
        name: String,
        /// What is wrong and what would be right.
        detail: String,
    },
    /// A call failed: trap, limit, or the plugin's own error.
    #[error("plugin {name}, {function}{}: {detail}", step.map(|s| format!(" at step {s}")).unwrap_or_default())]
    Call {
        /// The plugin.
        name: String,
        /// The function that was called.
        function: &'static str,
        /// The optimizer step, in calls that have one.
        step: Option<u64>,
        /// What happened.
        detail: String,
    },
    /// The engine itself can't be made.
    #[error("can't start the WebAssembly engine: {0}")]
    Engine(String),
}

/// Bytes of a text of a plugin's: an error, a log line, a name, a description.
const LONGEST_TEXT: usize = 2048;

/// Result of a plugin operation.
pub type Result<T> = std::result::Result<T, Error>;
