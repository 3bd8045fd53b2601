//! Scripts as plugins: source text in Python, JavaScript or TypeScript, which an interpreter runs. The interpreter is a component too
//! (`host/interpreters/`), so a script has the sandbox and the limits of every plugin.
//!
//! A script is passed around as the bytes of a component that contains only the text, in a custom section. So all code that stores, sends,
//! hashes or compares plugins works with scripts too. The same section after an interpreter's bytes makes a plugin that includes its own
//! interpreter.

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

/// A script with everything that its interpreter is given.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Script {
    /// Name of the script's file.
    pub name: String,
    /// Source text.
    pub source: String,
    /// Function that is the plugin; `None` if the script has only one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub function: Option<String>,
    /// Files that the script may import, by path.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub modules: BTreeMap<String, String>,
}

impl Script {
    /// Returns the language, determined by the file's name.
    #[must_use]
    pub fn language(&self) -> Language {
        Language::from_file_name(&self.name)
    }
}
