//! Caches compiled plugins on disk, by rlhost version and processor.
//!
//! Compiled code is run without further checks, so a file is used only if its folder belongs exclusively to this user and its checksum
//! matches.
#![expect(unsafe_code, reason = "wasmtime can't check that it produced the code it is given")]

use super::code::{CompiledCode, LARGEST_FILE};
use super::wrap;
use crate::config::files::{self, is_open_to_others, owner};
use crate::config::hex;
use sha2::{Digest, Sha256};
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::path::{Path, PathBuf};
use wasmtime::Engine;
use wasmtime::component::Component;

/// Maximum size of the folder in bytes; beyond it, the least recently used files are removed.
const ROOM: u64 = 1 << 30;

const EXTENSION: &str = "cwasm";

/// Version of the files' layout. Files with an earlier version are not read.
const LAYOUT: u32 = 2;

/// A folder of compiled plugins.
#[derive(Clone, Debug)]
pub(super) struct CompilationCache {
    folder: PathBuf,
    /// Owner whose files are trusted, on systems where files have owners.
    user: Option<u32>,
}

impl CompilationCache {
    /// Opens or creates the folder, in `RLHOST_CACHE_DIR` or the user's cache directory. Returns `None` if that fails or others
    /// can write to it.
    pub(super) fn open() -> Option<Self> {
        let folder = files::cache_folder()?.join("compiled");
        match ensure_private_folder(&folder) {
            Ok(user) => Some(Self { folder, user }),
            Err(e) => {
                tracing::debug!("no cache of compiled plugins: {}: {e}", folder.display());
                None
            }
        }
    }

    /// Returns the path under which the compiled form of these bytes is cached.
    pub(super) fn file(&self, engine: &Engine, bytes: &[u8]) -> PathBuf {
        self.folder.join(name(engine, bytes)).with_extension(EXTENSION)
    }

    /// Returns the cached code and its component if they exist and are intact.
    pub(super) fn load(&self, engine: &Engine, file: &Path) -> Option<(CompiledCode, Component)> {
        let opened = files::open(file).ok()?;
        if owner(&opened.metadata().ok()?) != self.user {
            tracing::debug!("{} belongs to another user", file.display());
            return None;
        }
        let code = CompiledCode::parse(files::read_limited(opened, LARGEST_FILE).ok()?);
        let Some(kept) = code.and_then(|code| component(engine, &code).map(|component| (code, component))) else {
            tracing::debug!("{} is damaged", file.display());
            return None;
        };
        files::mark_used(file);
        Some(kept)
    }

    /// Caches compiled code, atomically.
    pub(super) fn store(&self, code: &CompiledCode, file: &Path) -> io::Result<()> {
        files::write_to_cache(code.as_bytes(), file, ROOM)
    }
}

/// Returns a file name derived from the bytes, the compiler and the processor.
fn name(engine: &Engine, bytes: &[u8]) -> String {
    let mut compiler = DefaultHasher::new();
    engine.precompile_compatibility_hash().hash(&mut compiler);
    env!("CARGO_PKG_VERSION").hash(&mut compiler);
    LAYOUT.hash(&mut compiler);
    if wrap::is_core(bytes) {
        wrap::made_with().hash(&mut compiler);
    }
    let hash = hex(&Sha256::digest(bytes));
    format!("{hash}-{:016x}", compiler.finish())
}

/// Loads the component from compiled code that this program wrote.
pub(super) fn component(engine: &Engine, code: &CompiledCode) -> Option<Component> {
    // SAFETY: this program wrote it, in a folder that only this user can write to, or to another process of its own.
    unsafe { Component::deserialize(engine, code.code()) }.ok()
}

/// Creates a folder that only this user can access, or checks that an existing one is private. Returns its owner.
pub(super) fn ensure_private_folder(folder: &Path) -> io::Result<Option<u32>> {
    if let Some(parent) = folder.parent() {
        fs::create_dir_all(parent)?;
    }
    #[cfg_attr(not(unix), allow(unused_mut))]
    let mut builder = fs::DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    match builder.create(folder) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
        _ => {}
    }
    let there = fs::symlink_metadata(folder)?;
    // A new file belongs to the user of this process.
    let user = owner(&tempfile::NamedTempFile::new_in(folder)?.as_file().metadata()?);
    if !there.is_dir() || owner(&there) != user || is_open_to_others(&there) {
        return Err(io::Error::other("it is not a folder that only this user can open"));
    }
    Ok(user)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::code::CHECKSUM;
    use crate::compiler::Compiler;
    use crate::config::PluginLimits;
    use crate::configuration::{CompileEffort, configuration};

    const COMPONENT: &[u8] = b"(component)";

    fn cache(folder: &Path) -> CompilationCache {
        CompilationCache { user: ensure_private_folder(folder).unwrap(), folder: folder.to_path_buf() }
    }

    fn files_in(folder: &Path) -> Vec<PathBuf> {
        fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect()
    }

    #[test]
    fn a_damaged_file_is_none() {
        let place = tempfile::tempdir().unwrap();
        let engine = Engine::new(&configuration(CompileEffort::Full)).unwrap();
        let cache = cache(&place.path().join("compiled"));
        let bytes = wat::parse_bytes(COMPONENT).unwrap();
        let file = cache.file(&engine, &bytes);
        assert!(cache.load(&engine, &file).is_none());
        let compiler = Compiler::new(1);
        let whole = compiler.compile(&bytes, CompileEffort::Full, &PluginLimits::default()).unwrap();
        cache.store(&whole, &file).unwrap();
        assert_eq!((files_in(&cache.folder), fs::read(&file).unwrap()), (vec![file.clone()], whole.as_bytes().to_vec()));
        assert!(cache.load(&engine, &file).is_some());
        let whole = whole.as_bytes();
        for (place, length) in [(0, whole.len()), (CHECKSUM, whole.len()), (whole.len() - 1, whole.len()), (0, 7), (0, 0)] {
            let mut damaged = whole[..length].to_vec();
            damaged.get_mut(place).into_iter().for_each(|byte| *byte ^= 1);
            fs::write(&file, &damaged).unwrap();
            assert!(cache.load(&engine, &file).is_none(), "{place} of {length}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn a_pipe_in_place_of_a_file_is_none() {
        let place = tempfile::tempdir().unwrap();
        let engine = Engine::new(&configuration(CompileEffort::Full)).unwrap();
        let cache = cache(&place.path().join("compiled"));
        let file = cache.file(&engine, b"any");
        assert!(std::process::Command::new("mkfifo").arg(&file).status().unwrap().success());
        assert!(cache.load(&engine, &file).is_none());
    }

    #[cfg(unix)]
    #[test]
    fn a_folder_that_others_may_enter_is_not_used() {
        use std::os::unix::fs::PermissionsExt;
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("compiled");
        ensure_private_folder(&folder).unwrap();
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o770)).unwrap();
        assert!(ensure_private_folder(&folder).is_err());
        let link = place.path().join("link");
        std::os::unix::fs::symlink(place.path(), &link).unwrap();
        assert!(ensure_private_folder(&link).is_err());
    }
}
