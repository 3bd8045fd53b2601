//! The plugin host: runs rewards, algorithms and environments, which are WebAssembly components, in a sandbox.
//!
//! Data is passed as flat slices; a plugin has no access to tensors, files, the clock or the network. The exceptions are servers and
//! folders that the user grants to a reward or an environment by name. The host makes the requests to those servers. Everything a plugin
//! returns is checked before use.

mod adapters;
pub mod algorithm;
mod any_plugin;
mod cache;
mod capture;
mod cells;
mod census;
mod code;
pub mod columns;
mod compiler;
mod components;
mod configuration;
mod contract;
mod deadline;
mod embedded;
mod engine;
mod environment;
mod error;
mod exports;
mod files;
mod folders;
mod form;
mod function;
mod hints;
mod instance;
mod limits;
mod loaded_plugin;
mod log_line_counts;
mod memory_partition;
mod metrics;
mod needs;
mod plugin_instance;
mod requests;
mod reward;
mod sandbox;
mod schema;
mod script;
mod settings;
mod source;
mod state;
mod trial;
mod trial_run;
mod wasi;
mod watch;
mod world;
mod wrap;

use rlhost_config as config;
use rlhost_config::activity;
use rlhost_web::net;

pub use algorithm::{
    AlgorithmPlugin, Assessment, Batch, Column, Data, DataSource, Estimates, MicroBatchLoss, Pair, PairSelection, Scale,
    ScoredGeneration, Shape, TaughtColumn, TaughtGeneration, TeacherQuestions, TurnSpan, Unit, WeightedReward,
};
pub use any_plugin::{AnyPlugin, PluginOutline, as_component};
pub use compiler::{CompileOrder, compile_in_subprocesses};
pub use embedded::EMBEDDED;
pub use engine::PluginEngine;
pub use environment::check_answers;
pub use environment::{
    Call, EnvironmentPlugin, EnvironmentSession, Message, Opening, RehearsedEpisode, Reply, Start, Tool, Turn, tool_calls,
};
pub use error::{Error, Result};
pub use files::read_file;
pub use folders::Folders;
pub use form::{FormField, FormFieldKind, fields_of};
pub use hints::{DerivationRule, DerivedMetricHint, HintedDefaults, Hints};
pub use instance::{LARGEST_STATE, Plugin};
pub use loaded_plugin::{PluginInfo, functions_of};
pub use metrics::{MetricOrigin, is_reserved};
pub use needs::NeededInputs;
pub use requests::{PluginHttpClient, RequestPolicy};
pub use reward::{
    Column as TextColumn, CompletionExtra, LARGEST_SCORE, RewardBatch, RewardPlugin, RewardScores, ScoringOutcome, append_extra,
    conversations,
};
pub use state::PluginState;

pub use script::{Language, PluginFile, Script, ScriptFunction, ScriptKind, set_python_path};
pub use settings::{Setting, SettingArity, hints_of, settings_in, settings_of};
pub use source::{PluginSource, embedded_of, self_contained};
pub use trial::TrialOrder;
pub use watch::FileWatcher;

pub use contract::types::{Metric, Reduction};
pub use world::Role;

pub use schema::resolve as resolve_settings;

/// Returns whether a plugin's bytes would be accepted for compilation.
pub fn is_compilable(bytes: &[u8]) -> bool {
    compiler::check_component(bytes, u64::MAX).is_ok()
}
