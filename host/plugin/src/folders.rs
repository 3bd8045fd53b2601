//! Folders that the user lets a plugin read. They are read into memory when the plugin is loaded, so the plugin sees contents that can't
//! change during a run, never block, and have a hash.

use crate::config::{files, hex, printable};
use sha2::{Digest, Sha256};
use std::path::Path;
use std::sync::Arc;
use std::{fs, io};

/// Maximum size of all files in a plugin's folders, in bytes.
const LARGEST: u64 = 64 << 20;

/// Maximum number of files and folders in them.
const MOST: usize = 10_000;

/// Deepest nesting of folders.
const DEEPEST: usize = 32;

/// A file, or a folder with its entries' names, in order, and their indices in [`Folders::nodes`].
pub(super) enum FolderNode {
    File(Vec<u8>),
    Folder(Vec<(String, usize)>),
}

/// The folders of one plugin.
pub struct Folders {
    /// All nodes. The first is the root, whose entries are the folders under their given names.
    nodes: Vec<FolderNode>,
    hash: String,
}

impl Folders {
    /// Reads folders, each under its own name.
    ///
    /// # Errors
    /// If a folder can't be read or contains anything but files and folders, or if the folders together are too large.
    pub fn read<'a>(named: impl IntoIterator<Item = (&'a String, &'a String)>) -> Result<Arc<Self>, String> {
        let mut reading = FolderReader { nodes: vec![FolderNode::Folder(Vec::new())], left: LARGEST };
        let mut root = Vec::new();
        for (name, path) in named {
            let wrong = |detail: String| format!("folders.{name}: {detail}");
            root.push((name.clone(), reading.folder(Path::new(path), 0).map_err(wrong)?));
        }
        let mut nodes = reading.nodes;
        nodes[0] = FolderNode::Folder(sorted(root));
        let mut hasher = Sha256::new();
        hash(&nodes, 0, &mut hasher);
        let hash = hex(&hasher.finalize());
        Ok(Arc::new(Self { nodes, hash }))
    }

    /// Returns the hash of all names and contents.
    pub fn hash(&self) -> &str {
        &self.hash
    }

    pub(super) fn node(&self, at: usize) -> Option<&FolderNode> {
        self.nodes.get(at)
    }

    /// Returns the folders' names and indices.
    pub(super) fn roots(&self) -> impl Iterator<Item = (&String, usize)> {
        let root = if let Some(FolderNode::Folder(root)) = self.nodes.first() { Some(root) } else { None };
        root.into_iter().flatten().map(|(name, at)| (name, *at))
    }

    /// Resolves a path relative to a folder.
    ///
    /// # Errors
    /// WASI's error code, if the path does not exist or leads out of the folder.
    pub(super) fn find(&self, from: usize, path: &str) -> Result<usize, &'static str> {
        let (mut at, mut before) = (from, Vec::new());
        if path.starts_with('/') {
            return Err("not-permitted");
        }
        for part in path.split('/') {
            let Some(FolderNode::Folder(entries)) = self.nodes.get(at) else { return Err("not-directory") };
            match part {
                "" | "." => {}
                ".." => at = before.pop().ok_or("not-permitted")?,
                name => {
                    let place = entries.binary_search_by(|(entry, _)| entry.as_str().cmp(name)).map_err(|_| "no-entry")?;
                    before.push(at);
                    at = entries[place].1;
                }
            }
        }
        Ok(at)
    }
}

struct FolderReader {
    nodes: Vec<FolderNode>,
    /// Bytes that the remaining files may take.
    left: u64,
}

impl FolderReader {
    fn folder(&mut self, path: &Path, depth: usize) -> Result<usize, String> {
        let shown = printable(&path.display().to_string(), 500);
        let failed = |e: std::io::Error| format!("can't read {shown}: {e}");
        if depth > DEEPEST {
            return Err(format!("{shown} is more than {DEEPEST} folders deep"));
        }
        let at = self.add(FolderNode::Folder(Vec::new()))?;
        let mut entries = Vec::new();
        for entry in fs::read_dir(path).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let inner = entry.path();
            let shown = printable(&inner.display().to_string(), 500);
            let name = entry.file_name().into_string().map_err(|_| format!("{shown}: its name is not UTF-8"))?;
            let kind = entry.file_type().map_err(failed)?;
            let place = if kind.is_dir() {
                self.folder(&inner, depth + 1)?
            } else if kind.is_file() {
                let bytes = files::read(&inner, self.left).map_err(|e| match e.kind() {
                    io::ErrorKind::InvalidInput => format!("{shown}: {e}; all files together may have {} MiB", LARGEST >> 20),
                    _ => format!("can't read {shown}: {e}"),
                })?;
                self.left -= bytes.len() as u64;
                self.add(FolderNode::File(bytes))?
            } else {
                return Err(format!(
                    "{shown} is neither a file nor a folder; a plugin's folder may hold nothing else, and no links"
                ));
            };
            entries.push((name, place));
        }
        self.nodes[at] = FolderNode::Folder(sorted(entries));
        Ok(at)
    }

    fn add(&mut self, node: FolderNode) -> Result<usize, String> {
        if self.nodes.len() > MOST {
            return Err(format!("it has more than {MOST} files and folders"));
        }
        self.nodes.push(node);
        Ok(self.nodes.len() - 1)
    }
}

fn sorted(mut entries: Vec<(String, usize)>) -> Vec<(String, usize)> {
    entries.sort();
    entries
}

/// Adds a node and everything below it to a hash, in the order of names.
fn hash(nodes: &[FolderNode], at: usize, into: &mut Sha256) {
    match nodes.get(at) {
        Some(FolderNode::File(bytes)) => {
            into.update([1]);
            into.update((bytes.len() as u64).to_le_bytes());
            into.update(bytes);
        }
        Some(FolderNode::Folder(entries)) => {
            into.update([2]);
            into.update((entries.len() as u64).to_le_bytes());
            for (name, at) in entries {
                into.update((name.len() as u64).to_le_bytes());
                into.update(name);
                hash(nodes, *at, into);
            }
        }
        None => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(path: &Path) -> Result<Arc<Folders>, String> {
        let (name, path) = ("words".to_owned(), path.display().to_string());
        Folders::read([(&name, &path)])
    }

    #[test]
    fn paths_stay_in_the_folder_and_the_hash_follows_the_content() {
        let place = tempfile::tempdir().unwrap();
        fs::create_dir_all(place.path().join("a/b")).unwrap();
        fs::write(place.path().join("a/b/c.txt"), "one").unwrap();
        let folders = read(place.path()).unwrap();
        let (name, root) = folders.roots().next().unwrap();
        assert_eq!(name, "words");
        let found = |path: &str| folders.find(root, path).map(|at| folders.node(at));
        for path in ["a/b/c.txt", "./a//b/../b/c.txt"] {
            assert!(matches!(found(path), Ok(Some(FolderNode::File(bytes))) if bytes == b"one"), "{path}");
        }
        let codes = [
            ("..", "not-permitted"),
            ("a/../..", "not-permitted"),
            ("/a", "not-permitted"),
            ("a/x", "no-entry"),
            ("a/b/c.txt/d", "not-directory"),
            ("a/b/c.txt/", "not-directory"),
            ("a/b/c.txt/..", "not-directory"),
        ];
        for (path, code) in codes {
            assert_eq!(found(path).err(), Some(code), "{path}");
        }
        let same = read(place.path()).unwrap();
        assert_eq!(same.hash(), folders.hash());
        fs::write(place.path().join("a/b/c.txt"), "two").unwrap();
        assert_ne!(read(place.path()).unwrap().hash(), folders.hash());
    }

    #[test]
    fn what_is_no_file_and_what_is_too_much_is_refused_by_name() {
        let place = tempfile::tempdir().unwrap();
        assert!(read(&place.path().join("nowhere")).err().unwrap().contains("nowhere"));
        #[cfg(unix)]
        {
            std::os::unix::fs::symlink("/etc/passwd", place.path().join("link")).unwrap();
            assert!(read(place.path()).err().unwrap().contains("link"));
            fs::remove_file(place.path().join("link")).unwrap();
        }
        let mut deep = place.path().to_owned();
        (0..DEEPEST + 2).for_each(|_| deep.push("d"));
        fs::create_dir_all(&deep).unwrap();
        assert!(read(place.path()).err().unwrap().contains("deep"));
        fs::remove_dir_all(place.path().join("d")).unwrap();
        fs::File::create(place.path().join("large")).unwrap().set_len(LARGEST + 1).unwrap();
        assert!(read(place.path()).err().unwrap().contains("large"));
    }
}
