//! What a checkpoint holds, file by file, so that a changed byte is found.

use super::Error;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

pub(super) const MANIFEST: &str = "manifest.json";

/// The contents of a checkpoint.
#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// Its step.
    pub step: u64,
    /// Its files by their path inside, with `/` between names.
    pub files: BTreeMap<String, Entry>,
}

/// One file.
#[derive(Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// Its size.
    pub bytes: u64,
    /// SHA-256 of its bytes, in hexadecimal.
    pub sha256: String,
}

impl Entry {
    fn of(path: &Path) -> io::Result<Self> {
        let (mut file, mut hash) = (File::open(path)?, Sha256::new());
        let mut buffer = vec![0; 1 << 16];
        let mut bytes = 0;
        loop {
            match file.read(&mut buffer)? {
                0 => break,
                n => {
                    hash.update(&buffer[..n]);
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
    /// If there is none, or it is not as it was written, or it is another step's.
    pub fn read(checkpoint: &Path) -> Result<Self, Error> {
        let damaged = |detail: String| Error::Damaged { path: checkpoint.to_owned(), detail };
        let text = fs::read(checkpoint.join(MANIFEST)).map_err(|e| match e.kind() {
            io::ErrorKind::NotFound if checkpoint.is_dir() => damaged(format!("it has no {MANIFEST}: rlhost did not write it")),
            io::ErrorKind::NotFound => damaged("there is no such folder".into()),
            _ => damaged(format!("{MANIFEST}: {e}")),
        })?;
        let manifest: Self = serde_json::from_slice(&text).map_err(|e| damaged(format!("{MANIFEST}: {e}")))?;
        // Nothing sums the manifest itself: one that reads the same but is written otherwise has
        // been changed too.
        if !manifest.text().is_ok_and(|written| written == text) {
            return Err(damaged(format!("{MANIFEST} has changed since it was written")));
        }
        if !checkpoint.ends_with(format!("checkpoint-{}", manifest.step)) {
            return Err(damaged(format!("its manifest is of step {}", manifest.step)));
        }
        Ok(manifest)
    }

    /// Bytes of all files together.
    pub fn bytes(&self) -> u64 {
        self.files.values().map(|entry| entry.bytes).sum()
    }

    fn text(&self) -> serde_json::Result<Vec<u8>> {
        serde_json::to_vec_pretty(self)
    }
}

/// Files below `folder` by their path inside.
fn files(folder: &Path, prefix: &str, into: &mut BTreeMap<String, PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
        if entry.file_type()?.is_dir() {
            files(&entry.path(), &format!("{name}/"), into)?;
            sync_folder(&entry.path())?;
        } else {
            into.insert(name, entry.path());
        }
    }
    Ok(())
}

/// Sums all files, writes the manifest, and has everything on the disk before it returns.
pub(super) fn seal(folder: &Path, step: u64) -> io::Result<()> {
    let mut all = BTreeMap::new();
    files(folder, "", &mut all)?;
    let mut manifest = Manifest { step, files: BTreeMap::new() };
    for (name, path) in all {
        sync_file(&path)?;
        manifest.files.insert(name, Entry::of(&path)?);
    }
    let path = folder.join(MANIFEST);
    fs::write(&path, manifest.text()?)?;
    sync_file(&path)?;
    sync_folder(folder)
}

/// Has a file on the disk. It is opened for writing, without which Windows refuses.
fn sync_file(path: &Path) -> io::Result<()> {
    File::options().write(true).open(path)?.sync_all()
}

/// Has a folder's list of names on the disk, where folders can be opened; on Windows they can't.
pub(super) fn sync_folder(path: &Path) -> io::Result<()> {
    if cfg!(unix) { File::open(path)?.sync_all() } else { Ok(()) }
}

/// Checks every byte of a checkpoint against its manifest.
pub fn verify(checkpoint: &Path) -> Result<Manifest, Error> {
    let manifest = Manifest::read(checkpoint)?;
    let damaged = |detail: String| Error::Damaged { path: checkpoint.to_owned(), detail };
    for (name, wanted) in &manifest.files {
        match Entry::of(&checkpoint.join(name)) {
            Ok(found) if found == *wanted => {}
            Ok(found) if found.bytes != wanted.bytes => {
                return Err(damaged(format!("{name} has {} bytes of {}", found.bytes, wanted.bytes)));
            }
            Ok(_) => return Err(damaged(format!("{name} has changed since it was written"))),
            Err(e) => return Err(damaged(format!("{name}: {e}"))),
        }
    }
    Ok(manifest)
}
