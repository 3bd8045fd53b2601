//! Bytecode of the modules that scripts import, cached on disk: importing a large package from source takes seconds at each start.

use super::Script;
use crate::cache::ensure_private_folder;
use crate::config::{files, hex};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// Minimum size of a script's modules for which caching is worthwhile, in bytes.
const LEAST: usize = 256 << 10;

/// Maximum size of a file, in bytes.
const LARGEST: u64 = 128 << 20;

/// Maximum size of the folder, in bytes.
const ROOM: u64 = 512 << 20;

/// Length of the checksum at the start of a file, in bytes.
const CHECKSUM: usize = 64;

/// The bytecode of a script's modules, if it is known.
pub(crate) struct Bytecode {
    /// Path of the cached file; `None` without a cache.
    file: Option<PathBuf>,
    files: OnceLock<BTreeMap<String, String>>,
}

impl Bytecode {
    /// Reads the cached bytecode of a script's modules for this interpreter. Returns `None` if the modules are few, since those compile in
    /// no time.
    pub(crate) fn load(script: &Script, interpreter: &[u8]) -> Option<Self> {
        if script.modules.values().map(String::len).sum::<usize>() < LEAST {
            return None;
        }
        let file =
            files::cache_folder().map(|cache| cache.join("bytecode")).filter(|folder| ensure_private_folder(folder).is_ok());
        let file = file.map(|folder| folder.join(name(script, interpreter)).with_extension("json"));
        let found = file.as_deref().and_then(read);
        if let Some(file) = file.as_deref().filter(|_| found.is_some()) {
            files::mark_used(file);
        }
        Some(Self { file, files: found.map(OnceLock::from).unwrap_or_default() })
    }

    /// Returns the files with bytecode, if they are known.
    pub(crate) fn files(&self) -> Option<&BTreeMap<String, String>> {
        self.files.get()
    }

    /// Stores the files with bytecode.
    pub(crate) fn keep(&self, found: BTreeMap<String, String>) {
        if let Some(file) = &self.file
            && let Ok(json) = serde_json::to_vec(&found)
        {
            let mut bytes = hex(&Sha256::digest(&json)).into_bytes();
            bytes.extend_from_slice(&json);
            // A cache that is full or read-only only costs time.
            if let Err(e) = files::write_to_cache(&bytes, file, ROOM) {
                tracing::debug!("can't cache {}: {e}", file.display());
            }
        }
        self.files.get_or_init(|| found);
    }
}

/// Returns a file name derived from the modules and the interpreter.
fn name(script: &Script, interpreter: &[u8]) -> String {
    let mut hash = Sha256::new_with_prefix(interpreter);
    for text in script.modules.iter().flat_map(|(path, source)| [path, source]) {
        hash.update(text.len().to_le_bytes());
        hash.update(text);
    }
    hex(&hash.finalize())
}

/// Reads a file with bytecode. Returns `None` if it is damaged.
fn read(file: &Path) -> Option<BTreeMap<String, String>> {
    let bytes = files::read(file, LARGEST).ok()?;
    let (checksum, json) = bytes.split_at_checked(CHECKSUM)?;
    (checksum == hex(&Sha256::digest(json)).as_bytes()).then(|| serde_json::from_slice(json).ok())?
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_damaged_file_is_none_and_few_modules_have_none() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a.json");
        let made = Bytecode { file: Some(file.clone()), files: OnceLock::new() };
        let found = BTreeMap::from([("words.pyc".to_owned(), "eJx=".to_owned())]);
        made.keep(found.clone());
        assert_eq!((made.files(), read(&file)), (Some(&found), Some(found.clone())));
        let whole = fs::read(&file).unwrap();
        for at in [0, CHECKSUM - 1, CHECKSUM + 3, whole.len() - 1] {
            let mut damaged = whole.clone();
            damaged[at] ^= 1;
            fs::write(&file, damaged).unwrap();
            assert_eq!(read(&file), None, "byte {at}");
            fs::write(&file, &whole[..at]).unwrap();
            assert_eq!(read(&file), None, "{at} bytes");
        }
        let modules = BTreeMap::from([("words.py".to_owned(), "x = 1\n".to_owned())]);
        let script = Script { name: "a.py".into(), source: String::new(), function: None, modules };
        assert!(Bytecode::load(&script, b"interpreter").is_none());
    }

    #[test]
    fn another_interpreter_or_module_has_another_name() {
        let script = |path: &str, source: &str| Script {
            name: "a.py".into(),
            source: String::new(),
            function: None,
            modules: [(path.to_owned(), source.to_owned())].into(),
        };
        let one = name(&script("ab", "c"), b"x");
        assert_eq!(one, name(&script("ab", "c"), b"x"));
        for other in [name(&script("ab", "c"), b"y"), name(&script("a", "bc"), b"x"), name(&script("ab", "d"), b"x")] {
            assert_ne!(one, other);
        }
    }
}
