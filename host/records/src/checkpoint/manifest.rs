//! Lists a checkpoint's files with their checksums, so that any changed byte is found.

use super::error::Error;
use super::finite_checker::FiniteChecker;
use crate::activity::{Activity, ProgressTask, ProgressUnit};
use crate::config::{files, printable};
use crate::run::CheckpointFiles;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, FileType};
use std::io::{self, Read};
use std::path::{Component, Path, PathBuf};

/// Maximum size of a manifest in bytes; ours have about a hundred per file.
const LARGEST: u64 = 4 << 20;

/// Files up to this size, in bytes, are compared by checksum before a checkpoint is removed: those that people edit.
const SMALL: u64 = 1 << 20;

/// Maximum length of a printed file name, in bytes.
const SHOWN: usize = 256;

/// The list of a checkpoint's files.
#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// Optimizer step of the checkpoint.
    pub step: u64,
    /// Files by their relative path, with `/` between names.
    pub files: BTreeMap<String, ManifestEntry>,
}

/// The size and checksum of a file.
#[derive(Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ManifestEntry {
    /// Size in bytes.
    pub bytes: u64,
    /// SHA-256 of the contents, in hexadecimal.
    pub sha256: String,
}

impl ManifestEntry {
    fn from_file(path: &Path) -> io::Result<Self> {
        Self::from_file_with(path, |_| {})
    }

    /// Computes the entry of a file, and calls `see` with all of its bytes in order.
    fn from_file_with(path: &Path, mut see: impl FnMut(&[u8])) -> io::Result<Self> {
        let (mut file, mut hash) = (files::open(path)?, Sha256::new());
        let mut buffer = vec![0; 1 << 16];
        let mut bytes = 0;
        loop {
            match file.read(&mut buffer)? {
                0 => break,
                n => {
                    hash.update(&buffer[..n]);
                    see(&buffer[..n]);
                    bytes += n as u64;
                }
            }
        }
        Ok(Self { bytes, sha256: hash.finalize().iter().map(|b| format!("{b:02x}")).collect() })
    }
}

impl Manifest {
    /// Reads the manifest of a checkpoint.
    ///
    /// # Errors
    /// If it is missing, modified, or belongs to another step.
    pub fn read(checkpoint: &Path) -> Result<Self, Error> {
        let damaged = |detail: String| Error::Damaged { path: checkpoint.to_owned(), detail };
        let own = CheckpointFiles::find(checkpoint);
        let named = own.name_of_manifest();
        let text = files::read(&own.manifest(), LARGEST).map_err(|e| match e.kind() {
            io::ErrorKind::NotFound if checkpoint.is_dir() => damaged(format!("it has no {named}: rlhost did not write it")),
            io::ErrorKind::NotFound => damaged("there is no such folder".into()),
            _ => damaged(format!("{named}: {e}")),
        })?;
        let manifest: Self = serde_json::from_slice(&text).map_err(|e| damaged(format!("{named}: {e}")))?;
        // No checksum covers the manifest itself: one that parses the same but has another text was modified too.
        if !manifest.text().is_ok_and(|written| written == text) {
            return Err(damaged(format!("{named} has changed since it was written")));
        }
        if !checkpoint.ends_with(format!("checkpoint-{}", manifest.step)) {
            return Err(damaged(format!("its manifest is from step {}", manifest.step)));
        }
        if let Some(name) = manifest.files.keys().find(|name| !is_inside(name)) {
            return Err(damaged(format!("{named} names {:?}, which is not inside it", printable(name, SHOWN))));
        }
        Ok(manifest)
    }

    /// Returns whether the file at this relative path of a checkpoint is unchanged.
    pub fn has_unchanged(&self, checkpoint: &Path, name: &str) -> bool {
        self.files
            .get(name)
            .is_some_and(|wanted| ManifestEntry::from_file(&checkpoint.join(name)).is_ok_and(|found| found == *wanted))
    }

    /// Returns the total size of all files.
    pub fn bytes(&self) -> u64 {
        self.files.values().fold(0, |sum, entry| sum.saturating_add(entry.bytes))
    }

    /// Checks that all files exist with their sizes, without reading them.
    ///
    /// # Errors
    /// Names the first file that is missing or has another size.
    pub fn check_sizes(&self, checkpoint: &Path) -> Result<(), Error> {
        let damaged = |detail: String| Error::Damaged { path: checkpoint.to_owned(), detail };
        for (name, wanted) in &self.files {
            let found = fs::metadata(checkpoint.join(name)).and_then(|found| files::must_be_file(&found).map(|()| found.len()));
            match found {
                Ok(bytes) if bytes == wanted.bytes => {}
                Ok(bytes) => return Err(damaged(wrong_size(name, bytes, wanted.bytes))),
                Err(e) => return Err(damaged(format!("{name}: {e}"))),
            }
        }
        Ok(())
    }

    /// Describes how a checkpoint differs from what was written, if it does. Compares the names and sizes of all files, and the checksums
    /// of small files and of those modified after the manifest.
    pub(super) fn difference(&self, checkpoint: &Path) -> Option<String> {
        if let Err(Error::Damaged { detail, .. }) = self.check_sizes(checkpoint) {
            return Some(detail);
        }
        let found = match entries(checkpoint) {
            Ok(found) => found,
            Err(e) => return Some(e.to_string()),
        };
        let manifest = CheckpointFiles::find(checkpoint).name_of_manifest();
        let all = self.files.keys().chain([&manifest]);
        let written = |name: &str, of: FileType| match of.is_dir() {
            true => all.clone().any(|file| file.strip_prefix(name).is_some_and(|rest| rest.starts_with('/'))),
            false => of.is_file() && (name == manifest || self.files.contains_key(name)),
        };
        if let Some((name, _)) = found.iter().find(|(name, of)| !written(name, **of)) {
            return Some(format!("it contains {}, which the run did not write", printable(name, SHOWN)));
        }
        // The manifest is written last.
        let modified = |name: &str| fs::metadata(checkpoint.join(name)).and_then(|found| found.modified());
        let sealed = modified(&manifest).ok();
        let touched = |name: &str| modified(name).ok().zip(sealed).is_none_or(|(modified, sealed)| modified > sealed);
        let doubtful = self.files.iter().filter(|(name, wanted)| wanted.bytes <= SMALL || touched(name));
        let changed = doubtful
            .filter(|(name, wanted)| ManifestEntry::from_file(&checkpoint.join(name)).is_ok_and(|found| found != **wanted));
        changed.map(|(name, _)| format!("{name} has changed since it was written")).next()
    }

    fn text(&self) -> serde_json::Result<Vec<u8>> {
        serde_json::to_vec_pretty(self)
    }
}

/// Returns whether a name is the canonical path of a file inside the checkpoint.
fn is_inside(name: &str) -> bool {
    let parts: Option<Vec<&str>> = Path::new(name)
        .components()
        .map(|part| match part {
            Component::Normal(part) => part.to_str(),
            _ => None,
        })
        .collect();
    !name.is_empty() && !name.contains(['\\', ':', '\0']) && parts.is_some_and(|parts| parts.join("/") == name)
}

fn wrong_size(name: &str, found: u64, wanted: u64) -> String {
    format!("{name} has {found} bytes instead of {wanted}")
}

/// Returns the name of a folder, made printable.
fn folder_name(folder: &Path) -> String {
    folder.file_name().map(|name| printable(&name.to_string_lossy(), SHOWN)).unwrap_or_default()
}

/// Returns everything below `folder` by relative path, without following links.
fn entries(folder: &Path) -> io::Result<BTreeMap<String, FileType>> {
    let (mut found, mut left) = (BTreeMap::new(), vec![(folder.to_owned(), String::new())]);
    while let Some((folder, prefix)) = left.pop() {
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            let (name, of) = (format!("{prefix}{}", entry.file_name().to_string_lossy()), entry.file_type()?);
            if of.is_dir() {
                left.push((entry.path(), format!("{name}/")));
            }
            found.insert(name, of);
        }
    }
    Ok(found)
}

/// Hashes all files, writes the manifest, and syncs everything to disk before returning.
pub(super) fn seal(folder: &Path, step: u64) -> io::Result<()> {
    let own = CheckpointFiles::new(folder);
    fs::create_dir_all(own.folder())?;
    let mut manifest = Manifest { step, files: BTreeMap::new() };
    let (subfolders, written): (Vec<_>, Vec<_>) = entries(folder)?.into_iter().partition(|(_, of)| of.is_dir());
    let folders: BTreeSet<PathBuf> = subfolders.into_iter().map(|(name, _)| folder.join(name)).collect();
    let sizes = written.iter().map(|(name, _)| fs::metadata(folder.join(name)).map_or(0, |file| file.len()));
    let named = format!("checkpoint-{step}");
    let task = ProgressTask::new(Activity::Checksumming).with_subject(named).with_total(sizes.sum::<u64>(), ProgressUnit::Bytes);
    for (name, _) in written {
        let path = folder.join(&name);
        sync_file(&path)?;
        let entry = ManifestEntry::from_file_with(&path, |bytes| task.add(bytes.len() as u64))?;
        manifest.files.insert(name, entry);
    }
    fs::write(own.manifest(), manifest.text()?)?;
    sync_file(&own.manifest())?;
    for inner in folders {
        sync_folder(&inner)?;
    }
    sync_folder(folder)
}

/// Syncs a file to disk. Opens it for writing, because Windows requires that.
fn sync_file(path: &Path) -> io::Result<()> {
    File::options().write(true).open(path)?.sync_all()
}

/// Syncs a folder's entries to disk, where folders can be opened; on Windows they can't.
pub(super) fn sync_folder(path: &Path) -> io::Result<()> {
    if cfg!(unix) { File::open(path)?.sync_all() } else { Ok(()) }
}

/// Verifies a checkpoint: every byte against its manifest, that its weights and moments are finite, that it contains nothing but files, and
/// that its model and the files that resuming reads first exist.
///
/// # Errors
/// Says what is wrong with the checkpoint.
pub fn verify(checkpoint: &Path) -> Result<Manifest, Error> {
    let manifest = Manifest::read(checkpoint)?;
    let damaged = |detail: String| Error::Damaged { path: checkpoint.to_owned(), detail };
    for (name, of) in entries(checkpoint).map_err(|e| damaged(e.to_string()))? {
        if !of.is_dir() {
            let file = fs::metadata(checkpoint.join(&name)).and_then(|found| files::must_be_file(&found));
            file.map_err(|e| damaged(format!("{}: {e}", printable(&name, SHOWN))))?;
        }
    }
    manifest.check_sizes(checkpoint)?;
    let task = ProgressTask::new(Activity::VerifyingCheckpoint)
        .with_subject(folder_name(checkpoint))
        .with_total(manifest.bytes(), ProgressUnit::Bytes);
    for (name, wanted) in &manifest.files {
        let path = checkpoint.join(name);
        let mut weights = path.extension().is_some_and(|e| e == "safetensors").then(|| FiniteChecker::open(&path));
        let found = ManifestEntry::from_file_with(&path, |bytes| {
            task.add(bytes.len() as u64);
            if let Some(Ok(weights)) = &mut weights {
                weights.update(bytes);
            }
        });
        match found {
            Ok(found) if found == *wanted => {}
            Ok(_) => return Err(damaged(format!("{name} has changed since it was written"))),
            Err(e) => return Err(damaged(format!("{name}: {e}"))),
        }
        let weights = weights.transpose().map_err(|e| damaged(format!("{name}: {e}")))?;
        if let Some(tensor) = weights.and_then(FiniteChecker::non_finite_tensor) {
            let tensor = printable(&tensor, SHOWN);
            return Err(damaged(format!("{tensor} in {name} is not finite, so it can't be resumed")));
        }
    }
    manifest.check_complete(checkpoint)?;
    Ok(manifest)
}

/// Returns why a folder is not the checkpoint that was written to it.
pub(super) fn difference(checkpoint: &Path) -> Option<String> {
    match Manifest::read(checkpoint) {
        Ok(manifest) => manifest.difference(checkpoint),
        Err(super::Error::Damaged { detail, .. }) => Some(detail),
        Err(other) => Some(other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::activity;

    #[test]
    fn a_manifest_names_files_inside_alone() {
        for good in ["x", "plugins/p.wasm", "a..b", "..."] {
            assert!(is_inside(good), "{good}");
        }
        for bad in ["", "/etc/passwd", "../x", "a/../x", "./x", "a//b", "a/", "a\\b", "C:x", ".."] {
            assert!(!is_inside(bad), "{bad}");
        }
    }

    #[test]
    fn what_is_read_for_checksums_is_shown_in_bytes() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("checkpoint-1");
        fs::create_dir(&folder).unwrap();
        super::super::required_files::write_least(&folder);
        let large = 48 << 20;
        File::create(folder.join("large")).and_then(|file| file.set_len(large)).unwrap();
        let shown = |of: Activity, work: &(dyn Fn() + Sync)| {
            std::thread::scope(|scope| {
                let working = scope.spawn(work);
                let mut seen = Vec::new();
                while !working.is_finished() {
                    let tasks = activity::current().into_iter().filter(|task| task.activity == of && task.total >= Some(large));
                    seen.extend(tasks.map(|task| (task.done, task.subject, task.unit)));
                }
                seen
            })
        };
        let saved = shown(Activity::Checksumming, &|| seal(&folder, 1).unwrap());
        let verified = shown(Activity::VerifyingCheckpoint, &|| drop(verify(&folder).unwrap()));
        for seen in [saved, verified] {
            let moved = seen.iter().any(|(done, ..)| (1..large).contains(done));
            assert!(moved && seen.iter().all(|(_, subject, unit)| (&**subject, *unit) == ("checkpoint-1", ProgressUnit::Bytes)));
        }
    }

    #[test]
    fn a_large_file_that_was_edited_in_place_differs() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("checkpoint-1");
        fs::create_dir(&folder).unwrap();
        let bytes = vec![7; SMALL as usize + 1];
        fs::write(folder.join("model.safetensors"), &bytes).unwrap();
        seal(&folder, 1).unwrap();
        let manifest = Manifest::read(&folder).unwrap();
        assert_eq!(manifest.difference(&folder), None);
        let later = std::time::SystemTime::now() + std::time::Duration::from_secs(9);
        let write = |bytes: &[u8]| {
            fs::write(folder.join("model.safetensors"), bytes).unwrap();
            let file = File::options().write(true).open(folder.join("model.safetensors")).unwrap();
            file.set_modified(later).unwrap();
        };
        // A copy with the same bytes is unchanged.
        write(&bytes);
        assert_eq!(manifest.difference(&folder), None);
        write(&[&bytes[1..], &[8]].concat());
        assert_eq!(manifest.difference(&folder).as_deref(), Some("model.safetensors has changed since it was written"));
    }
}
