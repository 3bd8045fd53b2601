//! The lock of a run's folder, which the process that runs the run holds, and the folder's location during the run.

use super::RunFiles;
use crate::config::{files, printable_path};
use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

/// The locks of a run's folder, released on drop.
#[derive(Debug)]
pub struct RunLock {
    _file: File,
    /// The folder itself, where folders can be opened. It is locked too, since anyone can remove the lock file.
    #[cfg_attr(not(target_os = "linux"), allow(dead_code))]
    folder: Option<File>,
}

/// The location of a running run's folder.
#[derive(Debug, PartialEq, Eq)]
pub enum Whereabouts {
    /// The folder is at its old path, as far as can be determined.
    Unchanged,
    /// The folder was renamed.
    Moved(PathBuf),
    /// The folder was removed.
    Gone,
}

/// Locks a run's folder. Where files can't be locked, warns and returns the folder unlocked.
///
/// # Errors
/// `WouldBlock` if another process runs the run.
pub fn lock(run: &Path) -> Result<RunLock, TryLockError> {
    let file = files::open_for_writing(&RunFiles(run).lock(), File::options().write(true)).map_err(TryLockError::Error)?;
    match file.try_lock() {
        Err(TryLockError::Error(error)) if lacks_locks(&error) => {
            let folder = printable_path(run);
            tracing::warn!("{folder}: its filesystem has no file locks, so another run in this folder would not be noticed");
        }
        tried => tried?,
    }
    let folder = open_folder(run);
    // Some filesystems lock files but not folders.
    if let Some(Err(TryLockError::WouldBlock)) = folder.as_ref().map(File::try_lock) {
        return Err(TryLockError::WouldBlock);
    }
    Ok(RunLock { _file: file, folder })
}

/// Opens a folder, where that is possible.
fn open_folder(run: &Path) -> Option<File> {
    if cfg!(unix) { File::open(run).ok() } else { None }
}

impl RunLock {
    /// Returns the location of the folder that was locked at this path.
    #[cfg(target_os = "linux")]
    pub fn whereabouts(&self, path: &Path) -> Whereabouts {
        use std::os::fd::AsRawFd;
        use std::os::unix::ffi::OsStrExt;
        use std::os::unix::fs::MetadataExt;
        let identity = |found: &std::fs::Metadata| (found.dev(), found.ino());
        let Some((folder, own)) = self.folder.as_ref().and_then(|folder| Some((folder, identity(&folder.metadata().ok()?))))
        else {
            return Whereabouts::Unchanged;
        };
        match std::fs::metadata(path) {
            Ok(found) if identity(&found) != own => {}
            Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {}
            // A folder whose location can't be determined counts as not renamed.
            _ => return Whereabouts::Unchanged,
        }
        let Ok(now) = std::fs::read_link(format!("/proc/self/fd/{}", folder.as_raw_fd())) else {
            return Whereabouts::Unchanged;
        };
        let is_there = std::fs::metadata(&now).is_ok_and(|found| identity(&found) == own);
        if is_there && std::path::absolute(path).is_ok_and(|path| path != now) {
            Whereabouts::Moved(now)
        } else if !is_there && now.as_os_str().as_bytes().ends_with(b" (deleted)") {
            Whereabouts::Gone
        } else {
            Whereabouts::Unchanged
        }
    }

    /// Returns the location of the folder that was locked at this path: the path itself, since only Linux reports the path of an open
    /// folder.
    #[cfg(not(target_os = "linux"))]
    pub fn whereabouts(&self, _path: &Path) -> Whereabouts {
        Whereabouts::Unchanged
    }
}

/// Returns whether an error means that a filesystem has no locks, rather than that locking failed.
fn lacks_locks(error: &io::Error) -> bool {
    // Network filesystems whose server has no locks return ENOLCK.
    #[cfg(unix)]
    const NUMBERS: [i32; 3] = [libc::ENOSYS, libc::EOPNOTSUPP, libc::ENOLCK];
    #[cfg(not(unix))]
    const NUMBERS: [i32; 0] = [];
    error.kind() == io::ErrorKind::Unsupported || error.raw_os_error().is_some_and(|number| NUMBERS.contains(&number))
}

/// Returns whether a process runs the run in this folder; `None` if that can't be determined.
pub fn is_running(run: &Path) -> Option<bool> {
    // Shared locks, so that two concurrent checks don't mistake each other for the run.
    if let Some(Err(TryLockError::WouldBlock)) = open_folder(run).as_ref().map(File::try_lock_shared) {
        return Some(true);
    }
    match files::open(&RunFiles(run).lock()).ok()?.try_lock_shared() {
        Ok(()) => Some(false),
        Err(TryLockError::WouldBlock) => Some(true),
        Err(TryLockError::Error(_)) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_running_while_its_lock_is_held() {
        let run = tempfile::tempdir().unwrap();
        assert_eq!(is_running(run.path()), None);
        let held = lock(run.path()).unwrap();
        assert_eq!(is_running(run.path()), Some(true));
        assert!(matches!(lock(run.path()), Err(TryLockError::WouldBlock)));
        drop(held);
        assert_eq!(is_running(run.path()), Some(false));
    }

    #[cfg(unix)]
    #[test]
    fn a_lock_outlives_its_file() {
        let run = tempfile::tempdir().unwrap();
        let held = lock(run.path()).unwrap();
        std::fs::remove_file(RunFiles(run.path()).lock()).unwrap();
        assert_eq!(is_running(run.path()), Some(true));
        assert!(matches!(lock(run.path()), Err(TryLockError::WouldBlock)));
        // That attempt created another file, which nobody has locked.
        assert_eq!(is_running(run.path()), Some(true));
        drop(held);
        assert_eq!(is_running(run.path()), Some(false));
        drop(lock(run.path()).unwrap());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_folder_is_found_where_it_was_moved() {
        let place = tempfile::tempdir().unwrap();
        let place = place.path().canonicalize().unwrap();
        let [run, other] = ["run", "other"].map(|name| place.join(name));
        std::fs::create_dir(&run).unwrap();
        let held = lock(&run).unwrap();
        assert_eq!(held.whereabouts(&run), Whereabouts::Unchanged);
        std::fs::rename(&run, &other).unwrap();
        assert_eq!(held.whereabouts(&run), Whereabouts::Moved(other.clone()));
        // Another folder at the old path is not mistaken for it.
        std::fs::create_dir(&run).unwrap();
        assert_eq!(held.whereabouts(&run), Whereabouts::Moved(other.clone()));
        assert_eq!(held.whereabouts(&other), Whereabouts::Unchanged);
        std::fs::remove_dir_all(&other).unwrap();
        assert_eq!(held.whereabouts(&other), Whereabouts::Gone);
    }

    #[cfg(unix)]
    #[test]
    fn a_filesystem_without_locks_is_told_from_one_that_fails() {
        for number in [libc::ENOSYS, libc::EOPNOTSUPP, libc::ENOLCK] {
            assert!(lacks_locks(&io::Error::from_raw_os_error(number)), "{number}");
        }
        assert!(lacks_locks(&io::ErrorKind::Unsupported.into()));
        for number in [libc::EIO, libc::EACCES, libc::EWOULDBLOCK] {
            assert!(!lacks_locks(&io::Error::from_raw_os_error(number)), "{number}");
        }
    }
}
