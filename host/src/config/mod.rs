//! Everything a run can be told: plain structures with TRL's names and defaults, their
//! validation, and how files and flags become one of them. Knows neither tensors nor plugins.

mod changes;
mod device;
pub mod files;
mod inherited;
mod keys;
mod layers;
mod limit;
mod lora;
mod options;
mod period;
mod printable;
mod validate;

pub use changes::{changes, same};
pub use device::Device;
pub use keys::{Key, OnResume, key, keys};
pub use layers::{ConfigFile, LARGEST, LooseKey, Overrides, read, read_files, scalar};
pub use options::{
    Config, LearnFrom, Limits, LogCompletions, LrSchedule, OnError, OnSaveError, PluginEntry, ReduceDtype, ReportTo,
};
pub use period::Period;
pub use printable::{is_hidden, printable, printable_path};

use std::path::PathBuf;

/// A configuration that can't be used; the message says what, where and what would be right.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file can't be read.
    #[error("can't read {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// Something in a file or on the command line is wrong.
    #[error("{place}: {detail}")]
    Invalid {
        /// File and line, or the flag.
        place: String,
        /// What is wrong and what would be right.
        detail: String,
    },
}

/// Result of reading a configuration.
pub type Result<T> = std::result::Result<T, Error>;

/// The known name that `name` was most likely meant to be, if one is near.
pub fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let plain = name.replace('-', "_");
    let best = known.into_iter().map(|k| (strsim::damerau_levenshtein(&plain, k), k)).min()?;
    (best.0 <= (plain.len() / 3).max(1)).then_some(best.1)
}
