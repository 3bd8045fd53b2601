//! Handles a checkpoint's plugin that fails to load, or fails its trial, when the run resumes. The run may have swapped it in while it
//! worked, and it may still work on real completions, so the run must not be stuck with it.

use crate::config::words::followed_by;
use crate::config::{PluginEntry, RunConfig, printable_path, shell_word};
use crate::dist::World;
use crate::origin::{CheckpointOrigin, StartMode};
use crate::plugin::{self, PluginFile, PluginSource, Role};
use crate::ranks::same_source;
use crate::{Error, Result};
use std::path::Path;

/// Opens and loads a plugin that a run begins with.
pub(super) struct PluginLoader<'a> {
    /// Configuration key that names the plugin's file.
    pub key: String,
    pub entry: &'a PluginEntry,
    pub role: Role,
    pub beginning: &'a StartMode,
    pub world: &'a World,
}

impl PluginLoader<'_> {
    /// Opens and loads the plugin. If a resumed run's version from the checkpoint no longer loads, for example because of an older
    /// contract, loads the current content of the plugin's file.
    ///
    /// # Errors
    /// If it can't be loaded. Names the file, if the user named it, and says how the run can resume.
    pub(super) fn load<T>(&self, load: impl Fn(&PluginSource) -> Result<T>) -> Result<(T, PluginSource)> {
        let source = same_source(self.world, || self.beginning.plugin(self.entry, self.role))?;
        let error = match load(&source) {
            Ok(loaded) => return Ok((loaded, source)),
            Err(error) => error,
        };
        let location = PluginFile::parse(&self.entry.path);
        let (name, file) = (source.name(), location.file());
        let origin = match self.beginning {
            StartMode::Resume { origin, .. } => origin,
            StartMode::Fork { .. } if self.beginning.names(&self.entry.path) => return Err(self.as_fork(error)),
            _ => return Err(error),
        };
        let newer = same_source(self.world, || {
            let there = if file.is_file() { Some(PluginSource::open(&self.entry.path)?.with_name(name)) } else { None };
            let newer = there.filter(|newer| newer.hash() != source.hash());
            newer.ok_or_else(|| Error::unusable(&origin.checkpoint, followed_by(&error.to_string(), &self.advice(origin))))
        })?;
        match load(&newer) {
            Ok(loaded) => {
                let file = printable_path(file);
                let remedy = format!("{name} in the checkpoint does not load, so the version that is now in {file} is used");
                tracing::warn!("{}", followed_by(&error.to_string(), &remedy));
                Ok((loaded, newer))
            }
            Err(of_newer) => Err(Error::unusable(
                file,
                followed_by(&of_newer.to_string(), &format!("the checkpoint's version does not load: {error}")),
            )),
        }
    }

    /// Adds the file that the user named for a fork to an error.
    fn as_fork(&self, error: Error) -> Error {
        match error {
            Error::Plugin(plugin::Error::Config { .. }) => {
                let detail = format!(
                    "{error}; a fork has the settings of its parent's {}; a file of another name has its own",
                    self.entry.name()
                );
                Error::unusable(Path::new(&self.entry.path), detail)
            }
            error if error.is_mistake() => Error::unusable(Path::new(&self.entry.path), error),
            error => error,
        }
    }

    fn advice(&self, origin: &CheckpointOrigin) -> String {
        let location = PluginFile::parse(&self.entry.path);
        let (file, resume) = (location.file(), format!("rlhost resume {}", shell_word(&origin.run)));
        let fix = if file.is_file() { format!("put one that loads into {}, or ", printable_path(file)) } else { String::new() };
        format!(
            "the checkpoint's version of {} does not load. To go on, {fix}name another file: {resume} --set {}=FILE",
            self.entry.name(),
            self.key
        )
    }
}

/// A plugin that a run begins with.
pub(super) struct InitialPlugin {
    pub name: String,
    /// Configuration key that names the plugin's file.
    key: String,
    /// File of the plugin, as in the configuration.
    location: String,
    hash: String,
}

impl InitialPlugin {
    /// Returns the algorithm.
    pub(super) fn from_algorithm(config: &RunConfig, source: &PluginSource) -> Self {
        let (name, hash) = (source.name().to_owned(), source.hash().to_owned());
        Self { name, key: "algorithm".to_owned(), location: config.algorithm.clone(), hash }
    }

    /// Returns the plugin of an entry in this table.
    pub(super) fn from_entry(table: &str, entry: &PluginEntry, source: &PluginSource) -> Self {
        let (name, hash) = (entry.name().to_owned(), source.hash().to_owned());
        Self { key: format!("{table}.{name}.path"), name, location: entry.path.clone(), hash }
    }

    /// Returns whether the file now has another version, which a run that watches its files swaps in before its first step.
    fn has_new_version(&self) -> bool {
        PluginFile::parse(&self.location).file().is_file()
            && PluginSource::open(&self.location).is_ok_and(|source| source.hash() != self.hash)
    }

    /// Decides whether the run begins although the plugin fails its trial. Ranks other than the first always begin: the first decides.
    ///
    /// # Errors
    /// If the run does not begin; a resumed run's error contains advice.
    pub(super) fn tolerate_failure(
        &self,
        error: plugin::Error,
        config: &RunConfig,
        beginning: &StartMode,
        world: &World,
    ) -> Result<()> {
        let StartMode::Resume { origin, terms } = beginning else { return Err(Error::DryRun(error)) };
        let (name, file) = (&self.name, printable_path(Path::new(&self.location)));
        match self.has_new_version() {
            _ if !world.is_first() => Ok(()),
            true if config.hot_reload => {
                let remedy = format!("{name} in the checkpoint fails its trial, so the version that is now in {file} is tried");
                tracing::warn!("{}", followed_by(&error.to_string(), &remedy));
                Ok(())
            }
            _ if terms.allow_changed => {
                let remedy = format!("{name} in the checkpoint fails its trial; going on with it (--allow-changed)");
                tracing::warn!("{}", followed_by(&error.to_string(), &remedy));
                Ok(())
            }
            is_new => {
                let refusal = followed_by(&error.to_string(), &self.advice(origin, is_new));
                Err(Error::unusable(&origin.checkpoint, refusal))
            }
        }
    }

    /// Returns advice on resuming the run.
    fn advice(&self, origin: &CheckpointOrigin, is_new: bool) -> String {
        let (key, resume) = (&self.key, format!("rlhost resume {}", shell_word(&origin.run)));
        if is_new {
            return format!("its file has another version now; `{resume} --set hot_reload=true` takes it in");
        }
        let fix = match PluginFile::parse(&self.location).file().is_file() {
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
