//! Errors of loading and using plugins.

/// The reason why a plugin can't be loaded or used. Every message names the plugin.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No file and no built-in plugin has this name.
    #[error("no plugin {name:?}: there is no such file, and {}", embedded_instead(name, kind, known))]
    NotFound {
        /// Name that was requested.
        name: String,
        /// Kind of plugin that was requested, in the plural.
        kind: &'static str,
        /// Names of the built-in plugins of that kind.
        known: Vec<String>,
    },
    /// The name looks like a script's but is not a valid one.
    #[error("plugin {name}: {detail}")]
    NotScript {
        /// Name that was given.
        name: String,
        /// Description of the mistake, and of a valid name.
        detail: String,
    },
    /// The file can't be read.
    #[error("can't read plugin {name}: {source}")]
    Io {
        /// Path of the file.
        name: String,
        /// Error of the system.
        source: std::io::Error,
    },
    /// The bytes are not a component.
    #[error("plugin {name} is not a WebAssembly component: {detail}")]
    NotComponent {
        /// Name of the plugin.
        name: String,
        /// Description of the bytes.
        detail: String,
    },
    /// The plugin exceeds a limit, or compiling it failed.
    #[error("plugin {name} can't be compiled: {detail}")]
    Uncompiled {
        /// Name of the plugin.
        name: String,
        /// The exceeded limit, or the cause of the failure.
        detail: String,
    },
    /// The component's world does not fit the role.
    #[error("plugin {name} can't serve as {wanted}: {detail}")]
    WrongWorld {
        /// Name of the plugin.
        name: String,
        /// Role that was requested.
        wanted: &'static str,
        /// Description of the missing export, or of the import that is not offered.
        detail: String,
    },
    /// The plugin's description or configuration is wrong.
    #[error("plugin {name}: {detail}")]
    Config {
        /// Name of the plugin.
        name: String,
        /// Description of the mistake, and of what would be valid.
        detail: String,
    },
    /// The plugin sends requests, but no server was granted to it.
    #[error(
        "plugin {name} sends requests to servers (it imports {interface}), but none is granted to it; grant them: --set \
         plugin.{name}.hosts=HOST:PORT (environment.{name}.hosts if it is an environment), or hosts = [\"HOST:PORT\"] in its table"
    )]
    NotGranted {
        /// Name of the plugin.
        name: String,
        /// Interface that the plugin imports.
        interface: &'static str,
    },
    /// A call failed: a trap, a limit, or the plugin's own error.
    #[error("plugin {name}, {function}{}: {detail}", step.map(|s| format!(" in step {}", s + 1)).unwrap_or_default())]
    Call {
        /// Name of the plugin.
        name: String,
        /// Function that was called.
        function: &'static str,
        /// Optimizer step, for calls that have one.
        step: Option<u64>,
        /// Cause of the failure.
        detail: String,
    },
    /// The WebAssembly engine can't be created.
    #[error("can't start the WebAssembly engine: {0}")]
    Engine(String),
}

impl Error {
    /// Returns whether the user's input caused the error, rather than the machine or the program. A plugin that can't be loaded with its
    /// settings is such a mistake; one that fails while it works is not.
    pub fn is_mistake(&self) -> bool {
        match self {
            Self::Io { source, .. } => crate::config::files::is_path_error(source),
            // These two functions are called during a run.
            Self::Call { step, function, .. } => step.is_none() && !matches!(*function, "snapshot" | "an episode"),
            Self::Engine(_) => false,
            Self::NotFound { .. } | Self::NotScript { .. } | Self::NotComponent { .. } | Self::Uncompiled { .. } => true,
            Self::WrongWorld { .. } | Self::Config { .. } | Self::NotGranted { .. } => true,
        }
    }
}

/// Longest text shown from a plugin, in bytes: an error, a log line, a name, a description.
pub(super) const LONGEST_TEXT: usize = 2048;

/// Suggests the built-in plugin that was probably meant, or lists all of them.
fn embedded_instead(name: &str, kind: &str, known: &[String]) -> String {
    // A shared extension does not make names similar.
    let stem = |name: &'_ str| name.strip_suffix(".wasm").unwrap_or(name).len();
    match crate::config::nearest(&name[..stem(name)], known.iter().map(|known| &known[..stem(known)])) {
        None => format!("the built-in {kind} are {}", known.join(", ")),
        Some(near) => format!("no built-in plugin has that name; did you mean {:?}?", format!("{near}.wasm")),
    }
}

/// Result of a plugin operation.
pub type Result<T> = std::result::Result<T, Error>;
