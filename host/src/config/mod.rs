//! Everything that can be configured: plain structs with TRL's names and defaults, their validation, and how files and flags are
//! merged into one. Knows neither tensors nor plugins.

mod address;
mod batches;
mod changes;
mod choices;
mod clock;
mod default;
mod device;
mod entries;
mod evaluation;
pub mod files;
mod foreign;
mod grants;
mod inherited;
pub mod json;
pub mod json_lines;
mod keys;
mod layers;
mod limit;
mod lines;
mod lora;
mod optimizer;
mod options;
mod period;
mod printable;
mod prompt_template;
mod reach;
mod rewards;
mod schedule;
mod script_path;
mod set;
mod shown;
mod threads;
mod validate;
mod values;
pub mod words;
mod yaml;

pub use address::Address;
pub use batches::Batches;
pub use changes::{changes, same};
pub use choices::{
    LearnFrom, LogCompletions, ModelDtype, OldLogp, OnSaveError, PackingStrategy, ReduceDtype, ReportTo, RolloutDtype, Strategy,
};
pub use clock::{local_now, now};
pub use device::Device;
pub use entries::{Compare, Limits, OnError, PluginEntry};
pub use foreign::{Foreign, Treatment, option as foreign_option, options as foreign_options};
pub use grants::{Grants, Host, HttpLimits, Secret, is_here};
pub use keys::{Key, OnResume, key, keys};
pub use layers::{Asked, ConfigFile, LARGEST, Overrides, read, read_files};
pub use optimizer::{AdafactorArgs, AdjustLr, MuonArgs, Optim, RmsPropArgs, Rule, SgdArgs};
pub use options::{Config, DEFAULT_ALGORITHM};
pub use period::Period;
pub use printable::{
    hex, is_hidden, is_shown, is_variation_selector, printable, printable_lines, printable_path, shell_word, shortest,
};
pub use prompt_template::PromptTemplate;
pub use reach::Grant;
pub use schedule::{
    Better, InverseSqrt, LrSchedule, LrShape, MinLr, OnPlateau, Polynomial, Restarts, Slope, StableDecay, Threshold, WarmedMinLr,
    Waves,
};
pub use script_path::ScriptPath;
pub use set::Set;
pub use shown::{Shown, shown};
pub use threads::{PLUGIN_STACK, STACK, on_own_stack};
pub use values::{scalar, switched};
pub use yaml::{front_matter, yaml_document};

use std::path::PathBuf;

/// A configuration that can't be used; the message says what, where and what would be right.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file can't be read.
    #[error("can't read {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
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

impl Error {
    /// Returns whether something that the user gave is at fault, rather than the machine or the program.
    pub fn is_mistake(&self) -> bool {
        match self {
            Self::Io { source, .. } => files::is_of_the_path(source),
            Self::Invalid { .. } => true,
        }
    }
}

/// Result of reading a configuration.
pub type Result<T> = std::result::Result<T, Error>;

/// Returns `; did you mean "NAME"?` for the known name nearest to `name`, or nothing if none is near. Used to end an error
/// message.
pub fn did_you_mean<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    nearest(name, known).map(|near| format!("; did you mean {near:?}?")).unwrap_or_default()
}

/// Longest name that a misspelling is looked for, in bytes: the time for that grows with the product of the lengths.
const LONGEST_SPELLED: usize = 128;

/// Returns the known name of which `name` is most likely a misspelling, if one is near.
pub fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    if name.len() > LONGEST_SPELLED {
        return None;
    }
    let plain = name.replace('-', "_");
    let known = known.into_iter().filter(|known| known.len() <= LONGEST_SPELLED);
    let best = known.map(|k| (strsim::damerau_levenshtein(&plain, k), k)).min()?;
    (best.0 <= (plain.len() / 3).max(1)).then_some(best.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_near_names_are_suggested() {
        let known = ["learning_rate", "num_generations"];
        assert_eq!(did_you_mean("learning-rat", known), "; did you mean \"learning_rate\"?");
        assert_eq!(did_you_mean("num_generation", known), "; did you mean \"num_generations\"?");
        assert_eq!(did_you_mean("temperature", known), "");
        assert_eq!(did_you_mean("anything", []), "");
        // In no time, however long.
        let (long, other) = ("x".repeat(1 << 20), "y".repeat(1 << 20));
        assert_eq!(did_you_mean(&long, [other.as_str(), "x"]), "");
        assert_eq!(did_you_mean("learning_rat", [other.as_str(), "learning_rate"]), "; did you mean \"learning_rate\"?");
    }
}
