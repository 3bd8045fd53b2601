//! The plugin host: runs rewards and algorithms, which are WebAssembly components, in a sandbox.
//!
//! Data is passed as flat slices; no tensor, file, clock or network reaches a plugin. The only exception are requests to servers
//! that the user granted to a reward by name; the host makes them. Everything a plugin returns is checked before use.

mod adapters;
pub mod algorithm;
mod any;
mod asking;
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
mod figures;
mod files;
mod folders;
mod form;
mod function;
mod hints;
mod instance;
mod limits;
mod loaded;
mod logged;
mod needs;
mod reward;
mod room;
mod running;
mod sandbox;
mod schema;
mod script;
mod settings;
mod source;
mod state;
mod trial;
mod trying;
mod wasi;
mod watch;
mod world;
mod wrap;

use rlhost_config as config;
use rlhost_config::activity;
use rlhost_web::net;

pub use algorithm::{
    Algorithm, Assessment, Batch, Choice, Column, Data, DataSource, Estimates, Generation, Gradient, Pair, Scale, Shape,
    TurnSpan, Unit, WeightedReward,
};
pub use any::{AnyPlugin, Outline, as_component};
pub use asking::{Asker, Asking};
pub use compiler::{CompileOrder, compile_apart};
pub use embedded::EMBEDDED;
pub use engine::Engine;
pub use environment::check_answers;
pub use environment::{Call, EnvironmentPlugin, Message, Opening, Rehearsed, Reply, Session, Start, Tool, Turn, calls};
pub use error::{Error, Result};
pub use figures::{MetricsOf, is_reserved};
pub use files::read_file;
pub use folders::Folders;
pub use form::{Field, FieldKind, fields_of};
pub use hints::{Defaults, Derivation, DerivedMetric, Hints};
pub use instance::{LARGEST_STATE, Plugin};
pub use loaded::{Info, functions_of};
pub use needs::Needs;
pub use reward::{
    Column as TextColumn, Extra, LARGEST_SCORE, Outcome, RewardBatch, RewardPlugin, Scores, append_extra, conversations,
};
pub use state::PluginState;

pub use script::{Language, PluginFile, Script, ScriptFunction, ScriptKind, set_python_path};
pub use settings::{Setting, Takes, hints_of, settings_in, settings_of};
pub use source::{Source, embedded_of, self_contained};
pub use trial::TrialOrder;
pub use watch::Watch;

pub use contract::types::{Metric, Reduction};
pub use world::Role;

pub use schema::resolve as resolve_settings;

/// Returns whether a plugin's bytes would be accepted for compilation.
pub fn is_compiled(bytes: &[u8]) -> bool {
    compiler::counted(bytes, u64::MAX).is_ok()
}
