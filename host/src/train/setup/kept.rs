//! What becomes of a checkpoint's plugin that fails its trial when the run resumes. The run may have swapped it in while it worked, and it
//! may still work on real completions, so the run must not be stuck with it.

use crate::config::{Config, PluginEntry, printable_path, shell_word};
use crate::dist::World;
use crate::plugin::{self, Source};
use crate::train::origin::{Beginning, Origin};
use crate::train::{Error, Result};
use std::path::Path;

/// A plugin that a run begins with.
pub(super) struct Kept {
    pub name: String,
    /// The key that names its file.
    key: String,
    /// Its file, as the configuration names it.
    location: String,
    hash: String,
}

impl Kept {
    /// Returns the algorithm.
    pub(super) fn algorithm(config: &Config, source: &Source) -> Self {
        let (name, hash) = (source.name().to_owned(), source.hash().to_owned());
        Self { name, key: "algorithm".to_owned(), location: config.algorithm.clone(), hash }
    }

    /// Returns the plugin of an entry in this table.
    pub(super) fn entry(table: &str, entry: &PluginEntry, source: &Source) -> Self {
        let (name, hash) = (entry.name().to_owned(), source.hash().to_owned());
        Self { key: format!("{table}.{name}.path"), name, location: entry.path.clone(), hash }
    }

    /// Returns whether its file holds another version now, which a run that watches its files takes in before its first step.
    fn has_new_version(&self) -> bool {
        let file = Path::new(&self.location);
        file.is_file() && Source::open(&self.location).is_ok_and(|source| source.hash() != self.hash)
    }

    /// Decides whether the run begins although the plugin fails its trial. On other ranks than the first, it does: the first decides.
    ///
    /// # Errors
    /// If it does not; a resumed run's error says what would help.
    pub(super) fn bear(&self, error: plugin::Error, config: &Config, beginning: &Beginning, world: &World) -> Result<()> {
        let Beginning::Resume { origin, allow_changed } = beginning else { return Err(Error::DryRun(error)) };
        let (name, file) = (&self.name, printable_path(Path::new(&self.location)));
        match self.has_new_version() {
            _ if !world.is_first() => Ok(()),
            true if config.hot_reload => {
                tracing::warn!(
                    "{error}; {name} in the checkpoint fails its trial, so the version that is now in {file} is tried"
                );
                Ok(())
            }
            _ if *allow_changed => {
                tracing::warn!("{error}; {name} in the checkpoint fails its trial; going on with it (--allow-changed)");
                Ok(())
            }
            is_new => Err(Error::unusable(&origin.checkpoint, format!("{error}; {}", self.advice(origin, is_new)))),
        }
    }

    /// Says how the run can resume.
    fn advice(&self, origin: &Origin, is_new: bool) -> String {
        let (key, resume) = (&self.key, format!("rlhost resume {}", shell_word(&origin.run)));
        if is_new {
            return format!("its file has another version now; `{resume} --set hot_reload=true` takes it in");
        }
        let fix = match Path::new(&self.location).is_file() {
            true => format!("fix {} and resume, or ", printable_path(Path::new(&self.location))),
            false => String::new(),
        };
        format!(
            "this version of {} fails its trial. To go on, {fix}name another file (`{resume} --set {key}=FILE`), or keep this version \
             with --allow-changed",
            self.name
        )
    }
}
