//! Scripts as plugins: source text in Python, JavaScript or TypeScript, which an interpreter runs. The interpreter is a component too
//! (`host/interpreters/`), so a script has the sandbox and the limits of every plugin.
//!
//! A script travels as the bytes of a component that holds nothing but the text, in a custom section. So whatever keeps, sends, hashes or
//! compares plugins does that with scripts. The same section behind an interpreter's bytes makes a plugin that needs no interpreter of
//! the host's.

mod bytecode;
mod imports;
mod interpreter;
mod language;
mod location_mistake;
mod packages;
mod plugin_file;
mod section;
mod text;

pub(super) use bytecode::Bytecode;
pub(super) use interpreter::{ExtraColumn, Interpreter, Interpreters, choose_function, role_of};
pub use interpreter::{ScriptFunction, ScriptKind};
pub use language::Language;
pub(super) use location_mistake::location_mistake;
pub use packages::set_python_path;
pub use plugin_file::PluginFile;
pub(super) use section::{EmbeddedScript, find, write};

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A script with all that its interpreter is told.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Script {
    /// The name of its file.
    pub name: String,
    /// Its text.
    pub source: String,
    /// The function that is the plugin; none if it has only one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub function: Option<String>,
    /// The files that it may import, by their paths.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub modules: BTreeMap<String, String>,
}

impl Script {
    /// Returns the language, by the file's name.
    #[must_use]
    pub fn language(&self) -> Language {
        Language::from_file_name(&self.name)
    }
}
