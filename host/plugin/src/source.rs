//! Finds and reads plugins.

use super::script::{self, EmbeddedScript, PluginFile, Script};
use super::{EMBEDDED, Error, Result, Role};
use crate::config::ScriptPath;
use sha2::{Digest, Sha256};
use std::borrow::Cow;
use std::path::Path;
use std::sync::Arc;

/// A plugin's bytes with their name and hash.
#[derive(Clone, Debug)]
pub struct PluginSource {
    name: String,
    bytes: Arc<Cow<'static, [u8]>>,
    hash: String,
    /// Script that the plugin's file contains, if it is one.
    script: Option<Arc<EmbeddedScript>>,
}

impl PluginSource {
    /// Opens a plugin. `location` is the path of a plugin, the path of a script with or without `:FUNCTION`, or the file name of a built-in
    /// plugin with or without `.wasm`. If both a file and a built-in plugin match, logs which was used.
    ///
    /// # Errors
    /// If neither exists, or the path is not a file that could be a plugin.
    pub fn open(location: &str) -> Result<Self> {
        Self::open_as(location, None)
    }

    /// Opens a plugin for a `role`: errors suggest only built-in plugins of that role.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_as(location: &str, role: Option<Role>) -> Result<Self> {
        let path = Path::new(location);
        match embedded(location) {
            Some((name, _)) if path.is_file() => {
                tracing::warn!("{location}: using the file in this folder, not the built-in plugin {name}");
            }
            Some((name, bytes)) => {
                if Path::new(name).is_file() {
                    tracing::warn!("{location}: using the built-in plugin; for the file in this folder, write ./{name}");
                }
                return Ok(Self::from_built_in(name, bytes));
            }
            None => Self::check_is_there(location, role)?,
        }
        let bytes = PluginFile::parse(location).read().map_err(|source| Error::Io { name: location.into(), source })?;
        let stem = || path.file_stem().map_or_else(|| location.to_owned(), |s| s.to_string_lossy().into_owned());
        let name = ScriptPath::parse(location).map_or_else(stem, |script| script.name().to_owned());
        Ok(Self::new(name, Cow::Owned(bytes)))
    }

    /// Rejects a location without a plugin, and suggests what may have been meant.
    fn check_is_there(location: &str, role: Option<Role>) -> Result<()> {
        if let Some(detail) = script::location_mistake(location) {
            return Err(Error::NotScript { name: location.to_owned(), detail });
        }
        if Path::new(location).symlink_metadata().is_err() && !PluginFile::parse(location).is_script() {
            let kind = role.map(PluginKind::from_role);
            let known = EMBEDDED.iter().filter(|(_, bytes)| kind.is_none_or(|kind| PluginKind::from_bytes(bytes) == kind));
            let known = known.map(|(name, _)| (*name).to_owned()).collect();
            return Err(Error::NotFound { name: location.to_owned(), kind: kind.map_or("plugins", PluginKind::name), known });
        }
        Ok(())
    }

    /// Opens the built-in algorithm of this name, regardless of files. Returns `None` if there is none.
    pub(super) fn open_built_in_algorithm(name: &str) -> Option<Self> {
        let algorithm = embedded(name).filter(|(_, bytes)| PluginKind::from_bytes(bytes) == PluginKind::Algorithm);
        algorithm.map(|(name, bytes)| Self::from_built_in(name, bytes))
    }

    fn from_built_in(name: &str, bytes: &'static [u8]) -> Self {
        Self::new(name.trim_end_matches(".wasm").to_owned(), Cow::Borrowed(bytes))
    }

    /// Creates a source from bytes.
    pub fn new(name: String, bytes: Cow<'static, [u8]>) -> Self {
        let hash = Sha256::digest(&bytes).iter().map(|b| format!("{b:02x}")).collect();
        let script = script::find(&bytes).map(Arc::new);
        Self { name, bytes: Arc::new(bytes), hash, script }
    }

    /// Returns this plugin under another name.
    #[must_use]
    pub fn with_name(self, name: &str) -> Self {
        Self { name: name.to_owned(), ..self }
    }

    /// Returns the plugin's name in configuration and metrics: by default the file name without extension.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the plugin's script, if it is one.
    pub fn script(&self) -> Option<&Script> {
        self.script.as_ref().map(|found| &found.script)
    }

    /// Returns the interpreter that the script includes, if any.
    pub fn own_interpreter(&self) -> Option<&[u8]> {
        self.script.as_ref()?.own_interpreter().map(|length| &self.bytes[..length])
    }

    /// Returns the interpreter of the plugin's script; it is compressed if it is the built-in one.
    pub(super) fn interpreter(&self) -> Option<&[u8]> {
        let carried = || self.script().map(|script| script.language().compressed());
        self.own_interpreter().or_else(carried)
    }

    /// Returns the SHA-256 of the bytes, in hexadecimal.
    pub fn hash(&self) -> &str {
        &self.hash
    }
}

/// Returns the built-in plugin of this name, with or without `.wasm`.
fn embedded(name: &str) -> Option<(&'static str, &'static [u8])> {
    let is = |known: &str| known == name || known.strip_suffix(".wasm") == Some(name);
    EMBEDDED.iter().find(|(known, _)| is(known)).copied()
}

/// Returns the file names of the built-in plugins of a role's kind: rewards, environments or algorithms.
pub fn embedded_of(role: Role) -> impl Iterator<Item = &'static str> {
    EMBEDDED.iter().filter(move |(_, bytes)| PluginKind::from_bytes(bytes) == PluginKind::from_role(role)).map(|(name, _)| *name)
}

/// Kinds of plugins that users choose by different flags.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PluginKind {
    Reward,
    Environment,
    Algorithm,
}

impl PluginKind {
    fn from_role(role: Role) -> Self {
        match role {
            Role::Reward => Self::Reward,
            Role::Environment => Self::Environment,
            _ => Self::Algorithm,
        }
    }

    /// Returns the kind of a built-in plugin from its exports. Compiling it would take too long for a suggestion.
    fn from_bytes(bytes: &[u8]) -> Self {
        let sections = wasmparser::Parser::new(0).parse_all(bytes).filter_map(|payload| match payload {
            Ok(wasmparser::Payload::ComponentExportSection(exports)) => Some(exports),
            _ => None,
        });
        let names: Vec<&str> = sections.flatten().filter_map(|export| Some(export.ok()?.name.name)).collect();
        Role::from_exports(names).map_or(Self::Algorithm, Self::from_role)
    }

    fn name(self) -> &'static str {
        match self {
            Self::Reward => "rewards",
            Self::Environment => "environments",
            Self::Algorithm => "algorithms",
        }
    }
}

impl PluginSource {
    /// Returns whether the bytes are complete WebAssembly, as far as the sections show: a file that is still being copied is not.
    pub fn is_complete(&self) -> bool {
        wasmparser::Parser::new(0).parse_all(self.bytes()).all(|payload| payload.is_ok())
    }
}

/// Returns a script's plugin including the interpreter that runs it. Returns `None` if the plugin is not a script or already includes one.
///
/// # Errors
/// If the built-in interpreter is damaged.
pub fn self_contained(source: &PluginSource) -> Result<Option<Vec<u8>>> {
    let Some(script) = source.script().filter(|_| source.own_interpreter().is_none()) else { return Ok(None) };
    let interpreter = script.language().interpreter().map_err(|e| Error::Engine(format!("its interpreter is damaged: {e}")))?;
    Ok(Some(script::write(script, Some(&interpreter))))
}
