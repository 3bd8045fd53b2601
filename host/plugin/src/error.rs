//! Why a plugin can't be loaded or used.

/// Why a plugin can't be loaded or used. Every message names the plugin.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No file and no built-in plugin has this name.
    #[error("no plugin {name:?}: there is no such file, and {}", embedded_instead(name, kind, known))]
    NotFound {
        /// The name asked for.
        name: String,
        /// What was asked for, in the plural.
        kind: &'static str,
        /// Names of the built-in plugins of that kind.
        known: Vec<String>,
    },
    /// It names a script in a way that is none.
    #[error("plugin {name}: {detail}")]
    NotScript {
        /// What was given.
        name: String,
        /// What is wrong and what would be right.
        detail: String,
    },
    /// The file can't be read.
    #[error("can't read plugin {name}: {source}")]
    Io {
        /// The file.
        name: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// The bytes are not a component.
    #[error("plugin {name} is not a WebAssembly component: {detail}")]
    NotComponent {
        /// The plugin.
        name: String,
        /// What they are instead.
        detail: String,
    },
    /// It exceeds a limit, or compiling it failed.
    #[error("plugin {name} can't be compiled: {detail}")]
    Uncompiled {
        /// The plugin.
        name: String,
        /// Which limit, or what failed.
        detail: String,
    },
    /// The component's world does not fit the role.
    #[error("plugin {name} can't serve as {wanted}: {detail}")]
    WrongWorld {
        /// The plugin.
        name: String,
        /// The role asked for.
        wanted: &'static str,
        /// What it lacks, or what it imports that is not offered.
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
    /// It sends requests, but no server was granted.
    #[error(
        "plugin {name} sends requests to servers (it imports {interface}), but none is granted to it; grant them: --set \
         plugin.{name}.hosts=HOST:PORT (environment.{name}.hosts if it is an environment), or hosts = [\"HOST:PORT\"] in its table"
    )]
    NotGranted {
        /// The plugin.
        name: String,
        /// The interface that it imports.
        interface: &'static str,
    },
    /// A call failed: a trap, a limit, or the plugin's own error.
    #[error("plugin {name}, {function}{}: {detail}", step.map(|s| format!(" in step {}", s + 1)).unwrap_or_default())]
    Call {
        /// The plugin.
        name: String,
        /// The function called.
        function: &'static str,
        /// The optimizer step, for calls that have one.
        step: Option<u64>,
        /// What happened.
        detail: String,
    },
    /// The engine can't be created.
    #[error("can't start the WebAssembly engine: {0}")]
    Engine(String),
}

impl Error {
    /// Returns whether something that the user gave is at fault, rather than the machine or the program: a plugin that can't be
    /// loaded with its settings, not one that fails at its work.
    pub fn is_mistake(&self) -> bool {
        match self {
            Self::Io { source, .. } => crate::config::files::is_path_error(source),
            // These two are of a run under way.
            Self::Call { step, function, .. } => step.is_none() && !matches!(*function, "snapshot" | "an episode"),
            Self::Engine(_) => false,
            Self::NotFound { .. } | Self::NotScript { .. } | Self::NotComponent { .. } | Self::Uncompiled { .. } => true,
            Self::WrongWorld { .. } | Self::Config { .. } | Self::NotGranted { .. } => true,
        }
    }
}

/// Longest text shown from a plugin, in bytes: an error, a log line, a name, a description.
pub(super) const LONGEST_TEXT: usize = 2048;

/// Says which built-in plugin was probably meant, or lists them.
fn embedded_instead(name: &str, kind: &str, known: &[String]) -> String {
    // The extension is no likeness.
    let stem = |name: &'_ str| name.strip_suffix(".wasm").unwrap_or(name).len();
    match crate::config::nearest(&name[..stem(name)], known.iter().map(|known| &known[..stem(known)])) {
        None => format!("the built-in {kind} are {}", known.join(", ")),
        Some(near) => format!("no built-in plugin has that name; did you mean {:?}?", format!("{near}.wasm")),
    }
}

/// Result of a plugin operation.
pub type Result<T> = std::result::Result<T, Error>;
