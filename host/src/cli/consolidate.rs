//! `rlhost checkpoint consolidate`: joins the parts of a checkpoint that several processes wrote.

use super::failure::CommandFailure;
use crate::checkpoint::{self, Manifest};
use crate::model;
use crate::run::{RunFiles, RunLock, lock};
use anyhow::anyhow;
use std::collections::BTreeMap;
use std::fs::{self, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

/// The index of a model in several files.
const INDEX: &str = "model.safetensors.index.json";

/// Joins the parts of these checkpoints in place.
pub(super) fn run(checkpoints: &[PathBuf]) -> Result<(), CommandFailure> {
    for folder in checkpoints {
        let _lock = locked(folder)?;
        let manifest = Manifest::read(folder).map_err(CommandFailure::from_error)?;
        let joined = JoinedFiles::from_manifest(&manifest);
        if joined.files.is_empty() {
            say!("{}: every file of it is whole", folder.display());
            continue;
        }
        checkpoint::replace(folder, |manifest, to| joined.write(manifest, folder, to)).map_err(CommandFailure::from_error)?;
        let parts: usize = joined.files.values().map(Vec::len).sum();
        say!("{}: {parts} files joined into {}", folder.display(), joined.files.len());
    }
    Ok(())
}

/// Locks the run of a checkpoint, if the checkpoint is in a run's folder.
fn locked(folder: &Path) -> Result<Option<RunLock>, CommandFailure> {
    let folder = std::path::absolute(folder).map_err(|e| CommandFailure::mistake(anyhow!("{}: {e}", folder.display())))?;
    let Some(run) = folder.parent().filter(|run| RunFiles(run).lock().is_file()) else { return Ok(None) };
    lock(run).map(Some).map_err(|error| match error {
        TryLockError::WouldBlock => {
            CommandFailure::mistake(anyhow!("{} is running; consolidate its checkpoints once it has ended", run.display()))
        }
        TryLockError::Error(error) => CommandFailure::failed(anyhow!("{}: {error}", RunFiles(run).lock().display())),
    })
}

/// Files of a checkpoint that are joined from parts.
struct JoinedFiles {
    /// The parts of each new file, by their paths in the checkpoint.
    files: BTreeMap<String, Vec<String>>,
}

impl JoinedFiles {
    fn from_manifest(manifest: &Manifest) -> Self {
        let mut files = BTreeMap::<String, Vec<String>>::new();
        for name in manifest.files.keys() {
            let (folder, file) = name.rsplit_once('/').map_or(("", name.as_str()), |(folder, file)| (folder, file));
            if let Some(whole) = model::joined_name(file) {
                let place = if folder.is_empty() { whole } else { format!("{folder}/{whole}") };
                files.entry(place).or_default().push(name.clone());
            }
        }
        Self { files }
    }

    /// Returns whether a file is obsolete once the new files exist, because it is a part or an index of parts.
    fn replaces(&self, name: &str) -> bool {
        let is_index =
            || name.strip_suffix(INDEX).is_some_and(|folder| self.files.contains_key(&format!("{folder}model.safetensors")));
        self.files.values().flatten().any(|part| part == name) || is_index()
    }

    /// Writes all files of a checkpoint into a new folder. Unchanged files are hard links where the file system supports them.
    fn write(&self, manifest: &Manifest, from: &Path, to: &Path) -> Result<(), String> {
        let text = |name: &str, e: io::Error| format!("{name}: {e}");
        let place = |name: &str| {
            let path = to.join(name);
            path.parent().map_or(Ok(()), fs::create_dir_all).map(|()| path).map_err(|e| text(name, e))
        };
        for name in manifest.files.keys().filter(|name| !self.replaces(name)) {
            let (own, new) = (from.join(name), place(name)?);
            fs::hard_link(&own, &new).or_else(|_| fs::copy(&own, &new).map(drop)).map_err(|e| text(name, e))?;
        }
        for (name, parts) in &self.files {
            let parts: Vec<PathBuf> = parts.iter().map(|part| from.join(part)).collect();
            model::join_files(&parts, &place(name)?).map_err(|e| e.to_string())?;
        }
        Ok(())
    }
}
