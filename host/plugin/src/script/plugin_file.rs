//! Reads scripts from files.

use super::imports;
use super::packages;
use super::section;
use super::text::text;
use super::{Language, Script};
use crate::config::ScriptPath;
use crate::files::{LARGEST, read_file};
use std::io;
use std::path::{Path, PathBuf};

/// Location of a plugin's bytes: a component's file; or a script's, with the function that is the plugin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PluginFile {
    file: PathBuf,
    is_script: bool,
    function: Option<String>,
}

impl PluginFile {
    /// Parses a location as written in the configuration: a path, or for a script `FILE:FUNCTION`.
    #[must_use]
    pub fn parse(location: &str) -> Self {
        match ScriptPath::parse(location) {
            // A file may have any name.
            Some(script) if !(script.function.is_some() && Path::new(location).is_file()) => {
                Self { file: script.file.into(), is_script: true, function: script.function.map(str::to_owned) }
            }
            _ => Self { file: location.into(), is_script: false, function: None },
        }
    }

    /// Returns the path of the file.
    #[must_use]
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// Returns whether the file is a script.
    #[must_use]
    pub fn is_script(&self) -> bool {
        self.is_script
    }

    /// Returns the location with an absolute path, for a process whose working folder may change.
    #[must_use]
    pub fn absolute(self) -> Self {
        Self { file: std::path::absolute(&self.file).unwrap_or(self.file), ..self }
    }

    /// Reads the plugin's bytes: those of the file; or a component with the script and the neighbouring files that it imports.
    ///
    /// # Errors
    /// If a file can't be read, is larger than a plugin may be, or a script is not text.
    pub fn read(&self) -> io::Result<Vec<u8>> {
        if !self.is_script {
            return read_file(&self.file);
        }
        let bytes = section::write(&self.script()?, None);
        if bytes.len() as u64 > LARGEST {
            let (has, most) = (bytes.len() >> 20, LARGEST >> 20);
            return Err(io::Error::other(format!("it has {has} MiB with all that it imports; the limit is {most} MiB")));
        }
        Ok(bytes)
    }

    /// Reads the script.
    fn script(&self) -> io::Result<Script> {
        let source = text(&self.file)?;
        let name = self.file.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let language = Language::from_file_name(&name);
        let others = if language == Language::Python { packages::folders(&source)? } else { Vec::new() };
        let mut modules = imports::modules(&self.file, &source, language, &others)?;
        modules.extend(packages::metadata(&others));
        Ok(Script { name, source, function: self.function.clone(), modules })
    }

    /// Returns the files that [`read`](Self::read) reads, as far as they can be read; for a script only those in its folder, since packages
    /// don't change.
    #[must_use]
    pub fn files(&self) -> Vec<PathBuf> {
        let folder = self.file.parent().unwrap_or(Path::new(""));
        let language = Language::from_file_name(&self.file.to_string_lossy());
        let source = self.is_script.then(|| text(&self.file).ok()).flatten();
        let modules = source.and_then(|source| imports::modules(&self.file, &source, language, &[]).ok()).unwrap_or_default();
        std::iter::once(self.file.clone()).chain(modules.into_keys().map(|path| folder.join(path))).collect()
    }
}
