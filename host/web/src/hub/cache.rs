//! Folders of the cache, in the layout of `huggingface_hub`: contents by hash in `blobs`, links to them in `snapshots/COMMIT`, and in
//! `refs` the commit at which a branch was last seen.

use super::listing::RepoListing;
use super::model_files::{BESIDE_WEIGHTS, HubShardIndex, INDEX, SMALL, WEIGHTS};
use super::name::Repo;
use super::{Error, HubSettings, Result};
use crate::config::{files, is_hidden};
use std::fs::{File, TryLockError};
use std::path::{Component, Path, PathBuf};

pub(super) struct HubCache {
    root: PathBuf,
    locks: PathBuf,
}

/// Maximum length of a file's path in a repository, in bytes.
const LONGEST_NAME: usize = 512;

/// Returns whether a file's path, which is untrusted, stays inside its folder and has no hidden characters.
pub(super) fn is_inside(file: &str) -> bool {
    !file.is_empty()
        && file.len() <= LONGEST_NAME
        && !file.contains('\\')
        && !file.chars().any(is_hidden)
        && file.split('/').all(|part| !part.is_empty())
        && Path::new(file).components().all(|c| matches!(c, Component::Normal(_)))
}

/// Returns whether an untrusted text can be the hash of a commit or of a content.
pub(super) fn is_hash(text: &str) -> bool {
    (8..=128).contains(&text.len()) && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '-')
}

/// Returns whether a revision is the full hash of a commit, which no branch has as its name.
fn is_commit(revision: &str) -> bool {
    revision.len() == 40 && revision.chars().all(|c| c.is_ascii_hexdigit())
}

fn io(path: &Path) -> impl Fn(std::io::Error) -> Error {
    move |source| Error::Io { path: path.to_owned(), source }
}

/// Creates the folder of a file.
fn folder_of(path: &Path) -> Result<()> {
    let folder = path.parent().unwrap_or(path);
    std::fs::create_dir_all(folder).map_err(io(folder))
}

/// Opens a regular file of the cache for appending; creates it if necessary. Symbolic links and pipes are rejected.
pub(super) fn append(path: &Path) -> Result<File> {
    if path.symlink_metadata().is_ok_and(|is| !is.is_file()) {
        return Err(io(path)(std::io::Error::other("it is not a regular file; remove it")));
    }
    File::options().create(true).append(true).read(true).open(path).map_err(io(path))
}

impl HubCache {
    pub(super) fn new(settings: &HubSettings, repo: &Repo) -> Self {
        Self { root: settings.cache.join(repo.folder()), locks: settings.cache.join(".locks").join(repo.folder()) }
    }

    /// Returns the folder with a commit's files.
    pub(super) fn snapshot(&self, commit: &str) -> PathBuf {
        self.root.join("snapshots").join(commit)
    }

    /// Returns the file of a content.
    pub(super) fn blob(&self, hash: &str) -> PathBuf {
        self.root.join("blobs").join(hash)
    }

    /// Returns whether the cache holds a commit's complete model.
    pub(super) fn has_model(&self, listing: &RepoListing) -> bool {
        let beside = BESIDE_WEIGHTS.iter().all(|(file, needed)| !needed || listing.has(file));
        let index = files::read_text(&self.snapshot(&listing.commit).join(INDEX), SMALL);
        let weights = match index.ok().and_then(|text| serde_json::from_str::<HubShardIndex>(&text).ok()) {
            Some(index) => index.weight_map.values().all(|shard| listing.has(shard)),
            None => listing.has(WEIGHTS) && !listing.has(INDEX),
        };
        beside && weights
    }

    /// Returns what the cache holds of a revision.
    pub(super) fn listing(&self, revision: &str) -> Option<RepoListing> {
        let commit = if is_commit(revision) {
            revision.to_owned()
        } else {
            files::read_text(&self.root.join("refs").join(revision), 1 << 10).ok()?.trim().to_owned()
        };
        if !is_hash(&commit) {
            return None;
        }
        let folder = self.snapshot(&commit);
        let mut files = Vec::new();
        let mut left = vec![String::new()];
        while let Some(below) = left.pop() {
            for entry in folder.join(&below).read_dir().ok()?.filter_map(std::result::Result::ok) {
                let Ok(name) = entry.file_name().into_string() else { continue };
                let file = if below.is_empty() { name } else { format!("{below}/{name}") };
                // Dangling links are neither, and links to folders may form loops.
                if entry.file_type().is_ok_and(|is| is.is_dir()) {
                    left.push(file);
                } else if entry.path().is_file() {
                    files.push(file);
                }
            }
        }
        files.sort_unstable();
        (!files.is_empty()).then_some(RepoListing { commit, files, fresh: false })
    }

    /// Records the commit of a branch or tag.
    pub(super) fn remember(&self, revision: &str, commit: &str) -> Result<()> {
        let path = self.root.join("refs").join(revision);
        if is_commit(revision) || files::read_text(&path, 1 << 10).is_ok_and(|known| known == commit) {
            return Ok(());
        }
        folder_of(&path)?;
        let mut beside = tempfile::NamedTempFile::new_in(path.parent().unwrap_or(&self.root)).map_err(io(&path))?;
        std::io::Write::write_all(&mut beside, commit.as_bytes()).map_err(io(&path))?;
        beside.persist(&path).map_err(|e| io(&path)(e.error))?;
        Ok(())
    }

    /// Locks a content, so that no other process downloads it meanwhile; waits for one that does.
    pub(super) fn lock(&self, hash: &str, file: &str) -> Result<File> {
        let path = self.locks.join(format!("{hash}.lock"));
        folder_of(&path)?;
        folder_of(&self.blob(hash))?;
        let lock = append(&path)?;
        match lock.try_lock() {
            Err(TryLockError::WouldBlock) => {
                tracing::info!("waiting for another process that is downloading {file}");
                lock.lock().map_err(io(&path))?;
            }
            // Some network file systems have no locks; the hash detects what two processes wrote.
            Ok(()) | Err(TryLockError::Error(_)) => {}
        }
        Ok(lock)
    }

    /// Links a content as a file of a commit.
    pub(super) fn link(&self, hash: &str, commit: &str, file: &str) -> Result<PathBuf> {
        let path = self.snapshot(commit).join(file);
        folder_of(&path)?;
        // A dangling link may be left at this path.
        let _ = std::fs::remove_file(&path);
        #[cfg(unix)]
        {
            let up = "../".repeat(file.matches('/').count() + 2);
            std::os::unix::fs::symlink(format!("{up}blobs/{hash}"), &path).map_err(io(&path))?;
        }
        #[cfg(not(unix))]
        std::fs::copy(self.blob(hash), &path).map_err(io(&path))?;
        Ok(path)
    }
}
